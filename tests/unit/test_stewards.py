"""How a process comes by a steward while Ray drains nodes, with a Ray that is made up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnschedulableError

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.node.start import NodePlace, node_name
from hoplite_ray.plugin.process import attachment
from hoplite_ray.plugin.process.attachment import Attachment
from hoplite_ray.plugin.process.sharing import SharedCall
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward_client import client
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation

HERE, OTHER, THIRD = "aa" * 28, "bb" * 28, "cc" * 28


class MadeUpRay:
    """Three Ray nodes. Its answers to questions after nodes are as the test says."""

    def __init__(self) -> None:
        self.drained: set[str] = set()  # as Ray answers when it is asked
        self.drains_next: set[str] = set()  # of which Ray tells only when it places there
        self.leaves: set[str] = set()  # nodes whose steward leaves under its first call
        self.created: list[str] = []  # the nodes for which an actor was made, in order
        self.running: dict[str, Any] = {}

    def is_draining(self, ray_node_id: str) -> bool:
        return ray_node_id in self.drained

    def placeable_nodes(self) -> list[str]:
        return [each for each in (HERE, OTHER, THIRD) if each not in self.drained]

    def create_actor(self, *_: object, scheduling_strategy: Any, **__: object) -> Any:
        ray_node_id = scheduling_strategy.node_id
        self.created.append(ray_node_id)
        return SimpleNamespace(
            anchors=SimpleNamespace(remote=lambda count: lambda: self._answer(ray_node_id, count)),
            where=ray_node_id,
        )

    def get_actor(self, name: str, namespace: str) -> Any:
        for ray_node_id, steward in self.running.items():
            if node_name(ray_node_id) == name:
                return steward
        raise ValueError(name)

    def wait_for_answer(self, ask: Callable[[], Any], *_: object) -> Any:
        return ask()()

    def _answer(self, ray_node_id: str, count: int) -> tuple[int, list[bytes]]:
        if ray_node_id in self.drains_next:
            self.drained.add(ray_node_id)
            raise ActorUnschedulableError("the node is draining")
        if ray_node_id in self.leaves:
            self.leaves.remove(ray_node_id)
            raise ActorDiedError
        return 7, count * [ray_node_id.encode()]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> MadeUpRay:
    fake = MadeUpRay()
    for name in ("is_draining", "placeable_nodes", "create_actor", "wait_for_answer"):
        monkeypatch.setattr(seams, name, getattr(fake, name))
    monkeypatch.setattr(seams, "stay_connected", lambda joined: nullcontext())
    monkeypatch.setattr(seams, "connection", lambda: b"")
    monkeypatch.setattr(seams, "this_worker", lambda: "worker")
    context = SimpleNamespace(runtime_env={})
    monkeypatch.setattr(
        client,
        "ray",
        SimpleNamespace(get_actor=fake.get_actor, get_runtime_context=lambda: context),
    )
    monkeypatch.setattr(client, "_actor", lambda: None)
    return fake


@pytest.fixture
def here(tmp_path: Path, fake: MadeUpRay) -> Attachment:
    here = Attachment.__new__(Attachment)
    here.place, here.connection, here._steward = NodePlace(HERE, tmp_path), b"", (0, None)
    here._find_call = SharedCall("finding", here._find_steward, lambda: "no steward")
    here.journal = SimpleNamespace(process="process")  # type: ignore[assignment]
    here.__dict__["_reaper"] = SimpleNamespace(watch=lambda ref: None)
    return here


def test_a_call_waits_for_its_stewards_place(here: Attachment, fake: MadeUpRay) -> None:
    steward, caller = here.steward_for_call()
    assert (steward.where, caller) == (HERE, "process")


def test_a_steward_that_is_there_is_not_waited_for(
    here: Attachment, fake: MadeUpRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = StewardIncarnation(here.place)
    monkeypatch.setattr(seams, "wait_for_answer", None)
    steward, caller = here.steward_for_call()
    assert (steward.where, caller, life.number) == (HERE, "process", 1)


def test_a_call_goes_elsewhere_if_a_drain_begins_before_its_steward_has_a_place(
    here: Attachment, fake: MadeUpRay
) -> None:
    """A drain may begin there as well, after the look at the nodes."""
    fake.drains_next = {HERE, OTHER}
    steward, caller = here.steward_for_call()
    assert (steward.where, caller) == (THIRD, f"worker@{HERE}")
    assert fake.created == [HERE, OTHER, THIRD]


def test_anchors_come_from_elsewhere_if_a_drain_begins_before_the_steward_has_a_place(
    here: Attachment, fake: MadeUpRay
) -> None:
    fake.drains_next = {HERE, OTHER}
    assert here.anchors.take(60.0) == THIRD.encode()  # type: ignore[comparison-overlap]


def test_a_steward_elsewhere_that_leaves_under_the_question_is_asked_again(
    here: Attachment, fake: MadeUpRay
) -> None:
    fake.drained, fake.leaves = {HERE, THIRD}, {OTHER}
    assert here.steward_for_call()[0].where == OTHER
    assert fake.created == [OTHER, OTHER]


def test_where_no_node_takes_a_steward_the_error_says_what_to_do(
    here: Attachment, fake: MadeUpRay
) -> None:
    fake.drains_next = {HERE, OTHER, THIRD}
    with pytest.raises(HopliteError, match="add a Ray node"):
        here.steward_for_call()
    with pytest.raises(HopliteError, match="add a Ray node"):
        here.anchors.take(60.0)


def test_nothing_is_placed_on_a_node_that_is_known_to_drain(
    here: Attachment, fake: MadeUpRay
) -> None:
    """A put needs no steward at once; what a call or an array needs is elsewhere."""
    fake.drained = {HERE}
    here.reap(SimpleNamespace(), None)
    here.begin_steward(None)
    assert fake.created == []
    assert here.steward_for_call()[0].where == OTHER
    assert here.anchors.take(60.0) == OTHER.encode()  # type: ignore[comparison-overlap]
    assert HERE not in fake.created


def test_a_steward_that_runs_on_a_draining_node_is_used(here: Attachment, fake: MadeUpRay) -> None:
    fake.drained = {HERE}
    fake.running[HERE] = "running"
    assert here.steward == "running"
    assert attachment.steward_of(NodePlace(HERE, here.place.directory)) == "running"
    assert fake.created == []
