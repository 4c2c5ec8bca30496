"""The names of tables that are ours: no program's table can have one."""

from __future__ import annotations

import pytest

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.plugin.tables import weights
from hoplite_ray.plugin.tables.handlers import Handlers
from hoplite_ray.plugin.tables.operations import Operations
from hoplite_ray.tables.log import checked_name


def name_handlers(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of the table that has the handlers of table "x"."""
    monkeypatch.setattr(Operations, "open", lambda self: None)
    return Handlers("x", 2)._entries.name


def test_no_program_can_open_a_table_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (name_handlers(monkeypatch), weights.TABLE):
        with pytest.raises(InvalidArgumentError, match=r"can't be called .* '_', '\.' and '-'"):
            checked_name(name)


def test_a_table_may_be_called_as_handlers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_name("x.handlers") != name_handlers(monkeypatch)
