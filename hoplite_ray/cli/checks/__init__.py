"""Check a machine and its cluster, and name the next step for each trouble.

`machine` has the checks that need no cluster, `members` those of the nodes, `finding` is the result
of one check, and `doctor` is the command that makes them all. Start with `doctor`. The room uses
`hoplite_ray.cli.cluster` and the options in `hoplite_ray.config`.
"""
