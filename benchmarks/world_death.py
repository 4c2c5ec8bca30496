"""How soon a member of a world learns of its peer's death, and that slow peers never count as dead.

    python benchmarks/world_death.py

Peers of several sizes are killed with SIGKILL, while an operation waits for them and while nothing
does, and with a child that holds all of their descriptors. A killed peer without one also has an
ordinary TCP connection to this process, whose end is what any other program would see: Linux frees
the memory first. Cables are cut between network namespaces, and need root. A time ends when Python
has heard of it. Limits are those of the design, for machines that are not overloaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from figures import Figure, print_figures
from meters import machine
from network import Network, why_impossible
from ranks import Rank
from world_members import Heard, Member
from worlds import free_address

GB, MB = 10**9, 10**6
KILL_MEDIAN_S, KILL_P95_S = 0.010, 0.050
CUT_S = 1.0
SETTLE_S = 0.05  # between the last word of preparation and the deed
LIMIT_S = 30.0
PORT = 29500  # in a namespace of our own


@dataclass(frozen=True, slots=True)
class Row:
    """How long one kind of end took to be known."""

    case: str
    n: int
    median_s: float
    p95_s: float
    most_s: float
    limit_median_s: float | None
    limit_p95_s: float | None
    plain_median_s: float | None  # of an ordinary socket's end
    plain_p95_s: float | None
    load: float
    taken_s: tuple[float, ...]
    plain_s: tuple[float, ...]

    @classmethod
    def of(
        cls,
        case: str,
        taken_s: Sequence[float],
        limits: tuple[float | None, float | None],
        plain_s: Sequence[float] = (),
    ) -> Row:
        return cls(
            case,
            len(taken_s),
            statistics.median(taken_s),
            p95(taken_s),
            max(taken_s),
            *limits,
            statistics.median(plain_s) if plain_s else None,
            p95(plain_s) if plain_s else None,
            os.getloadavg()[0],
            tuple(taken_s),
            tuple(plain_s),
        )

    def figures(self) -> list[Figure]:
        limit_s, limit_p95_s = self.limit_median_s, self.limit_p95_s
        p95_case = f"{self.case}: p95"
        found = [
            Figure(case=self.case, unit="s", samples=self.taken_s, goal=limit_s),
            Figure(case=p95_case, unit="s", samples=(self.p95_s,), goal=limit_p95_s),
        ]
        if self.plain_p95_s is not None:
            by = "plain socket"
            found += [
                Figure(case=self.case, by=by, unit="s", samples=self.plain_s),
                Figure(case=p95_case, by=by, unit="s", samples=(self.plain_p95_s,)),
            ]
        return found

    @property
    def line(self) -> str:
        text = f"{self.case:45} median {_text(self.median_s, self.limit_median_s)}, "
        text += f"p95 {_text(self.p95_s, self.limit_p95_s)}, most {self.most_s * 1e3:.1f} "
        text += f"(n = {self.n}, load {self.load:.1f})"
        if self.plain_median_s is not None and self.plain_p95_s is not None:
            times = self.plain_median_s / self.median_s
            text += f"; a plain socket {self.plain_median_s * 1e3:.1f}, p95 "
            text += f"{self.plain_p95_s * 1e3:.1f}: {times:.0f} x"
        return text


def p95(values: Sequence[float]) -> float:
    """The value that 95 % are not above."""
    return sorted(values)[-(-len(values) * 95 // 100) - 1]


def _text(seconds: float, limit_s: float | None) -> str:
    text = f"{seconds * 1e3:.1f} ms"
    if limit_s is None:
        return text
    return f"{text} of {limit_s * 1e3:g} {'ok' if seconds <= limit_s else 'OVER'}"


@contextlib.contextmanager
def pair(
    transport: str = "auto", dead_after_s: float | None = 3.0
) -> Iterator[tuple[Member, Rank]]:
    """A world of this process, as rank 0, and another one."""
    here, there = Member(), Rank.start([], "world_members.play")
    how = {"meet_at": free_address(), "transport": transport, "dead_after_s": dead_after_s}
    try:
        there.tell("join", rank=1, **how)
        here.join(rank=0, **how)
        there.answer()
        yield here, there
    finally:
        here.close()
        here.runner.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(there.pid, signal.SIGKILL)
        there.close()


def kills(count: int, size_bytes: int) -> Iterator[Row]:
    """Kill `count` peers of that size in each of four ways, in turns."""
    cases = [(pending, forked) for forked in (False, True) for pending in (False, True)]
    seen: dict[tuple[bool, bool], list[tuple[float, float | None]]] = {case: [] for case in cases}
    for _ in range(count):
        for pending, forked in cases:
            seen[pending, forked].append(killed(size_bytes, pending=pending, forked=forked))
    for (pending, forked), times in seen.items():
        case = f"{size_bytes / GB:g} GB killed, {'an operation waits' if pending else 'idle'}"
        yield Row.of(
            f"{case}, forked" if forked else case,
            [ours for ours, _ in times],
            (KILL_MEDIAN_S, KILL_P95_S),
            [plain for _, plain in times if plain is not None],
        )


def killed(size_bytes: int, *, pending: bool, forked: bool) -> tuple[float, float | None]:
    """Kill one; returns when this process knew, and when its plain socket's end came."""
    with contextlib.ExitStack() as stack:
        here, there = stack.enter_context(pair())
        there.do("grow", size_bytes=size_bytes)
        plain = None
        if forked:
            stack.callback(os.kill, there.do("fork"), signal.SIGKILL)
        else:
            plain = stack.enter_context(PlainSocket(there))
        killed_s, heard = here.runner.run(_kill(here, there.pid, pending=pending))
        expect(heard, "PEER_DIED")
        return heard.at_s - killed_s, plain.ended_s() - killed_s if plain else None


