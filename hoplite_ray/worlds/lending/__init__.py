"""Memory that processes of one machine share, so that an array is sent without a copy.

The room owns the slabs that `World.alloc` hands out, the connections by which their descriptors
travel, and the account of which process may still read which slab. It may use `handshake` and
`core`. Start at the docstring of `loans`.
"""
