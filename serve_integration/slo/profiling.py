"""Profiles a stage where a replica of it would run, or from the batches that its replicas run.

Source: Vortex 5.2.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import platform
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve

from hoplite_ray.serve.slo.profile import SAMPLES_MIN, BatchProfile, Profile
from hoplite_ray.serve.stages.compute import Compute, make_user
from hoplite_ray.serve.stages.declare import AnyStage, Stage, StageLike

BATCHES = (1, 2, 4, 8, 16, 32)
_WARM_UP = 2  # batches of each size that do not count
_RUNS_MIN, _RUNS_MAX = 20, 400  # of each size
_OPTIONS = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "runtime_env")
_CLEAR_PEAK = "5"  # resets the process's highest memory: proc(5), clear_refs


def profile(
    stage: StageLike,
    queries: Sequence[Any],
    batches: Sequence[int] = BATCHES,
    *,
    beside: Sequence[tuple[StageLike, Sequence[Any]]] = (),
    budget_s: float = 30.0,
    timeout_s: float = 600.0,
    seed: int = 0,
) -> Profile:
    """Measure how long a stage's batches take, and how much memory they need, by their size.

        profile = serve.profile(Vision.bind("model.pt"), images, beside=[(Text.bind(), texts)])
        print(profile)
        profile.save("vision.json")

    The stage runs in an actor of Ray with its own `ray_actor_options`, as its replicas do. The
    sizes take turns, so that a slow minute of the machine is in all of them.

    stage:      with its arguments.
    queries:    as the stage gets them; for a join a dict of all inputs each. They are taken one
                after the other, and again from the first.
    batches:    sizes, in queries.
    beside:     stages that run all the time meanwhile, each with its queries, in batches of their
                `max_batch`: the neighbours that replicas will have on their machine.
    budget_s:   seconds to measure; each size is run 20 to 400 times. 20 runs of each are made also
                when they take longer.
    timeout_s:  for all, with the start of the actors.

    Returns: the profile.
    Raises:  what the stage raises, as an error of Ray with its text; TypeError or ValueError for an
             argument that is none; TimeoutError after `timeout_s`, for example when Ray has no
             room for the actor.
    Source:  Vortex 5.2.
    """
    measured = _check(stage, queries)
    sizes = sorted(set(batches))
    if not sizes or type(sizes[0]) is not int or sizes[0] < 1:
        raise ValueError(f"batches={list(batches)!r} are to be whole numbers from 1 on")
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s={budget_s!r} must be a number above 0, and finite")
    neighbours = [(_check(each, its), list(its)) for each, its in beside]
    if not ray.is_initialized():
        ray.init()
    deadline_s = time.monotonic() + timeout_s
    name = measured.user_class.__name__
    try:
        batches_by_size, start_s, loop_share = _measure(
            measured, list(queries), neighbours, sizes, budget_s, seed, deadline_s
        )
    except ray.exceptions.GetTimeoutError:
        raise TimeoutError(
            f"{name} was not profiled within {timeout_s:g} s; look whether Ray has room for its "
            "actor (ray status), or give a longer timeout_s"
        ) from None
    where = _describe_place(measured, neighbours)
    return Profile(name, batches_by_size, start_s, where, loop_share=loop_share)


_Neighbours = Sequence[tuple[AnyStage, list[Any]]]


def _measure(
    stage: AnyStage,
    queries: list[Any],
    neighbours: _Neighbours,
    sizes: list[int],
    budget_s: float,
    seed: int,
    deadline_s: float,
) -> tuple[tuple[BatchProfile, ...], float, float]:
    """Start the actors, measure, and end them.

    Returns: the batches, how long the start took, and the profile's `loop_share`.
    """

    def wait_for(*refs: Any) -> list[Any]:
        return ray.get(list(refs), timeout=max(deadline_s - time.monotonic(), 0.0))

    bench, *burning = [_start(each) for each in (stage, *(each for each, _ in neighbours))]
    try:
        start_s, *_ = wait_for(*(each.start.remote() for each in (bench, *burning)))
        for each, (_, its) in zip(burning, neighbours, strict=True):
            each.burn.remote(its)
        kept = ray.put(queries)
        [memory] = wait_for(bench.warm_up.remote(kept, sizes))
        [(times, loop_share)] = wait_for(bench.measure.remote(kept, sizes, budget_s, seed))
    finally:
        for each in (bench, *burning):
            ray.kill(each)
    found = (BatchProfile(size, tuple(times[size]), *memory[size]) for size in sizes)
    return tuple(found), start_s, loop_share


def observe(stage: str, application: str = "default", *, timeout_s: float = 30.0) -> Profile:
    """Return a profile of the last batches that a stage's replicas ran, without any of its own.

        seen = serve.observe("vision", "search")
        print(profile.drift(seen))      # 1.3: batches take 1.3 times as long as profiled

    stage:        its name in the pipeline.
    application:  the name under which it runs.

    Returns: a profile of the sizes of which three batches or more ran, at most 512 of each replica,
             and of the last ways of queries to replicas that were idle. It has no memory and no
             start.
    Raises:  ValueError if no size has run three times; TimeoutError; what Serve raises if there is
             no such application or stage.
    """
    handle = serve.get_deployment_handle(stage, application)
    times: dict[int, list[float]] = {}
    hops_s: list[float] = []
    loop_share = 0.0
    for report, hops, share in handle.broadcast("report_times").results(timeout_s=timeout_s):
        hops_s += hops
        loop_share = max(loop_share, share)
        for size, took_s in report.items():
            times.setdefault(size, []).extend(took_s)
    enough = {size: times[size] for size in sorted(times) if len(times[size]) >= SAMPLES_MIN}
    if not enough:
        raise ValueError(
            f"stage {stage} of {application} has run no size of batches {SAMPLES_MIN} times yet; "
            "ask again later, or profile it by serve.profile"
        )
    batches = tuple(BatchProfile(size, tuple(took_s)) for size, took_s in enough.items())
    where = {"application": application}
    return Profile(stage, batches, where=where, hops_s=tuple(hops_s), loop_share=loop_share)


def _check(stage: Any, queries: Sequence[Any]) -> AnyStage:
    if not isinstance(stage, Stage):
        raise TypeError(
            f"profile() takes a stage, a class with @stage or its bind(...), not {stage!r:.80}"
        )
    if not len(queries):
        raise ValueError(f"stage {stage.user_class.__name__}: queries are to be at least one")
    return stage


def _start(stage: AnyStage) -> Any:
    options: Any = stage.serve_options.get("ray_actor_options") or {}
    chosen = {name: options[name] for name in _OPTIONS if name in options}
    actor: Any = ray.remote(_Bench)
    return actor.options(**{"num_cpus": 1, **chosen}).remote(stage)


def _describe_place(stage: AnyStage, neighbours: _Neighbours) -> Mapping[str, Any]:
    options: Any = stage.serve_options.get("ray_actor_options") or {}
    return {
        "options": {name: options[name] for name in _OPTIONS if name in options},
        "beside": [each.user_class.__name__ for each, _ in neighbours],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


class _Bench:
    """An actor with a stage's object, which runs batches of a given size."""

    def __init__(self, stage: AnyStage) -> None:
        self._stage = stage
        self._compute: Compute | None = None

    async def start(self) -> float:
        """Make the user's object; returns the seconds that it took."""
        began_s = time.monotonic()
        user = await make_user(self._stage)
        self._compute = Compute(self._stage, "profile", user, "an answer")
        return time.monotonic() - began_s

    async def warm_up(self, queries: list[Any], sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Run some batches of each size; returns the bytes of memory and of GPU memory by size."""
        memory = {}
        for size in sizes:
            with _PeakMemory() as peak:
                for _ in range(_WARM_UP):
                    await self._run(itertools.cycle(queries), size)
            memory[size] = peak.process_bytes, peak.gpu_bytes
        return memory

    async def measure(
        self, queries: list[Any], sizes: Sequence[int], budget_s: float, seed: int
    ) -> tuple[dict[int, list[float]], float]:
        """Run batches of all sizes in turns; returns their seconds by size, and `loop_share`."""
        order = random.Random(seed)
        following = itertools.cycle(queries)
        end_s = time.monotonic() + budget_s
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for done in range(_RUNS_MAX):
            if done >= _RUNS_MIN and time.monotonic() > end_s:
                break
            for size in order.sample(list(sizes), len(sizes)):
                times[size].append(await self._run(following, size))
        assert self._compute is not None
        return times, self._compute.loop_share

    async def burn(self, queries: list[Any]) -> None:
        """Run batches until the actor is killed."""
        following = itertools.cycle(queries)
        while True:
            await self._run(following, self._stage.max_batch)
            await asyncio.sleep(0)

    async def _run(self, queries: Any, size: int) -> float:
        assert self._compute is not None  # `start` comes first
        return await self._compute.run_batch(list(itertools.islice(queries, size)))


class _PeakMemory:
    """The highest memory of this process, and of its GPU, inside of a `with`."""

    def __enter__(self) -> _PeakMemory:
        self.process_bytes = self.gpu_bytes = 0
        Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK)
        if (cuda := _cuda()) is not None:
            cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        status = Path("/proc/self/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        self.process_bytes = int(peak.split()[1]) << 10
        if (cuda := _cuda()) is not None:
            self.gpu_bytes = cuda.max_memory_reserved()


def _cuda() -> Any:
    """Return torch's module of the GPU if the stage uses it, else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
