"""What a type checker sees of stages and applications; mypy reads this file (pyproject.toml)."""

from __future__ import annotations

from typing import assert_type

from ray.serve import Application

from hoplite_ray.serve import Pipeline, Stage, ensemble, pipeline, stage


class Words:
    def __init__(self, least: int, *, language: str = "en") -> None:
        self.least = least

    def __call__(self, queries: list[str]) -> list[int]:
        return [len(query) for query in queries]


class Named:
    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, queries: list[int]) -> list[int]:
        return queries


@stage(max_batch=8, num_replicas=2)
class Decorated:
    """A Stage, which mypy takes for the class itself; it can be given, and not be bound."""

    def __call__(self, queries: list[int]) -> list[int]:
        return queries


WORDS = stage(Words)
NAMED = stage(max_batch=8, late="drop", key=lambda query: query, num_replicas=2)(Named)


def test_a_stage_knows_its_class_and_what_that_is_bound_to() -> None:
    bound = WORDS.bind(3, language="de")
    assert_type(bound.user_class, type[Words])
    assert_type(bound.after("named").user_class, type[Words])
    assert_type(bound.options(max_batch=4, near="data", num_replicas=2).user_class, type[Words])
    assert_type(NAMED.bind("a").user_class("a").path, str)
    assert isinstance(bound, Stage) and isinstance(Decorated, Stage)


def test_applications_are_those_of_serve() -> None:
    words = WORDS.bind(3)
    application: Application = pipeline(words=words)
    assert isinstance(application, Pipeline)
    assert_type(pipeline(words=words, named=NAMED.bind("a").after("words")), Pipeline)
    assert_type(pipeline({"edges": words}, last=NAMED.bind("a").after("edges")), Pipeline)
    assert_type(pipeline(only=Decorated), Pipeline)
    assert_type(ensemble(words, Decorated, {"quorum": words}, combine="mean"), Application)


def test_mistakes_are_seen_before_anything_runs() -> None:
    """Each `type: ignore` is an error that mypy reports; it also reports one that is not needed."""
    NAMED.bind(3)  # type: ignore[arg-type]
    WORDS.bind()  # type: ignore[call-arg]
    mistakes = [
        lambda: WORDS.after(WORDS),  # type: ignore[arg-type]
        lambda: stage(late="never"),  # type: ignore[call-overload]
        lambda: stage(key="user"),  # type: ignore[call-overload]
        lambda: pipeline(edges="tcp", words=WORDS),  # type: ignore[arg-type]
        lambda: ensemble(WORDS, combine="median"),  # type: ignore[arg-type]
    ]
    assert len(mistakes) == 5
