"""The policy as Ray Serve calls it: contexts, clocks, errors, and parked replicas."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import ReplicaID, TimeStampedValue
from surge_policies import draw_arrivals, ramp
from surge_stage import Model, Sight, simulate

from hoplite_ray.serve import pipeline, stage
from hoplite_ray.serve.metrics import METRICS
from hoplite_ray.serve.slo.policy import (
    ARRIVALS,
    BACKLOG_S,
    GAUGES,
    LATE,
    MEMORY,
    PARKED,
    SERVED,
    Ahead,
    Reports,
)
from hoplite_ray.serve.slo.scaling import scale_ahead
from hoplite_ray.serve.stages.compute import Compute
from tests.house.tree import ROOT
from tests.unit.serve_contexts import PLAN, Cluster, make_context, make_replica

MODEL = Model(0.050, 0.010, 3)


@pytest.fixture(autouse=True)
def forget_state() -> Iterator[None]:
    """Let no test leave state to the next, as one process has it."""
    yield
    sys.__dict__.pop(MEMORY, None)


def test_it_reads_the_rate_of_all_replicas_whatever_their_clocks_say() -> None:
    cluster = Cluster(Ahead(**PLAN), 5)
    told = cluster.run(100, 30)
    assert told["rate_per_s"] == pytest.approx(100, rel=0.03)
    assert cluster.target == 5
    cluster.run(300, 4)
    assert cluster.target >= 300 / 37.5
    told = cluster.run(300, 30)
    assert told["rate_per_s"] == pytest.approx(300, rel=0.05), "the new replicas count as well"


def test_a_replica_that_counts_from_0_again_does_not_hide_the_rate() -> None:
    cluster = Cluster(Ahead(**PLAN), 4)
    cluster.run(100, 20)
    cluster.totals[0] = 0.0
    told = cluster.run(100, 5)
    assert told["rate_per_s"] == pytest.approx(100, rel=0.1)


def test_without_reports_the_target_stays() -> None:
    cluster = Cluster(Ahead(**PLAN, hold_s=5), 9)
    cluster.run(330, 20)
    held = cluster.target
    assert cluster.run(0, 60, reports=False)["why"] == "no reports"
    assert cluster.target == held


class Served:
    """A policy in the simulation that is called with contexts of Serve."""

    def __init__(self, policy: Ahead, *, has_reports: bool = True) -> None:
        self.policy = policy
        self.has_reports = has_reports

    def decide(self, sight: Sight) -> int:
        report = sight.report
        raw = {}
        if self.has_reports:
            totals = {
                ARRIVALS: report.arrivals,
                BACKLOG_S: report.backlog_s,
                LATE: report.late,
                SERVED: report.served,
            }
            raw = {
                name: {make_replica(0): [TimeStampedValue(report.at_s, each)]}
                for name, each in totals.items()
            }
        self.policy.clock = lambda: sight.now_s
        ctx = make_context(sight.running, sight.target, raw, queries=sight.ongoing)
        return self.policy(ctx)[0]


@pytest.mark.parametrize("has_reports", [True, False])
def test_a_deployment_is_scaled_ahead_of_a_ramp_also_by_its_ongoing_queries(
    has_reports: bool,
) -> None:
    arrivals = draw_arrivals(ramp(70, 130, begins_s=60, lasts_s=10), seconds=120, seed=1)
    served = Served(Ahead(**PLAN, spare=2), has_reports=has_reports)
    outcome = simulate(arrivals, MODEL, served, start_s=3.0, initial=5)
    assert outcome.measure_misses(0.2) <= 0.001
    assert 6 <= outcome.targets[-1][1] <= 9


def test_without_a_plan_it_scales_by_the_ongoing_queries_at_each_replica() -> None:
    policy, now_s, target = Ahead(), 0.0, 2
    policy.clock = lambda: now_s
    for queries, least, most in ((3.0, 2, 2), (30.0, 10, 14)):
        for _ in range(300):
            now_s += 0.1
            target, told = policy(make_context(target, target, queries=queries))
        assert least <= target <= most, told


def test_what_can_sleep_sleeps_and_wakes() -> None:
    policy, now_s, target = Ahead(hold_s=5.0), 0.0, 1
    policy.clock = lambda: now_s
    for _ in range(300):
        now_s += 0.1
        target, _ = policy(make_context(target, target, least=0))
    assert target == 0
    now_s += 0.1
    for queries in range(1, 40):
        now_s += 0.1
        target, _ = policy(make_context(0, target, least=0, queries=queries))
    assert target > 0


class Broken(SimpleNamespace):
    """A context one of whose attributes raises."""

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "broken"):
            raise RuntimeError("the metric is broken")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    "broken",
    [
        "raw_metrics",
        "total_num_requests",
        "current_num_replicas",
        "capacity_adjusted_max_replicas",
        "config",
        "app_name",
    ],
)
def test_an_error_leaves_the_target_and_is_logged_once(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    logger = logging.getLogger("ray.serve")
    monkeypatch.setattr(logger, "handle", lambda record: told.append(record.getMessage()))
    context = make_context(3, 7)
    names = [name for name in dir(context) if not name.startswith("_")]
    fields = {name: getattr(context, name) for name in names if name != broken}
    policy = Ahead(**PLAN)
    if broken == "total_num_requests":
        policy = Ahead()
    for _ in range(3):
        assert policy(Broken(**fields, broken=broken))[0] == 7  # type: ignore[arg-type]
    assert len(told) == 1
    assert ("vision" in told[0]) == (broken != "app_name")
    assert "the metric is broken" in told[0]
    assert policy(context)[0] == 7, "the next call is well again"


def test_reports_that_pause_are_not_made_up_for() -> None:
    cluster = Cluster(Ahead(**PLAN), 4)
    cluster.policy(make_context(4, 4, queries=9))  # it infers, until the first report
    cluster.run(100, 60)
    cluster.now_s += 0.1
    cluster.policy(make_context(4, 4, queries=9))
    assert cluster.run(100, 5)["rate_per_s"] == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("series", [[SimpleNamespace(timestamp=None, value=1)], [3], "x", None])
def test_a_report_that_is_none_leaves_the_target(series: Any) -> None:
    policy = Ahead(**PLAN)
    raw = {ARRIVALS: {make_replica(0): series}}
    assert policy(make_context(3, 7, raw))[0] == 7


OPTIONS = [
    ({"latency": 0.2}, TypeError, "latency is no option of scale_ahead; there are latency_s, "),
    ({"prepared": 1.5}, ValueError, "prepared=1.5 must be a whole number"),
    ({"latency_s": 0}, ValueError, "latency_s=0 must be a number, and above 0"),
    ({"miss": 1.0}, ValueError, "miss=1.0 must be a share below 1"),
    ({"capacity_per_s": math.nan}, ValueError, "capacity_per_s=nan must be"),
    ({"hold_s": -1.0}, ValueError, "hold_s=-1.0 must be a number, 0 or more"),
    ({"spare": -1}, ValueError, "spare=-1 must be"),
]


@pytest.mark.parametrize(("options", "error", "why"), OPTIONS)
def test_a_wrong_option_is_told_where_it_is_written_and_stops_no_controller(
    options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        scale_ahead(min_replicas=1, max_replicas=2, **options)
    assert Ahead(**options)(make_context(3, 7)) == (7, {})


def test_the_configuration_has_no_delays_and_fresh_reports() -> None:
    config = scale_ahead(min_replicas=2, max_replicas=20, spare=1, **PLAN)
    assert (config.upscale_delay_s, config.downscale_delay_s) == (0, 0)
    assert config.get_upscaling_factor() == config.get_downscaling_factor() == 1
    assert config.metrics_interval_s < config.look_back_period_s
    assert json.loads(json.dumps(config.policy.policy_kwargs)) == {**PLAN, "spare": 1}

    @stage(autoscaling_config=config)
    class Echo:
        def __call__(self, queries: list[Any]) -> list[Any]:
            return queries

    assert pipeline(a=Echo)


# Metrics.


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Collect what is given to Ray's metrics."""
    from ray.util import metrics

    values: dict[str, list[float]] = {}

    class Gauge:
        def __init__(self, name: str, meaning: str, tag_keys: tuple[str, ...]) -> None:
            assert name not in values, "one gauge of each name"
            self._values: list[float] = values.setdefault(name, [])
            assert tag_keys == ("application", "deployment")

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tags == {"application": "app", "deployment": "vision"}
            self._values.append(value)

    monkeypatch.setattr(metrics, "Gauge", Gauge)
    return values


