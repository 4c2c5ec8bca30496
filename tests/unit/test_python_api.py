"""The table of names in docs/reference/python-api.md is that of the sources."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

import hoplite_ray as hop
from tests.house.tree import ROOT

PAGE = ROOT / "docs/reference/python-api.md"


@pytest.fixture(scope="module")
def names() -> ModuleType:
    """docs/names.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("names", ROOT / "docs/names.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_that_of_the_sources(names: ModuleType) -> None:
    page = PAGE.read_text()
    assert page == names.renew(page), "python docs/names.py writes it anew"


def test_every_public_name_has_a_row_that_leads_to_its_file() -> None:
    rows = dict(re.findall(r"^\| \[`([\w.]+)`\]\((.*?)\) \| .+ \|$", PAGE.read_text(), re.M))
    assert all((PAGE.parent / target).is_file() for target in rows.values())
    of_errors = {name for name in hop.__all__ if name.endswith("Error")}  # on a page of their own
    assert {*hop.__all__} - of_errors <= rows.keys()
