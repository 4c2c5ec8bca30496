"""The driver process of serving.py: it owns or drives a Ray with Serve, and sends the queries.

Whether Serve runs in its fast mode is a matter of this process's environment, before Ray starts.
Answers go back as JSON, so times are numbers: `*_ns` of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import ranks
import ray
import serving_stages as stages
from meters import cpu_s
from ray import serve
from ray._private import state
from ray.serve.config import HTTPOptions, ProxyLocation

ANSWER_S = 90.0  # longer than a query's deadline
AIM_S = 10.0  # for a replica of the victim's stage to have a query
AIMED_MS = (10.0, 35.0)  # into the service's 50 ms: when the replica of a query is killed
MADE_S = 60.0  # for a replacement to be made; Serve takes a few seconds
BEGUN_S = 5.0  # for it to begin its first query; where others are free it may have none
TICK_S = 0.001
WARM_UP = 5  # queries before those that count
DISTINCT = 50  # queries of the search whose answers are known
ELEMENTS = 5_000  # of the array in each
STORE_BYTES = 1 << 30
REPLICA_NAME = "SERVE_REPLICA::"


def play(address: str = "", arena_bytes: str = "0", link_mbit: str = "0") -> None:
    """Do what serving.py says; without an address in a Ray of its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    driver = Driver()
    if address:
        flag = {"arena_bytes": int(arena_bytes), "link_mbit": int(link_mbit)}
        ray.init(address, runtime_env={"hoplite": flag}, log_to_driver=False)
        serve.start(proxy_location=ProxyLocation.Disabled)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        ranks.serve(driver)
    finally:
        driver.stop()


