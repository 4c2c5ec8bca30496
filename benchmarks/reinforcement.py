"""A3C and IMPALA: frames a second over hoplite and over plain Ray, beside what the links allow.

    sudo .venv/bin/python benchmarks/reinforcement.py
    sudo .venv/bin/python benchmarks/reinforcement.py --parameters 60 --only A3C

Eight real Ray nodes, each in a network namespace with a full-duplex link of 500 Mbit/s. The learner
is at the first node, and an actor plays CartPole at each of the others. In a round of A3C half of
the gradients go in, and new weights out to their actors; in one of IMPALA half of the rollouts go
in, which are small, and new weights out. The policy has 4,675 parameters; its weights are padded to
the size of a larger network's. Turns of a few rounds alternate between the stores.

The bound is the frames of a round over the time in which the learner's link carries the weights
once (bounds.py): no frame is played faster. The goal is 1 / 1.4 of it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec

import bounds
from figures import OURS, Figure, number_text
from frame import add_output_options, refuse, run_on_network, split_numbers, start_driver
from meters import SATURATED_SHARE, Cores, cores_s
from network import Network, why_impossible
from peers.ray_cluster import RayCluster
from ranks import RankError

MILLION, MIB = 1_000_000, 1 << 20
GOAL = 1.4  # times the bound's time
OBJECTS = 12  # on the learner's node, at most: all gradients, their sum, old and new weights
CONTENDERS = {"hoplite": OURS, "ray": "Ray"}
# Times as fast as plain Ray on 8 and on 16 nodes of 10 Gbit/s, by the Hoplite paper.
PAPER = {"A3C": (2.2, 3.9), "IMPALA": (1.9, 1.8)}

Case = tuple[str, int]  # application, and parameters that were asked for


def main() -> int:
    options = parse_options()
    impossible = why_impossible()
    if find_spec("gymnasium") is None:
        impossible = "gymnasium is not installed; pip install '.[rl]' installs it"
    if impossible:
        return refuse(impossible, options)
    network = Network(options.nodes, rate_mbit=options.rate_mbit)
    return run_on_network("reinforcement", options, network, partial(play_all, options), describe)


def describe(figures: Sequence[Figure]) -> Iterator[str]:
    """Return the lines for people: of each figure, and of each comparison."""
    yield from map(text, figures)
    yield from ratios(figures)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument(
        "--parameters", type=split_numbers, default=(10.0, 25.0), help="of the weights, in millions"
    )
    parser.add_argument("--only", choices=(*PAPER, ""), default="", help="A3C or IMPALA")
    parser.add_argument("--turns", type=int, default=3, help="of each store")
    parser.add_argument("--rounds", type=int, default=6, help="in a turn, and one more before them")
    add_output_options(parser)
    options = parser.parse_args()
    if options.toy:
        options.nodes, options.parameters, options.turns, options.rounds = 3, (0.1,), 1, 1
    if options.nodes < 3 or options.turns < 1 or options.rounds < 1:
        parser.error("at least three nodes, one turn and one round")
    return options


class Turns:
    """The frames and seconds of all turns, by case and contender."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._turns: dict[tuple[Case, str], list[tuple[int, float]]] = defaultdict(list)
        self._sizes: dict[int, int] = {}
        self._failures: dict[tuple[Case, str], str] = {}

    def add(self, case: Case, contender: str, size: int, frames: int, seconds: float) -> None:
        """Add a turn, whose weights had `size` parameters."""
        self._turns[case, contender].append((frames, seconds))
        self._sizes[case[1]] = size

    def fail(self, case: Case, contender: str, why: str) -> None:
        self._failures[case, contender] = why

    def has_failed(self, case: Case, contender: str) -> bool:
        return (case, contender) in self._failures

    def figures(self) -> Iterator[Figure]:
        """Give a figure for each case and contender."""
        for key in dict.fromkeys([*self._turns, *self._failures]):
            case, contender = key
            (application, parameters), bound = case, self._find_bound(case)
            turns, failure = self._turns.get(key, []), self._failures.get(key)
            yield Figure(
                case=f"{application}, {parameters / MILLION:g} M parameters",
                by=CONTENDERS[contender],
                unit="frames/s",
                samples=() if failure else tuple(frames / seconds for frames, seconds in turns),
                bound=bound,
                goal=bound / GOAL if bound and contender == "hoplite" else None,
                is_more_better=True,
                failure=failure,
            )

    def _find_bound(self, case: Case) -> float | None:
        """Frames a second, if the learner's link carries the weights all the time; None without."""
        turns = [turn for key, found in self._turns.items() if key[0] == case for turn in found]
        if not turns:
            return None
        size_bytes = 4 * self._sizes[case[1]]
        round_s = bounds.hop_s(size_bytes, rate_mbit=self._options.rate_mbit)
        frames = sum(frames for frames, _ in turns) / (len(turns) * self._options.rounds)
        return frames / round_s


