"""Find the nodes of a cluster, ask them all at once, and lay their answers out.

`places` finds the nodes, `survey` asks them, and `tables` aligns what a command prints. Start with
`places`. The room uses `hoplite_ray.control` and the errors; every other room of the command uses
this one.
"""
