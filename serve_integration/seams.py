"""The private names of Ray Serve that this package uses. tests/unit/test_serve_seams.py tests each.

They are those of Ray 2.60 and 2.61. When a release moves one of them, this file and its test are
the only ones to change.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.experimental import internal_kv
from ray.serve import Application
from ray.serve._private.common import RUNNING_REQUESTS_KEY, ReplicaID
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter

from hoplite_ray.plugin.seams import core

NAMESPACE = b"hoplite"  # of the keys by which a policy in the controller and replicas speak

__all__ = [
    "NAMESPACE",
    "RUNNING_REQUESTS_KEY",  # of the number in a replica's statistics by which Serve scales it
    "PowerOfTwoChoicesRequestRouter",  # Serve's own router of a handle
    "begin_routing",
    "bound_deployment",
    "deployment_of",
    "is_in_replica",
    "read_value",
]


def bound_deployment(application: Application) -> Any:
    """Return what an application wraps, from which another one can be made."""
    return application._bound_deployment


def begin_routing(handle: Any) -> None:
    """Have Serve tell a handle's router of the replicas, without any request."""
    if not handle.is_initialized:
        handle._init()


def deployment_of(router: PowerOfTwoChoicesRequestRouter) -> tuple[str, str]:
    """Return the application and the name of the deployment that a router is for."""
    return router._deployment_id.app_name, router._deployment_id.name


def read_value(key: str, timeout_s: float) -> bytes | None:
    """Return the value of a key in the key-value store of Ray's GCS; None if it has none.

    It waits: call it in a thread. The namespace is that of autoscaling policies.

    Raises:  an error of Ray if the GCS does not answer in time.
    """
    client = internal_kv.internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]
    value = client.internal_kv_get(key.encode(), namespace=NAMESPACE, timeout=timeout_s)
    return None if value is None else bytes(value)


def is_in_replica() -> bool:
    """Return True in a process of a replica, also before Serve has made its object."""
    if not ray.is_initialized() or core.is_driver():
        return False
    name = ray.get_runtime_context().get_actor_name()
    return name is not None and ReplicaID.is_full_id_str(name)
