"""Ray Serve applications that keep answering while their replicas die and join.

    @stage                a class that answers lists with lists, as a deployment of Ray Serve
    pipeline(a=A, ...)    a graph of stages, with joins
    ensemble(A, B, ...)   models that vote; a death costs a vote

Between two replicas there is a world of its own. Source: MultiWorld; Vortex; Hoplite 5.4.
docs/serving.md.
"""

from hoplite_ray.serve.errors import (
    BusyError,
    EdgeBrokenError,
    LateError,
    NoReplicaError,
    PoisonousQueryError,
    QuorumError,
)
from hoplite_ray.serve.graph.ensemble import ensemble
from hoplite_ray.serve.graph.pipeline import pipeline
from hoplite_ray.serve.graph.votes import Answer
from hoplite_ray.serve.stages.compute import query_ids
from hoplite_ray.serve.stages.declare import Stage, stage

__all__ = [
    "Answer",
    "BusyError",
    "EdgeBrokenError",
    "LateError",
    "NoReplicaError",
    "PoisonousQueryError",
    "QuorumError",
    "Stage",
    "ensemble",
    "pipeline",
    "query_ids",
    "stage",
]
