"""Keep one view of the members on all nodes: its proposal and its commit.

`membership` is one node's part in it; `view_store` commits a view, in Ray's key-value store or by a
vote of the members. Start with `membership`. The room uses the files of `hoplite_ray.control`, and
nothing of `hoplite_ray.control.service`.
"""