def play_all(options: argparse.Namespace, network: Network, stack: ExitStack) -> list[Figure]:
    """Start Ray on the network, and have all turns played by its first node."""
    turns = Turns(options)
    store_bytes = OBJECTS * 4 * int(max(options.parameters) * MILLION) + 128 * MIB
    cluster = RayCluster.start(network, store_bytes=store_bytes)
    driver = start_driver(
        network, cluster, "reinforcement_driver.play", store_bytes, str(network.count)
    )
    stack.callback(driver.close)
    for millions in options.parameters:
        parameters = int(millions * MILLION)
        size = driver.do("begin", parameters=parameters)
        for application in [options.only] if options.only else PAPER:
            case = application, parameters
            for contender in list(CONTENDERS) * options.turns:
                if turns.has_failed(case, contender):
                    continue
                before = cores_s()
                try:
                    frames, took_s = driver.do(
                        "turn", application=application, peer=contender, rounds=options.rounds
                    )
                except RankError as error:
                    if not str(error).startswith("turn: "):
                        raise  # the driver has ended, or does not answer
                    turns.fail(case, contender, str(error).splitlines()[0])
                    print(f"{application}, {millions:g} M, {contender}: {error}", flush=True)
                    continue
                turns.add(case, contender, size, frames, took_s)
                rate = f"{frames / took_s:,.0f} frames/s, {took_s / options.rounds:.3f} s a round"
                busy = describe_busy(before, cores_s())
                print(f"{application}, {millions:g} M, {contender}: {rate}, {busy}", flush=True)
    return list(turns.figures())


def describe_busy(before: Cores, after: Cores) -> str:
    """Say which share of the cores was busy: above SATURATED_SHARE they may have been the limit."""
    share = (after.busy_s - before.busy_s) / max(after.all_s - before.all_s, 1e-9)
    return f"cores {share:.0%} busy" + (", SATURATED" if share >= SATURATED_SHARE else "")


def text(figure: Figure) -> str:
    """Return a line for people: the rate, and how many times longer than the bound it takes."""
    head = f"{figure.case:24} {figure.by:11}"
    if figure.failure or not figure.median or not figure.bound:
        return f"{head} FAILED: {figure.failure}"
    rates = f"{number_text(figure.median):>8} frames/s, bound {number_text(figure.bound):>8}"
    missed = f", misses its goal of {GOAL}" if figure.misses_its_goal() else ""
    return f"{head} {rates}: {figure.bound / figure.median:.2f} x the bound{missed}"


def ratios(figures: Sequence[Figure]) -> Iterator[str]:
    """Say how many times faster ours is than plain Ray, with the paper's figures beside it."""
    by_case: dict[str, dict[str, Figure]] = defaultdict(dict)
    for figure in figures:
        by_case[figure.case][figure.by] = figure
    for case, found in by_case.items():
        pair = [found.get(name) for name in CONTENDERS.values()]
        if pair[0] and pair[1] and (ratio := pair[0].times(pair[1])):
            few, many = PAPER[case.partition(",")[0]]
            paper = f"the paper's: {few} x on 8 nodes, {many} x on 16"
            yield f"{case}: {ratio:.2f} x as fast as plain Ray; {paper}"


if __name__ == "__main__":
    sys.exit(main())
