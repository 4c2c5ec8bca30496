"""The native store's collectives on an emulated cluster, each beside its bound and its limit.

    sudo .venv/bin/python benchmarks/collectives.py

Eight nodes, each in a network namespace with a full-duplex link of 500 Mbit/s, TCP cubic; a process
per node, attached before the clock starts. A bound is what the links allow without any latency
(bounds.py); a limit is a multiple of it that a design goal gives. Cases take turns, a round each;
the first round is not counted. A figure of saturated cores speaks of the machine, and says so; so
does a rate that the machine can't carry, before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import bounds
from carried import OverloadError, carried_share, check_carried
from cluster import Cluster, why_impossible
from meters import machine
from ranks import RankError
from stage import Sample, Stage

KIB, MIB = 1 << 10, 1 << 20
SMALL_REPEATS = 5  # of a case below a MiB or so, in each round
SLOW_SHARE = 0.25
RATIO_BYTES_MIN = 64 * KIB  # below, latency is all there is, and the bound says nothing


@dataclass(slots=True)
class Case:
    """One line of the table."""

    name: str
    size_bytes: int
    bound_s: float
    limit: float | None  # x bound_s
    play: partial[Sample]
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(sample.seconds for sample in self.samples)

    @property
    def ratio(self) -> float:
        """The median as a multiple of the bound."""
        return self.median_s / self.bound_s

    @property
    def verdict(self) -> str:
        """Whether the limit holds, and what speaks against the figure."""
        if self.failure:
            return f"FAILED: {self.failure}"
        usage = sum((sample.usage for sample in self.samples[1:]), self.samples[0].usage)
        words = [] if usage.busy_share == 0 else [f"{usage.busy_share:4.0%} cpu"]
        words += [f"{usage.retransmitted / len(self.samples):.0f} resent"]
        words += ["CORES SATURATED"] if usage.is_saturated else []
        held = "" if not self.limit else "ok" if self.ratio <= self.limit else "OVER"
        return f"{held:5}{', '.join(words)}"


def cases(stage: Stage, options: argparse.Namespace) -> list[Case]:
    """The table's lines, in its order."""
    n, rate = stage.count, options.rate_mbit
    large, medium = options.large_bytes, MIB
    large_s, medium_s = (bounds.hop_s(size, rate_mbit=rate) for size in (large, medium))
    allreduce = partial(bounds.allreduce_s, nodes=n, rate_mbit=rate)
    gap_s = large_s / (n - 1)
    each = large // n
    gather_s = bounds.gather_s(each, nodes=n, rate_mbit=rate)
    small = KIB
    small_s = bounds.hop_s(small, rate_mbit=rate)
    slow = partial(stage.broadcast_to_a_slow_node, large, share=SLOW_SHARE)
    death = partial(stage.broadcast_past_a_death, large, after_s=large_s / 2)
    broadcast, reduce = stage.broadcast, stage.reduce
    return [
        Case("broadcast", large, large_s, 1.06, partial(broadcast, large)),
        Case("  all wait for the put", large, large_s, 1.06, partial(broadcast, large, waits=True)),
        Case("  one link at 1/4: the others", large, large_s, 1.3, slow),
        Case("  a relay killed half-way: survivors", large, large_s, 1.25, death),
        Case("  staggered over S/B: after the last", large, large_s, 1.1,
             partial(broadcast, large, gap_s=gap_s)),
        Case("reduce", large, large_s, 1.12, partial(reduce, large)),
        Case("  staggered over S/B: after the last", large, large_s, 1.1,
             partial(reduce, large, gap_s=gap_s)),
        Case("allreduce", large, allreduce(large), 1.04, partial(stage.allreduce, large)),
        Case("  one late by S/B: after it", large, large_s, 1.15,
             partial(stage.allreduce, large, late_s=large_s)),
        Case("gather, of each node", each, gather_s, None, partial(stage.gather, each)),
        Case("allgather, of each node", each, gather_s, None,
             partial(stage.gather, each, everywhere=True)),
        Case("broadcast", medium, medium_s, 1.15, partial(broadcast, medium)),
        Case("  all wait for the put", medium, medium_s, 1.15,
             partial(broadcast, medium, waits=True)),
        Case("reduce", medium, medium_s, 1.2, partial(reduce, medium)),
        Case("allreduce", medium, allreduce(medium), None, partial(stage.allreduce, medium)),
        Case("broadcast", small, small_s, None, partial(broadcast, small)),
        Case("  all wait for the put", small, small_s, None, partial(broadcast, small, waits=True)),
        Case("reduce", small, small_s, None, partial(reduce, small)),
        Case("allreduce", small, allreduce(small), None, partial(stage.allreduce, small)),
    ]  # fmt: skip


