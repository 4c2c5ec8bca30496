"""How a process reaches the stewards of the cluster's Ray nodes, and starts one.

A steward serves all jobs of its Ray node, and lives longer than the job that has started it. So it
runs outside of that job's runtime environment, and without the import directories that the job's
driver gives to its workers. The exception is an environment that brings an interpreter of its own:
the steward keeps it, because hoplite_ray may be nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.node.start import NodePlace, node_name
from hoplite_ray.plugin.seams import core as seams

T = TypeVar("T")

_NAMESPACE = "hoplite_ray"
# No limit, which Ray writes as its greatest int32. A pending reduce ends by take_bare, abandon or
# by another reduce: if these waited for places, the reduce might keep its own for ever.
_CALLS_AT_ONCE = 2**31 - 1
_INTERPRETERS = {"conda", "container", "image_uri", "py_executable"}
_TRIES = 3  # of a call whose steward leaves, which it does if a call takes 10 s to reach it
_PACKAGES = str(Path(__file__).parents[3])  # the directory that holds hoplite_ray


# The layout and the bytes of a small value, or the id of an object that has it; and the copy's id.
Copy: TypeAlias = tuple[tuple[bytes, bytes] | bytes, bytes]


def steward_of(place: NodePlace) -> Any:
    """Return the handle of a Ray node's steward, and start it unless it runs.

    If a drain begins meanwhile, Ray may still refuse to place it: the first call then raises.
    Raises: ActorUnschedulableError if no steward runs, and Ray drains the node.
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
        undo_environment(environment) if is_apart else None,
        max_concurrency=_CALLS_AT_ONCE,
        lifetime="detached",
        namespace=_NAMESPACE,
        name=place.directory.name,
        get_if_exists=True,
        scheduling_strategy=NodeAffinitySchedulingStrategy(place.ray_node_id, soft=False),
    )


def ask_any(
    here: Callable[[], Any],
    elsewhere: Callable[[], Iterable[Callable[[], Any]]],
    ask: Callable[[Any, bool], T],
) -> T:
    """Return the result of `ask` for this Ray node's steward, or for another if Ray places none.

    Args:   `here` and each of `elsewhere` give a steward; `ask` takes a steward, and True if it is
            this node's. If the steward leaves during the call, `ask` is called for the next one.
    Raises: HopliteError if Ray places no steward on any node; any error of `ask`.
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
            with suppress(ActorUnschedulableError, ActorDiedError):  # the next node may have one
                return ask(other(), False)
    raise HopliteError(
        "Ray drains this Ray node, and no other node takes a steward for what is made here: "
        "add a Ray node, or run the task again when there is one"
    )


def name_guest(worker: str, ray_node_id: str) -> str:
    """Return the name of a process at the steward of a Ray node other than its own."""
    return f"{worker}@{ray_node_id}"


def parse_guest(name: str) -> tuple[str, str] | None:
    """Return the worker and the Ray node of a guest's name; None for any other name."""
    worker, is_guest, ray_node_id = name.partition("@")
    return (worker, ray_node_id) if is_guest else None


def undo_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment that undoes `environment`, which the actor would inherit.

    Ray merges variables one by one, and expands "${X}" to the value of X on the Ray node itself.
    """
    nothing: dict[str, Any] = dict.fromkeys(environment)
    if "env_vars" in environment:
        nothing["env_vars"] = {name: f"${{{name}}}" for name in environment["env_vars"]}
    return nothing


@cache
def _actor() -> Any:
    # Nested, so that it is pickled by value: the actor can mend its import paths before it imports
    # hoplite_ray.
    class Steward:
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

        async def keep_copies(self, copies: list[Any]) -> Any:
            return await self._duties.keep_copies(copies)

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Steward)


def steward_on(ray_node_id: str) -> Any:
    """Return the handle of the steward of any Ray node of the cluster.

    Raises: ValueError if none runs there.
    """
    return ray.get_actor(node_name(ray_node_id), namespace=_NAMESPACE)
