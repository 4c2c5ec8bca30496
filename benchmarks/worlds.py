"""The cost of a message over a world, beside Gloo and beside bounds of the machine.

    python benchmarks/worlds.py

Messages of float32 from one, two or three processes to one, each sender over an edge of its own,
on this machine: `tcp` (over loopback) and `shared_memory` are forced, `auto` is what is chosen, and
by `alloc` each message is an array that is given away: written once, and read where it lies.
All contenders play each case in turns, and ratios are of plays of the same round. The bounds are
processes with blocking sockets, and processes that copy into and out of shared memory. CPU is of
all threads of the receiver and of the first sender, for each message.

Then the cost of waiting for a message; and how long a process takes to join while another one
streams to the same receiver, and how much that stream loses. Needs torch for Gloo.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self

from figures import OURS, Figure, print_figures
from meters import machine
from peers.gloo import why_absent
from ranks import Rank

SIZES = {"4 KB": 4_000, "40 KB": 40_000, "400 KB": 400_000, "4 MB": 4_000_000, "64 MB": 64_000_000}
SENDERS_MAX = 3
WORLD_WAYS = ("tcp", "shared_memory", "auto", "alloc")
WAY_WORDS = {
    "tcp": "over TCP",
    "shared_memory": "in shared memory",
    "auto": "as chosen",
    "alloc": "given away",
}
BOUND_OF = {"tcp": "raw tcp", "shared_memory": "raw memory"}
KIND_OF = {
    **dict.fromkeys(("raw tcp", "raw memory"), "raw"),
    "gloo": "gloo",
    **dict.fromkeys(WORLD_WAYS, "worlds"),
}
TIMES_GLOO_MIN = {  # of one sender
    "tcp": {"4 KB": 5.0, "40 KB": 4.0, "400 KB": 1.3, "4 MB": 1.1},
    "shared_memory": {"4 KB": 10.0, "40 KB": 8.0, "400 KB": 4.0, "4 MB": 2.4},
}
AUTO_SHARE_MIN = 0.9  # of the better of the two; two plays of one differ by as much
CPU_US_MAX = {"4 KB": 15.0}
WAITING_SHARE_MAX = 0.01  # of a core
JOIN_MS_MAX, JOIN_LOSS_MAX = 5.0, 0.02


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    play_bytes: int  # messages of a play, but at least `messages[0]` and at most `messages[1]`
    messages: tuple[int, int]
    wait_s: float
    joins: int
    window_s: float

    def count(self, size_bytes: int, senders: int) -> int:
        least, most = self.messages
        return max(least, min(most, self.play_bytes // size_bytes) // senders)


FULL = Sizes(7, 256_000_000, (4, 4000), wait_s=5.0, joins=20, window_s=0.5)
TOY = Sizes(1, 4_000_000, (1, 20), wait_s=0.3, joins=2, window_s=0.2)


@dataclass(slots=True)
class Result:
    """One way in one case; a figure for each round."""

    way: str
    carried_by: str
    bytes_per_s: list[float] = field(default_factory=list)
    receiver_cpu_us: list[float] = field(default_factory=list)  # for each message
    sender_cpu_us: list[float] = field(default_factory=list)

    def times(self, other: Result) -> float:
        """The median round's ratio."""
        pairs = zip(self.bytes_per_s, other.bytes_per_s, strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)


