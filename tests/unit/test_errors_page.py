"""docs/reference/errors.md: it has every public class of errors, and texts that the code has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import ray.exceptions

from hoplite_ray import errors
from hoplite_ray.plugin.process import attachment
from hoplite_ray.serve import errors as serve_errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()
HEADINGS = re.findall(r"^### (\w+)$", PAGE, re.M)
EXAMPLES = re.findall(r"^- \*\*Example:\*\* `(.+)`$", PAGE, re.M)


def _classes_of(module: object) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, errors.HopliteError)
    }


def _code() -> str:
    """Return all code, with adjacent string literals joined."""
    places = (("hoplite_ray", "*.py"), ("serve_integration", "*.py"), ("native", "*.cc"))
    files = [file for folder, name in places for file in (ROOT / folder).rglob(name)]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))


def test_every_class_has_one_heading() -> None:
    assert len(set(HEADINGS)) == len(HEADINGS)
    assert _classes_of(errors) | _classes_of(serve_errors) <= set(HEADINGS)


def test_every_heading_names_a_class() -> None:
    for name in HEADINGS:
        places = (errors, serve_errors, attachment, ray.exceptions)
        assert any(inspect.isclass(getattr(each, name, None)) for each in places), name


def test_the_index_has_every_heading() -> None:
    assert re.findall(r"^\| \[(\w+)\]\(#\w+\)", PAGE, re.M) == HEADINGS


def test_the_words_of_examples_are_in_the_code() -> None:
    code = _code()
    missing = [
        (example, words)
        for example in EXAMPLES
        for words in filter(None, map(str.strip, example.split("…")))
        if words not in code
    ]
    assert EXAMPLES and not missing, missing
