"""Three policies of scaling for one pipeline, while the rate climbs: misses, replicas, CPU time.

    python benchmarks/policies.py
    python benchmarks/policies.py --seconds 60

Two stages that sleep are profiled, and planned for the first rate. The plan's application then runs
under real Serve three times, one after the other, with the same edges, batches and arrivals.

hoplite_ray    `plan.scale`, as it is
Serve's policy as it is: 2 ongoing queries at a replica, up after 30 s, down after 600 s
tuned          the same with reports as fresh as ours, up at once, down after 10 s. The ongoing
               queries at a replica are those with which a simulated stage misses least, for as many
               replica-seconds as ours at most.

Queries come at random. The rate climbs to each next one within a third of its time, and then stays.
Replica-seconds are of both stages, from the order of a replica until it has ended. CPU time is that
of all replicas, their starts included, and of Serve's controller, in which policies run.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from figures import OURS, Figure, print_figures
from meters import cpu_s, machine
from promised import running
from promised_systems import LATE_S, LATENCY_S, LIGHT, Sleeps
from ray import serve as ray_serve
from ray.serve.config import AutoscalingConfig
from serving_driver import list_processes, replica_pids
from surge_policies import AheadPolicy, QueuePolicy, Rate, draw_arrivals
from surge_stage import Model, simulate

from hoplite_ray import serve
from hoplite_ray.serve.slo.ahead import Goal

RATES = (10.0, 50.0, 100.0, 150.0, 200.0, 300.0)
SECONDS = 27.0  # at each rate: all three climbs then take less than ten minutes
CLIMB = 1 / 3  # of these
MISS = 0.01
TIMES_S = {"text": (0.010, 0.001), "rank": (0.030, 0.010)}  # of a batch, and of each query in it
BUDGET_S = 3.0  # of a profile
MOST = 12  # replicas of a stage
START_S = 3.0  # of a replica in the simulation
SERVES = "Serve's policy"
TUNED = f"{SERVES}, tuned"
ONGOING = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)  # queries at a replica that are tried
REPORT_S, LOOK_BACK_S, DOWN_S = 0.2, 2.0, 10.0  # of the tuned policy
SAME = 1.02  # times the replica-seconds, which count as no more
APPLICATION = "promised"  # of `running`
SAMPLE_S = 0.5


def make_plan(budget_s: float, rate_per_s: float) -> serve.Plan:
    """Profile both stages, and plan them."""
    model = serve.stage(**LIGHT)(Sleeps)
    text, rank = (model.bind(*TIMES_S[name]) for name in TIMES_S)
    stages = {"text": text, "rank": rank.after("text")}
    queries: list[Any] = [0] * 32
    profiles = {
        name: serve.profile(each, queries, budget_s=budget_s) for name, each in stages.items()
    }
    pipeline = serve.pipeline(stages, replicas=1, deadline_s=LATE_S)
    slo = serve.SLO(latency_s=LATENCY_S, rate_per_s=rate_per_s, miss=MISS)
    return serve.plan(pipeline, slo, profiles)


def climb(rates: Sequence[float], seconds: float) -> Rate:
    """Return a rate that climbs to each of these in turn."""

    def rate(at_s: float) -> float:
        number = min(int(at_s / seconds), len(rates) - 1)
        before, after = rates[max(number - 1, 0)], rates[number]
        share = (at_s - number * seconds) / (CLIMB * seconds)
        return before + (after - before) * min(share, 1.0)

    return rate


def tune(goal: Goal, model: Model, arrivals: Sequence[float]) -> float:
    """Return the ongoing queries with which Serve's policy misses least for the cost of ours."""
    ours = simulate(
        arrivals, model, AheadPolicy(goal, least=1, most=MOST), start_s=START_S, initial=1
    )
    outcomes = {}
    for ongoing in ONGOING:
        policy = QueuePolicy(
            target_ongoing=ongoing,
            least=1,
            most=MOST,
            up_delay_s=0.0,
            down_delay_s=DOWN_S,
            look_back_s=LOOK_BACK_S,
            report_s=REPORT_S,
        )
        outcomes[ongoing] = simulate(arrivals, model, policy, start_s=START_S, initial=1)
    as_cheap = [each for each, it in outcomes.items() if it.replica_s <= SAME * ours.replica_s] or [
        min(ONGOING, key=lambda each: outcomes[each].replica_s)
    ]
    return min(as_cheap, key=lambda each: outcomes[each].measure_misses(goal.latency_s))


