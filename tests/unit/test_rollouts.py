"""Figures that `benchmarks/rollouts.py` makes of the times at which rollouts had versions."""

from __future__ import annotations

import numpy as np
import pytest
from figures import OURS
from rollouts_driver import HOPLITE, LAYERS, RAY, Weights, check, digest, split
from rollouts_record import MIB, Life, Record

BOUND_S = 4.0
START_S = 100.0  # of version 1; each next one comes 10 s later


def record(mode: str = HOPLITE, versions: int = 3) -> Record:
    found = Record(mode, BOUND_S)
    found.published_s = {
        version: START_S + 10 * (version - 1) for version in range(1, versions + 1)
    }
    return found


def add(
    found: Record, name: str, began_s: float, *took_s: float | None, ended_s: float | None = None
) -> Life:
    """Add a rollout, which had versions 1, 2 and so on so long after their publications."""
    life = found.lives[name] = Life(name, 1, ended_s, began_s)
    for version, took in enumerate(took_s, start=1):
        if took is not None:
            life.had_s[version] = found.published_s[version] + took
    return life


def test_a_version_with_the_one_before_is_apart_from_one_without() -> None:
    found = record()
    add(found, "a", 0.0, 4.4, 0.5, 0.7)
    add(found, "b", 0.0, 4.5, None, 4.1)
    assert [found.times_s(each, with_base=True) for each in (1, 2, 3)] == [
        [],
        pytest.approx([0.5]),
        pytest.approx([0.7]),
    ]
    assert [found.times_s(each, with_base=False) for each in (1, 2, 3)] == [
        pytest.approx([4.4, 4.5]),
        [],
        pytest.approx([4.1]),
    ]
    assert [found.count_missed(each) for each in (1, 2, 3)] == [0, 1, 0]
    assert found.count_late() == 0


def test_one_that_came_after_the_next_version_has_no_base() -> None:
    found = record()
    add(found, "a", 0.0, 11.0, 2.0)  # version 1 came after version 2 was published
    assert found.times_s(2, with_base=True) == []
    assert found.times_s(2, with_base=False) == pytest.approx([2.0])
    assert found.count_late() == 1


@pytest.mark.parametrize(
    ("began_s", "ended_s", "asked"),
    [
        (0.0, None, [1, 2, 3]),
        (START_S + 5, None, [2, 3]),
        (0.0, START_S + 11, [1]),
        (START_S + 5, START_S + 25, [2, 3]),
        (None, None, []),
    ],
    ids=("all the time", "joined", "killed", "both", "never began"),
)
def test_a_rollout_is_asked_for_versions_that_it_lives_through(
    began_s: float | None, ended_s: float | None, asked: list[int]
) -> None:
    found = record()
    found.lives["a"] = Life("a", 1, ended_s, began_s)
    assert [each for each in found.published_s if found.find_living(each)] == asked
    assert [each for each in found.published_s if found.count_missed(each)] == asked


def test_a_join_is_timed_from_its_begin_to_its_first_version() -> None:
    found = record()
    add(found, "first", 0.0, 4.0, 0.5, 0.5)
    add(found, "joined", START_S + 6, None, 0.9, 0.5)
    assert found.join_times_s() == pytest.approx([4.9])
    assert found.count_late() == 1


def test_a_rollout_that_dies_by_itself_is_named_and_has_ended() -> None:
    found = record()
    killed, lost = add(found, "killed", 0.0, ended_s=105.0), add(found, "lost", 0.0, 4.0)
    found.add_collected({"killed": None, "lost": None}, 107.0)
    assert (killed.ended_s, lost.ended_s) == (105.0, 107.0)
    assert found.failures == ["rollout lost has died, and was not killed"]
    found.add_collected({"lost": (1.0, {"1": 104.0})}, 108.0)
    assert (lost.began_s, lost.had_s) == (1.0, {1: 104.0})


@pytest.mark.parametrize(("mode", "by", "has_goal"), [(HOPLITE, OURS, True), (RAY, "Ray", False)])
def test_figures_have_the_slowest_rollout_of_each_version(
    mode: str, by: str, has_goal: bool
) -> None:
    found = record(mode)
    add(found, "a", 0.0, 4.4, 0.5, 0.7)
    add(found, "b", 0.0, 4.4, 0.9, None)
    found.link_bytes = {1: (256 * MIB, 260 * MIB), 2: (8 * MIB, 9 * MIB)}
    slowest, missed, links = found.figures("weights")
    assert slowest.samples == pytest.approx((0.9, 0.7)) and slowest.by == by
    assert slowest.bound == BOUND_S and slowest.goal == (0.8 if has_goal else None)
    assert missed.samples == (1.0,) and missed.misses_its_goal() is has_goal
    assert links.samples == (256.0, 8.0)
    lines = list(found.describe())
    assert "8.0 MiB to a rollout, 9.0 from the trainer" in lines[1]
    assert "1 of 6 missed; 1 later than their goals" in lines[-1]


def test_a_version_changes_a_share_of_the_elements_and_both_ends_of_each_layer() -> None:
    weights = Weights(1 << 20, 0.02)
    before = weights.flat.copy()
    weights.change(7)
    changed = np.count_nonzero(weights.flat != before) / weights.flat.size
    assert 0.019 < changed < 0.0205
    check(weights.value, 7)
    with pytest.raises(ValueError, match=r"version 8 has elements of \[7\]"):
        check(weights.value, 8)
    assert len(weights.value) == LAYERS
    assert digest(split(weights.flat.copy())) == digest(weights.value) != digest(split(before))
