"""Whole systems for promised.py: the same two stages as a pipeline of ours and as plain Serve.

A child process runs one system, because Serve's fast mode is a matter of the environment before Ray
starts.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

import ray
from ray import serve as ray_serve
from serving_driver import cpu_of, replica_pids

from hoplite_ray import serve
from hoplite_ray.serve.graph.ingress import Ingress
from hoplite_ray.serve.slo.queueing import poisson

LATENCY_S = 0.2
BATCH_MAX = 32
TEXT_S, RANK_S = (0.010, 0.001), (0.025, 0.0012)  # of a batch, and of each query in it
LIGHT: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}
PLAIN: dict[str, Any] = {**LIGHT, "max_ongoing_requests": 10_000}  # 5 by default, less than a batch
APPLICATION = "system"
LATE_S = 5.0  # after which a query counts as lost: it is long late


class Sleeps:
    """A model on an accelerator: a batch takes a time of its own, and each query some more."""

    def __init__(self, fixed_s: float, each_s: float) -> None:
        self._fixed_s, self._each_s = fixed_s, each_s

    def __call__(self, queries: list[Any]) -> list[Any]:
        time.sleep(self._fixed_s + self._each_s * len(queries))
        return queries


@ray_serve.deployment(**PLAIN)
class Batched:
    """The model behind `serve.batch`, as it is by default; `blocks` as most examples have it."""

    def __init__(self, fixed_s: float, each_s: float, blocks: bool) -> None:
        self._model = Sleeps(fixed_s, each_s)
        self._blocks = blocks

    @ray_serve.batch(max_batch_size=BATCH_MAX)
    async def _answer(self, queries: list[Any]) -> list[Any]:
        if self._blocks:
            return self._model(queries)
        return await asyncio.to_thread(self._model, queries)

    async def __call__(self, query: Any) -> Any:
        return await self._answer(query)


class Asks:
    """Asks queries at given times from inside of the ingress, whose `ask` answers one."""

    ask: Any

    async def run(self, arrivals_s: Sequence[float]) -> tuple[list[float], list[float]]:
        """Ask a query at each of these times; returns when each was asked, and how long it took.

        A query without an answer took infinitely long.
        """
        began_s = time.monotonic()
        came_s: list[float] = []
        asking = []
        for at_s in arrivals_s:
            await asyncio.sleep(began_s + at_s - time.monotonic())
            came_s.append(time.monotonic() - began_s)
            asking.append(asyncio.create_task(self._timed_ask()))
        return came_s, await asyncio.gather(*asking)

    async def _timed_ask(self) -> float:
        began_s = time.monotonic()
        try:
            await self.ask(0)
        except TimeoutError:
            return math.inf
        return time.monotonic() - began_s


class Load(Ingress, Asks):
    """The ingress of a pipeline, which asks queries itself."""


@ray_serve.deployment(**PLAIN)
class PlainLoad(Asks):
    """The ingress of the same stages by Serve's handles, chained as Serve recommends."""

    def __init__(self, text: Any, rank: Any) -> None:
        self._text, self._rank = text, rank

    async def ask(self, value: Any) -> Any:
        """Answer one query."""
        async with asyncio.timeout(LATE_S):
            return await self._rank.remote(self._text.remote(value))


def ours(late: Literal["serve", "drop"]) -> Any:
    """The two stages as a pipeline with a promised latency."""
    model = serve.stage(max_batch=BATCH_MAX, late=late, **LIGHT)(Sleeps)
    stages = {"text": model.bind(*TEXT_S), "rank": model.bind(*RANK_S).after("text")}
    pipeline = serve.pipeline(stages, replicas=1, latency_s=LATENCY_S, deadline_s=LATE_S)
    return pipeline.spec.build(Load)


def plain(blocks: bool) -> Any:
    """The two stages as deployments of Serve."""
    text, rank = (
        Batched.options(name=name).bind(*times, blocks)
        for name, times in (("text", TEXT_S), ("rank", RANK_S))
    )
    return PlainLoad.bind(text, rank)


SYSTEMS = {
    "hoplite_ray": lambda: ours("serve"),
    "hoplite_ray, late ones dropped": lambda: ours("drop"),
    "Serve": lambda: plain(blocks=False),
    "Serve, a model that blocks": lambda: plain(blocks=True),
}


def play(name: str, rates: Sequence[float], seconds: float, mode: str) -> None:
    """Run one system; print a line of JSON for each rate."""
    ray.init("local", num_cpus=4, log_to_driver=False, include_dashboard=False)
    loop = asyncio.new_event_loop()  # handles of the fast mode work in one only, that always runs
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def run(arrivals_s: Sequence[float]) -> Any:
        return asyncio.run_coroutine_threadsafe(_run(handle, arrivals_s), loop).result()

    try:
        ray_serve.start(proxy_location="Disabled")
        handle = ray_serve.run(SYSTEMS[name](), name=APPLICATION, route_prefix=None)
        run(poisson(20.0, 20, seed=9))  # warm, with all edges open
        for rate in rates:
            pids = replica_pids(APPLICATION)
            used_s = cpu_of(pids)
            _, took_s = run(poisson(rate, int(rate * seconds), seed=1))
            used_s = cpu_of(pids) - used_s
            record = {
                "system": f"{name}{mode}",
                "rate": rate,
                "miss": sum(each > LATENCY_S for each in took_s) / len(took_s),
                "cpu_s": used_s / len(took_s),
                "p50_s": sorted(took_s)[len(took_s) // 2],
            }
            print(json.dumps(record), flush=True)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        ray_serve.shutdown()
        ray.shutdown()


async def _run(handle: Any, arrivals_s: Sequence[float]) -> Any:
    return await handle.run.remote(arrivals_s)
