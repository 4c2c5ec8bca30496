"""The examples in the docstrings of the verbs under Ray are executed as they stand."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.raycluster import RayCluster

_EXAMPLE = re.compile(r"^Example:\n\n((?:(?: {4}.*)?(?:\n|\Z))+)", re.M)
HEADINGS = ("Args", "Returns", "Raises", "Cost", "Example")
VERBS = (
    *("put", "array", "empty", "get", "wait", "delete", "sources"),
    *("reduce", "all_reduce", "reduce_scatter", "gather", "all_gather"),
)


def check_headings(verb: str) -> None:
    """Check that a docstring has all headings in order, and its arguments."""
    text = inspect.getdoc(getattr(hop, verb)) or ""
    at = [text.find(f"\n{heading}:") for heading in HEADINGS]
    assert -1 not in at and at == sorted(at)
    arguments = text[at[0] : at[1]]
    for name in inspect.signature(getattr(hop, verb)).parameters:
        assert re.search(rf"\b{name}\b.*?:", arguments), f"Args of {verb} lack {name}"


def run_example(verb: str) -> None:
    """Run the example of a docstring."""
    found = _EXAMPLE.search(inspect.getdoc(getattr(hop, verb)) or "")
    assert found is not None
    names = {"__name__": "example", "hop": hop, "np": np, "ray": ray}
    exec(compile(dedent(found[1]), f"<example of {verb}>", "exec"), names)


def check_twin(verb: str) -> None:
    """Check that the awaitable twin of a verb names it."""
    text = inspect.getdoc(getattr(hop, f"{verb}_async")) or ""
    assert text.startswith(f"Like `{verb}`, but awaitable")


@pytest.mark.parametrize("verb", VERBS)
def test_the_docstring_of_a_verb_is_complete_and_its_twin_names_it(verb: str) -> None:
    check_headings(verb)
    check_twin(verb)


@pytest.mark.parametrize("verb", VERBS)
def test_an_example_runs(cluster: RayCluster, verb: str) -> None:
    run_example(verb)
