"""A replica that calls a stage while the stage's replicas come and go, without Serve."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import types
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray.serve.edge.door import Door
from hoplite_ray.serve.errors import NoReplicaError
from hoplite_ray.serve.routing import discovery
from hoplite_ray.serve.routing.outlet import Outlet
from hoplite_ray.serve.routing.query import Query
from tests.certificates import Authority
from tests.process.world_crew import Here, Member


def say(path: Path, *doors: dict[str, Any]) -> None:
    path.with_suffix(".new").write_text(json.dumps(doors))
    path.with_suffix(".new").rename(path)


async def answers(here: Here, path: Path) -> None:
    """A play: two replicas, of which the first leaves instead of answering; says where they are."""
    is_over = asyncio.Event()
    closing: list[asyncio.Task[None]] = []

    async def leave(query: Query, notify_running: Any) -> None:
        closing.append(asyncio.create_task(first.close()))
        await asyncio.Event().wait()

    async def answer(query: Query, notify_running: Any) -> str:
        asyncio.get_running_loop().call_later(0.2, is_over.set)  # the answer goes first
        return "second"

    first, second = Door(leave, "its answer"), Door(answer, "its answer")
    say(path, await first.open(), await second.open())
    await is_over.wait()
    await asyncio.gather(second.close(), *closing)


async def asks(here: Here, first: dict[str, Any], second: dict[str, Any]) -> tuple[str, str, str]:
    """A play: ask, twice, the one that leaves; Serve says later that it went and another came.

    Returns the answer, what the one is told that does not wait, and how the last edge goes.
    """
    stage = ("application", "stage")
    handle = types.SimpleNamespace(app_name=stage[0], deployment_name=stage[1], is_initialized=True)
    outlet = Outlet(handle, "an answer")
    discovery.publish(stage, {"first": first})
    await outlet.wait_ready()
    query = Query("q", 1, "", 0, 60.0, {})
    impatient = asyncio.create_task(outlet.call(query, should_wait=lambda: False))
    patient = asyncio.create_task(outlet.call(query, should_wait=lambda: outlet.is_replaced))
    with pytest.raises(NoReplicaError) as refused:
        await impatient
    await asyncio.sleep(0.2)
    assert not patient.done() and outlet.is_replaced and not outlet.replicas
    discovery.publish(stage, {"second": second})
    answer = await patient
    assert not outlet.is_replaced and outlet.replicas == ["second"]
    [transport] = outlet._edges["second"].world.transports.values()
    await outlet.close()
    return answer, str(refused.value), transport


@pytest.mark.parametrize("transport", ["shared_memory", "tls"])
def test_who_leaves_is_replaced_though_serve_has_not_said_so_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    if transport == "tls":
        settings = Authority(tmp_path / "ours").certify("replica")
        settings |= {"HOPLITE_RAY_DATA_TLS": "on", "HOPLITE_RAY_WORLD_TRANSPORT": "tcp"}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
    stage, caller = Member(), Member()
    with contextlib.ExitStack() as ends:
        ends.callback(stage.kill)
        ends.callback(caller.kill)
        meet(stage, caller, tmp_path, transport)


def meet(stage: Member, caller: Member, tmp_path: Path, transport: str) -> None:
    path = tmp_path / "doors"
    stage.tell(answers, path)
    while not path.exists():  # the test's limit ends it else
        time.sleep(0.01)
    caller.tell(asks, *json.loads(path.read_text()))
    assert caller.answer() == ("second", "stage stage has no replica now", transport)
    stage.answer()
