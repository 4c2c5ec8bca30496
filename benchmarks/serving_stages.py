"""The applications that serving.py measures; imported by their replicas.

Each that is killed writes down which queries it begins, and when: one line each in a file of its
own, which a `kill -9` leaves as it was. All processes of a machine share the monotonic clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.serve import Application

from hoplite_ray.serve import Stage, ensemble, pipeline, stage
from hoplite_ray.serve.graph.ingress import QUERY, ingress_options
from hoplite_ray.serve.routing.outlet import Outlet
from hoplite_ray.serve.routing.query import Query
from hoplite_ray.serve.stages.deploy import deployment

LIGHT: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}
SERVICE_S = 0.05  # of a stage or a member that is killed in the middle of it
MEMBERS = 3  # of the ensemble whose members are killed
SHORT_S = 0.02  # of a stage that is killed again and again
MODEL_S, ITEM_S = 0.040, 0.001  # of the model whose batches are measured
BATCH_MAX = 32
MANY_S = 600.0  # a deadline that nothing reaches whose throughput is measured


@stage(**LIGHT)
class Pass:
    """Hands on what it got, with when its code began and ended."""

    def __call__(self, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        began_ns = time.monotonic_ns()
        for query in queries:
            query["array"].item(0)
        return [
            {**query, "stamps_ns": (*query["stamps_ns"], began_ns, time.monotonic_ns())}
            for query in queries
        ]


@stage(**LIGHT)
class Last:
    """Answers when everything was, and with the array too if the query asks for it."""

    def __call__(self, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        began_ns = time.monotonic_ns()
        for query in queries:
            query["array"].item(0)
        return [
            {
                "array": query["array"] if query["whole"] else None,
                "stamps_ns": (*query["stamps_ns"], began_ns, time.monotonic_ns()),
            }
            for query in queries
        ]


def handoff(edges: str) -> Application:
    """Three stages of one replica each, behind one ingress."""
    return pipeline(edges=edges, replicas=1, a=Pass, b=Pass.after("a"), c=Last.after("b"))


class Diary:
    """A replica's own file, which lists the queries that it has begun."""

    def __init__(self, stage_name: str, folder: str) -> None:
        self._file = open(Path(folder) / f"{stage_name}-{os.getpid()}", "ab", buffering=0)

    def begin(self, numbers: Sequence[int]) -> None:
        now_ns = time.monotonic_ns()
        self._file.write(b"".join(b"%d %d\n" % (number, now_ns) for number in numbers))


class Slow:
    """A model that takes a while, one query after the other, and no CPU."""

    def __init__(self, name: str, folder: str) -> None:
        self._diary = Diary(name, folder)

    def __call__(self, numbers: list[int]) -> list[int]:
        self._diary.begin(numbers)
        time.sleep(SERVICE_S)
        return numbers


def slow(name: str, folder: str) -> Stage:
    return stage(num_replicas=2, max_batch=1, **LIGHT)(Slow).bind(name, folder)


def slow_pipeline(edges: str, folder: str) -> Application:
    first, second = slow("first", folder), slow("second", folder)
    return pipeline(edges=edges, replicas=1, first=first, second=second.after("first"))


def slow_ensemble(edges: str, folder: str) -> Application:
    """All members have to vote: a vote that is lost fails its query."""
    models = [slow(f"model{number}", folder) for number in range(MEMBERS)]
    return ensemble(*models, edges=edges, combine="mean", quorum=MEMBERS, replicas=1)


class Text:
    def __init__(self, folder: str) -> None:
        self._diary = Diary("text", folder)

    def __call__(self, queries: list[dict[str, Any]]) -> list[Any]:
        self._diary.begin([query["number"] for query in queries])
        time.sleep(SHORT_S)
        return [(query["number"], query["array"] + 1) for query in queries]


class Vision:
    def __init__(self, folder: str) -> None:
        self._diary = Diary("vision", folder)

    def __call__(self, queries: list[dict[str, Any]]) -> list[Any]:
        self._diary.begin([query["number"] for query in queries])
        time.sleep(SHORT_S)
        return [(query["number"], query["array"] * 3) for query in queries]


class Cross:
    """Joins what belongs to one query, or says that it doesn't."""

    def __init__(self, folder: str) -> None:
        self._diary = Diary("cross", folder)

    def __call__(self, text: list[Any], vision: list[Any]) -> list[Any]:
        self._diary.begin([number for number, _ in text])
        time.sleep(SHORT_S)
        if [number for number, _ in text] != [number for number, _ in vision]:
            raise ValueError("inputs of different queries were joined")
        pairs = zip(text, vision, strict=True)
        return [(number, said - seen) for (number, said), (_, seen) in pairs]


class Search:
    def __init__(self, folder: str) -> None:
        self._diary = Diary("search", folder)

    def __call__(self, queries: list[Any]) -> list[dict[str, Any]]:
        self._diary.begin([number for number, _ in queries])
        time.sleep(SHORT_S)
        return [{"best": int(np.argmin(array)), "array": array[::-1]} for _, array in queries]


SEARCH_STAGES = ("text", "vision", "cross", "search")


def search(edges: str, folder: str) -> Application:
    """A pipeline with a join: two replicas of each stage but the last."""
    twice = stage(num_replicas=2, **LIGHT)
    return pipeline(
        edges=edges,
        replicas=1,
        text=twice(Text).bind(folder),
        vision=twice(Vision).bind(folder),
        cross=twice(Cross).bind(folder).after("text", "vision"),
        search=stage(**LIGHT)(Search).bind(folder).after("cross"),
    )


