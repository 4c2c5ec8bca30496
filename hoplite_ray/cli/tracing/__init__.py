"""Show the life of one object over all nodes.

`history` collects what each node remembers and places it on one clock; `trace` prints it as a table
and as time lines. Start with `trace`. The room uses `hoplite_ray.cli.cluster`.
"""
