"""Placement: which stage runs on which device, so that the slowest stage is as fast as can be.

This room uses no other one, and asks no cluster: a placement is a proposal. It needs scipy, the
extra `planner`.
Start with `place.py`. `devices.py` has tables of GPUs; `ordered_sums.py` has the integer programs.
Source: Vortex 5.4.
"""
