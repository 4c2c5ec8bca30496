"""Replicas that are asked for ahead of a surge, in virtual time: misses, and what they cost.

    python benchmarks/surges.py
    python benchmarks/surges.py --only ramp --seeds 10

ramp    70 queries a second become 130 within ten seconds, and a replica takes 3 s to start.
step    they become 130 at once, without prepared replicas and with four of them.
grid    ten minutes of surges for starts of 1, 3 and 10 s, and for 3, 7 and 20 replicas: all misses,
        and those of the last five minutes, when the policy has seen such surges.
surges  ten minutes of surges of random height, rise and length, which take some seven replicas. An
        oracle knows all arrivals, and pays for starts. Serve's own policy, with the delays that it
        has by default and with tuned ones, gets the number of ongoing queries at a replica with
        which it misses least for the cost of ours with a spare replica, or else costs least.

A stage of three queries a batch is simulated, which takes 50 ms and 10 ms for each query. No clock
is read and nothing sleeps, so a run repeats exactly on any machine. Parked replicas cost as much as
others.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from figures import OURS, Figure, print_figures
from meters import machine
from surge_policies import AheadPolicy, QueuePolicy, draw_arrivals, find_oracle, ramp, surges
from surge_stage import Model, Outcome, Policy, simulate

from hoplite_ray.serve.slo.ahead import Goal

CASES = ("ramp", "step", "grid", "surges")
MODEL = Model(0.050, 0.010, 3)
LATENCY_S, MISS, START_S = 0.2, 0.01, 3.0
MOST, MOST_OF_GRID = 60, 200  # replicas
LOW, HIGH = 70.0, 130.0  # queries a second
BEGINS_S, LASTS_S, ENDS_S = 60.0, 10.0, 120.0
PREPARED = 4
BASE = 180.0  # queries a second, to which surges add
SURGES_S = 600.0
STARTS_S, BASES = (1.0, 3.0, 10.0), (60.0, 180.0, 540.0)  # of the grid
HOLD_S = 5.0  # for surges that come every minute
SERVES = "Ray Serve"
DELAYS: dict[str, dict[str, float]] = {  # of Serve, and of its reports
    f"{SERVES}, default delays": {},
    f"{SERVES}, no delays": {
        "up_delay_s": 0.0,
        "down_delay_s": 0.0,
        "look_back_s": 2.0,
        "report_s": 0.2,
    },
    f"{SERVES}, down after 10 s": {
        "up_delay_s": 0.0,
        "down_delay_s": 10.0,
        "look_back_s": 2.0,
        "report_s": 0.2,
    },
}
ONGOING = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0)  # queries at a replica of Serve that are tried
SAME = 1.02  # times the replica-seconds, which count as no more
WAKE_S = 0.5  # from a release to the first answers


def make_goal(start_s: float = START_S, **options: float) -> Goal:
    """Return the goal of the stage."""
    service_s = MODEL.batch_s(MODEL.cap)
    given: dict[str, Any] = options
    return Goal(LATENCY_S, MODEL.capacity_per_s, service_s, MISS, start_s, **given)


def play(
    arrivals: Sequence[float],
    policy: Policy,
    *,
    spare: int = 0,
    prepared: int = 0,
    start_s: float = START_S,
) -> Outcome:
    """Run the stage, with the replicas that the first ten seconds need."""
    rate = sum(each < 10 for each in arrivals) / 10
    initial = math.ceil(make_goal().count_replicas(rate)) + spare
    return simulate(arrivals, MODEL, policy, start_s=start_s, initial=initial, parked=prepared)


def play_ours(arrivals: Sequence[float], *, most: int = MOST, **options: int | float) -> Outcome:
    """Run the stage with our policy; `options` are those of a Goal."""
    goal = make_goal(**options)
    policy = AheadPolicy(goal, least=1, most=most)
    start_s = goal.start_s
    return play(arrivals, policy, spare=goal.spare, prepared=goal.prepared, start_s=start_s)


def play_serve(arrivals: Sequence[float], delays: dict[str, float], cost_s: float) -> Outcome:
    """Run the stage with Serve's policy; returns the fewest misses that cost no more.

    It is the cheapest outcome if all cost more.
    """
    outcomes = [
        play(arrivals, QueuePolicy(target_ongoing=each, least=1, most=MOST, **delays))
        for each in ONGOING
    ]
    as_cheap = [each for each in outcomes if each.replica_s <= SAME * cost_s]
    if not as_cheap:
        return min(outcomes, key=lambda each: each.replica_s)
    return min(as_cheap, key=lambda each: each.measure_misses(LATENCY_S))


def ramps(seeds: int, seconds: float) -> Iterator[Figure]:
    """Count the misses of a ramp, with no other replicas, a spare one, or two that are parked."""
    case = f"{LOW:g} to {HIGH:g} queries a second within {seconds:g} s: misses"
    ways: dict[str, Callable[[list[float]], Outcome]] = {
        OURS: lambda arrivals: play_ours(arrivals),
        f"{OURS}, 1 spare": lambda arrivals: play_ours(arrivals, spare=1),
        f"{OURS}, 2 prepared": lambda arrivals: play_ours(arrivals, prepared=2),
    }
    for name, delays in DELAYS.items():
        ways[name] = lambda arrivals, delays=delays: play_serve(  # type: ignore[misc]
            arrivals, delays, play_ours(arrivals, prepared=2).replica_s
        )
    rate = ramp(LOW, HIGH, begins_s=BEGINS_S, lasts_s=seconds)
    drawn = [draw_arrivals(rate, seconds=ENDS_S, seed=seed) for seed in range(seeds)]
    for by, way in ways.items():
        outcomes = [way(arrivals) for arrivals in drawn]
        misses = tuple(each.measure_misses(LATENCY_S) for each in outcomes)
        costs = sum(each.replica_s for each in outcomes) / seeds / ENDS_S
        print(f"{case}, {by}: {_percent(misses)}, with {costs:.2f} replicas on average", flush=True)
        yield Figure(case=case, by=by, unit="share", samples=misses, goal=MISS)


def steps(seeds: int) -> Iterator[Figure]:
    """Count the misses of a step, without prepared replicas and with some."""
    case = f"{LOW:g} to {HIGH:g} queries a second at once"
    rate = ramp(LOW, HIGH, begins_s=BEGINS_S, lasts_s=0.0)
    drawn = [draw_arrivals(rate, seconds=ENDS_S, seed=seed) for seed in range(seeds)]
    for by, prepared in ((OURS, 0), (f"{OURS}, {PREPARED} prepared", PREPARED)):
        outcomes = [play_ours(arrivals, prepared=prepared) for arrivals in drawn]
        ordered_s = [_first(each.targets, BEGINS_S) for each in outcomes]
        later = tuple(
            each.measure_misses(LATENCY_S, when_s + WAKE_S)
            for each, when_s in zip(outcomes, ordered_s, strict=True)
        )
        misses = tuple(each.measure_misses(LATENCY_S) for each in outcomes)
        print(
            f"{case}, {by}: {_percent(misses)}; ordered after {max(ordered_s) - BEGINS_S:.1f} s at "
            f"the latest, {WAKE_S} s later {_percent(later)}",
            flush=True,
        )
        yield Figure(case=f"{case}: misses", by=by, unit="share", samples=misses)
        after = f"{case}: misses from {WAKE_S} s after the order"
        yield Figure(case=after, by=by, unit="share", samples=later, goal=MISS)


def bursts(seeds: int, seconds: float) -> Iterator[Figure]:
    """Compare misses and replica-seconds of all policies with an oracle's."""
    case = f"{seconds / 60:g} min of surges"
    ours = {
        OURS: {"hold_s": HOLD_S},
        f"{OURS}, 1 spare": {"hold_s": HOLD_S, "spare": 1},
        f"{OURS}, 2 prepared": {"hold_s": HOLD_S, "prepared": 2},
        f"{OURS}, no forecast": {"hold_s": HOLD_S, "forecast": False},
    }
    outcomes: dict[str, list[Outcome]] = {}
    best: list[float] = []
    for seed in range(seeds):
        arrivals = draw_arrivals(surges(BASE, seed), seconds=seconds, seed=seed)
        oracle = find_oracle(arrivals, MODEL, latency_s=LATENCY_S, miss=MISS, start_s=START_S)
        best.append(oracle.replica_s)
        outcomes.setdefault("an oracle", []).append(oracle)
        for by, options in ours.items():
            outcomes.setdefault(by, []).append(play_ours(arrivals, **options))
        cost_s = outcomes[f"{OURS}, 1 spare"][-1].replica_s
        for by, delays in DELAYS.items():
            outcomes.setdefault(by, []).append(play_serve(arrivals, delays, cost_s))
    for by, each in outcomes.items():
        misses = tuple(one.measure_misses(LATENCY_S) for one in each)
        replicas = tuple(one.replica_s / seconds for one in each)
        shares = [one.replica_s / bound for one, bound in zip(each, best, strict=True)]
        print(
            f"{case}, {by}: {_percent(misses)}; {sum(replicas) / seeds:.2f} replicas on average, "
            f"{' '.join(f'{one:.2f}' for one in shares)} times the oracle's",
            flush=True,
        )
        yield Figure(case=f"{case}: misses", by=by, unit="share", samples=misses, goal=MISS)
        bound = sum(best) / seeds / seconds
        yield Figure(
            case=f"{case}: mean replicas", by=by, unit="replicas", samples=replicas, bound=bound
        )


