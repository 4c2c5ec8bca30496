"""The examples in the docstrings of worlds are executed as they stand, by two members at once."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from hoplite_ray.worlds import EventStream, World, WorldManager
from tests.process.world_crew import JOIN_S, free_address

_EXAMPLE = re.compile(r"^Example:\n\n((?:(?: {4}.*)?(?:\n|\Z))+)", re.M)
_HEADINGS = ("Args", "Returns", "Raises", "Cost", "Source", "Example")
_FOR_THIS_PACKAGE = {"begin_leave", "is_of", "end", "leave_unwaited", "tell"}
KINDS = (World, WorldManager, EventStream)


def verbs() -> Iterator[tuple[str, Any]]:
    for kind in KINDS:
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            is_twin = name.endswith("_async")
            if not name.startswith("_") and not is_twin and name not in _FOR_THIS_PACKAGE:
                yield f"{kind.__name__}.{name}", member


VERBS = dict(verbs())
EXAMPLES = {
    name: found[1]
    for name, member in (*((kind.__name__, kind) for kind in KINDS), *VERBS.items())
    if (found := _EXAMPLE.search(inspect.getdoc(member) or ""))
}


def test_every_verb_and_class_has_an_example() -> None:
    assert {*EXAMPLES} == {*VERBS, *(kind.__name__ for kind in KINDS)}


@pytest.mark.parametrize("name", VERBS)
def test_the_docstring_of_a_verb_has_its_headings_in_order(name: str) -> None:
    text = inspect.getdoc(VERBS[name]) or ""
    at = {heading: text.find(f"\n{heading}:") for heading in _HEADINGS}
    needed = {"Returns", "Raises", "Example"}
    if len(inspect.signature(VERBS[name]).parameters) > 1:
        needed.add("Args")
    assert all(at[heading] >= 0 for heading in needed)
    places = [place for place in at.values() if place >= 0]
    assert places == sorted(places)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str) -> None:
    code = compile(dedent(EXAMPLES[name]), f"<example of {name}>", "exec")
    meet_at, address, both = free_address(), free_address(), threading.Barrier(2, timeout=JOIN_S)

    def run(rank: int) -> None:
        with WorldManager() as manager:
            names = {"np": np, "WorldManager": WorldManager, "manager": manager, "rank": rank}
            if name.startswith("World."):
                how = {"rank": rank, "size": 2, "rendezvous": meet_at, "timeout_s": JOIN_S}
                names["world"] = manager.join("given", **how)
            both.wait()  # so that neither ends while the other one joins
            exec(code, {**names, "address": address})
            both.wait()

    with ThreadPoolExecutor(2) as members:
        for member in [members.submit(run, rank) for rank in range(2)]:
            member.result(JOIN_S)
