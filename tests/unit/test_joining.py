"""Imports of modules that ours joins, beside finders of other packages."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hoplite_ray.plugin.hooks import import_hooks


class ImportsAnother:
    """A finder that imports `waited` when it is asked for `probe`, as those of editable installs
    import their own tools."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "joining_probe":
            importlib.import_module("joining_waited")


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """The modules that were joined, of `joining_waited`; `joining_probe` is there too."""
    joined: list[ModuleType] = []
    for name in ("joining_waited", "joining_probe"):
        (tmp_path / f"{name}.py").write_text("VALUE = 7\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(import_hooks, "_HOOKS", {"joining_waited": joined.append})
    return joined


def test_a_module_is_joined_once_it_is_imported(joined: list[ModuleType]) -> None:
    import_hooks.install()
    assert not joined
    waited: Any = importlib.import_module("joining_waited")
    assert joined == [waited] and waited.VALUE == 7


def test_a_module_that_is_there_is_joined_at_once(joined: list[ModuleType]) -> None:
    waited = importlib.import_module("joining_waited")
    import_hooks.install()
    assert joined == [waited]


def test_an_import_in_the_middle_of_another_hides_no_finder(joined: list[ModuleType]) -> None:
    """Case review_19."""
    import_hooks.install()
    another: Any = ImportsAnother()
    sys.meta_path.insert(sys.meta_path.index(PathFinder), another)
    probe: Any = importlib.import_module("joining_probe")
    assert probe.VALUE == 7
    assert len(joined) == 1