def make_ways(plan: serve.Plan, arrivals: Sequence[float]) -> dict[str, serve.Pipeline]:
    """Return the plan's application under each policy."""
    ours = plan.scale(max_replicas=MOST)
    bounds: Any = {"min_replicas": 1, "max_replicas": MOST}
    default: dict[str, AutoscalingConfig] = {}
    tuned: dict[str, AutoscalingConfig] = {}
    for name, stage in ours.stages.items():
        options: Any = stage.serve_options["autoscaling_config"]
        goal = Goal(**options.policy.policy_kwargs)
        ongoing = tune(goal, Model(*TIMES_S[name], stage.max_batch), arrivals)
        print(f"{TUNED}: {ongoing:g} ongoing queries at a replica of {name}", flush=True)
        default[name] = AutoscalingConfig(**bounds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of metrics_interval_s
            tuned[name] = AutoscalingConfig(
                **bounds,
                target_ongoing_requests=ongoing,
                upscale_delay_s=0.0,
                downscale_delay_s=DOWN_S,
                look_back_period_s=LOOK_BACK_S,
                metrics_interval_s=REPORT_S,
            )
    return {OURS: ours, SERVES: _scale_by(ours, default), TUNED: _scale_by(ours, tuned)}


def _scale_by(
    pipeline: serve.Pipeline, scalings: Mapping[str, AutoscalingConfig]
) -> serve.Pipeline:
    stages = {
        name: stage.options(autoscaling_config=scalings[name])
        for name, stage in pipeline.stages.items()
    }
    return pipeline.replace(stages=stages)


@dataclass(frozen=True, slots=True)
class Sample:
    """The use of the machine at one time: replicas now, and CPU seconds since the beginning."""

    at_s: float
    replicas: int
    cpu_s: float


class Meter:
    """Samples an application: its replicas, whatever they do, and the CPU time of its processes."""

    def __init__(self) -> None:
        self._used_s: dict[int, float] = {}  # by process, those that have ended included
        self._began_s = time.monotonic()
        self.samples = [self._sample()]

    def watch(self, seconds: float) -> None:
        """Sample for so many seconds from the beginning on."""
        while time.monotonic() < self._began_s + seconds:
            time.sleep(SAMPLE_S)
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        for pid in (*replica_pids(APPLICATION), *list_processes("SERVE_CONTROLLER_ACTOR")):
            used_s = cpu_s(pid)
            if used_s is not None:
                self._used_s[pid] = used_s
        deployments = ray_serve.status().applications[APPLICATION].deployments
        replicas = sum(sum(deployments[name].replica_states.values()) for name in TIMES_S)
        return Sample(time.monotonic() - self._began_s, replicas, sum(self._used_s.values()))

    def measure(self, since_s: float, until_s: float) -> tuple[float, float]:
        """Return the replica-seconds and the CPU seconds of some time."""
        replica_s = used_s = 0.0
        for before, after in zip(self.samples, self.samples[1:], strict=False):
            inside_s = min(after.at_s, until_s) - max(before.at_s, since_s)
            if inside_s > 0:
                replica_s += before.replicas * inside_s
                used_s += (after.cpu_s - before.cpu_s) * inside_s / (after.at_s - before.at_s)
        return replica_s, used_s


def play(
    by: str, pipeline: serve.Pipeline, rates: Sequence[float], seconds: float, arrivals: list[float]
) -> Iterator[Figure]:
    """Run a pipeline under all rates; yields what each of them brought."""
    with running(pipeline) as handle:
        meter = Meter()
        asking = handle.run.remote(arrivals)
        meter.watch(len(rates) * seconds)
        came_s, took_s = asking.result()
    ends_s = len(rates) * seconds
    spans = {
        f"{rate:g} queries a second": (number * seconds, (number + 1) * seconds)
        for number, rate in enumerate(rates)
    }
    for case, (since_s, until_s) in {**spans, "all rates": (0.0, ends_s)}.items():
        latencies_s = [
            took for came, took in zip(came_s, took_s, strict=True) if since_s <= came < until_s
        ]
        missed = sum(each > LATENCY_S for each in latencies_s) / max(len(latencies_s), 1)
        replica_s, used_s = meter.measure(since_s, until_s)
        cost_s = used_s / max(len(latencies_s), 1)
        over = f"{case}: over {1000 * LATENCY_S:g} ms"
        print(
            f"{over}, {by}: {missed:.2%} of {len(latencies_s)}, {replica_s:.0f} replica-seconds, "
            f"CPU {1000 * cost_s:.2f} ms a query",
            flush=True,
        )
        yield Figure(case=over, by=by, unit="share", samples=(missed,), goal=MISS)
        yield Figure(case=f"{case}: replica-seconds", by=by, unit="replica-s", samples=(replica_s,))
        yield Figure(case=f"{case}: CPU of a query", by=by, unit="s", samples=(cost_s,))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="at each rate")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    rates: Sequence[float] = RATES
    seconds, budget_s = asked.seconds, BUDGET_S
    if asked.toy:
        rates, seconds, budget_s = (10.0, 40.0), 3.0, 0.2
    arrivals = draw_arrivals(climb(rates, seconds), seconds=len(rates) * seconds, seed=1)
    figures: list[Figure] = []
    ray.init("local", num_cpus=4, log_to_driver=False, include_dashboard=False)
    try:
        ray_serve.start(proxy_location="Disabled")
        plan = make_plan(budget_s, rates[0])
        print(plan, flush=True)
        for by, pipeline in make_ways(plan, arrivals).items():
            figures += play(by, pipeline, rates, seconds, arrivals)
    finally:
        ray_serve.shutdown()
        ray.shutdown()
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        print_figures("policies", figures, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
