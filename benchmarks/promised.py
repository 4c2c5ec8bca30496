"""A latency that is planned beside the latency that comes, and the answers in time under overload.

    python benchmarks/promised.py
    python benchmarks/promised.py --only overload --seconds 20

contract  two pipelines of stages that sleep are profiled and planned, and run as planned. Queries
          come at random, up to 0.8 of the capacity, and in bursts whose peak is 0.8 of it. The
          prediction is of the same arrivals.
overload  the second pipeline at 1.5 times its capacity: how many queries a second are answered
          within the promised latency. `first in, first out` is the same without a promise.
systems   two stages at many rates, as a pipeline and as deployments of Serve with `serve.batch`,
          with Serve's defaults and in its fast mode (RAY_SERVE_THROUGHPUT_OPTIMIZED=1): the share
          of queries over 200 ms, and the CPU time of all replicas. One replica a stage.

The ingress asks the queries itself, so that a client takes none of the cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import promised_systems
import ray
from figures import OURS, Figure, print_figures
from meters import machine
from promised_systems import LATENCY_S, Load, Sleeps
from ray import serve as ray_serve

from hoplite_ray import serve
from hoplite_ray.serve.slo.queueing import poisson

CASES = ("contract", "overload", "systems")
SHARES = (0.3, 0.6, 0.8)  # of the capacity
BURST_S, LULL_S = 2.0, 4.0  # mean lengths
LULL = 0.3  # of the peak rate
OVERLOAD = 1.5
OVERLOAD_S = 20.0
RATES = (10.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0)
SYSTEM_S = 8.0  # of each system at each rate
CHILD = "import json, sys, promised_systems as it; it.play(**json.loads(sys.argv[1]))"
FAST = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
MISS = 0.01
NO_CPU: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}


class Joins(Sleeps):
    """The same after two stages."""

    def __call__(self, text: list[Any], vision: list[Any]) -> list[Any]:  # type: ignore[override]
        return super().__call__(text)


TEXT = serve.stage(**NO_CPU)(Sleeps).bind(0.020, 0.004)
VISION = serve.stage(**NO_CPU)(Sleeps).bind(0.060, 0.003)
CROSS = serve.stage(**NO_CPU)(Joins).bind(0.010, 0.001)
PIPELINES = {
    "a chain": {"text": TEXT, "rank": VISION.after("text")},
    "a join": {"text": TEXT, "vision": VISION, "cross": CROSS.after("text", "vision")},
}
LATENCIES_S = {"a chain": 0.4, "a join": 0.35}


@contextmanager
def running(pipeline: serve.Pipeline) -> Iterator[Any]:
    """A pipeline runs under a load; yields the handle of its ingress."""
    handle = ray_serve.run(pipeline.spec.build(Load), name="promised", route_prefix=None)
    try:
        handle.run.remote(poisson(20.0, 40, seed=9)).result()  # all edges are open, stages are warm
        yield handle
    finally:
        ray_serve.delete("promised")


def plan_of(name: str, rate_per_s: float, budget_s: float, **options: Any) -> serve.Plan:
    """Profile the stages of a pipeline, and plan it."""
    stages = PIPELINES[name]
    queries: list[Any] = [0] * 32
    joined = [{"text": 0, "vision": 0}] * 32
    profiles = {
        each: serve.profile(stage, joined if len(stage.inputs) > 1 else queries, budget_s=budget_s)
        for each, stage in stages.items()
    }
    slo = serve.SLO(latency_s=LATENCIES_S[name], rate_per_s=rate_per_s, miss=MISS)
    pipeline = serve.pipeline(stages, replicas=1)
    made = serve.plan(pipeline, slo, profiles, **options)
    print(f"{name}: {made}", flush=True)
    return made


def bursts(peak_per_s: float, seconds: float, seed: int) -> list[float]:
    """Arrivals of bursts at a peak rate and lulls between them, for so many seconds."""
    draw = random.Random(seed)
    arrivals, now_s, rate, until_s = [], 0.0, peak_per_s, draw.expovariate(1 / BURST_S)
    while now_s < seconds:
        now_s += draw.expovariate(rate)
        if now_s > until_s:
            now_s = until_s
            is_lull = rate == peak_per_s
            rate = LULL * peak_per_s if is_lull else peak_per_s
            until_s += draw.expovariate(1 / (LULL_S if is_lull else BURST_S))
        else:
            arrivals.append(now_s)
    return arrivals


def contract(rate_per_s: float, seconds: float, budget_s: float) -> Iterator[Figure]:
    """Compare the predicted with the measured latencies of two planned pipelines."""
    for name in PIPELINES:
        made = plan_of(name, rate_per_s, budget_s)
        capacity = made.capacity_per_s
        loads = {
            f"{share:.0%} of its capacity": poisson(
                share * capacity, int(share * capacity * seconds), seed=1
            )
            for share in SHARES
        }
        loads["bursts of 80% of its capacity"] = bursts(SHARES[-1] * capacity, seconds, seed=2)
        with running(made.application) as handle:
            for load, arrivals in loads.items():
                came_s, took_s = handle.run.remote(arrivals).result()
                yield from compare(f"{name}, {load}", made, came_s, took_s)


def compare(
    case: str, made: serve.Plan, came_s: list[float], took_s: list[float]
) -> Iterator[Figure]:
    predicted = made.predict(came_s)
    expected_s = predicted.outcome.latencies_s
    near_s = predicted.outcome.quantile_s(0.95)  # which the objective's own latency may be far from
    pairs: dict[str, tuple[str, float, float]] = {
        "p50": ("s", _quantile(took_s, 0.5), predicted.p50_s),
        "p99": ("s", _quantile(took_s, 0.99), predicted.p99_s),
        "misses": ("share", _miss(took_s, made.slo.latency_s), predicted.miss),
        "over the predicted p95": ("share", _miss(took_s, near_s), _miss(expected_s, near_s)),
    }
    for what, (unit, came, expected) in pairs.items():
        yield Figure(case=f"{case}: {what}", unit=unit, samples=(came,))
        yield Figure(case=f"{case}: {what}", by="predicted", unit=unit, samples=(expected,))
    print(
        f"{case}, {len(took_s)} queries: "
        + ", ".join(
            f"{what} {came:.4g} (predicted {expected:.4g})"
            for what, (_, came, expected) in pairs.items()
        ),
        flush=True,
    )


def overload(rate_per_s: float, seconds: float, budget_s: float) -> Iterator[Figure]:
    """Count the answers in time above the capacity: both ways to be late, and without a promise."""
    name = "a join"
    made = plan_of(name, rate_per_s, budget_s)
    capacity = made.capacity_per_s
    rate = OVERLOAD * capacity
    arrivals = poisson(rate, int(rate * seconds), seed=3)
    application = made.application
    ways = {
        f"{OURS}, late ones dropped": {"late": "drop", "latency_s": made.slo.latency_s},
        f"{OURS}, late ones behind": {"late": "serve", "latency_s": made.slo.latency_s},
        "first in, first out": {"late": "serve", "latency_s": None},
    }
    case = f"{name} at {OVERLOAD:g} times its capacity: answers in time"
    for by, way in ways.items():
        stages = {
            each: stage.options(late=way["late"]) for each, stage in application.spec.stages.items()
        }
        changed = application.replace(stages=stages, latency_s=way["latency_s"])
        with running(changed) as handle:
            _, took_s = handle.run.remote(arrivals).result()
        in_time = sum(each <= made.slo.latency_s for each in took_s) / arrivals[-1]
        print(f"{case}, {by}: {in_time:.1f}/s, the capacity is {capacity:.1f}/s", flush=True)
        yield Figure(
            case=case, by=by, unit="1/s", samples=(in_time,), bound=capacity, is_more_better=True
        )


def systems(rates: Sequence[float], seconds: float, rounds: int) -> Iterator[Figure]:
    """Compare whole systems; each has a process, and so a Ray, of its own."""
    modes: dict[str, dict[str, str]] = {"": {}, ", fast mode": FAST}
    told: dict[tuple[float, str], list[dict[str, Any]]] = {}
    names = [(name, mode) for mode in modes for name in promised_systems.SYSTEMS]
    for name, mode in names * rounds:
        if mode and "Serve" not in name:
            continue
        asked = {"name": name, "rates": rates, "seconds": seconds, "mode": mode}
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(asked)],
            env=os.environ | modes[mode] | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=120 + 3 * seconds * len(rates),
        )
        for line in ran.stdout.splitlines():
            if line.startswith("{"):
                record = json.loads(line)
                told.setdefault((record["rate"], record["system"]), []).append(record)
    for (rate, by), records in told.items():
        misses = tuple(each["miss"] for each in records)
        cpu_s = tuple(each["cpu_s"] for each in records)
        over = f"{rate:g} queries a second: over {1000 * LATENCY_S:g} ms"
        print(f"{over}, {by}: {misses[0]:.2%}, CPU {1000 * cpu_s[0]:.2f} ms a query", flush=True)
        yield Figure(case=over, by=by, unit="share", samples=misses, goal=MISS)
        costs = f"{rate:g} queries a second: CPU of a query"
        yield Figure(case=costs, by=by, unit="s", samples=cpu_s)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]


def _miss(values: Sequence[float], latency_s: float) -> float:
    return sum(each > latency_s for each in values) / len(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--rate", type=float, default=90.0, help="queries a second to plan for")
    parser.add_argument("--seconds", type=float, default=75.0, help="of each load")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    chosen = asked.only.split(",")
    if unknown := [each for each in chosen if each not in CASES]:
        parser.error(f"--only {unknown[0]} is none of {','.join(CASES)}")
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    rate, seconds, budget_s = (20.0, 1.0, 0.2) if asked.toy else (asked.rate, asked.seconds, 6.0)
    figures: list[Figure] = []
    if "contract" in chosen or "overload" in chosen:
        ray.init("local", num_cpus=4, log_to_driver=False, include_dashboard=False)
        try:
            ray_serve.start(proxy_location="Disabled")
            if "contract" in chosen:
                figures += contract(rate, seconds, budget_s)
            if "overload" in chosen:
                figures += overload(rate, min(seconds, OVERLOAD_S), budget_s)
        finally:
            ray_serve.shutdown()
            ray.shutdown()
    if "systems" in chosen:
        figures += systems(RATES[1:2], 1.0, 1) if asked.toy else systems(RATES, SYSTEM_S, 1)
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        print_figures("promised", figures, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
