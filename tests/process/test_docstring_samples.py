"""The examples in the docstrings of the store are executed as they stand."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from hoplite_ray import Store, new_id
from hoplite_ray import store as module

_EXAMPLE = re.compile(r"^Example:\n\n((?:(?: {4}.*)?(?:\n|\Z))+)", re.M)


def documented() -> Iterator[tuple[str, Any]]:
    """The public functions and methods that have an example, and those that must have one."""
    yield "new_id", new_id
    yield "Store", Store
    for name, member in inspect.getmembers(Store, callable):
        if not name.startswith("_"):
            yield name, member


EXAMPLES = {
    name: found[1]
    for name, member in documented()
    if (found := _EXAMPLE.search(inspect.getdoc(member) or ""))
}
VERBS = (
    *("attach", "start", "put", "empty", "get", "delete", "locate"),
    *("gather", "reduce", "all_reduce"),
    *("publish", "latest", "watch", "unpublish", "channels"),
    *("stream", "open_safetensors", "compose"),
)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store.start(arena_bytes=64 << 20) as started:
        yield started


def test_every_verb_has_an_example() -> None:
    assert {*VERBS, "reduce_scatter", "new_id", "Store"} == {*EXAMPLES}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(store: Store, name: str) -> None:
    names = {**vars(module), "np": np, "store": store}
    exec(compile(dedent(EXAMPLES[name]), f"<example of {name}>", "exec"), names)


HEADINGS = ("Args", "Returns", "Raises", "Example")


@pytest.mark.parametrize("verb", [*VERBS, "reduce_scatter"])
def test_the_docstring_of_a_verb_has_all_headings_in_order(verb: str) -> None:
    text = inspect.getdoc(getattr(Store, verb)) or ""
    at = [text.find(f"\n{heading}:") for heading in HEADINGS]
    assert -1 not in at and at == sorted(at)


@pytest.mark.parametrize("verb", [each for each in VERBS if hasattr(Store, f"{each}_async")])
def test_a_twin_says_what_cancelling_it_does(verb: str) -> None:
    text = inspect.getdoc(getattr(Store, f"{verb}_async")) or ""
    assert text.startswith(f"Like `{verb}`, but awaitable; cancelling it ")
