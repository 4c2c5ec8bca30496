"""Graphs: stages as one Serve application, and the ingress where queries come in.

This room builds pipelines and ensembles, asks the first stages, and answers callers, also over
HTTP. `votes.py` is pure: it decides when an ensemble may answer.
It may use all other rooms, and no other room uses it.
Start with `pipeline.py`, then `ingress.py`.
"""
