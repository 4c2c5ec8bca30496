"""How a process reaches the stewards of the cluster's Ray nodes, and starts one.

A steward serves all jobs of its Ray node, and lives longer than the job that has started it. So it
is started outside of that job's runtime environment, and without the directories that the job's
driver puts before all others in its workers' import paths. Only an environment that brings an
interpreter of its own stays: hoplite_ray may be nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import hoplite_ray
from hoplite_ray.plugin import seams
from hoplite_ray.plugin.start import NodePlace, node_name

_NAMESPACE = "hoplite_ray"
_CALLS_AT_ONCE = 10_000  # pending reduces of one Ray node
_INTERPRETERS = {"conda", "container", "image_uri", "py_executable"}
_PACKAGES = str(Path(hoplite_ray.__file__).parents[1])  # the directory that holds hoplite_ray


def steward_of(place: NodePlace) -> Any:
    """The handle of a Ray node's steward, which is started unless it runs."""
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
            self._duties = import_module("hoplite_ray.plugin.steward").Steward()

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
