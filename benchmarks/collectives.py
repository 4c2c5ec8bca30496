"""Collectives on an emulated cluster: hoplite_ray's, each beside its bound and its peers'.

    sudo .venv/bin/python benchmarks/collectives.py                             # the goals, alone
    sudo .venv/bin/python benchmarks/collectives.py --peers all --sizes 1K,32K,1M,32M --json

Eight nodes, each in a network namespace with a full-duplex link of 500 Mbit/s, TCP cubic; a process
per node, attached before the clock starts. A bound is what the links allow without any latency
(bounds.py); a limit is a multiple of it that a design goal gives. Cases take turns, a round each,
and all contenders take turns in each case; the first round is not counted. A figure from saturated
cores is marked, because it speaks of the machine. A network that the machine can't carry is refused
at the start.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from carried import OverloadError, carried_share, check_carried
from cases import Case, goals, size_bytes, sweep
from cluster import Cluster, why_impossible
from meters import machine
from peers import PEERS, start_peers
from ranks import RankError
from scenes import MIB, Contender
from stage import Stage
from table import Result, Row, lines, records

SMALL_REPEATS = 5  # plays of a small case in each round
ARENA_BYTES_MIN = 320 * MIB


def main() -> int:
    options = parse_options()
    impossible = why_impossible()
    if impossible:
        print(f"{impossible}; nothing was measured")
        return 0 if options.toy else 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else namespaces remain
    where = machine()
    cases = chosen(options)
    arena_bytes = max(ARENA_BYTES_MIN, *(case.scene.node_bytes + 64 * MIB for case in cases))
    cluster = Cluster(
        options.nodes,
        rate_mbit=options.rate_mbit,
        arena_bytes=arena_bytes,
        options=dict(options.option),
    )
    with ExitStack() as stack:
        stage = stack.enter_context(Stage(cluster))
        try:
            weigh = carried_share if options.toy else check_carried
            carried = weigh(cluster.network)
        except OverloadError as error:
            print(error)
            return 1
        print(f"{cluster.network}, {carried:.0%} of it carried")
        print(", ".join(f"{what} {value}" for what, value in where.items()), flush=True)
        started = start_peers(options.peers, cluster.network, stage.links, stack, arena_bytes)
        contenders: list[Contender] = [stage, *started]
        rows = [Row.of(case, contenders) for case in cases]
        try:
            measure(rows, contenders, options.rounds)
        except KeyboardInterrupt:
            print("interrupted: what has been measured until then")
    for line in lines(rows):
        print(line)
    if options.toy:
        print("toy sizes in one round: they prove only that it runs")
    if options.json:
        common = {"options": dict(options.option), "carried_share": carried} | where
        for each in records(rows, options.nodes, options.rate_mbit):
            print(json.dumps(each | common))
    return 1 if any(row.results[0].failure for row in rows) else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rate-mbit", type=int, default=500)
    parser.add_argument("--large-mib", type=int, default=32, help="the goals' large size")
    parser.add_argument("--sizes", type=sizes, help="every collective at these sizes: 1K,32K,1M")
    parser.add_argument("--rounds", type=int, default=5, help="counted; one more warms up")
    parser.add_argument(
        "--only", type=words, default=[], help="lines by number or name: 3,reduce,late,slow link"
    )
    parser.add_argument(
        "--peers", type=peers, default=[], help=f"all, or some of {','.join(PEERS)}"
    )
    parser.add_argument(
        "--option", action="append", default=[], type=node_option, help="NAME=INT of every node"
    )
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    options = parser.parse_args()
    if options.toy:
        options.nodes, options.sizes, options.rounds = 3, [MIB // 2], 0
        options.peers = list(PEERS)
    return options


def node_option(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    return name, int(value)


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def sizes(text: str) -> list[int]:
    return [size_bytes(word) for word in text.split(",")]


def peers(text: str) -> list[str]:
    chosen = list(PEERS) if text == "all" else words(text)
    unknown = sorted(set(chosen) - set(PEERS))
    if unknown:
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(unknown)}")
    return chosen


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for."""
    network = {"nodes": options.nodes, "rate_mbit": options.rate_mbit}
    if options.sizes:
        cases = sweep(**network, sizes_bytes=options.sizes)
    else:
        cases = goals(**network, large_bytes=options.large_mib * MIB)
    wanted = [case for case in cases if case.is_wanted(options.only)]
    if not wanted:
        raise SystemExit(f"no case is called {' or '.join(options.only)}; there are {len(cases)}")
    return wanted


def measure(rows: Sequence[Row], contenders: Sequence[Contender], rounds: int) -> None:
    """Have each contender play every case once a round."""
    for turn in range(rounds + 1):
        for row in rows:
            for contender, result in zip(contenders, row.results, strict=True):
                if turn == 1:
                    result.samples.clear()  # that was the warm-up
                play(contender, result, repeats(row) if turn > 0 else 1, turn)


def repeats(row: Row) -> int:
    """Return how often a case is played in each counted round."""
    scene = row.results[0].case.scene
    return SMALL_REPEATS if scene.size_bytes <= MIB and scene.collective != "objects" else 1


def play(contender: Contender, result: Result, times: int, turn: int) -> None:
    """Play a case and add the samples; a case that has failed is not played again."""
    for _ in range(times):
        scene = result.case.scene
        result.why_not = scene.why_not or contender.why_not(scene)
        if result.failure or result.why_not:
            return
        try:
            result.samples.append(contender.play(scene))
        except RankError as error:
            result.failure = f"in round {turn}: {error}"


if __name__ == "__main__":
    sys.exit(main())
