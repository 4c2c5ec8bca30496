"""Queries of one user stay at one replica of each stage; a death moves those of the dead one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from hoplite_ray.serve import pipeline, stage
from tests.ray.raycluster import eventually
from tests.serve.applications import LIGHT, Marks
from tests.serve.conftest import Application, Node

USERS = range(60)
STAGES = {"first": 2, "second": 3}  # and their replicas
_STAYING_MIN = 0.75  # of the keys of living replicas


@pytest.fixture(scope="module")
def application(node: Node) -> Iterator[Application]:
    first, second = (
        stage(key=lambda query: query["user"], num_replicas=count, **LIGHT)(Marks)
        for count in STAGES.values()
    )
    started = Application("affinity", pipeline(first=first, second=second.after("first")))
    yield started
    started.delete()


def find_homes(application: Application) -> dict[int, set[tuple[int, ...]]]:
    """Ask several times for each user; returns the processes that have answered."""
    asked = [
        (user, application.ask({"user": user, "pids": []})) for _ in range(4) for user in USERS
    ]
    found: dict[int, set[tuple[int, ...]]] = {user: set() for user in USERS}
    for user, answer in asked:
        found[user].add(tuple(answer.result(timeout_s=60)["pids"]))
    return found


@pytest.mark.slow  # it waits for Serve to replace a replica
def test_keys_stay_and_a_death_moves_those_of_the_dead(application: Application) -> None:
    def are_at_home() -> bool:  # once all senders have all edges
        found = find_homes(application).values()
        used = [{pids[place] for each in found for pids in each} for place in range(len(STAGES))]
        return all(len(each) == 1 for each in found) and (
            list(map(len, used)) == list(STAGES.values())
        )

    assert eventually(are_at_home, within_s=30)
    before = {user: next(iter(pids)) for user, pids in find_homes(application).items()}
    known = {*application.pids("second")}
    dead = before[USERS[0]][1]
    os.kill(dead, signal.SIGKILL)
    living = {user for user in USERS if before[user][1] != dead}
    stayed = 0
    for user, found in find_homes(application).items():
        assert {first for first, _ in found} == {before[user][0]}
        seconds = {second for _, second in found}
        assert dead not in seconds
        stayed += user in living and seconds & known <= {before[user][1]}
    # The keys of the dead fill two replicas up to their bound; what is above it moves as well.
    assert stayed >= _STAYING_MIN * len(living)
    assert eventually(lambda: len({*application.pids("second")} - {dead}) == 3, within_s=60)
    assert eventually(are_at_home, within_s=60)


def test_a_query_without_the_key_fails_alone(application: Application) -> None:
    asked = application.ask({"user": 1, "pids": []})
    with pytest.raises(KeyError, match="user"):
        application.answer({"pids": []})
    assert asked.result(timeout_s=60)["user"] == 1
