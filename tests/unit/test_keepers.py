"""What goes on for a process's life goes on after an error of any class."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.control.client import UnreachableError
from hoplite_ray.errors import ControlError, SystemFailureError
from hoplite_ray.plugin.process import reaper
from hoplite_ray.plugin.steward import publishing
from hoplite_ray.serve import metrics
from hoplite_ray.serve.routing import discovery, outlet

STAGE = ("application", "stage")


@pytest.mark.parametrize("ends", [False, True], ids=["it can't be opened", "its end raises"])
def test_an_edge_is_opened_again_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    """Case review_10."""
    for name in ("count", "set_gauge"):
        monkeypatch.setattr(metrics, name, lambda *_, **__: None)
    monkeypatch.setattr(outlet, "_UNEXPECTED_S", 0.01)
    error = SystemFailureError("epoll_create1: EMFILE, too many open files")

    class Ends:
        calls_broken = 0
        has_left = is_parked = False

        async def ended(self) -> None:
            pass

        async def close(self) -> None:
            raise error

    async def run() -> None:
        tries = 0
        is_again = asyncio.Event()

        async def open_edge(*_: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries > 2:
                is_again.set()
                await asyncio.Event().wait()
            if ends:
                return Ends()
            raise error

        monkeypatch.setattr(outlet, "open_edge", open_edge)
        app, deployment = STAGE
        handle = SimpleNamespace(app_name=app, deployment_name=deployment, is_initialized=True)
        upstream = outlet.Outlet(handle, "an answer")
        discovery.publish(STAGE, {"replica": {}})
        try:
            await asyncio.wait_for(is_again.wait(), 30)
        finally:
            await upstream.close()

    with caplog.at_level("WARNING", logger="ray.serve"):
        asyncio.run(run())
    (told,) = caplog.messages
    assert "no edge to replica replica of stage stage" in told and "EMFILE" in told


def test_metrics_go_on_after_a_counter_that_the_node_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Enough(BaseException):
        """Ends what is endless."""

    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "node.json").write_text('{"control": "127.0.0.1:1"}')
    tries: list[Any] = []

    class Published:
        def __init__(self, node: str) -> None: ...

        def set(self, counters: Any) -> None:
            tries.append(counters)
            if len(tries) > 2:
                raise Enough
            raise KeyError("a counter of another version")

    async def stats(_: str) -> dict[str, int]:
        return {}

    monkeypatch.setattr(publishing, "_PublishedCounters", Published)
    monkeypatch.setattr(publishing, "_EVERY_S", 0.0)
    monkeypatch.setattr(publishing, "ControlClient", lambda _: SimpleNamespace(stats=stats))
    place: Any = SimpleNamespace(directory=tmp_path, ray_node_id="ab")
    with pytest.raises(Enough):
        publishing.publish_always(place)
    assert len(tries) == 3


def test_metrics_are_asked_for_with_renewed_certificates_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Enough(BaseException):
        """Ends what is endless."""

    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "node.json").write_text('{"control": "127.0.0.1:1"}')
    events: list[str] = []

    class Client:
        """Reads the TLS files when it is made, as ControlClient does."""

        def __init__(self, _: bytes) -> None:
            events.append("reads")
            if events == ["reads", "refused", "closed", "reads"]:
                raise ControlError("the new certificate is there, and its key is not yet")

        async def stats(self, _: str) -> dict[str, int]:
            if len(events) == 1:
                events.append("refused")
                raise UnreachableError("certificate has expired")
            events.append("told")
            if events.count("told") == 2:
                raise Enough
            return {}

        async def close(self) -> None:
            events.append("closed")

    monkeypatch.setattr(
        publishing, "_PublishedCounters", lambda node: SimpleNamespace(set=lambda _: None)
    )
    monkeypatch.setattr(publishing, "_EVERY_S", 0.0)
    monkeypatch.setattr(publishing, "ControlClient", Client)
    place: Any = SimpleNamespace(directory=tmp_path, ray_node_id="ab")
    with pytest.raises(Enough):
        publishing.publish_always(place)
    assert events == ["reads", "refused", "closed", "reads", "reads", "told", "told"]


def test_a_reaper_ends_as_at_a_shutdown_when_ray_is_half_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_shut_down = threading.Event()
    connections = iter([b"a connection"])

    def connection() -> bytes:
        for each in connections:
            return each
        raise AttributeError("'Worker' object has no attribute 'current_node_id'")

    monkeypatch.setattr(reaper.seams, "connection", connection)
    monkeypatch.setattr(reaper, "_LOOK_EVERY_S", 0.01)
    some = reaper.Reaper(lambda _: None, is_shut_down.set)
    assert is_shut_down.wait(30)
    some._thread.join(30)
    assert not some._thread.is_alive()