def grid(seeds: int, seconds: float) -> Iterator[Figure]:
    """Count our misses for other starts and rates than those of `bursts`."""
    for start_s in STARTS_S:
        for base in BASES:
            case = f"{seconds / 60:g} min of surges on {base:g}/s, starts of {start_s:g} s"
            misses, later, shares = [], [], []
            for seed in range(seeds):
                arrivals = draw_arrivals(surges(base, seed), seconds=seconds, seed=seed)
                known = {"latency_s": LATENCY_S, "miss": MISS, "start_s": start_s}
                oracle = find_oracle(arrivals, MODEL, **known)
                outcome = play_ours(arrivals, most=MOST_OF_GRID, start_s=start_s, hold_s=HOLD_S)
                misses.append(outcome.measure_misses(LATENCY_S))
                later.append(outcome.measure_misses(LATENCY_S, seconds / 2))
                shares.append(outcome.replica_s / oracle.replica_s)
            print(
                f"{case}: {_percent(misses)}, {_percent(later)} in the second half; "
                f"{' '.join(f'{one:.2f}' for one in shares)} times the oracle's",
                flush=True,
            )
            yield Figure(case=f"{case}: misses", unit="share", samples=tuple(misses), goal=MISS)
            half = f"{case}: misses of the second half"
            yield Figure(case=half, unit="share", samples=tuple(later), goal=MISS)


def _percent(shares: Sequence[float]) -> str:
    return " ".join(f"{each:.2%}" for each in shares) + " missed"


def _first(targets: Sequence[tuple[float, int]], since_s: float) -> float:
    return min((when_s for when_s, _ in targets if when_s >= since_s), default=math.inf)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=3, help="arrivals drawn for each case")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    chosen = asked.only.split(",")
    if unknown := [each for each in chosen if each not in CASES]:
        parser.error(f"--only {unknown[0]} is none of {','.join(CASES)}")
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    seeds = 1 if asked.toy else asked.seeds
    figures: list[Figure] = []
    if "ramp" in chosen:
        figures += ramps(seeds, LASTS_S)
    if "step" in chosen:
        figures += steps(seeds)
    if "grid" in chosen:
        figures += grid(1 if asked.toy else 2, 60.0 if asked.toy else SURGES_S)
    if "surges" in chosen:
        figures += bursts(seeds, 60.0 if asked.toy else SURGES_S)
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        print_figures("surges", figures, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
