"""How a process reaches the steward of a Ray node, and starts one.

The room may use node/ and seams/.
It knows the steward's name and its methods, and never its class: the actor loads its duties by name
in its own process.
So the modules of the steward may import those of its callers, and the two form no cycle.
Start with `steward_of` in client.py.
"""
