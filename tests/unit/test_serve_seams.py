"""Every private name of Ray Serve that is used: which file breaks when a release moves one."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from ray import serve
from ray.experimental import internal_kv
from ray.serve import Application
from ray.serve._private import autoscaling_state
from ray.serve._private.build_app import build_app
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from hoplite_ray.serve import seams
from hoplite_ray.serve.routing import discovery
from hoplite_ray.serve.routing.router import ROUTER, EdgeRouter


def test_serve_scales_by_the_key_of_running_requests() -> None:
    assert autoscaling_state.RUNNING_REQUESTS_KEY == seams.RUNNING_REQUESTS_KEY


def test_an_application_can_be_made_from_what_another_one_wraps() -> None:
    made = serve.deployment(name="stage")(type("Stage", (), {})).bind()
    again = Application(seams.bound_deployment(made))
    assert [each.name for each in build_app(again, name="app").deployments] == ["stage"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (ReplicaID("x", DeploymentID(name="stage", app_name="app")).to_full_id_str(), True),
        ("SERVE_CONTROLLER_ACTOR", False),
        ("", False),
        (None, False),
    ],
)
def test_a_replica_is_known_by_the_name_of_its_actor(
    name: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seams.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(seams.core, "is_driver", lambda: False)
    context = Mock(get_actor_name=lambda: name)
    monkeypatch.setattr(seams.ray, "get_runtime_context", lambda: context)
    assert seams.is_in_replica() is expected


def test_a_process_without_ray_is_no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.ray, "is_initialized", lambda: False)
    assert not seams.is_in_replica()


def test_a_handle_begins_to_route_once_and_without_a_request() -> None:
    begun: list[DeploymentID] = []

    def create_router(*, deployment_id: DeploymentID, **_: Any) -> object:
        begun.append(deployment_id)
        return object()

    handle: Any = DeploymentHandle("stage", "application", _create_router=create_router)
    assert not handle.is_initialized
    for _ in range(2):
        seams.begin_routing(handle)
    assert handle.is_initialized
    assert begun == [DeploymentID(name="stage", app_name="application")]


def test_a_router_knows_its_deployment_and_tells_of_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(discovery, "publish", lambda *what: told.append(what))
    deployment = DeploymentID(name="stage", app_name="application")

    def replica(name: str, metadata: dict[str, Any]) -> Any:
        whole = ReplicaID(name, deployment)
        return Mock(replica_id=whole, replica_metadata=metadata, multiplexed_model_ids=set())

    async def run() -> None:
        router = EdgeRouter(deployment_id=deployment, handle_source=DeploymentHandleSource.REPLICA)
        assert isinstance(router, seams.PowerOfTwoChoicesRequestRouter)
        assert seams.deployment_of(router) == ("application", "stage")
        ours = replica("one", {discovery.METADATA_KEY: {"port": 1}})
        router.update_replicas([ours, replica("other", {})])

    asyncio.run(run())
    assert told == [(("application", "stage"), {"one": {"port": 1}})]


def test_serve_finds_the_router_by_its_name() -> None:
    """Serve pickles the router's module by value, so it is another class of the same name."""
    found: Any = RequestRouterConfig(request_router_class=ROUTER).get_request_router_class()
    assert (found.__module__, found.__name__) == (EdgeRouter.__module__, EdgeRouter.__name__)
    assert issubclass(found, seams.PowerOfTwoChoicesRequestRouter)


def test_a_replica_reads_the_store_that_policies_write(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Client:
        def internal_kv_get(self, key: bytes, namespace: bytes, timeout: float) -> bytes | None:
            asked.append((key, namespace, timeout))
            return b"value" if key == b"there" else None

    monkeypatch.setattr(internal_kv, "global_gcs_client", Client())
    assert seams.read_value("there", 2.0) == b"value"
    assert seams.read_value("not there", 2.0) is None
    assert asked == [(b"there", seams.NAMESPACE, 2.0), (b"not there", seams.NAMESPACE, 2.0)]
