"""Ray Serve applications that keep answering while their replicas die and join.

    @stage                a class that answers lists with lists, as a deployment of Ray Serve
    pipeline(a=A, ...)    a graph of stages, with joins
    pipelines(p=P, ...)   several pipelines, which share stages
    ensemble(A, B, ...)   models that vote; a death costs a vote
    profile, plan         how long batches take; caps and replicas for a promised latency
    scale_ahead           replicas that are asked for ahead of the queries
    place                 which stage runs on which device

Between two replicas there is a world of its own. Source: MultiWorld; Vortex; Hoplite 5.4.
docs/reference/serving.md.

The rooms, from the top; each may use the rooms below it, and all may use the modules at the root:

    slo/        profiles of stages, plans that keep a promised latency, and scaling ahead
    placement/  which stage runs on which device
    graph/      pipelines and ensembles as Serve applications, and their ingresses
    stages/     the user's class as a deployment: declaration, replica, batches, joins, parking
    routing/    which replica of the next stage answers a query
    edge/       the calls between two replicas
    errors.py metrics.py seams.py    errors, metrics, and the private names of Ray Serve

The folder is `serve_integration/` in the repository, and `hoplite_ray/serve` links to it.
"""

if __name__ != "hoplite_ray.serve":  # else each class would exist twice, and pickles would differ
    raise ImportError(f"import it as hoplite_ray.serve, not as {__name__}")

from hoplite_ray.serve.errors import (
    BusyError,
    EdgeBrokenError,
    LateError,
    NoReplicaError,
    PipelineGoneError,
    PoisonousQueryError,
    QuorumError,
    UnattainableError,
)
from hoplite_ray.serve.graph.ensemble import ensemble
from hoplite_ray.serve.graph.pipeline import Pipeline, pipeline
from hoplite_ray.serve.graph.shared import Pipelines, pipelines
from hoplite_ray.serve.graph.votes import Answer
from hoplite_ray.serve.placement.devices import Device, DeviceKind, Slice, cpu_slots, whole_gpu
from hoplite_ray.serve.placement.place import Bundle, Component, Fit, place
from hoplite_ray.serve.placement.placed import Placement
from hoplite_ray.serve.slo.contract import SLO, Prediction
from hoplite_ray.serve.slo.plan import Plan, SharedPlan, plan
from hoplite_ray.serve.slo.profile import BatchProfile, Profile
from hoplite_ray.serve.slo.profiling import observe, profile
from hoplite_ray.serve.slo.scaling import scale_ahead
from hoplite_ray.serve.stages.compute import query_ids, query_snapshots
from hoplite_ray.serve.stages.declare import Stage, stage

__all__ = [
    "SLO",
    "Answer",
    "BatchProfile",
    "Bundle",
    "BusyError",
    "Component",
    "Device",
    "DeviceKind",
    "EdgeBrokenError",
    "Fit",
    "LateError",
    "NoReplicaError",
    "Pipeline",
    "PipelineGoneError",
    "Pipelines",
    "Placement",
    "Plan",
    "PoisonousQueryError",
    "Prediction",
    "Profile",
    "QuorumError",
    "SharedPlan",
    "Slice",
    "Stage",
    "UnattainableError",
    "cpu_slots",
    "ensemble",
    "observe",
    "pipeline",
    "pipelines",
    "place",
    "plan",
    "profile",
    "query_ids",
    "query_snapshots",
    "scale_ahead",
    "stage",
    "whole_gpu",
]
