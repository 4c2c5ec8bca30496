"""The stages of this folder's applications, imported by their replicas."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ray
from ray import serve as ray_serve
from ray.experimental.internal_kv import _internal_kv_get

import hoplite_ray as hop
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.serve import query_ids, query_snapshots, stage
from tests.ray.spilling import told
from tests.ray.weights_actors import find_place
from tests.serve import imported

LIGHT: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}
BAD = 13  # what Cross can't answer
KEY = 0.5
FLOATS = 1 << 18  # of an Array: 2 MiB, in float64


class Mortal:
    """Dies where the test has ordered it, once for each order: a file named by stage and moment."""

    def __init__(self, orders: str = "") -> None:
        self._orders = Path(orders) if orders else None

    def die(self, moment: str) -> None:
        if self._is_ordered(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_ordered(self, moment: str) -> bool:
        if self._orders is None:
            return False
        try:
            (self._orders / f"{type(self).__name__}-{moment}").unlink()
        except FileNotFoundError:
            return False
        return True


@stage(num_replicas=2, **LIGHT)
class Text(Mortal):
    def __call__(self, queries: list[Any]) -> list[Any]:
        self.die("batch")
        return [query + 1 for query in queries]


@stage(num_replicas=2, **LIGHT)
class Vision(Mortal):
    async def __call__(self, queries: list[Any]) -> list[Any]:
        self.die("batch")
        if self._is_ordered("half"):  # what Text has answered waits for us at the next stage
            await asyncio.sleep(0.5)
            for each in self._orders.glob("Cross-*.pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(each.read_text()), signal.SIGKILL)
        return [query * 10 for query in queries]


@stage(num_replicas=2, **LIGHT)
class Cross(Mortal):
    def __init__(self, key: float, orders: str = "") -> None:
        super().__init__(orders)
        self._key = key
        if orders:
            Path(orders, f"Cross-{uuid.uuid4().hex}.pid").write_text(str(os.getpid()))

    def __call__(self, text: list[Any], vision: list[Any]) -> list[Any]:
        self.die("batch")
        if any(np.ndim(each) == 0 and each == BAD + 1 for each in text):
            raise ValueError(f"{BAD} brings bad luck")
        return [one + two + self._key for one, two in zip(text, vision, strict=True)]


@stage(**LIGHT)
class Search(Mortal):
    def __call__(self, queries: list[Any]) -> list[Any]:
        self.die("batch")
        return [{"found": query} for query in queries]


class Fatal:
    """Ends the process that packs it."""

    def __reduce__(self) -> Any:
        os._exit(1)


class DeadlyToRead:
    """Ends the process of a `Deadly` that unpickles it."""

    ends: ClassVar[list[int]] = []

    def __reduce__(self) -> Any:
        return DeadlyToRead.read, ()

    @classmethod
    def read(cls) -> DeadlyToRead:
        if os.getpid() in cls.ends:
            os._exit(1)
        return cls()


@stage(num_replicas=2, max_batch=1, **LIGHT)
class Deadly:
    """Answers a query with itself, except for the negative ones.

    -1 ends the process at once, -5 amid the work, -4 when the answer is packed. -2 takes 8 s. The
    answer to -3 is the ids of the batch's queries.
    """

    def __init__(self) -> None:
        DeadlyToRead.ends.append(os.getpid())

    def __call__(self, queries: list[int]) -> list[Any]:
        (query,) = queries
        if query == -5:
            time.sleep(0.2)  # as a model that fails amid its work
        if query in (-1, -5):
            os._exit(1)
        if query == -2:
            time.sleep(8)
        if query == -4:
            return [Fatal()]
        return [query_ids() if query == -3 else query]


@stage(num_replicas=2, max_batch=64, **LIGHT)
class DeadlyTogether:
    """Ends its own process over -1, and with it all of the batch."""

    def __call__(self, queries: list[int]) -> list[int]:
        time.sleep(0.2)
        if -1 in queries:
            os._exit(1)
        return queries


class Slow:
    """A stage by the test that says how it scales."""

    def __call__(self, queries: list[int]) -> list[int]:
        time.sleep(0.1)
        return queries


@ray_serve.deployment(**LIGHT)
class Parks:
    """A deployment of Serve that is parked until a notice has its id. It answers if it is."""

    def __init__(self) -> None:
        self._is_parked = True

    def record_autoscaling_stats(self) -> dict[str, float]:
        mine = ray_serve.get_replica_context().replica_id
        key = f"hoplite_released/{mine.deployment_id.app_name}#{mine.deployment_id.name}"
        told = _internal_kv_get(key, namespace=b"hoplite")
        if told and mine.unique_id in json.loads(told)["replicas"]:
            self._is_parked = False
        return {"hoplite_parked": float(self._is_parked)}

    def __call__(self, query: Any) -> bool:
        return self._is_parked


@stage(**LIGHT)
class Wrong:
    """Answers too little, raises over -1, and says over its end, and who it is, in a file."""

    async def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._health_checks = 0

    async def check_health(self) -> None:
        self._health_checks += 1

    def __call__(self, queries: list[int]) -> Any:
        if queries[0] == -1:
            return self.no_such_thing()
        if queries[0] == -3:
            next(iter([]))
        return np.array([self._health_checks]) if queries[0] == -2 else queries[1:]

    def no_such_thing(self) -> None:
        raise KeyError("no such key")

    def __del__(self) -> None:
        if self._folder:
            Path(self._folder, "deleted").touch()


@stage(**LIGHT)
class Through:
    """Answers what it is asked."""

    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


class OddError(Exception):
    """Can be pickled, and not read again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd {one} {two}")


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Takes no note."""

    code: int


class TextError(Exception):
    """Reads as a text where it has gone to."""

    def __reduce__(self) -> Any:
        return str, ("a text",)


class DumbError(Exception):
    """Can't say what it is, and can't be pickled."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise KeyError


