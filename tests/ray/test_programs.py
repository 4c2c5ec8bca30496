"""The differential run: the same programs over plain Ray and over this package, equal results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import serve

from tests.ray.programs import PROGRAMS, Hoplite, Plain
from tests.ray.raycluster import RayCluster


@pytest.fixture(scope="module", autouse=True)
def _serve_ends_with_the_module(cluster: RayCluster) -> Iterator[None]:
    yield
    serve.shutdown()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data, in its own code
@pytest.mark.timeout(120)  # Ray Serve's own controller and proxy take seconds to start
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_it_does_over_plain_ray(
    cluster: RayCluster, name: str, tmp_path: Path
) -> None:
    folders = [tmp_path / "plain", tmp_path / "hoplite"]
    for folder in folders:
        folder.mkdir()
    plain, ours = (
        PROGRAMS[name](lib, folder) for lib, folder in zip((Plain, Hoplite), folders, strict=True)
    )
    assert as_text(ours) == as_text(plain)


def as_text(value: Any) -> Any:
    """`value`, with the type, the shape and all bytes of its arrays spelt out."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: as_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [as_text(each) for each in value]
    return type(value), value