class Driver:
    """The commands of the process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hoplite-")
        self._loop = asyncio.new_event_loop()  # it runs all the time: handles are told by it
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._handles: dict[str, Any] = {}
        self._url = ""
        self._expected: list[Any] = []
        self._asked = 0  # queries of the search

    def start(self) -> None:
        """Start Ray and Serve here."""
        options = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        ray.init("local", num_cpus=4, log_to_driver=False, logging_level="ERROR", **options)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serve.start(http_options=HTTPOptions(port=port))
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._url = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """End the Ray that was started here, with all that it runs."""
        ray.shutdown()
        self._folder.cleanup()

    def _run(self, deed: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(deed, self._loop).result()

    def deploy(self, application: str, edges: str, **arguments: Any) -> str:
        """Have an application run; returns its name."""
        name = f"{application}-{edges}".replace("_", "-")
        build: Callable[..., Any] = getattr(stages, application)
        if application in ("slow_pipeline", "slow_ensemble", "search"):
            (Path(self._folder.name) / name).mkdir()
            arguments["folder"] = str(Path(self._folder.name) / name)
        app = build(edges, **arguments)
        self._handles[name] = serve.run(app, name=name, route_prefix=f"/{name}")
        return name

    def delete(self, name: str) -> None:
        """End an application."""
        del self._handles[name]
        serve.delete(name)

    def handoff(self, name: str, size_bytes: int, queries: int, whole: bool) -> dict[str, Any]:
        """Ask one query after the other; return their times, and the CPU time of the replicas."""
        return self._run(self._handoff(name, size_bytes, queries, whole))

    async def _handoff(
        self, name: str, size_bytes: int, queries: int, whole: bool
    ) -> dict[str, Any]:
        array = ranks.values(size_bytes, 0)
        query = {"array": array, "stamps_ns": (), "whole": whole}
        pids = [*replica_pids(name), *_proxies()]
        hops_ns: list[int] = []
        through_ns: list[int] = []
        taken_ns: list[int] = []
        used_s = 0.0
        for number in range(-WARM_UP, queries):
            if number == 0:
                hops_ns, through_ns, taken_ns, used_s = [], [], [], cpu_of(pids)
            began_ns = time.monotonic_ns()
            answer = await _within(self._handles[name].remote(query))
            taken_ns.append(time.monotonic_ns() - began_ns)
            stamps = answer["stamps_ns"]  # begin and end, of each stage
            hops_ns += [stamps[at] - stamps[at - 1] for at in range(2, len(stamps), 2)]
            through_ns.append(stamps[-1] - stamps[0])
            if whole and number == 0 and not np.array_equal(answer["array"], array):
                raise ValueError(f"{name} has answered another array")
        used_s = cpu_of(pids) - used_s
        return {
            "hops_ms": _ms(hops_ns),
            "through_ms": _ms(through_ns),
            "taken_ms": _ms(taken_ns),
            "cpu_ms": used_s * 1e3 / queries,
        }

    def timeline(
        self, name: str, stage: str, rate: float, before_s: float, after_s: float
    ) -> dict[str, Any]:
        """Ask at a constant rate, and kill a replica of a stage that has a query.

        Returns: for each query when it was due, from the kill on; its latency; how it has failed,
                 or None; whether it had begun on the killed replica. And when a replacement was
                 made, and when it began its first query; None if that took too long.
        """
        return self._run(self._timeline(name, stage, rate, before_s, after_s))

    async def _timeline(
        self, name: str, stage: str, rate: float, before_s: float, after_s: float
    ) -> dict[str, Any]:
        folder = Path(self._folder.name) / name
        handle = self._handles[name]
        for number in range(-WARM_UP, 0):
            await _within(handle.remote(number))
        load = asyncio.create_task(_constant(lambda number: _within(handle.remote(number)), rate))
        await asyncio.sleep(before_s)
        known = {path.name for path in folder.iterdir()}
        victim = await _aimed(folder, stage, set(replica_pids(name, stage)))
        killed_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        made_ns, begun_ns = await _replaced(folder, stage, known)
        await asyncio.sleep(after_s)
        load.cancel()
        asked = await load
        begun = dict(_begun(folder / f"{stage}-{victim}"))  # earlier trials had the same numbers
        queries = []
        for number, (due_ns, ended_ns, failure) in asked.items():
            held = begun.get(number, 0) >= due_ns and ended_ns >= killed_ns
            due_s, latency_ms = (due_ns - killed_ns) / 1e9, (ended_ns - due_ns) / 1e6
            queries.append([round(due_s, 6), round(latency_ms, 3), failure, held])
        seconds = [at_ns and round((at_ns - killed_ns) / 1e9, 3) for at_ns in (made_ns, begun_ns)]
        return {"queries": queries, "made_s": seconds[0], "begun_s": seconds[1]}

    def batching(
        self, name: str, rate: float, seconds: float, seed: int, late_s: float
    ) -> dict[str, Any]:
        """Have a deployment query the model itself, at random moments."""
        what = {"rate": rate, "seconds": seconds, "seed": seed, "late_s": late_s}
        return self._run(_within(self._handles[name].run.remote(**what), ANSWER_S * 2))

    def http(
        self, name: str, rate: float, seconds: float, seed: int, late_s: float
    ) -> dict[str, Any]:
        """Query an application over HTTP, from here, at random moments."""
        return self._run(self._http(name, rate, seconds, seed, late_s))

    async def _http(
        self, name: str, rate: float, seconds: float, seed: int, late_s: float
    ) -> dict[str, Any]:
        connections = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connections) as client:

            async def ask() -> int:
                async with client.post(f"{self._url}/{name}", json=0) as response:
                    response.raise_for_status()
                    size: int = await response.json()
                    return size

            for _ in range(WARM_UP):
                await ask()
            return await stages.poisson(ask, rate=rate, seconds=seconds, seed=seed, late_s=late_s)

    def learn(self, name: str) -> None:
        """Keep the undisturbed answers of the search."""
        asks = [_within(self._handles[name].remote(_query(each, each))) for each in range(DISTINCT)]
        self._expected = self._run(_gathered(asks))
        self._asked = DISTINCT

    def kill(self, name: str, count: int, rate: float, pause_s: float, seed: int) -> dict[str, Any]:
        """Ask at a constant rate; kill a random replica, again and again; judge all answers.

        pause_s:  before a kill at most.
        """
        return self._run(self._kill(name, count, rate, pause_s, seed))

    async def _kill(
        self, name: str, count: int, rate: float, pause_s: float, seed: int
    ) -> dict[str, Any]:
        handle, first, wrong = self._handles[name], self._asked, []

        async def ask(number: int) -> None:
            value = number % DISTINCT
            query = _query(first + number, value)
            answer = await _within(handle.ask.remote(query, query_id=str(first + number)))
            if not _equal(answer, self._expected[value]):
                wrong.append(first + number)

        load = asyncio.create_task(_constant(ask, rate))
        kills = await _killed(name, count, random.Random(seed), pause_s)
        await asyncio.sleep(pause_s)
        load.cancel()
        asked = await load
        self._asked += len(asked)
        runs: Counter[tuple[str, int]] = Counter()
        for diary in (Path(self._folder.name) / name).iterdir():
            stage = diary.name.partition("-")[0]
            runs.update((stage, number) for number, _ in _begun(diary) if number >= first)
        taken_ms = [(ended_ns - due_ns) / 1e6 for due_ns, ended_ns, failure in asked.values()]
        return {
            "kills": kills,
            "queries": len(asked),
            "lost": [failure for _, _, failure in asked.values() if failure],
            "wrong": len(wrong),
            "again": len({number for (_, number), times in runs.items() if times > 1}),
            "taken_ms": [round(each, 3) for each in taken_ms],
        }

    def vote(
        self, name: str, way: str, size_bytes: int, queries: int, callers: int
    ) -> dict[str, Any]:
        """Ask an ensemble from so many callers at once; returns how long all of it took."""
        return self._run(self._vote(name, way, size_bytes, queries, callers))

    async def _vote(
        self, name: str, way: str, size_bytes: int, queries: int, callers: int
    ) -> dict[str, Any]:
        handle = self._handles[name]
        array = ranks.values(size_bytes, 0)
        left = iter(range(queries))
        taken_ms: list[float] = []

        async def call() -> None:
            for _ in left:
                began_ns = time.monotonic_ns()
                if way == "edges":
                    answer = (await _within(handle.remote(array), stages.MANY_S)).value
                else:
                    answer = await _within(handle.ask.remote(array, way), stages.MANY_S)
                if answer != float(array[-1]):
                    raise ValueError(f"{name} has answered {answer}, not {array[-1]}")
                taken_ms.append((time.monotonic_ns() - began_ns) / 1e6)

        began_s = time.monotonic()
        await asyncio.gather(*(call() for _ in range(callers)))
        return {"seconds": time.monotonic() - began_s, "taken_ms": taken_ms}


async def _within(response: Any, seconds: float = ANSWER_S) -> Any:
    async with asyncio.timeout(seconds):
        return await response


async def _gathered(asks: list[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*asks)


Asked = dict[int, tuple[int, int, str | None]]  # by number: due, ended, and how it has failed


async def _constant(ask: Callable[[int], Awaitable[Any]], rate: float) -> Asked:
    """Ask at a constant rate until this is cancelled, and then for all answers."""
    asked: Asked = {}
    began_ns, number = time.monotonic_ns(), 0

    async def one(number: int, due_ns: int) -> None:
        failure = None
        try:
            await ask(number)
        except Exception as error:
            first, _, _ = str(error).strip().partition("\n")
            failure = f"{type(error).__name__}: {first}"
        asked[number] = (due_ns, time.monotonic_ns(), failure)

    tasks = []
    with suppress(asyncio.CancelledError):
        while True:
            due_ns = began_ns + round(number * 1e9 / rate)
            await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
            tasks.append(asyncio.create_task(one(number, due_ns)))
            number += 1
    await asyncio.gather(*tasks)
    return asked


async def _killed(name: str, count: int, chance: random.Random, pause_s: float) -> dict[str, int]:
    """Kill `count` replicas of an application; returns how many of each stage."""
    kills: Counter[str] = Counter()
    dead: set[int] = set()
    while kills.total() < count:
        await asyncio.sleep(chance.uniform(0, pause_s))
        stage = chance.choice(stages.SEARCH_STAGES)
        living = sorted(set(replica_pids(name, stage)) - dead)
        if not living:
            continue  # Serve is about to replace the last one that was killed
        victim = chance.choice(living)
        dead.add(victim)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            kills[stage] += 1
    return dict(kills)


async def _aimed(folder: Path, stage: str, pids: set[int]) -> int:
    """Return a replica that is in the middle of a query."""
    deadline_s = time.monotonic() + AIM_S
    least_ms, most_ms = AIMED_MS
    while time.monotonic() < deadline_s:
        for path in _diaries(folder, stage):
            pid = int(path.name.rpartition("-")[2])
            begun = _begun(path)
            if pid in pids and begun:
                if least_ms <= (time.monotonic_ns() - begun[-1][1]) / 1e6 <= most_ms:
                    return pid
        await asyncio.sleep(TICK_S)
    raise TimeoutError(f"no replica of {stage} had a query in {AIM_S:g} s")


async def _replaced(folder: Path, stage: str, known: set[str]) -> tuple[int | None, int | None]:
    """Wait for a replica with a new diary; returns when it had one, and began its first query."""
    made_ns, deadline_s = None, time.monotonic() + MADE_S
    while time.monotonic() < deadline_s:
        for path in _diaries(folder, stage):
            if path.name not in known:
                if made_ns is None:
                    made_ns, deadline_s = time.monotonic_ns(), time.monotonic() + BEGUN_S
                if begun := _begun(path):
                    return made_ns, begun[0][1]
        await asyncio.sleep(10 * TICK_S)
    return made_ns, None


def _diaries(folder: Path, stage: str) -> list[Path]:
    return list(folder.glob(f"{stage}-*"))


def _begun(diary: Path) -> list[tuple[int, int]]:
    """The queries that a replica has begun, and when."""
    lines = diary.read_text().split("\n")[:-1]  # after the last one's end is nothing
    return [(int(number), int(at_ns)) for number, at_ns in map(str.split, lines)]


def replica_pids(name: str, deployment: str = "") -> list[int]:
    """Return the processes of an application's replicas, or of one deployment's."""
    mark = f"{REPLICA_NAME}{name}#" + (f"{deployment}#" if deployment else "")
    return list_processes(mark)


def _proxies() -> list[int]:
    return list_processes("SERVE_PROXY_ACTOR")


def list_processes(mark: str) -> list[int]:
    """Return the processes of the actors whose names begin so."""
    alive = [each for each in state.actors().values() if each["State"] == "ALIVE"]
    return [each["Pid"] for each in alive if each["Pid"] and each["Name"].startswith(mark)]


def cpu_of(pids: list[int]) -> float:
    """Return the CPU seconds that these processes have used."""
    return sum(cpu_s(pid) or 0.0 for pid in pids)


def _ms(times_ns: list[int]) -> list[float]:
    return [each_ns / 1e6 for each_ns in times_ns]


def _query(number: int, value: int) -> dict[str, Any]:
    """A query of the search; those of one value have one answer."""
    array = np.random.default_rng(value).integers(0, 1000, ELEMENTS).astype(np.float32)
    return {"number": number, "array": array}


def _equal(answer: Any, expected: Any) -> bool:
    same = np.array_equal(answer["array"], expected["array"])
    return bool(same) and answer["best"] == expected["best"]