def test_the_rate_and_its_forecast_are_shown_once_a_second(
    gauges: dict[str, list[float]],
) -> None:
    cluster = Cluster(Ahead(**PLAN), 5)
    cluster.run(100, 20)
    came, expected = (gauges[name] for name, _ in GAUGES.values())
    assert 15 <= len(came) == len(expected) <= 20, "there is no rate in the first seconds"
    assert came[-1] == pytest.approx(100, rel=0.05) == expected[-1]
    for second in range(12):
        cluster.run(100 + 20 * second, 1)
    assert expected[-1] > came[-1] > 200, "a ramp goes on while a replica starts"
    count = len(came)
    cluster.run(0, 60, reports=False)
    assert len(came) <= count + 6, "without reports nothing is known"


def test_metrics_that_fail_are_logged_and_the_number_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.util import metrics

    def fail(*args: Any) -> None:
        raise RuntimeError("no metrics")

    told: list[str] = []
    monkeypatch.setattr(metrics, "Gauge", fail)
    logger = logging.getLogger("ray.serve")
    monkeypatch.setattr(logger, "handle", lambda record: told.append(record.getMessage()))
    cluster = Cluster(Ahead(**PLAN), 2)
    cluster.run(300, 20)
    assert cluster.target >= 300 / 37.5
    assert len(told) == 1 and "can't show the rates of app#vision" in told[0]


