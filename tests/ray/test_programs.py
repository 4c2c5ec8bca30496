"""The differential run: the same programs over plain Ray and over this package, equal results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import serve

from tests.conftest import processes_of_run
from tests.ray.programs import PROGRAMS, Hoplite, Plain
from tests.ray.raycluster import RayCluster


@pytest.fixture(scope="module", autouse=True)
def _serve_ends_with_the_module(cluster: RayCluster) -> Iterator[None]:
    yield
    serve.shutdown()


# In `make verify` only: each starts up to ten processes, to show what another test shows, too.
SLOW = {
    "many_tasks_read_one_object",  # test_round.py: on all nodes
    "several_returns_of_a_method",  # test_round.py: of a task
    "an_actor_has_a_state",  # test_round.py: an actor's cached handle
    "an_actor_is_passed_to_tasks",  # an actor feeds another, below
    "a_named_actor",  # as any other
    "a_pool_of_actors",  # as any other
    "a_threaded_actor",  # test_round.py: threads of a task
    "an_async_actor_awaits_refs",  # test_surface_async.py
    "many_calls_of_an_async_actor_at_once",  # test_surface_async.py
    "ray_serve_answers_with_arrays",  # async actors in test_surface_async.py
}
MARKED = [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in PROGRAMS]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data, in its own code
@pytest.mark.timeout(120)  # Ray Serve's own controller and proxy take seconds to start
@pytest.mark.parametrize("name", MARKED)
def test_a_program_computes_what_it_does_over_plain_ray(
    cluster: RayCluster, name: str, tmp_path: Path
) -> None:
    folders = [tmp_path / "plain", tmp_path / "hoplite"]
    for folder in folders:
        folder.mkdir()
    plain, ours = (
        ran(name, lib, folder) for lib, folder in zip((Plain, Hoplite), folders, strict=True)
    )
    assert as_text(ours) == as_text(plain)


def ran(name: str, lib: Any, folder: Path) -> Any:
    """What the program computes; what ends it otherwise says over what it ran, and who was where.

    The time limit of pytest ends no ray.get, which swallows what a signal's handler raises.
    """
    try:
        return PROGRAMS[name](lib, folder)
    except BaseException as error:
        error.add_note(
            f"{name} ran over {lib.__name__}, while its processes were here:\n{stacks()}"
        )
        raise


def stacks() -> str:
    """Where all threads of this run's Ray workers and of this process are."""
    named = [(os.getpid(), "pytest"), *processes_of_run()]
    return "\n".join(
        subprocess.run(
            [f"{sys.prefix}/bin/py-spy", "dump", "--pid", str(pid)], capture_output=True, text=True
        ).stdout
        for pid, command in named
        if command.startswith(("pytest", "ray::"))
    )


def as_text(value: Any) -> Any:
    """`value`, with the type, the shape and all bytes of its arrays spelt out."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: as_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [as_text(each) for each in value]
    return type(value), value
