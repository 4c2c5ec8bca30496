"""Every contact with Ray, in rooms: each room imports from itself and from rooms below it.

hooks           Ray calls this package here: ray.init, the start of a worker, Ray's tables
tables          `Table`: keys with versions, over the machines of hoplite_ray/tables
surface         the functions that users call
steward         the actor of each Ray node: anchors, pending reduces and gathers, the dead
direct          Ray Direct Transport: the transports `hoplite` and `hoplite_numpy`
groups          collective groups, and the meeting place of worlds
handle          `Array`, which travels in Ray's objects in place of a value's bytes
process         one process's attachment to its node, and what the process owns
steward_client  how a process reaches a steward, and starts one
node            the node process of a Ray node: its place, its start, its rails
seams           private names of Ray, each behind one function

The `__init__.py` of a room says where to start there. tests/house/rooms.py checks the order.
array.py and collecting.py are names that pickles on disk have. `hoplite_ray` imports this package
on the first use of a name.
"""
