"""Ids and incarnations of what tasks make, in a Ray that is made up."""

from __future__ import annotations

import itertools

import pytest

from hoplite_ray.plugin.process import ids
from hoplite_ray.plugin.seams import core as seams


class Execution:
    """One execution of a task: which attempt it is, and in which life of which actor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.count_restarts = 0
        self.of(attempt=0, count_restarts=0)
        monkeypatch.setattr(seams, "task_id", lambda: self.task)
        monkeypatch.setattr(seams, "attempt_number", lambda: self.attempt)
        monkeypatch.setattr(seams, "actor_id", lambda: self.actor)
        monkeypatch.setattr(seams, "restarts", self._restarts)

    def of(self, *, attempt: int, count_restarts: int | None) -> None:
        """Begin another one; `count_restarts`: of its actor, None outside actors."""
        ids._restarts.cache_clear()  # each life is a process
        self.task: bytes | None = bytes(24)
        self.attempt = attempt
        self.actor = None if count_restarts is None else "actor"
        self.count_restarts = count_restarts or 0

    def _restarts(self) -> int:
        self.asked += 1
        return self.count_restarts


@pytest.fixture
def execution(monkeypatch: pytest.MonkeyPatch) -> Execution:
    return Execution(monkeypatch)


RETRIES = {
    "of a task": [(0, None), (1, None), (2, None), (1000, None)],
    "of an actor's call": [(0, 0), (1, 1), (2, 1), (3, 5)],
    "of an async actor's call, which has attempt 0 always": [(0, 0), (0, 1), (0, 2), (0, 100)],
}


@pytest.mark.parametrize("executions", RETRIES.values(), ids=RETRIES.keys())
def test_each_execution_outranks_the_earlier_ones(
    execution: Execution, executions: list[tuple[int, int | None]]
) -> None:
    made = []
    for attempt, count_restarts in executions:
        execution.of(attempt=attempt, count_restarts=count_restarts)
        made.append(ids.incarnation())
    assert all(later > earlier for earlier, later in itertools.pairwise(made))
    assert made[0] == 1, "they start at 1"


def test_ray_is_asked_for_its_restarts_once_in_a_life_and_by_actors_only(
    execution: Execution,
) -> None:
    execution.of(attempt=0, count_restarts=None)
    assert ids.incarnation() == 1
    assert execution.asked == 0, "a worker that runs tasks"
    execution.actor, execution.count_restarts = "actor", 3  # and then becomes an actor
    assert [ids.incarnation(), ids.incarnation()] == [4, 4]
    assert execution.asked == 1


def test_a_driver_runs_once(execution: Execution) -> None:
    execution.task = None
    assert ids.incarnation() == 1
