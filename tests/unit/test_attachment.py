"""An attachment that can't be made leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.errors import ControlError
from hoplite_ray.plugin.node.start import NodePlace
from hoplite_ray.plugin.process import attachment
from hoplite_ray.plugin.process.attachment import Attachment
from hoplite_ray.plugin.process.journal import Journal


@pytest.mark.parametrize("is_driver", [True, False], ids=["driver", "worker"])
def test_what_was_begun_is_closed_where_there_is_no_steward(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_driver: bool
) -> None:
    closed: list[str] = []

    class Reaper:
        def __init__(self, *how: Any) -> None:
            pass

        def close(self) -> None:
            closed.append("reaper")

    def steward_by(self: Attachment, deadline: float | None) -> Any:
        raise ControlError("Ray does not answer")

    node = SimpleNamespace(socket="", is_new=True, incarnation=1)
    store = SimpleNamespace(close=lambda: closed.append("store"))
    journals: list[Journal] = []

    def journal(directory: Path) -> Journal:
        journals.append(Journal(directory))
        return journals[0]

    monkeypatch.setattr(
        attachment.ray, "get_runtime_context", lambda: SimpleNamespace(runtime_env={})
    )
    monkeypatch.setattr(attachment.seams, "connection", lambda: b"here")
    monkeypatch.setattr(attachment.seams, "is_driver", lambda: is_driver)
    monkeypatch.setattr(attachment.ids, "count_restarts", lambda: 0)
    monkeypatch.setattr(attachment, "ensure_node", lambda *_, **__: node)
    monkeypatch.setattr(attachment, "StoreClient", lambda socket: store)
    monkeypatch.setattr(attachment, "Journal", journal)
    monkeypatch.setattr(attachment, "Reaper", Reaper)
    monkeypatch.setattr(Attachment, "steward_by", steward_by)
    place = NodePlace("", tmp_path)
    place.journals.mkdir(parents=True, exist_ok=True)
    with pytest.raises(ControlError, match="Ray does not answer"):
        Attachment(place)
    assert closed == (["reaper"] if is_driver else []) + ["store"]
    assert journals[0]._descriptor == -1, "its lock would last as long as this process"


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({}, True),
        ({"_current": None}, False),
        ({"_is_over": True}, False),
        ({"pid": -1}, False),  # a fork
        ({"connection": b"another session"}, False),
        ({"is_alive": False}, False),  # its node has died
    ],
    ids=str,
)
def test_a_store_is_found_without_a_wait_only_while_its_node_lives(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], is_found: bool
) -> None:
    here = Attachment.__new__(Attachment)
    here.pid = change.get("pid", os.getpid())
    here.connection = change.get("connection", b"here")
    store: Any = SimpleNamespace(is_alive=change.get("is_alive", True))
    here._store = store
    monkeypatch.setattr(attachment.seams, "connection", lambda: b"here")
    monkeypatch.setattr(attachment, "_is_over", change.get("_is_over", False))
    monkeypatch.setattr(attachment, "_current", change.get("_current", here))
    assert attachment.live_store() is (store if is_found else None)