def test_the_policys_gauges_are_in_the_table_of_metrics() -> None:
    known = {each.name: each for each in METRICS.values() if each.kind == "gauge"}
    for name, meaning in GAUGES.values():
        assert known[name].meaning == meaning
        assert known[name].tags == ("application", "deployment")


# Parked replicas.


def make_parked(states: Mapping[int, int]) -> Mapping[str, Mapping[ReplicaID, Any]]:
    """Return reports of replicas: 1 for one that is parked."""
    return {
        PARKED: {
            make_replica(number): [TimeStampedValue(0.0, state)] for number, state in states.items()
        }
    }


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect what is written to Ray's key-value store."""
    from ray.experimental import internal_kv

    told: list[dict[str, Any]] = []

    def put(key: bytes, value: bytes, *, overwrite: bool, namespace: bytes, timeout: float) -> None:
        assert (key, overwrite, namespace) == (b"hoplite_released/app#vision", True, b"hoplite")
        assert 0 < timeout < 1, "Serve's controller waits"
        told.append(json.loads(value))

    store = SimpleNamespace(internal_kv_put=put)
    monkeypatch.setattr(internal_kv, "internal_kv_get_gcs_client", lambda: store)
    return told


def test_parked_replicas_are_released_by_a_notice_that_names_them(
    notices: list[dict[str, Any]],
) -> None:
    scaler, now_s = Ahead(**PLAN, prepared=1), 0.0
    scaler.clock = lambda: now_s
    steps: list[tuple[dict[int, int], list[str]]] = [
        ({}, []),  # no replica runs yet
        ({4: 1}, ["r4"]),
        ({4: 1, 2: 1}, ["r4", "r2"]),  # the oldest first, whatever they are called
        ({4: 0, 2: 1, 1: 1}, ["r2"]),
        ({4: 0, 2: 0, 1: 1}, []),
        ({4: 0, 1: 1}, ["r1"]),  # one has died
    ]
    for states, released in steps:
        now_s += 0.1
        scaler(make_context(len(states), 3, make_parked(states), least=2))
        assert notices[-1]["replicas"] == released
    assert len(notices) == len({each["at"] for each in notices}) == len(steps)
    assert all(type(each["at"]) is int for each in notices)


