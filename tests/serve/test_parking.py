"""Parked replicas under a real Serve: released, taken in an emergency, and replaced by an update.

The test plays the autoscaling policy: it writes the notice into Ray's key-value store.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ray import serve as ray_serve
from ray._private import state
from ray.experimental.internal_kv import _internal_kv_put

from hoplite_ray.serve import Stage, pipeline, seams, stage
from hoplite_ray.serve.stages.parking import PARKED_KEY, notice_key
from tests.ray.raycluster import eventually
from tests.serve.applications import LIGHT, Marks
from tests.serve.conftest import Application, Node

NAME, REPLICAS = "parking", 3
QUERIES = 60
WRITE_S = 1.0  # between two notices of the policy, which replicas take for silent after 10 s


class Policy:
    """Writes notices, and goes on writing so that no replica takes it for dead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0
        self._released: list[str] = []
        self._is_over = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._write_on)
        self._thread.start()

    def release(self, replica: str) -> None:
        with self._lock:
            self._released.append(replica)
        self._write()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _write_on(self) -> None:
        while not self._is_over.wait(WRITE_S):
            self._write()

    def _write(self) -> None:
        with self._lock:
            self._at += 1
            notice = json.dumps({"at": self._at, "replicas": self._released})
            key = notice_key(NAME, "only")
            _internal_kv_put(key, notice, overwrite=True, namespace=seams.NAMESPACE)


@pytest.fixture(scope="module")
def policy(node: Node) -> Iterator[Policy]:
    started = Policy()
    yield started
    started.close()


def parked_stage(**options: Any) -> Stage[[], Marks]:
    return stage(starts_parked=True, num_replicas=REPLICAS, **options, **LIGHT)(Marks)


@pytest.fixture(scope="module")
def application(policy: Policy) -> Iterator[Application]:
    started = Application(NAME, pipeline(only=parked_stage(), replicas=1, deadline_s=60.0))
    yield started
    started.delete()


def find_replicas() -> dict[str, int]:
    """Return the processes of the stage's replicas, by their ids."""
    mark = f"SERVE_REPLICA::{NAME}#only#"
    alive = [each for each in state.actors().values() if each["State"] == "ALIVE" and each["Pid"]]
    return {
        each["Name"].removeprefix(mark): each["Pid"]
        for each in alive
        if each["Name"].startswith(mark)
    }


def count_parked() -> int:
    handle: Any = ray_serve.get_deployment_handle("only", NAME)
    told = handle.broadcast("record_autoscaling_stats").results(timeout_s=30)
    return sum(each[PARKED_KEY] for each in told)


def ask_many(application: Application) -> list[Any]:
    return [application.ask({"query": number, "pids": []}) for number in range(QUERIES)]


def find_pids(asked: list[Any]) -> set[int]:
    """Wait for all answers; returns the processes that have answered. Each query has one answer."""
    answers = [each.result(timeout_s=60) for each in asked]
    assert [each["query"] for each in answers] == list(range(QUERIES))
    assert all(len(each["pids"]) == 1 for each in answers)
    return {each["pids"][0] for each in answers}


def test_a_released_replica_answers_and_parked_ones_do_not(
    application: Application, policy: Policy
) -> None:
    replicas = find_replicas()
    assert count_parked() == len(replicas) == REPLICAS
    active: set[int] = set()
    for number, replica in enumerate(sorted(replicas)[:2], 1):
        policy.release(replica)
        active.add(replicas[replica])
        assert eventually(lambda number=number: count_parked() == REPLICAS - number, within_s=30)
        assert find_pids(ask_many(application)) == active


@pytest.mark.slow  # it waits for Serve to replace two replicas
def test_parked_replicas_answer_when_all_active_ones_are_killed(application: Application) -> None:
    before = set(find_replicas().values())
    active = find_pids(ask_many(application))
    assert active < before
    asked = ask_many(application)
    for pid in active:
        os.kill(pid, signal.SIGKILL)
    asked_later = ask_many(application)
    assert find_pids(asked) <= before
    assert not find_pids(asked_later) & active
    assert eventually(lambda: len(find_replicas()) == REPLICAS, within_s=60)
    assert eventually(lambda: count_parked() >= len(active), within_s=30), "new ones are parked"
    assert find_pids(ask_many(application)) <= before


@pytest.mark.slow  # it replaces three replicas, one after the other
def test_an_update_with_parked_replicas_is_completed(application: Application) -> None:
    old = set(find_replicas().values())
    is_over = threading.Event()
    answered: list[set[int]] = []

    def ask_on() -> None:
        while not is_over.is_set():
            answered.append(find_pids(ask_many(application)))

    asking = threading.Thread(target=ask_on)
    asking.start()
    changed = parked_stage(max_batch=16)
    Application(NAME, pipeline(only=changed, replicas=1, deadline_s=60.0))
    assert eventually(lambda: not old & set(find_replicas().values()), within_s=60)
    is_over.set()
    asking.join()
    assert all(answered), "no query was lost"
    assert not find_pids(ask_many(application)) & old
    status = ray_serve.status().applications[NAME].deployments["only"].status
    assert status == "HEALTHY"
