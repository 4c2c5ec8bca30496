"""Routing: which replica of the next stage answers a query.

This room learns from Serve which replicas run, keeps an edge to each of them, chooses one for each
query, and sends the query again when that replica dies. Values for several stages go by the store.
It may use the room `edge`, and this package's `metrics` and `seams`.
Start with `outlet.py`. `query.py` is what travels; `choice.py` and `affinity.py` are pure and
decide which replica.
"""