def test_a_parked_replica_without_reports_is_released_last_and_an_old_version_answers() -> None:
    reports = Reports()
    raw = {name: {**each} for name, each in make_parked({1: 1, 2: 1, 3: 0}).items()}
    for number in (2, 3):
        raw[PARKED][make_replica(number)] = [TimeStampedValue(9.0, number == 2)]
    assert reports.sort_replicas(raw, 3) == (1, ["r2", "r1"])
    raw[ARRIVALS] = {make_replica(number): [TimeStampedValue(9.0, 0.0)] for number in (3, 7)}
    assert reports.sort_replicas(raw, 4) == (2, ["r2", "r1"])
    raw[PARKED][make_replica(1)] = [TimeStampedValue(9.0, 1)]
    assert reports.sort_replicas(raw, 4) == (2, ["r1", "r2"]), "the oldest first"


def test_without_reports_there_is_no_notice_so_that_parked_replicas_act(
    notices: list[dict[str, Any]],
) -> None:
    scaler, now_s = Ahead(**PLAN, prepared=1), 0.0
    scaler.clock = lambda: now_s
    raw = {name: {**each} for name, each in make_parked({0: 0, 1: 1}).items()}
    raw[ARRIVALS] = {make_replica(0): [TimeStampedValue(0.0, 5.0)]}
    for _ in range(200):
        now_s += 0.1
        scaler(make_context(2, 2, raw))
    assert 0 < len(notices) < 7, "the reports were fresh for 5 s"


@pytest.mark.parametrize(
    ("options", "states", "count"),
    [({"prepared": 1}, {0: 0}, 5), ({}, {0: 0, 1: 1}, 5), ({}, {0: 0}, 0)],
)
def test_a_notice_is_written_every_second_where_replicas_may_be_parked(
    notices: list[dict[str, Any]], options: dict[str, Any], states: dict[int, int], count: int
) -> None:
    scaler, now_s = Ahead(**PLAN, **options), 0.0
    scaler.clock = lambda: now_s
    for _ in range(46):
        now_s += 0.1
        scaler(make_context(len(states), 1, make_parked(states)))
    assert count - 1 <= len(notices) <= count
    assert not any(each["replicas"] for each in notices)


def test_a_store_that_is_away_is_logged_and_the_number_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.experimental import internal_kv

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("the store is away")

    told: list[str] = []
    monkeypatch.setattr(internal_kv, "internal_kv_get_gcs_client", fail)
    logger = logging.getLogger("ray.serve")
    monkeypatch.setattr(logger, "handle", lambda record: told.append(record.getMessage()))
    scaler = Ahead(**PLAN, prepared=2)
    for _ in range(3):
        assert scaler(make_context(1, 3, make_parked({0: 1}), least=3))[0] == 5
    assert len(told) == 1
    assert "can't release parked replicas of app#vision" in told[0]


def test_a_stage_and_the_policy_mean_the_same_numbers() -> None:
    @stage
    class Echo:
        def __call__(self, queries: list[Any]) -> list[Any]:
            return queries

    load = Compute(Echo, "echo", Echo.user_class(), "the answer").report_load()
    assert set(load) == {ARRIVALS, BACKLOG_S, LATE, SERVED}


def test_the_pages_example_is_a_configuration() -> None:
    page = (ROOT / "docs/reference/serving.md").read_text().partition("## Scaling ahead")[2]
    (program,) = re.findall(r"^```python\n(.*?)^```", page.partition("\n## ")[0], re.S | re.M)
    made: dict[str, Any] = {}
    exec(compile(program, "program.py", "exec"), made)
    scaling = made["Vision"].serve_options["autoscaling_config"]
    assert scaling.policy.policy_kwargs == PLAN
