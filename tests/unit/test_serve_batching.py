"""Opportunistic batching, under virtual time: research's table, deadlines, limits, overload."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.serve.slo.queueing import StageModel, poisson, simulate
from hoplite_ray.serve.stages.batching import Batches, Late
from hoplite_ray.serve.stages.estimates import (
    AfterTime,
    Arrivals,
    Drift,
    LoopShare,
    RecentTimes,
    ServiceTime,
)
from tests.unit.serve_profiles import line

_FIXED_S, _EACH_S = 0.040, 0.001  # the model of the table: 40 ms and 1 ms an item
_TARGET_S = 0.200


@dataclass
class Run:
    """What a stage did with queries that came at random for a while."""

    latencies_s: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    @property
    def missed(self) -> float:
        return sum(each > _TARGET_S for each in self.latencies_s) / len(self.latencies_s)

    @property
    def mean_size(self) -> float:
        return sum(self.sizes) / len(self.sizes)


def driven(rate: float, *, cap: int, seconds: float = 60, late: Late = Late.SERVE) -> Run:
    """Poisson arrivals at one stage, as events in virtual time."""
    arrivals = random.Random(7)
    run, batches = Run(), Batches[float](cap=cap, waiting_max=100_000, late=late)
    at_s, events, running = 0.0, [], []
    while (at_s := at_s + arrivals.expovariate(rate)) < seconds:
        events.append((at_s, "arrive"))
    heapq.heapify(events)
    while events:
        now_s, what = heapq.heappop(events)
        if what == "arrive":
            batches.offer(now_s, deadline_s=now_s + _TARGET_S)
        else:
            run.latencies_s += [now_s - came_s for came_s in running]
            batches.finish(len(running), _FIXED_S + _EACH_S * len(running))
        batch = batches.take(now_s)
        if batch is None:
            continue
        run.late += batch.late
        if running := batch.items:
            run.sizes.append(len(running))
            heapq.heappush(events, (now_s + _FIXED_S + _EACH_S * len(running), "finish"))
    return run


# rate, cap -> p50 and p99 as measured for the reference batcher, ms; mean batch
TABLE = {
    (5, 32): (41, 66, 1.0),
    (50, 32): (63, 85, 2.1),
    (150, 32): (76, 130, 7.0),
    (300, 32): (88, 123, 16.8),
}


@pytest.mark.parametrize(("rate", "cap"), TABLE)
def test_up_to_300_a_second_hardly_any_query_takes_200_ms(rate: float, cap: int) -> None:
    run = driven(rate, cap=cap)
    p50, p99, size = TABLE[rate, cap]
    assert run.missed <= 0.01
    assert run.percentile_ms(0.5) == pytest.approx(p50, rel=0.15)
    assert run.percentile_ms(0.99) <= 1.3 * p99
    assert run.mean_size == pytest.approx(size, rel=0.25)


def test_nothing_waits_for_a_batch_to_fill() -> None:
    run = driven(0.5, cap=32, seconds=600)
    assert run.percentile_ms(0.5) == pytest.approx(41)
    assert max(run.latencies_s) < 2 * (_FIXED_S + 32 * _EACH_S)


def test_no_query_waits_longer_than_one_batch_while_the_cap_suffices() -> None:
    run = driven(300, cap=32)
    assert max(run.latencies_s) <= 2 * (_FIXED_S + 32 * _EACH_S) + 0.040  # a burst above the cap


@pytest.mark.parametrize("late", Late)
def test_a_cap_without_capacity_is_an_overload(late: Late) -> None:
    run = driven(300, cap=8, seconds=20, late=late)
    answered, asked = len(run.latencies_s), len(run.latencies_s) + len(run.late)
    in_time = sum(each <= _TARGET_S for each in run.latencies_s)
    assert in_time == pytest.approx(167 / 300 * asked, rel=0.05)  # 8 in 48 ms are 167 a second
    if late is Late.DROP:
        assert in_time > 0.98 * answered, "what can't be in time takes no time"
    else:
        assert answered == asked


@pytest.mark.parametrize("late", Late)
@pytest.mark.parametrize("times", [1.0, 1.3, 2.0, 4.0])
@pytest.mark.parametrize(
    ("fixed_s", "each_s", "cap", "latency_s"),
    [(0.02, 0.002, 16, 0.2), (0.04, 0.001, 32, 0.2), (0.005, 0.0005, 8, 0.05), (0, 0.01, 8, 0.3)],
)
def test_under_overload_a_stage_answers_as_many_in_time_as_it_can_run(
    fixed_s: float, each_s: float, cap: int, latency_s: float, times: float, late: Late
) -> None:
    profile = line(fixed_s, each_s, jitter=0.02)
    capacity = 2 * cap / (fixed_s + each_s * cap)
    stages = {"stage": StageModel(profile, cap, 2, late=late)}
    arrivals = poisson(times * capacity, 3000, seed=3)
    outcome = simulate(stages, arrivals, latency_s=latency_s)
    in_time = sum(each <= latency_s for each in outcome.latencies_s)
    assert in_time / (arrivals[-1] - arrivals[0]) > 0.9 * capacity


@pytest.mark.parametrize("late", Late)
@pytest.mark.parametrize("times", [1.2, 2.5])
def test_a_stage_leaves_time_for_the_stages_after_it(times: float, late: Late) -> None:
    profile = line(0.02, 0.002, jitter=0.02)
    capacity = 2 * 16 / 0.052
    stages = {
        "first": StageModel(profile, 16, 2, late=late),
        "second": StageModel(profile, 16, 2, ("first",), late),
    }
    arrivals = poisson(times * capacity, 5000, seed=3)
    outcome = simulate(stages, arrivals, latency_s=0.2)
    in_time = sum(each <= 0.2 for each in outcome.latencies_s)
    assert in_time / (arrivals[-1] - arrivals[0]) > 0.85 * capacity


def test_a_smaller_batch_saves_its_first_query_while_it_keeps_up() -> None:
    batches = Batches[int](cap=8, waiting_max=99)
    for size in (1, 8, 4):  # 10 ms and 10 ms an item
        batches.offer(0)
        batches.take(0.0)
        batches.finish(size, 0.01 + 0.01 * size)
    for number in range(8):
        batches.offer(number, deadline_s=10.045 if number == 0 else 11.0)
    taken = batches.take(10.0)
    assert taken is not None and (taken.items, taken.late_count) == ([0, 1, 2], 0)


def test_late_ones_fill_a_batch_that_still_ends_in_time() -> None:
    batches = Batches[str](cap=8, waiting_max=99)
    for size in (1, 8, 4):
        batches.offer("warm")
        batches.take(0.0)
        batches.finish(size, 0.01 + 0.01 * size)
    for name, deadline_s in (("late", 0.5), ("lost", 0.6), ("soon", 1.035), ("then", 9.0)):
        batches.offer(name, deadline_s=deadline_s)
    taken = batches.take(1.0)
    assert taken is not None and (taken.items, taken.late_count) == (["soon", "then"], 2)
    batches.finish(2, 0.03)
    batches.offer("next", deadline_s=9.0)
    taken = batches.take(1.03)
    assert taken is not None and taken.items == ["next", "late", "lost"]


def test_an_overdue_one_makes_room_and_is_answered_as_late() -> None:
    batches = Batches[str](cap=1, waiting_max=2)
    batches.offer("runs")
    batches.take(0.0)
    batches.finish(1, 1.0)
    batches.offer("overdue", deadline_s=1.5)
    batches.offer("timely", deadline_s=9.0)
    taken = batches.take(1.0)
    assert taken is not None and taken.items == ["timely"]
    assert batches.offer("a", deadline_s=9.0) is not None
    assert batches.offer("b", deadline_s=9.0) is not None, "in the place of the overdue one"
    assert batches.offer("c", deadline_s=9.0) is None
    batches.finish(1, 1.0)
    taken = batches.take(2.0)
    assert taken is not None and (taken.items, taken.late) == (["a"], ["overdue"])


def test_an_estimate_that_lets_no_batch_run_is_forgotten() -> None:
    batches = Batches[float](cap=4, waiting_max=99, late=Late.DROP)
    batches.offer(0.0)
    batches.take(0.0)
    batches.finish(1, 8.0)  # the machine stood still
    now_s = 8.0
    while not batches.is_busy:
        batches.offer(now_s, deadline_s=now_s + 0.2)
        batches.take(now_s)
        now_s += 0.1
    assert now_s < 8.0 + 6.0  # 0.2 s are 8 s halved five times


@pytest.mark.parametrize("late", Late)
def test_a_stage_runs_again_after_a_long_pause(late: Late) -> None:
    batches = Batches[str](cap=4, waiting_max=9, late=late)
    for size in (1, 4, 2):
        batches.offer("warm")
        batches.take(0.0)
        batches.finish(size, 0.01 + 0.01 * size)
    batches.take(0.1)
    batches.offer("next", deadline_s=1e5 + 60.0)
    taken = batches.take(1e5)
    assert taken is not None and taken.items == ["next"]


def test_one_stall_drops_few_queries() -> None:
    batches = Batches[float](cap=8, waiting_max=999, late=Late.DROP)
    late = running = 0
    took_s = ends_s = 0.0
    for tick in range(6000):  # each ms; a query every 5 ms; 200 ms are promised
        now_s = tick / 1000
        if tick % 5 == 0:
            batches.offer(now_s, deadline_s=now_s + 0.2)
        if batches.is_busy and now_s >= ends_s:
            batches.finish(running, took_s)
        if (batch := batches.take(now_s)) is not None:
            late += len(batch.late)
            running = len(batch.items)
            took_s = 1.0 if 2.0 < now_s < 2.1 else 0.02 + 0.002 * running
            ends_s = now_s + took_s
    assert late < 300, "a stall of a second, and not much longer"


def test_overdue_ones_that_were_withdrawn_are_forgotten() -> None:
    batches = Batches[int](cap=1, waiting_max=99)
    batches.offer(0)
    batches.take(0.0)
    for number in range(1, 1000):
        batches.finish(1, 1.0)
        overdue = batches.offer(number, deadline_s=number + 0.5)
        batches.offer(number, deadline_s=number + 9.0)
        taken = batches.take(float(number))
        assert taken is not None and taken.late_count == 1 and overdue is not None
        batches.withdraw(overdue)
    assert len(batches._overdue) < 5


def test_a_cold_first_batch_is_forgotten() -> None:
    learnt = ServiceTime()
    for took_s in (5.0, 0.02, 0.02):
        learnt.learn(4, took_s)
    assert learnt.estimate(4) == pytest.approx(0.02)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60))
def test_the_time_of_later_stages_is_between_the_least_and_the_most(times: list[float]) -> None:
    learnt = AfterTime()
    for took_s in times:
        learnt.learn(took_s)
    assert min(times) - 1e-9 <= learnt.mean_s <= max(times) + 1e-9
    assert learnt.variance_s2 >= 0


def test_arrivals_are_counted_over_a_second() -> None:
    arrivals = Arrivals()
    for tick in range(300):
        arrivals.count += 2
        arrivals.look(tick * 0.01)
    assert arrivals.rate_per_s == pytest.approx(200, rel=0.06)
    arrivals.look(3.0 + 5.0)
    assert arrivals.rate_per_s < 2


def test_the_earliest_deadline_is_first_and_a_batch_has_at_most_the_cap() -> None:
    batches = Batches[str](cap=2, waiting_max=9)
    for name, deadline_s in (("late", 9.0), ("never", math.inf), ("soon", 1.0), ("then", 2.0)):
        batches.offer(name, deadline_s=deadline_s)
    taken = batches.take(0.0)
    assert taken is not None and (taken.items, taken.late) == (["soon", "then"], [])
    assert batches.take(0.0) is None, "it runs"
    batches.finish(2, 0.1)
    taken = batches.take(0.1)
    assert taken is not None and taken.items == ["late", "never"]
    batches.finish(2, 0.1)
    assert batches.take(0.2) is None, "nothing waits"


def test_those_of_one_deadline_keep_their_order() -> None:
    batches = Batches[int](cap=9, waiting_max=9)
    for number in range(9):
        batches.offer(number)
    taken = batches.take(0.0)
    assert taken is not None and taken.items == list(range(9))


def test_what_runs_alone_shares_its_batch_with_none_and_keeps_its_place() -> None:
    batches = Batches[str](cap=8, waiting_max=10)
    for size in (1, 4, 2):
        batches.offer("warm")
        batches.take(0.0)
        batches.finish(size, 0.001 * size)
    for item, alone in (("a", False), ("b", True), ("c", True), ("d", False), ("e", False)):
        assert batches.offer(item, deadline_s=1.0, alone=alone) is not None
    taken = []
    while (batch := batches.take(0.0)) is not None:
        taken.append(batch.items)
        batches.finish(len(batch.items), 0.01)
    assert taken == [["a"], ["b"], ["c"], ["d", "e"]]


def test_a_stage_with_too_many_refuses_and_a_withdrawn_one_makes_room() -> None:
    batches = Batches[str](cap=1, waiting_max=2)
    first = batches.offer("a")
    assert first is not None and batches.offer("b") is not None
    assert batches.offer("c") is None
    assert batches.withdraw(first) and not batches.withdraw(first)
    assert batches.offer("d") is not None
    taken = batches.take(0.0)
    assert taken is not None and taken.items == ["b"]


def test_a_batch_of_nothing_but_late_ones_does_not_run() -> None:
    batches = Batches[str](cap=4, waiting_max=4, late=Late.DROP)
    batches.offer("a", deadline_s=1.0)
    taken = batches.take(2.0)
    assert taken is not None and (taken.items, taken.late) == ([], ["a"])
    assert not batches.is_busy


def test_what_can_not_be_done_in_time_any_more_is_late_at_once() -> None:
    batches = Batches[str](cap=1, waiting_max=4, late=Late.DROP)
    batches.offer("first")
    assert batches.take(0.0) is not None
    batches.finish(1, 0.5)
    batches.offer("hopeless", deadline_s=1.4)
    batches.offer("just", deadline_s=1.5)
    taken = batches.take(1.0)
    assert taken is not None and (taken.items, taken.late) == (["just"], ["hopeless"])


@given(st.floats(0, 1), st.floats(0, 0.1), st.lists(st.integers(1, 64), min_size=2, max_size=40))
def test_the_time_of_a_batch_is_learnt_exactly_from_exact_ones(
    fixed_s: float, each_s: float, sizes: list[int]
) -> None:
    learnt = ServiceTime()
    for size in sizes:
        learnt.learn(size, fixed_s + each_s * size)
    for size in sizes if len(set(sizes)) == 1 else range(1, 65):
        assert learnt.estimate(size) == pytest.approx(fixed_s + each_s * size, rel=1e-3, abs=1e-6)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 10)), max_size=40))
def test_no_time_is_ever_negative(batches: list[tuple[int, float]]) -> None:
    learnt = ServiceTime()
    assert learnt.estimate(1) == 0
    for size, took_s in batches:
        learnt.learn(size, took_s)
        assert learnt.estimate(1) >= 0
        assert learnt.estimate(64) >= learnt.estimate(1) - 1e-9


def test_a_backlog_is_the_time_of_its_batches() -> None:
    batches = Batches[int](cap=4, waiting_max=99)
    tickets = [batches.offer(number) for number in range(10)]
    assert batches.backlog_s() == 0, "no batch has run"
    for size in (1, 4):
        batches.service_time.learn(size, _FIXED_S + _EACH_S * size)
    assert batches.backlog_s() == pytest.approx(3 * _FIXED_S + 10 * _EACH_S)
    assert tickets[0] is not None and batches.withdraw(tickets[0])
    assert batches.take(0.0) is not None
    assert batches.backlog_s() == pytest.approx(2 * _FIXED_S + 5 * _EACH_S)


@pytest.mark.parametrize("limits", [{"cap": 0, "waiting_max": 1}, {"cap": 1, "waiting_max": 0}])
def test_limits_are_at_least_one(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Batches(**limits)


def test_a_profile_that_is_not_true_any_more_is_noticed_in_two_windows() -> None:
    drift = Drift((0.1, 0.2))
    ratios = [drift.learn(1 + n % 2, 1.5 * (0.1 + 0.1 * (n % 2))) for n in range(100)]
    told = [(at, ratio) for at, ratio in enumerate(ratios) if ratio is not None]
    assert told == [(49, pytest.approx(1.5)), (99, pytest.approx(1.5))]
    assert [drift.judge(ratio) for ratio in (1.5, 1.5, 1.0, 0.7, 1.2, 0.7, 0.7)] == [
        *(False, True, False, False, False, False, True)
    ]
    assert all(Drift(()).learn(1, 9.0) is None for _ in range(100)), "without a profile"
    assert all(drift.learn(3, 9.0) is None for _ in range(100)), "beyond the plan's cap"


def test_the_last_times_of_each_size_and_the_last_ways_are_kept() -> None:
    recent = RecentTimes()
    for number in range(2000):
        recent.learn(number % 3, number)
        recent.learn_hop(-number)
    times, hops = recent.report()
    assert times == {size: [n for n in range(2000) if n % 3 == size][-512:] for size in range(3)}
    assert hops == [-number for number in range(2000 - 512, 2000)]


def test_the_share_in_which_the_loop_waits_is_learnt_and_forgotten() -> None:
    share = LoopShare()
    assert share.mean == 0
    share.learn(0.09, 0.1)
    assert share.mean == pytest.approx(0.9)
    share.learn(0.5, 0.1)  # no more than the batch
    assert share.mean == pytest.approx(0.95)
    for _ in range(300):
        share.learn(0.0, 0.1)
    assert share.mean < 0.01


def test_the_query_whose_later_stages_take_longest_is_first() -> None:
    batches = Batches[str](cap=1, waiting_max=9)
    for _ in range(50):
        batches.learn_after(0.5, pipeline="long")
        batches.learn_after(0.1, pipeline="short")
    batches.offer("short", deadline_s=1.2, pipeline="short")
    batches.offer("long", deadline_s=1.5, pipeline="long")
    batches.offer("later", deadline_s=1.7, pipeline="long")
    order = []
    while (batch := batches.take(0.0)) is not None:
        order += batch.items
        batches.finish(1, 0.01)
    assert order == ["long", "short", "later"]


def test_a_query_is_late_by_the_later_stages_of_its_own_pipeline() -> None:
    batches = Batches[str](cap=4, waiting_max=9, late=Late.DROP)
    batches.offer("warm")
    batches.take(0.0)
    batches.finish(1, 0.01)
    for _ in range(50):
        batches.learn_after(0.5, pipeline="long")
        batches.learn_after(0.1, pipeline="short")
    batches.offer("short", deadline_s=0.4, pipeline="short")
    batches.offer("long", deadline_s=0.4, pipeline="long")
    taken = batches.take(0.0)
    assert taken is not None and (taken.items, taken.late) == (["short"], ["long"])


@given(
    st.lists(st.tuples(st.floats(0, 9), st.sampled_from("abc")), max_size=20),
    st.integers(1, 5),
)
def test_pipelines_with_equal_later_stages_are_as_one(
    offered: list[tuple[float, str]], cap: int
) -> None:
    """Whatever pipelines queries are of, the batches are those of a stage with one."""
    taken = []
    for is_shared in (True, False):
        batches = Batches[int](cap=cap, waiting_max=99, late=Late.DROP)
        for number, (deadline_s, name) in enumerate(offered):
            batches.offer(number, deadline_s=deadline_s, pipeline=name if is_shared else "")
        order = []
        now_s = 0.0
        while (batch := batches.take(now_s)) is not None:
            order.append((batch.items, batch.late))
            if batch.items:
                now_s += 0.5
                batches.finish(len(batch.items), 0.5)
        taken.append(order)
    assert taken[0] == taken[1]


def test_the_least_time_of_later_stages_has_no_queue_in_it_and_fades() -> None:
    learnt = AfterTime()
    for took_s in (0.2, 0.1, 0.5, 0.5):
        learnt.learn(took_s)
    assert learnt.least_s == pytest.approx(0.1 / 0.98**2)
    for _ in range(200):
        learnt.learn(0.5)
    assert learnt.least_s == 0.5


@pytest.mark.parametrize(("deadline_s", "can_end"), [(10.31, True), (10.29, False), (9.0, False)])
def test_a_query_that_comes_without_time_for_a_batch_and_later_stages_can_not_end(
    deadline_s: float, can_end: bool
) -> None:
    batches = Batches[int](cap=4, waiting_max=9)
    assert batches.can_end(10.0, 10.0), "nothing is learnt yet"
    batches.finish(1, 0.1)
    batches.learn_after(0.2)
    assert batches.find_end(deadline_s) == pytest.approx(deadline_s - 0.2)
    assert batches.can_end(deadline_s, 10.0) is can_end
