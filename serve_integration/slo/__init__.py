"""Promised latency: profiles of stages, and plans that keep an objective.

This room measures how long a stage's batches take, chooses caps and replicas for an objective, and
says which latency and miss rate to expect at each rate. It may use the rooms `graph`, `stages` and
`routing`, and this package's `errors`.
Start with `contract.py`, `objective.py` and `search.py`. `profile.py` is the measured data,
`queueing.py` the application under virtual time, `profiling.py` the only module that needs Ray.
Source: Vortex 5.2 and 8; InferLine, for a planner that simulates.
"""
