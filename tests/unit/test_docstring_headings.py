"""How the site shows the headings of docstrings, from the docstring to the page."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest
from markdown import markdown

from hoplite_ray.store import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """docs/hooks.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("verb", ["put", "get", "reduce", "start"])
def test_a_docstring_has_its_headings_and_arguments_on_lines_of_their_own(
    hooks: ModuleType, verb: str
) -> None:
    page = hooks.on_page_content(markdown(inspect.getdoc(getattr(Store, verb)) or ""))
    lines = page.replace("<p>", "<br>").split("<br>")
    headings = [line[3:].partition("</b>")[0] for line in lines if line.startswith("<b>")]
    assert headings[0] == "Args" and headings[-1] == "Example"
    arguments = [line.partition("</code>: ")[0] for line in lines if "</code>: " in line]
    found = [name for each in arguments for name in each.rpartition("<code>")[2].split(", ")]
    assert found == list(inspect.signature(getattr(Store, verb)).parameters)[verb != "start" :]
    assert "<b>Example</b>: </p>\n<pre><code>" in page


def test_words_before_a_colon_stay_as_they_are_below_other_headings(hooks: ModuleType) -> None:
    html = "<p>Args:    a: one.\n         b: two.\nCost:    some; note:\n         c: three.</p>"
    assert hooks.on_page_content(html) == (
        "<p><b>Args</b>: <code>a</code>: one.<br>&emsp;<code>b</code>: two."
        "<br><b>Cost</b>: some; note:\n         c: three.</p>"
    )
