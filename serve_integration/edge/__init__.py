"""An edge: the calls between two replicas, over a world of two.

This room opens edges, carries calls, replies and errors over them, and packs values into frames.
It knows of no stage, query or replica: a value goes in at one end and comes out at the other.
It may use `hoplite_ray.worlds` and this package's `metrics`, and no other room.
Start with `edge.py`; `protocol.py` is pure and says what each message means, and `frames.py` has
the format of a frame.
"""
