"""The steward without Ray: how it is started, and its thread that finds what the dead have left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.plugin.steward import steward
from hoplite_ray.plugin.steward_client import client


class End(BaseException):
    """Ends the thread's loop."""


def test_the_thread_goes_on_after_any_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steward, "_REAP_EVERY_S", 0.0)
    errors = iter([ValueError("does not fit"), OSError("too many"), End()])

    def find_dead() -> None:
        raise next(errors)

    half = SimpleNamespace(_journals=SimpleNamespace(find_dead=find_dead), _needs_gc=False)
    with pytest.raises(End):
        steward.Steward._reap(half)  # type: ignore[arg-type]
    assert [each.getMessage() for each in caplog.records] == [
        "orphans are left for later: does not fit",
        "orphans are left for later: too many",
    ]


def test_no_call_waits_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case t9_slots: where pending reduces hold all places, take_bare can not end them."""
    asked: list[dict[str, Any]] = []

    def create_actor(*actor: Any, **options: Any) -> None:
        asked.append(options)

    context = SimpleNamespace(runtime_env={})
    monkeypatch.setattr(client.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(client.seams, "create_actor", create_actor)
    monkeypatch.setattr(client.seams, "is_draining", lambda ray_node_id: False)
    place: Any = SimpleNamespace(directory=Path("node-1"), ray_node_id="ab" * 28)
    client.steward_of(place)
    assert [each["max_concurrency"] for each in asked] == [2**31 - 1], "Ray has no greater number"
