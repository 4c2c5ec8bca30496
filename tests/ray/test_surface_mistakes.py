"""The page of mistakes, "With Ray": each row is typed, and the answer compared word for word."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mistakes import Mistake, answer_of, section
from tests.ray.raycluster import RayCluster
from tests.ray.surface_values import needs_torch

WITH_RAY = section("With Ray")
WITH_TORCH = section("With Ray and torch")


@pytest.fixture(scope="module")
def names(cluster: RayCluster) -> dict[str, Any]:
    known = {"__name__": "mistakes"}
    exec(WITH_RAY.given, known)
    return known


def _is_answered(mistake: Mistake, names: dict[str, Any]) -> None:
    answer = answer_of(mistake, dict(names))
    assert mistake.accepts(answer), answer


@pytest.mark.parametrize("mistake", WITH_RAY.mistakes, ids=str)
def test_a_mistake_is_answered(names: dict[str, Any], mistake: Mistake) -> None:
    _is_answered(mistake, names)


@needs_torch
@pytest.mark.parametrize("mistake", WITH_TORCH.mistakes, ids=str)
def test_a_mistake_with_tensors_is_answered(names: dict[str, Any], mistake: Mistake) -> None:
    exec(WITH_TORCH.given, names)
    _is_answered(mistake, names)
