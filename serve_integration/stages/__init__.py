"""Stages: the user's class as a deployment of Ray Serve.

This room checks what a stage is declared with, and has the replica that Serve starts: its batches,
its joins, its parking and the thread of the user's code. `batching.py`, `joins.py` and `Parking`
are pure and decide; the modules `compute.py` and `replica_joins.py`, and `ReplicaParking`, do.
It may use the rooms `routing` and `edge`, and this package's `metrics` and `seams`.
Start with `declare.py`, which users see, and `replica.py`, which Serve starts.
"""