@stage(user_config={"scale": 3}, **LIGHT)
class Configured:
    """Multiplies by what it was told last, and is asked how it is in a thread of its own."""

    def __init__(self) -> None:
        self._scale = 0
        self._asked_in = ""
        self._is_asked = threading.Event()

    async def reconfigure(self, user_config: Any) -> None:
        await asyncio.sleep(0.01)
        self._scale = user_config["scale"]

    def check_health(self) -> None:
        self._asked_in = threading.current_thread().name
        self._is_asked.set()

    async def __call__(self, queries: list[int]) -> list[Any]:
        assert await asyncio.to_thread(self._is_asked.wait, 30)
        is_beside = self._asked_in != threading.current_thread().name
        return [(each * self._scale, is_beside) for each in queries]


@stage(**LIGHT)
class Unsendable:
    """Answers, or raises, what can't go on."""

    def __call__(self, queries: list[str]) -> list[Any]:
        if queries == ["odd"]:
            raise OddError(1, 2)
        raised = {"frozen": FrozenError(7), "text": TextError(), "dumb": DumbError()}
        if queries[0] in raised:
            raise raised[queries[0]]
        answers: dict[str, Any] = {"lock": threading.Lock(), "error": KeyError("alone"), "set": {1}}
        answers["answered"] = FrozenError(8)
        return [answers[query] for query in queries]


@stage(max_batch=1, **LIGHT)
class Counting:
    """A slow join that answers how often it has run."""

    def __init__(self) -> None:
        self._runs = 0

    def __call__(self, one: list[Any], two: list[Any]) -> list[int]:
        self._runs += 1
        time.sleep(0.2)
        return [self._runs]


@stage(**LIGHT)
class Waiting:
    """Waits for what is cancelled, over -1."""

    async def __call__(self, queries: list[int]) -> list[int]:
        if -1 in queries:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return queries


