"""Figures that `benchmarks/reinforcement.py` makes of its turns: rates, bounds and ratios."""

from __future__ import annotations

from argparse import Namespace

import pytest
import reinforcement
from figures import OURS
from meters import Cores

PARAMETERS = 10_000_000
LINK_S = 4 * PARAMETERS / (500e6 / 8 * 0.955)  # of the weights over the learner's link
CASE = "A3C", PARAMETERS


def turns(*plays: tuple[str, int, float]) -> reinforcement.Turns:
    """Turns of two rounds each: contender, frames and seconds."""
    found = reinforcement.Turns(Namespace(rounds=2, rate_mbit=500))
    for contender, frames, seconds in plays:
        found.add(CASE, contender, PARAMETERS, frames, seconds)
    return found


def test_the_bound_is_a_rounds_frames_over_the_time_of_the_weights() -> None:
    ours, ray = turns(
        ("hoplite", 1000, 2 * LINK_S), ("ray", 1000, 6 * LINK_S), ("hoplite", 1000, 4 * LINK_S)
    ).figures()
    assert (ours.by, ray.by, ours.case) == (OURS, "Ray", "A3C, 10 M parameters")
    assert ours.samples == pytest.approx((500 / LINK_S, 250 / LINK_S))
    assert ours.bound == ray.bound == pytest.approx(500 / LINK_S)
    assert ours.goal == pytest.approx(500 / LINK_S / reinforcement.GOAL)
    assert ray.goal is None
    assert reinforcement.text(ray).endswith("3.00 x the bound")


@pytest.mark.parametrize(("times", "misses"), [(1.39, False), (1.41, True)])
def test_the_goal_is_a_multiple_of_the_bounds_time(times: float, misses: bool) -> None:
    (ours,) = turns(("hoplite", 1000, times * 2 * LINK_S)).figures()
    assert ours.misses_its_goal() is misses
    assert ("misses its goal" in reinforcement.text(ours)) is misses


def test_the_ratio_stands_beside_the_papers() -> None:
    figures = list(turns(("hoplite", 900, 2.0), ("ray", 900, 5.0)).figures())
    assert list(reinforcement.ratios(figures)) == [
        "A3C, 10 M parameters: 2.50 x as fast as plain Ray; the paper's: 2.2 x on 8 nodes, "
        "3.9 x on 16"
    ]


@pytest.mark.parametrize(
    ("busy_s", "said"), [(1.0, "cores 50% busy"), (1.9, "cores 95% busy, SATURATED")]
)
def test_busy_cores_are_named(busy_s: float, said: str) -> None:
    assert reinforcement.describe_busy(Cores(5.0, 10.0), Cores(5.0 + busy_s, 12.0)) == said


def test_a_failure_is_named_and_not_compared() -> None:
    played = turns(("hoplite", 900, 2.0))
    played.fail(CASE, "ray", "turn: GetTimeoutError: no bytes")
    assert played.has_failed(CASE, "ray")
    assert not played.has_failed(CASE, "hoplite")
    figures = list(played.figures())
    assert [reinforcement.text(each).partition("FAILED: ")[2] for each in figures] == [
        "",
        "turn: GetTimeoutError: no bytes",
    ]
    assert list(reinforcement.ratios(figures)) == []
