"""The page that follows a death names functions, messages and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hoplite_ray.control.views.membership import Membership

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/internals/follow-a-death.md").read_text()
SOURCES = [
    path
    for ending in ("cc", "h")
    for path in (ROOT / "native").rglob(f"*.{ending}")
    if not re.search(r"_(test|fuzz)\.", path.name)
]
NAMED = sorted(set(re.findall(r"\| `(\w+)` `(\w+)` \|", PAGE)))
HANDLED = sorted(set(re.findall(r"the handler of `(\w+)`(?:, of| \|) `([\w:]+)`", PAGE, re.I)))
ELSEWHERE = [
    "void_exchange_with",
    "why_lost",
    "may_say_lost",
    "fail_waiters",
    "judge",
    "move_edge",
    "resync",
]


def text_of(stem: str) -> str:
    """The sources with this name, in whichever folder of native/."""
    return "\n".join(path.read_text() for path in SOURCES if path.stem == stem)


def has_function(text: str, name: str) -> bool:
    """True if the text defines it: at the beginning of a line, or in a class."""
    return re.search(rf"^(?:\w|\[).*\b{name}\([^;]*?\{{", text, re.M) is not None


@pytest.mark.parametrize(("stem", "function"), NAMED)
def test_a_function_is_in_its_file(stem: str, function: str) -> None:
    assert has_function(text_of(stem), function), f"no {function} in native/**/{stem}.*"


@pytest.mark.parametrize(("message", "owner"), HANDLED)
def test_the_class_has_the_handler(message: str, owner: str) -> None:
    handler = rf"^ *void {{}}handle_\w+\([^)]*const {message}&"
    texts = [path.read_text() for path in SOURCES if "plan" in path.parts]
    in_class = [text for text in texts if re.search(rf"^class {owner} {{", text, re.M)]
    assert any(re.search(handler.format(""), text, re.M) for text in in_class) or any(
        re.search(handler.format(f"{owner}::"), text, re.M) for text in texts
    )


@pytest.mark.parametrize("function", ELSEWHERE)
def test_a_function_in_the_text_exists(function: str) -> None:
    assert f"`{function}`" in PAGE
    assert any(re.search(rf"\b{function}\(", path.read_text()) for path in SOURCES)


def test_the_page_names_enough_and_in_order() -> None:
    steps = [int(each) for each in re.findall(r"^\| (\d+) \|", PAGE, re.M)]
    assert steps == [*range(1, len(steps) + 1)]
    assert len(NAMED) > 25 and len(HANDLED) >= 6
    assert hasattr(Membership, "mark_dead") and "`Membership.mark_dead`" in PAGE


def test_the_tests_that_show_it_exist() -> None:
    native = re.findall(r"`(\w+)\.([A-Z]\w+)`", PAGE)
    for suite, name in native:
        assert any(
            re.search(rf"TEST(_P|_F)?\({suite}, {name}\)", path.read_text())
            for path in (ROOT / "native").rglob("*_test.cc")
        ), name
    python = re.findall(r"`(test_\w+)`", PAGE)
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert native and python
    for name in python:
        assert f"def {name}(" in tests
