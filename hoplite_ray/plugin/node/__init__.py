"""The node process of this Ray node: where it lives, how it starts, and where it listens.

The room may use seams/ and the modules of `hoplite_ray` that need no Ray.
It knows neither jobs nor handles: the options that the cluster has fixed come as an argument.
Start with `ensure_node` in start.py; agreement.py fixes the options.
"""