async def _kill(here: Member, pid: int, *, pending: bool) -> tuple[float, Heard]:
    end = asyncio.create_task(here.end(pending=pending))
    await asyncio.sleep(SETTLE_S)
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return killed_s, await asyncio.wait_for(end, LIMIT_S)


def expect(heard: Heard, cause: str) -> None:
    if heard.cause != cause:
        raise RuntimeError(f"the world ended by {heard.cause}, not by {cause}")


class PlainSocket:
    """An ordinary connection of another process to this one. A context manager."""

    def __init__(self, there: Rank) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            there.do("connect", port=listener.getsockname()[1])
            self._socket, _ = listener.accept()
        self._socket.settimeout(LIMIT_S)
        self._ended_s = 0.0
        self._waiting = threading.Thread(target=self._wait)
        self._waiting.start()

    def __enter__(self) -> PlainSocket:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._waiting.join()
        self._socket.close()

    def ended_s(self) -> float:
        """Wait for its end; returns when it came."""
        self._waiting.join()
        return self._ended_s

    def _wait(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            self._socket.recv(1)
        self._ended_s = time.monotonic()


def cuts(count: int) -> Iterator[Row]:
    """Separate two network namespaces, `count` times in each way; a time for either end."""
    for what in ("cable cut", "packets lost"):
        for pending in (False, True):
            taken_s = [each for _ in range(count) for each in _cut(what, pending=pending)]
            case = f"{what}, {'an operation waits' if pending else 'idle'}"
            yield Row.of(case, taken_s, (CUT_S, CUT_S))


def _cut(what: str, *, pending: bool) -> list[float]:
    with Network(2, rate_mbit=1000) as network, contextlib.ExitStack() as stack:
        ends = [Rank.start(network.within(rank), "world_members.play") for rank in range(2)]
        for end in ends:
            stack.callback(end.close)
        meet_at = f"tcp://{network.address(0)}:{PORT}"
        for rank, end in enumerate(ends):
            end.tell("join", rank=rank, meet_at=meet_at)
        carried_by = [end.answer() for end in ends]
        if carried_by != ["tcp", "tcp"]:
            raise RuntimeError(f"two namespaces are joined by {carried_by}, not by tcp")
        for end in ends:
            end.tell("hear", pending=pending)
        time.sleep(4 * SETTLE_S)
        cut_s = time.monotonic()
        if what == "cable cut":
            network.cut(1)
        else:
            network.silence(0, 1)
            network.silence(1, 0)
        heard = [Heard(**end.answer()) for end in ends]
        for each in heard:
            expect(each, "UNREACHABLE")
        return [each.at_s - cut_s for each in heard]


def stops(count: int, dead_after_s: float) -> Iterator[Row]:
    """Stop a peer with SIGSTOP: until it is suspected, and until it is given up."""
    suspected_s, dead_s = [], []
    for _ in range(count):
        with pair(dead_after_s=dead_after_s) as (here, there):
            stopped_s = time.monotonic()
            os.kill(there.pid, signal.SIGSTOP)
            kinds = here.kinds_within(seconds=LIMIT_S)  # the end is the last of them
            if [kind for kind, _ in kinds] != ["SUSPECT", "BROKEN"]:
                raise RuntimeError(f"a stopped peer had {kinds}")
            suspected_s.append(kinds[0][1] - stopped_s)
            dead_s.append(kinds[1][1] - stopped_s)
    yield Row.of("stopped, until suspected after 0.5 s", suspected_s, (None, None))
    yield Row.of(f"stopped, until given up after {dead_after_s:g} s", dead_s, (None, None))


def alive(held_s: float, still_s: float) -> Iterator[str]:
    """Peers that do nothing for long and are not dead: nothing is lost, and no world breaks."""
    message = {"count": 64, "size_bytes": MB}
    with pair(dead_after_s=None) as (here, there):
        os.kill(there.pid, signal.SIGSTOP)
        kinds = here.kinds_within(seconds=still_s)
        os.kill(there.pid, signal.SIGCONT)
        kinds += here.kinds_within(seconds=1.0)
        there.tell("take", **message)
        here.give(**message)
        there.answer()
        yield f"stopped for {still_s:g} s and never given up: {_words(kinds)}, then all came"
    with pair() as (here, there):
        there.tell("hold_gil", seconds=held_s)
        kinds = here.kinds_within(seconds=held_s)
        there.answer()
        there.tell("take", **message)
        here.give(**message)
        there.answer()
        yield f"held its GIL for {held_s:g} s: {_words(kinds)}, then all came"
    for transport in ("tcp", "shared_memory"):
        with pair(transport) as (here, there):
            there.tell("take", after_s=still_s, **message)
            here.give(**message)
            there.answer()
            if here.world.state.name != "READY":
                raise RuntimeError(f"the world is {here.world.state.name}")
            yield f"received nothing for {still_s:g} s, {transport}: all of 64 MB came"


def _words(kinds: Sequence[tuple[str, float]]) -> str:
    names = [kind for kind, _ in kinds]
    if "BROKEN" in names:
        raise RuntimeError(f"a peer that lives was given up: {names}")
    return ", ".join(names).lower() or "no event"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=25, help="of each kind")
    parser.add_argument("--gb", type=float, nargs="+", default=[0.1, 1.0, 3.0], help="killed")
    parser.add_argument("--cuts", type=int, default=5, help="of each kind")
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--held-s", type=float, default=30.0, help="that a peer holds its GIL")
    parser.add_argument("--still-s", type=float, default=10.0, help="that a peer does nothing")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    dead_after_s = 3.0
    if asked.toy:
        asked.kills, asked.gb, asked.cuts, asked.stops, dead_after_s = 1, [0.05], 1, 1, 1.0
        asked.held_s = asked.still_s = 1.0
    tell("world_death", _all(asked, dead_after_s), asked)
    return 0


def tell(benchmark: str, figures: Iterable[Row | str], asked: argparse.Namespace) -> None:
    """Print where this is, each figure as it comes, and what --toy and --json ask for."""
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    rows: list[Row] = []
    for found in figures:
        rows += [found] if isinstance(found, Row) else []
        print(found.line if isinstance(found, Row) else found, flush=True)
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        print_figures(benchmark, [each for row in rows for each in row.figures()], where)


def _all(asked: argparse.Namespace, dead_after_s: float) -> Iterator[Row | str]:
    for gb in asked.gb:
        yield from kills(asked.kills, round(gb * GB))
    impossible = why_impossible()
    if impossible is None:
        yield from cuts(asked.cuts)
    else:
        yield f"no cable was cut: {impossible}"
    yield from stops(asked.stops, dead_after_s)
    yield from alive(asked.held_s, asked.still_s)


if __name__ == "__main__":
    sys.exit(main())