class Contenders:
    """The processes of each kind. A context manager."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.carried_by: dict[str, str] = {}  # what a world's way is in truth
        self._kinds = kinds
        self._ranks: dict[str, list[Rank]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hoplite-"))
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        meets_at = {"worlds": free_address(), "gloo": f"{folder}/gloo", "raw": f"{folder}/raw"}
        for kind in self._kinds:
            self._ranks[kind] = []
            for rank in range(SENDERS_MAX + 1):
                words = (f"world_players.play_{kind}", str(rank), str(SENDERS_MAX))
                started = Rank.start([], *words, environment=environment)
                self._ranks[kind].append(started)
                self._stack.callback(started.close)
        for kind in self._kinds:
            answers = self.do(kind, SENDERS_MAX + 1, "ready", meet_at=meets_at[kind])
            if kind == "worlds":
                self.carried_by = dict(zip(WORLD_WAYS, answers[0], strict=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def do(self, kind: str, count: int, verb: str, /, **arguments: Any) -> list[Any]:
        """Have the first processes of a kind do it at the same time; returns their answers."""
        for rank in self._ranks[kind][:count]:
            rank.tell(verb, **arguments)
        return [rank.answer() for rank in self._ranks[kind][:count]]

    @property
    def ways(self) -> list[str]:
        return [way for way, kind in KIND_OF.items() if kind in self._ranks]


@dataclass(slots=True)
class Case:
    """So many senders, of messages of a size."""

    size: str
    senders: int
    results: dict[str, Result]

    def play(self, contenders: Contenders, sizes: Sizes, *, counts: bool) -> None:
        """One round; one that doesn't count warms up."""
        size_bytes = SIZES[self.size]
        count = sizes.count(size_bytes, self.senders)
        what = {"size_bytes": size_bytes, "count": count, "senders": self.senders}
        for way, result in self.results.items():
            answers = contenders.do(KIND_OF[way], self.senders + 1, "play", way=way, **what)
            if not counts:
                continue
            (seconds, receiver_s), (_, sender_s) = answers[:2]
            result.bytes_per_s.append(count * self.senders * size_bytes / seconds)
            result.receiver_cpu_us.append(receiver_s / (count * self.senders) * 1e6)
            result.sender_cpu_us.append(sender_s / count * 1e6)

    def lines(self) -> Iterator[str]:
        title = f"{self.senders} to 1, {self.size}"
        yield f"{title:27} {'MB/s':>7} {'(least to most)':>17} {'of bound':>9} {'x gloo':>7}"
        for way, result in self.results.items():
            rates = [rate / 1e6 for rate in result.bytes_per_s]
            name = way if way == result.carried_by else f"{way}: {result.carried_by}"
            text = f"  {name:25} {statistics.median(rates):7,.0f}"
            spread = f"({min(rates):,.0f} to {max(rates):,.0f})"
            text += f" {spread:>17} {self._share_text(way):>9} {self._times_text(way):>7}"
            cpu = statistics.median(result.receiver_cpu_us), statistics.median(result.sender_cpu_us)
            text += f"  {self._verdict(way):14} CPU us: receiver {cpu[0]:8,.1f}"
            yield f"{text}, sender {cpu[1]:8,.1f} {self._cpu_verdict(way, max(cpu))}".rstrip()

    def figures(self) -> Iterator[Figure]:
        """A case for each way of a world, beside Gloo; the bound is that of what carries it."""
        title, gloo = f"{self.senders} to 1, {self.size}", self.results.get("gloo")
        for way in (each for each in self.results if KIND_OF[each] == "worlds"):
            case = f"{title}, {WAY_WORDS[way]}"
            ours = self.results[way]
            bound = self.results.get(BOUND_OF.get(ours.carried_by, ""))
            times = TIMES_GLOO_MIN.get(way, {}).get(self.size) if self.senders == 1 else None
            goal = times * statistics.median(gloo.bytes_per_s) if times and gloo else None
            bound_per_s = statistics.median(bound.bytes_per_s) if bound else None
            yield _rate(case, OURS, ours, bound=bound_per_s, goal=goal)
            if gloo:
                yield _rate(case, "Gloo", gloo, bound=bound_per_s)
            if (most_us := CPU_US_MAX.get(self.size)) is not None:
                for end, cpu_us in (
                    ("receiver", ours.receiver_cpu_us),
                    ("sender", ours.sender_cpu_us),
                ):
                    samples, goal_s = tuple(each / 1e6 for each in cpu_us), most_us / 1e6
                    what = f"{case}: CPU of the {end} for a message"
                    yield Figure(case=what, unit="s", samples=samples, goal=goal_s)

    def of_bound(self, way: str) -> float | None:
        """The share of what the same kind of transport can carry at all."""
        bound = BOUND_OF.get(self.results[way].carried_by)
        return None if bound is None else self.results[way].times(self.results[bound])

    def times_gloo(self, way: str) -> float | None:
        gloo = self.results.get("gloo")
        return None if gloo is None or way == "gloo" else self.results[way].times(gloo)

    def _share_text(self, way: str) -> str:
        share = self.of_bound(way)
        return "" if share is None else f"{share:.2f}"

    def _times_text(self, way: str) -> str:
        times = self.times_gloo(way)
        return "" if times is None else f"{times:.1f}"

    def _verdict(self, way: str) -> str:
        times = self.times_gloo(way)
        least = TIMES_GLOO_MIN.get(way, {}).get(self.size) if self.senders == 1 else None
        if least is not None and times is not None:
            return f"{least:g} x {'ok' if times >= least else 'BEHIND'}"
        if way == "auto":
            chosen = self.results[self.results[way].carried_by]
            others = [chosen.times(self.results[each]) for each in BOUND_OF]
            return "the better" if min(others) >= AUTO_SHARE_MIN else "NOT THE BETTER"
        return ""

    def _cpu_verdict(self, way: str, cpu_us: float) -> str:
        most = CPU_US_MAX.get(self.size)
        if most is None or KIND_OF[way] != "worlds":
            return ""
        return f"at most {most:g} {_word(cpu_us <= most)}"


