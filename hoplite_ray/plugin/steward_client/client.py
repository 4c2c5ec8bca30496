"""How a process reaches the stewards of the cluster's Ray nodes, and starts one.

A steward serves all jobs of its Ray node, and lives longer than the job that has started it. So it
is started outside of that job's runtime environment, and without the directories that the job's
driver puts before all others in its workers' import paths. Only an environment that brings an
interpreter of its own stays: hoplite_ray may be nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.node.start import NodePlace, node_name
from hoplite_ray.plugin.seams import core as seams

T = TypeVar("T")

_NAMESPACE = "hoplite_ray"
# No limit, which Ray writes as its greatest int32. A pending reduce ends by take_bare, abandon or
# by another reduce: if these waited for places, it might keep its own for ever.
_CALLS_AT_ONCE = 2**31 - 1
_INTERPRETERS = {"conda", "container", "image_uri", "py_executable"}
_TRIES = 3  # of a call under which the steward leaves: it does if a call takes 10 s to reach it
_PACKAGES = str(Path(__file__).parents[3])  # the directory that holds hoplite_ray


def steward_of(place: NodePlace) -> Any:
    """The handle of a Ray node's steward, which is started unless it runs.

    A drain that begins meanwhile may still keep it from its place: the first answer tells.
    Raises: ActorUnschedulableError if none runs, and Ray drains the node.
    """
    if seams.is_draining(place.ray_node_id):
        try:
            return steward_on(place.ray_node_id)
        except ValueError as error:
            raise ActorUnschedulableError(f"Ray drains Ray node {place.ray_node_id}") from error
    environment = ray.get_runtime_context().runtime_env
    is_apart = _INTERPRETERS.isdisjoint(environment)
    return seams.create_actor(
        _actor(),
        [list(environment.get("env_vars", {})) if is_apart else None, _PACKAGES],
        environment_apart(environment) if is_apart else None,
        max_concurrency=_CALLS_AT_ONCE,
        lifetime="detached",
        namespace=_NAMESPACE,
        name=place.directory.name,
        get_if_exists=True,
        scheduling_strategy=NodeAffinitySchedulingStrategy(place.ray_node_id, soft=False),
    )


def answered(
    here: Callable[[], Any],
    elsewhere: Callable[[], Iterable[Callable[[], Any]]],
    ask: Callable[[Any, bool], T],
) -> T:
    """What `ask` returns for the steward of this Ray node, or for another if Ray places none here.

    `ask` is given a steward, and whether it is this node's. If the steward leaves under the
    question, its next life is asked.
    Raises: HopliteError if Ray places no steward on any node; what `ask` raises.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            return ask(here(), True)
        except ActorUnschedulableError:
            break
        except ActorDiedError:
            if not tries_left:
                raise
    for _ in range(_TRIES):
        for other in elsewhere():
            with suppress(ActorUnschedulableError, ActorDiedError):  # the next node may do
                return ask(other(), False)
    raise HopliteError(
        "Ray drains this Ray node, and no other node takes a steward for what is made here: "
        "add a Ray node, or run the task again when there is one"
    )


def guest_name(worker: str, ray_node_id: str) -> str:
    """The name of a process at the steward of a Ray node other than its own."""
    return f"{worker}@{ray_node_id}"


def guest(name: str) -> tuple[str, str] | None:
    """The worker and the Ray node of such a name; None for a process of the steward's own node."""
    worker, is_guest, ray_node_id = name.partition("@")
    return (worker, ray_node_id) if is_guest else None


def environment_apart(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What to ask Ray for so that nothing of `environment`, which it would inherit, is left.

    Ray merges variables one by one, and expands "${X}" to what X is on the Ray node itself.
    """
    nothing: dict[str, Any] = dict.fromkeys(environment)
    if "env_vars" in environment:
        nothing["env_vars"] = {name: f"${{{name}}}" for name in environment["env_vars"]}
    return nothing


@cache
def _actor() -> Any:
    class Steward:  # nested, so that it is pickled by value: it imports nothing of ours too early
        def __init__(self, variables: list[str] | None, packages: str) -> None:
            import os
            import sys
            from importlib import import_module, util

            if variables is not None:
                for name in variables:
                    if os.environ.get(name) in ("", f"${{{name}}}"):
                        del os.environ[name]  # the Ray node itself has none
                worker: Any = ray._private.worker.global_worker
                for directory in worker.core_worker.get_job_config().py_driver_sys_path:
                    if directory in sys.path:
                        sys.path.remove(directory)
            if util.find_spec("hoplite_ray") is None:
                sys.path.append(packages)  # the job has brought it
            # By name, in the actor's own process: callers never load the steward's modules, which
            # import those of callers.
            self._duties = import_module("hoplite_ray.plugin.steward.steward").Steward()

        def __getattr__(self, name: str) -> Any:  # for tests, which look inside
            return getattr(self.__dict__["_duties"], name)

        async def anchors(self, count: int) -> Any:
            return await self._duties.anchors(count)

        async def hold(self, anchors: list[bytes]) -> Any:
            return await self._duties.hold(anchors)

        async def reduce(self, refs: list[Any], how: Any, caller: str) -> Any:
            return await self._duties.reduce(refs, how, caller)

        async def gather(self, refs: list[Any], caller: str) -> Any:
            return await self._duties.gather(refs, caller)

        async def bare_sources(self, caller: str) -> Any:
            return await self._duties.bare_sources(caller)

        async def take_bare(self, key: bytes, taken: Any) -> Any:
            return await self._duties.take_bare(key, taken)

        async def abandon(self, answer: bytes) -> Any:
            return await self._duties.abandon(answer)

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Steward)


def steward_on(ray_node_id: str) -> Any:
    """The handle of the steward of any Ray node of the cluster.

    Raises: ValueError if there is none.
    """
    return ray.get_actor(node_name(ray_node_id), namespace=_NAMESPACE)
