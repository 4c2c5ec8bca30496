"""An ensemble of real models goes on voting when members die, exactly as well as those left."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hoplite_ray.serve import QuorumError, ensemble
from hoplite_ray.serve.graph.votes import majority
from tests.serve.applications import Loaded
from tests.serve.conftest import Application, Node
from tests.serve.models import MODELS, digits, member

NAMES = (*(f"model{number}" for number in range(len(MODELS) - 1)), "tree")


@pytest.fixture(scope="module")
def application(node: Node) -> Iterator[Application]:
    models = [member(number) for number in range(len(MODELS))]
    started = Application("vote", ensemble(*models[:-1], tree=models[-1], quorum=3, replicas=1))
    yield started
    started.delete()


def offline(members: list[int]) -> np.ndarray:
    """The vote of these members, without Serve."""
    images, labels, tried, _ = digits()
    return majority([MODELS[number].fit(images, labels).predict(tried) for number in members])


def test_with_members_dead_it_answers_as_the_living_do_offline(application: Application) -> None:
    _, _, tried, labels = digits()
    for dead in (None, 4, 1):
        if dead is not None:
            application.kill_one_of(NAMES[dead])
        while True:  # a killed one still votes until its process has ended
            answer = application.answer(tried)
            voted = [NAMES.index(name) for name in answer.voted]
            if dead not in voted:
                break
        assert len(voted) >= len(MODELS) - 2
        expected = offline(voted)
        np.testing.assert_array_equal(answer.value, expected)
        assert (answer.value == labels).mean() == (expected == labels).mean()
        assert set(answer.voted) | set(answer.missing) | set(answer.late) == set(NAMES)


def test_below_the_quorum_it_says_who_has_voted(application: Application, node: Node) -> None:
    _, _, tried, _ = digits()

    def kill_all_but_the_tree() -> None:  # also those that Serve has started again meanwhile
        for name in NAMES[:4]:
            application.kill_all_of(name)

    with pytest.raises(Exception, match=QuorumError.__name__) as failed:
        while True:  # until all have ended
            kill_all_but_the_tree()
            application.answer(tried)
    assert "the quorum is 3" in str(failed.value)
    data = json.dumps(tried[:1].tolist()).encode()
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        while True:
            kill_all_but_the_tree()
            urllib.request.urlopen(f"{node.http}/vote", data=data, timeout=60).close()
    assert "the quorum is 3" in json.load(refused.value)["error"]


@pytest.mark.slow  # an update: test_built.py; slow members: tests/unit/test_serve_members.py
def test_an_update_that_takes_all_members_away_costs_no_answer(node: Node) -> None:
    def build(version: int) -> Any:
        members = [Loaded.bind(version) for _ in range(2)]
        return ensemble(*members, quorum=2, deadline_s=60.0, replicas=1)

    application = Application("loaded", build(1))
    is_over, seen = threading.Event(), list[int]()

    def ask() -> None:
        while not is_over.is_set() or seen[-1] != 2:
            seen.append(application.answer(0).value)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        Application("loaded", build(2))
        is_over.set()
        asking.result(timeout=60)
    assert set(seen) <= {1, 2} and seen == sorted(seen)
    application.delete()
