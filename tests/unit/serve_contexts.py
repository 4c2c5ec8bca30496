"""What Serve gives to an autoscaling policy, and a deployment that reports to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingContext

from hoplite_ray.serve.slo.policy import ARRIVALS, MEMORY, Ahead
from hoplite_ray.serve.slo.scaling import scale_ahead

DEPLOYMENT = DeploymentID("vision", "app")
CONFIG = scale_ahead(min_replicas=1, max_replicas=60, target_ongoing_requests=3.0)
PLAN = {"latency_s": 0.2, "capacity_per_s": 37.5, "service_s": 0.08}


def make_replica(number: int) -> ReplicaID:
    return ReplicaID(f"r{number}", DEPLOYMENT)


def make_context(
    running: int,
    target: int,
    raw: Mapping[str, Mapping[ReplicaID, list[TimeStampedValue]]] | None = None,
    *,
    queries: float = 0.0,
    least: int = 1,
    most: int = 60,
) -> AutoscalingContext:
    """Return what Serve gives to a policy."""
    return AutoscalingContext(
        deployment_id=DEPLOYMENT,
        deployment_name=DEPLOYMENT.name,
        app_name=DEPLOYMENT.app_name,
        current_num_replicas=running,
        target_num_replicas=target,
        running_replicas=[make_replica(number) for number in range(running)],
        total_num_requests=lambda: queries,
        total_queued_requests=0.0,
        aggregated_metrics=None,
        raw_metrics=lambda: raw or {},
        capacity_adjusted_min_replicas=least,
        capacity_adjusted_max_replicas=most,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=CONFIG,
    )


class Cluster:
    """A deployment whose replicas report every 0.2 s, each with a clock and a phase of its own."""

    def __init__(self, policy: Ahead, replicas: int) -> None:
        self.now_s = 1000.0
        self.target = replicas
        self.totals: dict[int, float] = {}
        self.reports: dict[int, tuple[float, float]] = {}
        self.take(policy)

    def take(self, policy: Ahead) -> None:
        self.policy = policy
        policy.clock = lambda: self.now_s

    def run(self, rate: float, seconds: float, *, reports: bool = True) -> dict[str, Any]:
        """Let queries come at a rate; returns the reasons of the last decision."""
        told: dict[str, Any] = {}
        for _ in range(round(seconds * 10)):
            self.now_s += 0.1
            tick = round(self.now_s * 10)
            for number in range(self.target):
                came = self.totals.get(number, 500.0) + rate / self.target / 10
                self.totals[number] = came
                if reports and tick % 2 == number % 2:
                    clock_s = self.now_s + 3600.0 * number  # an hour ahead of its neighbour
                    self.reports[number] = clock_s, came
            raw = {
                ARRIVALS: {
                    make_replica(number): [TimeStampedValue(*self.reports[number])]
                    for number in range(self.target)
                    if number in self.reports
                }
            }
            self.target, told = self.policy(make_context(self.target, self.target, raw))
        return told[MEMORY]
