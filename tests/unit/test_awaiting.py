"""The awaitable twins while a node does not begin, without Ray."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.surface import awaiting, combining

REFS = [ray.ObjectRef(bytes([each]) * 28, skip_adding_local_ref=True) for each in (1, 2)]


@pytest.mark.parametrize(
    ("twin", "given"),
    [
        (hop.empty_async, 8),
        (hop.reduce_async, REFS),
        (hop.all_reduce_async, REFS),
        (hop.reduce_scatter_async, REFS),
        (hop.gather_async, REFS),
        (hop.all_gather_async, REFS),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_twin_stops_no_loop_and_keeps_its_limit(
    monkeypatch: pytest.MonkeyPatch, twin: Any, given: Any
) -> None:
    """Case t10: the first reduce of a process begins a node, for 3 s, in which its loop stood."""
    is_over = threading.Event()

    def attachment(*_: Any) -> Any:
        assert is_over.wait(30), "the loop stands still"
        raise hop.NodeLostError("the node did not begin")

    monkeypatch.setattr(combining, "attachment", attachment)
    monkeypatch.setattr(awaiting, "attachment", attachment)

    async def run() -> None:
        with pytest.raises(hop.GetTimeoutError):
            await twin(given, timeout_s=0.01)
        begun = asyncio.ensure_future(twin(given, timeout_s=60))
        await asyncio.sleep(0)
        is_over.set()
        with pytest.raises(hop.NodeLostError, match="did not begin"):
            await begun

    asyncio.run(run())
