"""An attachment that can't be made leaves nothing behind."""

from __future__ import annotations

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
