"""When an ensemble's ingress takes queries: members that are slow to be there, without Serve."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from hoplite_ray.serve.graph.ensemble import EnsembleIngress


class _Outlet:
    """Has a replica once that is said to have come."""

    def __init__(self, handle: Any, what: str) -> None:
        self.replicas: list[str] = []
        self._has_come = asyncio.Event()

    def come(self) -> None:
        self.replicas = ["one"]
        self._has_come.set()

    async def close(self) -> None:
        self.replicas.clear()

    async def wait_ready(self) -> None:
        await self._has_come.wait()


@pytest.mark.parametrize("quorum", [1, 2])
def test_members_that_are_slow_to_load_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, quorum: int
) -> None:
    module = sys.modules[EnsembleIngress.__module__]  # its package has a function of that name

    async def open_outlets(
        handles: dict[str, Any], edges: str, what: str, keys: Any
    ) -> dict[str, _Outlet]:
        return {name: _Outlet(handle, what) for name, handle in handles.items()}

    monkeypatch.setattr(module, "open_outlets", open_outlets)
    monkeypatch.setattr(module, "_ALL_S", 0.0)

    async def run() -> None:
        ingress = EnsembleIngress.__new__(EnsembleIngress)
        members = dict.fromkeys(("a", "b", "c"))
        starting = asyncio.create_task(
            ingress.__init__(members, quorum, "majority", 0.01, "worlds")  # type: ignore[misc]
        )
        await asyncio.sleep(0.1)
        for name in list(members)[:quorum]:
            assert not starting.done(), "too few members are there, and it goes on waiting"
            ingress._outlets[name].come()  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
        await asyncio.wait_for(starting, 10)
        outlets = list(ingress._outlets.values())
        await ingress.__del__()  # type: ignore[misc]  # as Serve ends it
        assert not any(outlet.replicas for outlet in outlets)  # type: ignore[attr-defined]
        assert ingress.__del__() is None, "Python collects it with nothing left to await"

    asyncio.run(run())