def model_s(size: int) -> float:
    """Return the seconds that the model takes for a batch of `size` queries."""
    return MODEL_S + ITEM_S * size


@stage(max_batch=BATCH_MAX, **LIGHT)
class Model:
    """Answers each query with the size of its batch."""

    def __call__(self, queries: list[Any]) -> list[int]:
        time.sleep(model_s(len(queries)))
        return [len(queries)] * len(queries)


@serve.deployment(max_ongoing_requests=1000, **LIGHT)
class Arrivals:
    """Queries a stage over an edge, at random moments."""

    async def __init__(self, model: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        self._outlet = Outlet(model, QUERY)

    async def run(self, rate: float, seconds: float, seed: int, late_s: float) -> dict[str, Any]:
        """Return what `poisson` does."""
        await self._outlet.wait_ready()
        return await poisson(self._ask, rate=rate, seconds=seconds, seed=seed, late_s=late_s)

    async def _ask(self) -> int:
        answer: int = await self._outlet.call(Query(uuid.uuid4().hex, 1, "", 0, 60.0, {}))
        return answer

    async def __del__(self) -> None:
        await self._outlet.close()


@serve.deployment(max_ongoing_requests=1000, **LIGHT)
class Batched:
    """The same model behind Serve's own batching, with its default wait; queried from inside."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1)

    @serve.batch(max_batch_size=BATCH_MAX)
    async def infer(self, queries: list[Any]) -> list[int]:
        size = len(queries)
        await asyncio.get_running_loop().run_in_executor(self._executor, time.sleep, model_s(size))
        return [size] * size

    async def run(self, rate: float, seconds: float, seed: int, late_s: float) -> dict[str, Any]:
        """Return what `poisson` does."""
        return await poisson(
            lambda: self.infer(0), rate=rate, seconds=seconds, seed=seed, late_s=late_s
        )

    async def __call__(self, request: Any) -> int:
        answer: int = await self.infer(await request.json())
        return answer


def arrivals(edges: str) -> Application:
    """Ours or Serve's, with `run`."""
    if edges == "serve":
        return Batched.bind()
    return Arrivals.bind(deployment(Model, "model", {}))


def over_http(edges: str) -> Application:
    """The same, for queries over HTTP."""
    return Batched.bind() if edges == "serve" else pipeline(replicas=1, model=Model)


async def poisson(
    ask: Callable[[], Awaitable[int]], *, rate: float, seconds: float, seed: int, late_s: float
) -> dict[str, Any]:
    """Query at random moments, whatever is answered; each latency is from when it was due.

    Returns: latencies, None for what was not answered `late_s` after the last one came; and the
             size of the batch that each was answered in.
    """
    moments, loop = random.Random(seed), asyncio.get_running_loop()
    began_s, due_s = loop.time(), moments.expovariate(rate)

    async def asked(due_s: float) -> tuple[float, int]:
        size = await ask()
        return (loop.time() - due_s) * 1e3, size

    tasks = []
    while due_s < seconds:
        await asyncio.sleep(began_s + due_s - loop.time())
        tasks.append(asyncio.create_task(asked(began_s + due_s)))
        due_s += moments.expovariate(rate)
    if tasks:
        _, never = await asyncio.wait(tasks, timeout=late_s)
        for task in never:
            task.cancel()
        await asyncio.gather(*never, return_exceptions=True)
    answers = [None if task.cancelled() else task.result() for task in tasks]
    return {
        "latencies_ms": [answer and answer[0] for answer in answers],
        "sizes": [answer[1] for answer in answers if answer],
    }


def member(number: int) -> Stage:
    """A model on a Ray node of its own, which takes a while and no CPU."""

    @stage(ray_actor_options=on(number))
    class Member:
        async def __call__(self, queries: list[Any]) -> list[float]:
            await asyncio.sleep(SERVICE_S)
            return [float(query[-1]) for query in queries]

    return Member


def on(node: int) -> dict[str, Any]:
    """Options that place a replica on a Ray node with the resource n0, n1, ..."""
    return {"num_cpus": 0, "resources": {f"n{node}": 0.001}}


class Plain:
    """An ensemble over Serve's handles, to whose members a query goes by value or by reference."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members

    async def ask(self, query: Any, way: str) -> float:
        """Return the mean of all votes."""
        argument = ray.put(query) if way == "reference" else query
        query_id = uuid.uuid4().hex
        asked = [each.remote(query_id, MANY_S, argument) for each in self._members.values()]
        return float(np.mean(await asyncio.gather(*asked)))


def large_ensemble(edges: str, count: int) -> Application:
    """One member on each of `count` Ray nodes, and the ingress on the first."""
    members = [member(number) for number in range(count)]
    if edges == "serve":
        named = {f"model{rank}": each for rank, each in enumerate(members)}
        nodes = {name: deployment(each, name, {}) for name, each in named.items()}
        options = ingress_options(1, MANY_S) | {"ray_actor_options": on(0)}
        return serve.deployment(**options)(Plain).bind(nodes)
    app = ensemble(*members, combine="mean", quorum=count, deadline_s=MANY_S, replicas=1)
    # An ensemble has no option for where its ingress is, and here it is to be beside the caller.
    return Application(app._bound_deployment.options(ray_actor_options=on(0)))
