"""Profiles: arguments that can't be are refused before an actor is made."""

from __future__ import annotations

from typing import Any

import pytest

from hoplite_ray import serve


@serve.stage
class Echo:
    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


class Plain:
    pass


@pytest.mark.parametrize(
    ("stage", "queries", "options", "why"),
    [
        (Plain, [1], {}, "takes a stage"),
        (Echo, [], {}, "stage Echo: queries"),
        (Echo, [1], {"batches": ()}, "whole numbers"),
        (Echo, [1], {"batches": (4, 0)}, "whole numbers"),
        (Echo, [1], {"budget_s": 0}, "budget_s=0"),
        (Echo, [1], {"beside": [(Echo, [])]}, "stage Echo: queries"),
    ],
)
def test_what_can_not_be_profiled_is_refused(
    stage: Any, queries: list[Any], options: dict[str, Any], why: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        serve.profile(stage, queries, **options)
