"""A latency that is planned for a pipeline of real models, beside the latency that comes.

    python benchmarks/promised_models.py

The pipeline of examples/ask_aloud.py is profiled, planned and run as planned; it needs
`pip install '.[models,serve]'`. Queries come at random, up to 0.8 of the capacity, and in bursts
whose peak is 0.8 of it. The capacity is that of the pipeline as it runs here, where models share
the cores: what `plan.renew` finds in a rehearsal at 0.6 of the profiles' capacity. There are two
predictions, both of the arrivals that came:

profiled  from the profiles, which were taken before, one stage after the other.
seen      from the batches and the ways over edges that `serve.observe` saw in a rehearsal of the
          same load, with other arrivals: beside all that runs there.

The ingress asks the queries itself, so that a client takes none of the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from figures import Figure, print_figures
from meters import machine
from promised import SHARES, bursts
from ray import serve as ray_serve

from hoplite_ray import serve
from hoplite_ray.serve.graph.ingress import Ingress
from hoplite_ray.serve.slo.queueing import poisson

EXAMPLES = str(Path(__file__).resolve().parent.parent / "examples")
LATENCY_S, MISS = 0.4, 0.01
QUERIES = 120
REHEARSED_S = 40.0
GOAL = 0.15  # of the measured p99
_REHEARSED = 0.6  # of the capacity by the profiles


class Load(Ingress):
    """The ingress of a pipeline, which asks queries itself."""

    async def run(self, queries: Sequence[Any], arrivals_s: Sequence[float]) -> list[list[float]]:
        """Ask the queries in turn at these times; returns when each came, and how long it took."""
        began_s = time.monotonic()

        async def ask(query: Any) -> list[float]:
            asked_s = time.monotonic()
            try:
                await self.ask(query)
            except TimeoutError:
                return [asked_s - began_s, math.inf]
            return [asked_s - began_s, time.monotonic() - asked_s]

        asking = []
        for query, at_s in zip(itertools.cycle(queries), arrivals_s, strict=False):
            await asyncio.sleep(began_s + at_s - time.monotonic())
            asking.append(asyncio.create_task(ask(query)))
        return await asyncio.gather(*asking)


def compare(seconds: float, rehearsed_s: float, budget_s: float) -> Iterator[Figure]:
    """Compare what two predictions say of each load with what was measured."""
    queries, _ = import_module("support.models.speech").draw_questions(QUERIES)
    passages = import_module("support.models.facts").facts(rude=True)
    stages = import_module("ask_aloud").make_stages(passages)
    inputs = import_module("support.models.promises").find_inputs(stages, queries)
    profiles = {
        name: serve.profile(stage, inputs[name], (1, 2, 4), budget_s=budget_s)
        for name, stage in stages.items()
    }
    slo = serve.SLO(latency_s=LATENCY_S, rate_per_s=10.0, miss=MISS)
    plan = serve.plan(serve.pipeline(stages, replicas=1), slo, profiles)
    print(plan, flush=True)
    application = plan.application.spec.build(Load)
    handle = ray_serve.run(application, name="models", route_prefix=None)

    def run(arrivals: list[float]) -> tuple[list[float], list[float]]:
        came_s, took_s = zip(*handle.run.remote(queries, arrivals).result(), strict=True)
        return list(came_s), list(took_s)

    def rehearse(arrivals: list[float]) -> serve.Plan:
        run(arrivals)
        return plan.renew({name: serve.observe(name, "models") for name in stages})

    run(poisson(5.0, 40, seed=9))  # all edges are open, stages are warm
    rate = _REHEARSED * plan.capacity_per_s
    capacity_per_s = rehearse(poisson(rate, int(rate * rehearsed_s), seed=4)).capacity_per_s
    print(f"as it runs here, it falls behind beyond {capacity_per_s:.1f}/s", flush=True)
    peak = SHARES[-1] * capacity_per_s
    for share in SHARES:
        rate = share * capacity_per_s
        seen = rehearse(poisson(rate, int(rate * rehearsed_s), seed=5))
        came_s, took_s = run(poisson(rate, int(rate * seconds), seed=1))
        yield from judge(f"{share:.0%} of its capacity", plan, seen, came_s, took_s)
    seen = rehearse(bursts(peak, rehearsed_s, seed=6))
    came_s, took_s = run(bursts(peak, seconds, seed=2))
    yield from judge(f"bursts of {SHARES[-1]:.0%} of its capacity", plan, seen, came_s, took_s)


def judge(
    case: str, plan: serve.Plan, seen: serve.Plan, came_s: list[float], took_s: list[float]
) -> Iterator[Figure]:
    """Print and yield the measured and both predicted p50, p99 and shares of late queries."""
    ordered = sorted(took_s)
    measured = {
        share: ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]
        for share in (0.5, 0.99)
    }
    ways = {"profiled": plan.predict(came_s), "seen": seen.predict(came_s)}
    near_s = ways["seen"].outcome.quantile_s(0.95)
    late = sum(each > near_s for each in took_s) / len(took_s)
    print(
        f"{case}, {len(took_s)} queries: p50 {1000 * measured[0.5]:.1f} ms, "
        f"p99 {1000 * measured[0.99]:.1f} ms, {late:.2%} over {1000 * near_s:.0f} ms"
    )
    for by, each in ways.items():
        off = each.p99_s / measured[0.99] - 1
        print(
            f"  {by}: p50 {1000 * each.p50_s:.1f} ms, p99 {1000 * each.p99_s:.1f} ms "
            f"({off:+.1%}), {each.outcome.miss(near_s):.2%} over",
            flush=True,
        )
        yield Figure(case=f"{case}: p50", by=by, unit="s", samples=(each.p50_s,))
        yield Figure(case=f"{case}: p99", by=by, unit="s", samples=(each.p99_s,))
    yield Figure(case=f"{case}: p50", unit="s", samples=(measured[0.5],))
    yield Figure(case=f"{case}: p99", unit="s", samples=(measured[0.99],))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=150.0, help="of each load")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    sys.path.insert(0, EXAMPLES)
    os.environ["PYTHONPATH"] = os.pathsep.join((EXAMPLES, os.environ.get("PYTHONPATH", "")))
    if packages := import_module("support.models.promises").lacking():
        print(f"{', '.join(packages)} not installed; nothing was measured")
        return 0 if asked.toy else 1
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    seconds, rehearsed_s, budget_s = (
        (2.0, 2.0, 0.5) if asked.toy else (asked.seconds, REHEARSED_S, 4.0)
    )
    ray.init("local", num_cpus=4, log_to_driver=False, include_dashboard=False)
    try:
        ray_serve.start(proxy_location="Disabled")
        figures = list(compare(seconds, rehearsed_s, budget_s))
    finally:
        ray_serve.shutdown()
        ray.shutdown()
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        print_figures("promised_models", figures, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
