"""Promised latency: profiles of stages, plans that keep an objective, and scaling ahead.

This room measures how long a stage's batches take, chooses caps and replicas for an objective, says
which latency and miss rate to expect at each rate, and scales stages ahead of their queries. It may
use the rooms `placement`, `graph`, `stages` and `routing`, and this package's `errors`.
Start with `contract.py`, `objective.py` and `search.py`. `profile.py` is the measured data,
`queueing.py` the application under virtual time, `profiling.py` runs stages; `ahead.py` decides how
many replicas there are, by the fits of `rates.py`, and `policy.py` brings that to Serve's
controller.
Source: Vortex 5.2, 5.3 and 8; InferLine, for a planner that simulates.
"""
