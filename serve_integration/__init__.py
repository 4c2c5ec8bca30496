"""Ray Serve applications that keep answering while their replicas die and join.

    @stage                a class that answers lists with lists, as a deployment of Ray Serve
    pipeline(a=A, ...)    a graph of stages, with joins
    ensemble(A, B, ...)   models that vote; a death costs a vote

Between two replicas there is a world of its own. Source: MultiWorld; Vortex; Hoplite 5.4.
docs/reference/serving.md.
"""

from hoplite_ray.serve.edges import EdgeBrokenError
from hoplite_ray.serve.ensemble import ensemble
from hoplite_ray.serve.outlet import NoReplicaError, PoisonousQueryError
from hoplite_ray.serve.pipeline import pipeline
from hoplite_ray.serve.stage import BusyError, LateError, Stage, query_ids, stage
from hoplite_ray.serve.votes import Answer, QuorumError

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
