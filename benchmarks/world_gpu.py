"""Worlds by NCCL when a member dies, on one GPU that two processes share.

    python benchmarks/world_gpu.py

A peer is killed with SIGKILL while nothing waits for it, while a `recv` does, and amid transfers;
or stopped. Two moments are told: when the survivor knew, and when its operation had raised, which
is when its kernels have ended and its arrays may be used again. Then joins, twelve worlds that sum
at once, and the leftovers of many. NCCL refuses two ranks on one GPU of one host, so each process
poses as a host of its own, and all bytes go over sockets. No bandwidth is reported, because no real
deployment has that path. Without a GPU, `--toy` takes the tests' stand-in for NCCL.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meters import SEED
from ranks import Rank
from world_death import KILL_MEDIAN_S, KILL_P95_S, LIMIT_S, Row, tell
from world_gpu_member import WHAT, Ended, GpuMember, equip, free_bytes
from worlds import free_address

from hoplite_ray.worlds.gpu import nccl

GB = 10**9
STAND_IN = Path(__file__).parents[1] / "build/editable/libfake_nccl.so"
SETTLE_S = 0.5  # for threads that have done their work to end
VICTIMS = 6  # that are started ahead
VICTIMS_DO = {"recv": "idle", "send": "receiving", "receiving": "send"}  # and else the same


class Victims:
    """Processes that are there to be killed. A context manager."""

    def __init__(self, count: int, held_bytes: int) -> None:
        self._left = count
        self._held_bytes = held_bytes
        self._ready: list[Rank] = []

    def __enter__(self) -> Victims:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._ready:
            end(each)

    def next(self) -> Rank:
        while self._left and len(self._ready) < VICTIMS:
            self._left -= 1
            one = Rank.start([], "world_gpu_member.play", "there")
            one.tell("begin")
            if self._held_bytes:
                one.tell("hold", size_bytes=self._held_bytes)
            self._ready.append(one)
        one = self._ready.pop(0)
        for _ in range(2 if self._held_bytes else 1):
            one.answer()
        return one


def end(one: Rank) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGKILL)
    one.close()


def deaths(here: GpuMember, ways: Sequence[str], count: int, held_gb: float) -> Iterator[str | Row]:
    """Kill `count` peers in each way, in turns."""
    seen: dict[str, list[tuple[float, float]]] = {what: [] for what in ways}
    moments = random.Random(SEED)
    with Victims(count * len(ways), round(held_gb * GB)) as victims:
        for number in range(count):
            for what in ways:
                # Every other one within the first transfers, which make NCCL's connections.
                after_s = moments.uniform(*((0.1, 0.5) if number % 2 else (0.0, 0.1)))
                seen[what].append(death(here, victims.next(), what, after_s))
    for what, times in seen.items():
        case = f"{held_gb:g} GB on the GPU, killed, {_case(what)}"
        yield Row.of(f"{case}: known", [known for known, _ in times], (KILL_MEDIAN_S, KILL_P95_S))
        if what != "idle":
            yield Row.of(f"{case}: raised after that", [late for _, late in times], (None, None))


def _case(what: str) -> str:
    names = {"recv": "a recv waits", "receiving": "amid a recv", "send": "amid a send"}
    return names.get(what, f"amid an {what}" if what != "idle" else what)


def death(here: GpuMember, there: Rank, what: str, after_s: float) -> tuple[float, float]:
    """Kill one; returns when this process knew, and how much later its operation raised."""
    try:
        meet(here, there, "deaths")
        if what != "idle":
            there.tell("end", name="deaths", what=VICTIMS_DO.get(what, what))
        done_s, ended = here.runner.run(_do_to(here, there.pid, signal.SIGKILL, what, after_s))
        if ended.cause != "PEER_DIED":
            raise RuntimeError(f"the world ended by {ended.cause}, not by PEER_DIED")
        here.forget(name="deaths")
        return ended.heard_s - done_s, max(ended.raised_s - ended.heard_s, 0.0)
    finally:
        end(there)


def meet(here: GpuMember, there: Rank, name: str, **how: Any) -> float:
    """Both join a world; how long the join took here."""
    how = {"name": name, "meet_at": free_address(), **how}
    there.tell("join", rank=1, **how)
    took_s = here.join(rank=0, **how)
    there.answer()
    return took_s


async def _do_to(
    here: GpuMember, pid: int, number: int, what: str, after_s: float
) -> tuple[float, Ended]:
    ended = asyncio.create_task(here.until_ended("deaths", what))
    await asyncio.sleep(after_s)
    if ended.done():
        raise RuntimeError(f"it ended before the peer did: {ended.result()}")
    done_s = time.monotonic()
    os.kill(pid, number)
    return done_s, await asyncio.wait_for(ended, LIMIT_S)


def stops(here: GpuMember, count: int, dead_after_s: float) -> Iterator[Row]:
    """Stop peers amid a sum until they are given up: their kernels and sockets stay as they are."""
    given_up_s, raised_s = [], []
    with Victims(count, 0) as victims:
        for _ in range(count):
            there = victims.next()
            try:
                meet(here, there, "deaths", dead_after_s=dead_after_s)
                there.tell("end", name="deaths", what="all_reduce")
                done_s, ended = here.runner.run(
                    _do_to(here, there.pid, signal.SIGSTOP, "all_reduce", 0.2)
                )
                given_up_s.append(ended.heard_s - done_s)
                raised_s.append(max(ended.raised_s - ended.heard_s, 0.0))
                here.forget(name="deaths")
            finally:
                end(there)
    case = f"stopped amid an all_reduce, given up after {dead_after_s:g} s"
    yield Row.of(f"{case}: known", given_up_s, (None, None))
    yield Row.of(f"{case}: raised after that", raised_s, (None, None))


def joins(here: GpuMember, there: Rank, count: int) -> Iterator[str | Row]:
    """Join and leave worlds one after the other, and tell what stays of them."""
    took_s = []
    for number in range(count + 1):
        took_s.append(meet(here, there, "joins"))
        there.tell("leave", name="joins")
        here.leave(name="joins")
        there.answer()
        if number == 0:
            before = settled(here)
    first, *others = took_s
    yield Row.of("a join of two processes", others, (None, None))
    yield Row.of("the first join of two processes", [first], (None, None))
    yield f"of {count} more worlds stay: {_difference(before, settled(here))}"


def settled(here: GpuMember) -> dict[str, int]:
    """Return the resources of this process once their number no longer falls."""
    nccl.settle()
    time.sleep(SETTLE_S)
    return here.has()


def _difference(before: dict[str, int], after: dict[str, int]) -> str:
    mib = (before["free_bytes"] - after["free_bytes"]) / 2**20
    return (
        f"{after['threads'] - before['threads']} threads, "
        f"{after['descriptors'] - before['descriptors']} descriptors, {mib:.0f} MiB of the GPU"
    )


def together(here: GpuMember, there: Rank, count: int, rounds: int) -> str:
    """Sum in many worlds at once."""
    names = [f"sums-{number}" for number in range(count)]
    for name in names:
        meet(here, there, name)
    began_s = time.monotonic()
    there.tell("sum_all", names=names, rounds=rounds)
    here.sum_all(names=names, rounds=rounds)
    there.answer()
    took_s = time.monotonic() - began_s
    for name in names:
        there.tell("leave", name=name)
        here.leave(name=name)
        there.answer()
    return (
        f"{count} worlds at once, {rounds} sums of 1 MiB in each: all values right, {took_s:.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--ways", nargs="+", choices=WHAT, default=WHAT, help="what they do then")
    parser.add_argument("--gb", type=float, nargs="+", default=[0.1, 10.0], help="on the GPU")
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--joins", type=int, default=50)
    parser.add_argument("--worlds", type=int, default=12, help="at once")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    dead_after_s = 3.0
    if asked.toy:
        asked.kills, asked.gb, asked.stops, asked.joins, asked.worlds = 1, [0.1], 1, 2, 3
        dead_after_s = 1.0
    if not has_gpu():
        if not asked.toy or not STAND_IN.exists():
            print("no GPU: nothing was measured")
            return 0
        os.environ["HOPLITE_RAY_NCCL_LIBRARY"] = os.environ["HOPLITE_RAY_CUDA_LIBRARY"] = str(
            STAND_IN
        )
    equip("here")
    tell("world_gpu", _all(asked, dead_after_s), asked)
    return 0


def has_gpu() -> bool:
    """Whether there is a driver and a GPU that it can use."""
    try:
        equip("here")
    except (OSError, RuntimeError):
        return False
    return free_bytes() > 0


def _all(asked: argparse.Namespace, dead_after_s: float) -> Iterator[str | Row]:
    here = GpuMember("here")
    there = Rank.start([], "world_gpu_member.play", "there")
    try:
        there.do("begin")
        yield from joins(here, there, asked.joins)
        yield together(here, there, asked.worlds, 20)
        meet(here, there, "first", dead_after_s=dead_after_s)  # which has a manager of its own
        there.tell("leave", name="first")
        here.leave(name="first")
        there.answer()
        before = settled(here)
    finally:
        end(there)
    for gb in asked.gb:
        yield from deaths(here, asked.ways, asked.kills, gb)
    yield from stops(here, asked.stops, dead_after_s)
    yield f"of all whose peers were killed or stopped stay: {_difference(before, settled(here))}"


if __name__ == "__main__":
    sys.exit(main())
