"""The tools that all rooms of worlds use: waiting, arrays, argument checks, the order of sends.

The room uses no other room of this package, and knows no member, edge or socket. Start at
`waiting`, which says how an operation is written once for coroutines and for threads.
"""
