"""What a type checker sees of stages and applications; mypy reads this file (pyproject.toml)."""

from __future__ import annotations

from typing import assert_type

from ray.serve import Application

from hoplite_ray.serve import Stage, ensemble, pipeline, stage


class Words:
    def __init__(self, least: int, *, language: str = "en") -> None:
        self.least = least

    def __call__(self, queries: list[str]) -> list[int]:
        return [len(query) for query in queries]


@stage
class Plain:
    def __call__(self, queries: list[int]) -> list[int]:
        return queries


@stage(max_batch=8, num_replicas=2)
class Named:
    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, queries: list[int]) -> list[int]:
        return queries


def test_a_decorated_class_is_a_stage_of_itself() -> None:
    assert_type(Plain.user_class().__call__([1]), list[int])
    assert_type(Named.user_class("a").path, str)
    of_words = stage(Words)
    bound = of_words.bind(3, language="de")
    assert_type(bound.user_class, type[Words])
    assert_type(bound.after("plain").user_class, type[Words])
    assert_type(bound.options(max_batch=4, num_replicas=2).user_class, type[Words])
    assert isinstance(bound, Stage)


def test_applications_are_those_of_serve() -> None:
    assert_type(pipeline(plain=Plain, named=Named.bind("a").after("plain")), Application)
    assert_type(pipeline({"edges": Plain}, named=Named.bind("a").after("edges")), Application)
    assert_type(ensemble(Plain, other=Plain, combine="mean"), Application)
    assert_type(ensemble(Plain, {"quorum": Plain}), Application)


def test_mistakes_are_seen_before_anything_runs() -> None:
    """Each `type: ignore` is an error that mypy reports; it also reports one that is not needed."""
    Named.bind(3)  # type: ignore[arg-type]
    stage(Words).bind()  # type: ignore[call-arg]
    mistakes = [
        lambda: Named.bind("a").after(Plain),  # type: ignore[arg-type]
        lambda: stage(late="never"),  # type: ignore[call-overload]
        lambda: pipeline(edges="tcp", plain=Plain),  # type: ignore[arg-type]
        lambda: ensemble(Plain, combine="median"),  # type: ignore[arg-type]
    ]
    assert len(mistakes) == 4