@stage(**LIGHT)
class Loaded:
    """A member that takes a while to be there."""

    def __init__(self, version: int) -> None:
        self._version = version
        time.sleep(1.0)

    def __call__(self, queries: list[Any]) -> list[int]:
        return [self._version for _ in queries]


@stage(**LIGHT)
class Refers:
    """Answers handles: those that it was given, and its own of the same values."""

    def __call__(self, queries: list[Any]) -> list[Any]:
        return [
            {**query, "mine": ray.put(("mine", ray.get(query["ref"]))), "copy": 1 + query["array"]}
            for query in queries
        ]


@stage(max_batch=1, **LIGHT)
class Resolves:
    """Reads what handles are of, also those of earlier queries if it keeps them."""

    def __init__(self, *, keeps: bool) -> None:
        self._kept: list[Any] = []
        self._keeps = keeps

    def __call__(self, queries: list[Any]) -> list[Any]:
        (query,) = queries
        self._kept = [*self._kept, query] if self._keeps else [query]
        read = [
            (ray.get(each["ref"]), ray.get(each["mine"]), each["array"][:3].tolist())
            for each in self._kept
        ]
        return [{"read": read, "copy": hop.array(query["copy"]), "mine": [query["mine"]]}]


class Marks:
    """Answers a query with this process beside it."""

    def __call__(self, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**each, "pids": [*each["pids"], os.getpid()]} for each in queries]


class SlowMarks(Marks):
    """The same after a tenth of a second."""

    def __call__(self, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        time.sleep(0.1)
        return super().__call__(queries)


def node_directory() -> str:
    """The directory of this Ray node's own node, by which tests tell nodes apart."""
    return str(attachment().place.directory)


class Makes:
    """Answers with a new Array of the query's number, and where it was made."""

    def __call__(self, queries: list[int]) -> list[dict[str, Any]]:
        made = node_directory()
        return [{"array": hop.array(np.full(FLOATS, each)), "made": made} for each in queries]


class Sums:
    """Answers with the sum of an Array, and where it was read; first it waits for a query's file.

    It makes a file of its own in the same folder before it waits.
    """

    def __call__(self, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for each in queries:
            if "until" in each:
                gate = Path(each["until"])
                gate.with_name(uuid.uuid4().hex).touch()
                while not gate.exists():
                    time.sleep(0.01)
        return [
            {**each, "array": float(np.sum(each["array"])), "read": node_directory()}
            for each in queries
        ]


@stage(**LIGHT)
class Reads:
    """Reads one key of a table as of the time of each query."""

    def __init__(self, table: hop.Table, key: str) -> None:
        self._table = table
        self._key = key

    async def __call__(self, queries: list[Any]) -> list[Any]:
        times = query_snapshots()
        return [float(await self._table.get_async(self._key, at=each)) for each in times]


@stage(**LIGHT)
class Pairs:
    """Joins what two stages have read."""

    def __call__(self, one: list[Any], two: list[Any]) -> list[Any]:
        return list(zip(one, two, strict=True))


@stage(weights="model", num_replicas=2, **LIGHT)
class Weighted:
    """Answers with the sum of its weights, and tells where they are."""

    def __init__(self) -> None:
        self._weights = hop.weights(timeout_s=60)["layer"]

    def __call__(self, queries: list[Any]) -> list[Any]:
        total = float(self._weights.sum())  # all pages are there
        return [(os.getpid(), total, find_place(self._weights)) for _ in queries]


@stage(weights="model", **LIGHT)
class WeightedAsync:
    """Answers with the sum of its weights, and the fetches that had begun when it was imported."""

    async def __init__(self) -> None:  # type: ignore[misc]  # a stage awaits it
        self._weights = (await hop.weights_async(timeout_s=60))["layer"]

    async def __call__(self, queries: list[Any]) -> list[Any]:
        return [(float(self._weights.sum()), imported.BEGUN) for _ in queries]


@ray.remote(num_cpus=0)
class Teller:
    """Tells the counters of the node where it is."""

    def stats(self) -> NodeStats:
        return told()