def messages(contenders: Contenders, sizes: Sizes, asked: argparse.Namespace) -> Iterator[Case]:
    """Play each case for all rounds."""
    for senders in asked.senders:
        for size in asked.sizes:
            ways = contenders.ways
            case = Case(
                size,
                senders,
                {way: Result(way, contenders.carried_by.get(way, way)) for way in ways},
            )
            for number in range(sizes.rounds + 1):
                case.play(contenders, sizes, counts=number > 0)
            yield case


def waiting(contenders: Contenders, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """A message that comes late: what its receiver uses meanwhile."""
    for way, kind in (("awaited", "worlds"), ("blocking", "worlds"), ("gloo", "gloo")):
        if kind == "gloo" and kind not in contenders.ways:
            continue
        share = contenders.do(kind, 2, "wait", way=way, wait_s=sizes.wait_s)[0]
        yield {"way": way, "wait_s": sizes.wait_s, "core": share}


def joining(contenders: Contenders, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """A third process joins and leaves, with a stream beside it and without."""
    for streams in (False, True):
        plan = {
            "begin_s": time.monotonic() + 2 * sizes.window_s,
            "window_s": sizes.window_s,
            "joins": sizes.joins,
            "streams": streams,
        }
        seen, _, taken_s = contenders.do("worlds", 3, "join", **plan)
        record = {"streams": streams, "joins_s": taken_s}
        if streams:  # the windows with a join and those without take turns
            rates, gaps_s = seen["bytes_per_s"], seen["longest_gap_s"]
            beside, between = statistics.median(rates[::2]), statistics.median(rates[1::2])
            record |= {
                "lost": 1 - beside / between if between else math.nan,  # it had no turn at all
                "bytes_per_s": between,
                "gap_s": [statistics.median(gaps_s[::2]), statistics.median(gaps_s[1::2])],
            }
        yield record


def waiting_line(record: dict[str, Any]) -> str:
    text = f"{record['wait_s']:g} s of waiting for a message, {record['way']}: "
    text += f"{record['core']:.2%} of a core"
    if record["way"] == "gloo":
        return text
    return f"{text}, at most {WAITING_SHARE_MAX:.0%} {_word(record['core'] < WAITING_SHARE_MAX)}"


def joining_line(record: dict[str, Any]) -> str:
    taken_ms = sorted(each * 1e3 for each in record["joins_s"])
    median = statistics.median(taken_ms)
    what = "beside a stream" if record["streams"] else "with nothing else"
    text = f"joins {what}: median {median:.1f} ms ({taken_ms[0]:.1f} to {taken_ms[-1]:.1f}, "
    text += f"n = {len(taken_ms)}), at most {JOIN_MS_MAX:g} {_word(median <= JOIN_MS_MAX)}"
    if not record["streams"]:
        return text
    gaps_ms = [each * 1e3 for each in record["gap_s"]]
    return (
        f"{text}\n  the stream of {record['bytes_per_s'] / 1e6:,.0f} MB/s loses "
        f"{record['lost']:.1%} in windows with a join and a leave, at most {JOIN_LOSS_MAX:.0%} "
        f"{_word(record['lost'] <= JOIN_LOSS_MAX)}; longest gap {gaps_ms[0]:.1f} ms there, "
        f"{gaps_ms[1]:.1f} without"
    )


def _rate(case: str, by: str, result: Result, **limits: float | None) -> Figure:
    samples = tuple(result.bytes_per_s)
    return Figure(case=case, by=by, unit="bytes/s", samples=samples, is_more_better=True, **limits)


def waiting_figure(record: dict[str, Any]) -> Figure:
    is_gloo = record["way"] == "gloo"
    by = "Gloo" if is_gloo else OURS if record["way"] == "awaited" else f"{OURS}, blocking"
    goal = None if is_gloo else WAITING_SHARE_MAX
    case = "waiting for a message, of a core"
    return Figure(case=case, by=by, unit="share", samples=(record["core"],), goal=goal)


def joining_figures(record: dict[str, Any]) -> Iterator[Figure]:
    case = "a join beside a stream" if record["streams"] else "a join with nothing else"
    samples, goal_s = tuple(record["joins_s"]), JOIN_MS_MAX / 1e3
    yield Figure(case=case, unit="s", samples=samples, goal=goal_s)
    if not math.isnan(lost := record.get("lost", math.nan)):
        case = "what the stream loses in windows with a join"
        yield Figure(case=case, unit="share", samples=(lost,), goal=JOIN_LOSS_MAX)


def _word(holds: bool) -> str:
    return "ok" if holds else "OVER"


def free_address() -> str:
    """Where rank 0 can listen."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def main() -> int:
    asked = parse_options()
    sizes = TOY if asked.toy else FULL
    if asked.rounds:
        sizes = replace(sizes, rounds=asked.rounds)
    where, missing = machine(), why_absent()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    if missing:
        print(f"gloo: {missing}")
    figures: list[Figure] = []
    with Contenders(["raw", "worlds"] if missing else ["raw", "gloo", "worlds"]) as contenders:
        for case in messages(contenders, sizes, asked):
            print("\n".join(case.lines()), flush=True)
            figures += case.figures()
        for record in waiting(contenders, sizes):
            print(waiting_line(record), flush=True)
            figures.append(waiting_figure(record))
        for record in joining(contenders, sizes):
            print(joining_line(record), flush=True)
            figures += joining_figures(record)
    if asked.toy:
        print("toy sizes in one round: they prove only that it runs")
    if asked.json:
        print_figures("worlds", figures, where)
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=_sizes, help=f"of {', '.join(SIZES)} (default: all)")
    parser.add_argument("--senders", type=_numbers, help="(default: 1,2,3)")
    parser.add_argument("--rounds", type=int, help="of each case (default: 7)")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    asked.sizes = asked.sizes or (["4 KB", "400 KB", "4 MB"] if asked.toy else list(SIZES))
    asked.senders = asked.senders or ([1, 2] if asked.toy else [1, 2, 3])
    return asked


def _sizes(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not {*names} <= {*SIZES}:
        raise argparse.ArgumentTypeError(f"sizes are {', '.join(SIZES)}")
    return names


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