def main() -> int:
    options = parse_options()
    impossible = why_impossible()
    if impossible:
        print(f"{impossible}; nothing was measured")
        return 0 if options.toy else 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the namespaces would stay
    where = machine()
    cluster = Cluster(
        options.nodes,
        rate_mbit=options.rate_mbit,
        arena_bytes=8 * options.large_bytes + 64 * MIB,
        options=dict(options.option),
    )
    with Stage(cluster) as stage:
        try:
            weigh = carried_share if options.toy else check_carried
            carried = weigh(cluster.network)
        except OverloadError as error:
            print(error)
            return 1
        print(f"{options.nodes} nodes x {options.rate_mbit} Mbit/s, {carried:.0%} of it carried")
        print(", ".join(f"{what} {value}" for what, value in where.items()))
        numbered = enumerate(cases(stage, options), start=1)
        table = [case for number, case in numbered if wanted(number, case, options)]
        measure(table, options)
    for line in lines(table):
        print(line)
    if options.toy:
        print("toy sizes in one round: nothing but that it runs")
    if options.json:
        for case in table:
            print(json.dumps(record(case, options) | {"carried_share": carried} | where))
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rate-mbit", type=int, default=500)
    parser.add_argument("--large-mib", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5, help="counted; one more warms up")
    parser.add_argument("--only", default="", help="what to play: broadcast,reduce or lines: 3,7")
    parser.add_argument(
        "--option", action="append", default=[], type=node_option, help="NAME=INT of every node"
    )
    parser.add_argument("--json", action="store_true", help="add a line with all of each case")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    options = parser.parse_args()
    if options.toy:
        options.nodes, options.large_mib, options.rounds = 4, 2, 0
    options.large_bytes = options.large_mib * MIB
    return options


def node_option(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    return name, int(value)


def wanted(number: int, case: Case, options: argparse.Namespace) -> bool:
    names = {str(number), case.play.func.__name__.split("_")[0]}
    return not options.only or not names.isdisjoint(options.only.split(","))


def measure(table: Sequence[Case], options: argparse.Namespace) -> None:
    """Play every case once a round; one that has failed is not played again."""
    for turn in range(options.rounds + 1):
        for case in table:
            if turn == 1:
                case.samples.clear()  # that was the warm-up
            repeats = SMALL_REPEATS if case.size_bytes <= MIB and turn > 0 else 1
            for _ in range(0 if case.failure else repeats):
                try:
                    case.samples.append(case.play())
                except RankError as error:
                    case.failure = f"in round {turn}: {error}"
                    break


def lines(table: Sequence[Case]) -> list[str]:
    """The table as text."""
    width = max(len(case.name) for case in table)
    head = f"{'':{width}} {'size':>7} {'bound':>9} {'median':>9} {'least':>9} {'most':>9}"
    rows = [f"{head} {'x bound':>7} {'limit':>5}"]
    for case in table:
        row = f"{case.name:{width}} {size_text(case.size_bytes):>7} {time_text(case.bound_s)}"
        if case.samples:
            taken = [sample.seconds for sample in case.samples]
            for each in (case.median_s, min(taken), max(taken)):
                row += f" {time_text(each)}"
            row += f" {case.ratio:7.3f}" if case.size_bytes >= RATIO_BYTES_MIN else f" {'':7}"
            row += f" {case.limit:5.2f} " if case.limit else f" {'':5} "
        rows.append(f"{row} {case.verdict}")
    return rows


def time_text(seconds: float) -> str:
    return f"{seconds * 1e3:6.2f} ms" if seconds < 1 else f"{seconds:7.3f} s"


def size_text(size_bytes: int) -> str:
    return f"{size_bytes // MIB} MiB" if size_bytes >= MIB else f"{size_bytes / KIB:g} KiB"


def record(case: Case, options: argparse.Namespace) -> dict[str, object]:
    return {
        "benchmark": "collectives",
        "nodes": options.nodes,
        "rate_mbit": options.rate_mbit,
        "options": dict(options.option),
        "collective": case.play.func.__name__,
        "case": case.name.strip(),
        "size_bytes": case.size_bytes,
        "bound_s": case.bound_s,
        "limit": case.limit,
        "failure": case.failure,
        "samples": [asdict(sample) for sample in case.samples],
        "at_s": time.time(),
    }


if __name__ == "__main__":
    sys.exit(main())
