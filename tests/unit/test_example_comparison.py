"""How the runs of `examples/async_sgd.py` take turns, and what is drawn of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hoplite_ray.cli.live.flows import transfers_of
from tests.unit.test_flows import look

comparison: Any
trees: Any


@pytest.fixture(autouse=True, scope="module")
def _examples() -> Iterator[None]:
    """Import as the program does, from its own folder."""
    global comparison, trees
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend("examples")
        from support import comparison, trees

        yield


class Clock:
    """Seconds that pass in steps only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(comparison, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(comparison.ray, "wait", self._finish)
        self.finish_s = 0.0

    def _finish(self, under_way: list[Any], **limits: Any) -> None:
        self.now_s += self.finish_s

    def steps(self, step_s: float, order: list[str], name: str) -> Iterator[Any]:
        while True:
            self.now_s += step_s
            order.append(name)
            yield np.zeros(10, np.float32), ["a ref"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def options(steps: float = math.inf, seconds: float = math.inf) -> Any:
    budget = SimpleNamespace(steps=steps, seconds=seconds, end_s=math.inf)
    return SimpleNamespace(workers=8, budget=budget)


def play(clock: Clock, asked: Any) -> tuple[Any, str]:
    order: list[str] = []
    runs = [
        comparison.Run("fast", clock.steps(1.0, order, "f")),
        comparison.Run("slow", clock.steps(2.0, order, "s")),
    ]
    shown = comparison.Comparison(runs, asked, SimpleNamespace(drawn={"parameters": ["node 1"]}))
    shown.play(lambda params: (0.5, 0.9))
    return shown, "".join(order)


def test_runs_take_turns_for_the_same_time(clock: Clock) -> None:
    shown, order = play(clock, options(seconds=12.0))
    assert order == "ffs" * 6
    assert [run.gradients_per_s(4) for run in shown._runs] == [4.0, 2.0]
    assert shown.result(None).endswith("fast took in 2.0 x as many gradients per second as slow")


def test_runs_take_turns_for_the_same_steps(clock: Clock) -> None:
    assert play(clock, options(steps=12))[1] == "ffss" * 6


def test_a_run_pays_for_what_is_under_way_when_its_turn_ends(clock: Clock) -> None:
    clock.finish_s = 1.0
    shown, _ = play(clock, options(steps=6))
    fast = shown._runs[0]
    assert fast.used_s == 6 * 1.0 + 6 * clock.finish_s
    assert fast.gradients_per_s(4) == pytest.approx(4 * 5 / 11)  # not the first step


def test_runs_end_in_time_where_all_is_slow(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison.time, "monotonic", lambda: clock.now_s)
    asked = options(seconds=1000.0)
    asked.budget.end_s = 100.0
    shown, _ = play(clock, asked)
    assert 80.0 < clock.now_s <= 100.0
    assert abs(shown._runs[0].used_s - shown._runs[1].used_s) <= 2.0
    asked.budget.end_s = clock.now_s
    assert play(clock, asked)[1] == "fs"  # a step of each, to have figures


def test_the_table_says_what_the_links_allow(clock: Clock) -> None:
    shown, _ = play(clock, options(steps=6))
    assert "the links" in shown.result(40.0)  # bytes a second, for parameters of 40 bytes
    row = next(line for line in shown.result(40.0).splitlines() if "the links" in line)
    assert "1000" in row and "4.0" in row


def test_the_picture_has_the_tree_beside_the_rates(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, _ = play(clock, options(steps=6))
    capsys.readouterr()
    comparison.Console(width=80).print(shown.picture())
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if "fast" in line and "parameters" in line]
    assert "2.0 gradients/s" in text


def test_a_run_in_no_terminal_is_told_in_plain_lines(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    play(clock, options(seconds=12.0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[12:] == ["parameters, the last that were seen:", "node 1"]
    assert lines[11] == "slow: 2.0 gradients/s, step 6, 12 s, loss 0.50, accuracy 0.90"


def test_a_broadcast_is_drawn_from_its_root_and_a_reduce_to_it() -> None:
    copies = transfers_of(before := look(1.0, (1, 2, 20), (2, 3, 10)), before)
    members = [row | {"kind": "member"} for row in copies]
    drawn = trees.largest([*copies, *members], {"1": "node 1", "2": "node 2"})
    assert without_rates(drawn["parameters"]) == ["node 1", "  └─ node 2", "    └─ 3"]
    assert without_rates(drawn["gradients"]) == ["3", "  └─ node 2", "    └─ node 1"]


def test_the_way_of_a_sum_to_the_server_is_part_of_its_reduce() -> None:
    moment = look(1.0, (1, 2, 20), (3, 1, 10))
    into, out = transfers_of(moment, moment)
    assert (into["receiver"], out["receiver"]) in {("1", "2"), ("2", "1")}
    drawn = trees.largest([into, out], {}, "1")
    assert without_rates(drawn["parameters"]) == ["1", "  └─ 2"]
    assert without_rates(drawn["gradients"]) == ["1", "  └─ 3"]


def without_rates(lines: list[str]) -> list[str]:
    return [re.sub(r"  \d+ %.*", "", line) for line in lines]
