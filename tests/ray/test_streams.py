"""Values that are read leaf by leaf under Ray, and files that one process reads for all nodes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.raycluster import LARGE, RayCluster
from tests.ray.test_docstring_samples import check_headings, check_twin, run_example

WAIT_S = 90


@ray.remote(num_cpus=0)
class Loader:
    """Loads a model layer by layer, as it arrives."""

    async def load(self, array: hop.Array) -> list[tuple[str, float]]:
        return [
            (path[0], float(leaf.sum())) async for path, leaf in hop.stream(array, timeout_s=WAIT_S)
        ]


@ray.remote(num_cpus=0)
def load(array: hop.Array) -> list[tuple[str, float]]:
    return [(path[0], float(leaf.sum())) for path, leaf in hop.stream(array, timeout_s=WAIT_S)]


@ray.remote(num_cpus=0)
def make(number: int) -> hop.Array:
    return hop.array([np.full(LARGE, number, t) for t in ("f8", "f4", "f8")], ordered=True)


@ray.remote(num_cpus=0)
def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("verb", ["stream", "open_safetensors"])
def test_an_example_runs(cluster: RayCluster, verb: str) -> None:
    check_headings(verb)
    run_example(verb)


def test_the_awaitable_twin_names_its_verb() -> None:
    check_twin("open_safetensors")


def test_one_process_reads_a_file_for_actors_and_tasks_of_all_nodes(
    cluster: RayCluster, tmp_path: Path
) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({f"layer.{n:02}": np.full(100_003, n, ("f4", "i2")[n % 2]) for n in range(24)}, path)
    with safe_open(path, "np") as theirs:
        expected = [(name, float(theirs.get_tensor(name).sum())) for name in theirs.offset_keys()]
    ref = hop.open_safetensors(path, kind="numpy", timeout_s=WAIT_S)
    path.unlink()  # no other process can read it
    actors: Any = Loader
    loaders = [actors.options(**cluster.on(node)).remote() for node in (0, 1, 2)]
    pending = [each.load.remote(ref) for each in loaders]
    pending += [load.options(**cluster.on(node)).remote(ref) for node in (1, 2)]
    assert ray.get(pending, timeout=WAIT_S) == [expected] * 5
    assert [name for name, _ in expected] == list(hop.get(ref, timeout_s=WAIT_S))


def test_a_stream_waits_for_the_task_and_keeps_the_given_order(cluster: RayCluster) -> None:
    made = make.options(**cluster.on(1)).remote(3)
    assert [(path, leaf.sum()) for path, leaf in hop.stream(made, timeout_s=WAIT_S)] == [
        *(((0,), 3 * LARGE), ((1,), 3 * LARGE), ((2,), 3 * LARGE))
    ]
    value = {"a": np.ones(LARGE, "f8"), "b": np.ones(LARGE, "f4"), "c": np.ones(LARGE, "f8")}
    ref = hop.put(value, ordered=True)
    assert [path for path, _ in hop.stream(ref, timeout_s=WAIT_S)] == [("a",), ("b",), ("c",)]

    async def read() -> list[Any]:
        return [path async for path, _ in hop.stream(make.remote(1), timeout_s=WAIT_S)]

    assert asyncio.run(read()) == [(0,), (1,), (2,)]


def test_small_values_come_from_their_handles(cluster: RayCluster) -> None:
    for each in (hop.put({"a": np.ones(3), "n": 4}), hop.array({"a": np.ones(3), "n": 4})):
        found = dict(hop.stream(each, timeout_s=WAIT_S))
        assert (found["a",].tolist(), found["n",]) == ([1, 1, 1], 4)


def test_what_can_not_be_streamed_is_refused(cluster: RayCluster) -> None:
    with pytest.raises(hop.WrongTypeError, match="stream each of several"):
        hop.stream([hop.put(np.ones(3))])  # type: ignore[arg-type]
    with pytest.raises(hop.WrongTypeError, match="this one is of type int; take it with"):
        next(hop.stream(ray.put(5), timeout_s=WAIT_S))
    with pytest.raises(ray.exceptions.RayTaskError, match="ZeroDivisionError"):
        next(hop.stream(fail.remote(), timeout_s=WAIT_S))
    ref = hop.put(np.ones(LARGE))
    hop.delete(ref)
    with pytest.raises(ray.exceptions.ObjectLostError, match="deleted"):
        next(hop.stream(ref, timeout_s=WAIT_S))
    with pytest.raises(hop.InvalidArgumentError, match="No such file"):
        hop.open_safetensors("/nowhere/model.safetensors")


def test_a_file_that_is_cut_while_it_is_read_is_said_in_the_log(
    cluster: RayCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from safetensors.numpy import save_file

    from hoplite_ray.plugin.process.attachment import attachment
    from hoplite_ray.plugin.surface import streaming
    from hoplite_ray.streams.safetensors import SafetensorsFile

    path = tmp_path / "cut.safetensors"
    save_file({"w": np.ones(LARGE)}, path)
    source = SafetensorsFile.open(path, "numpy")
    with path.open("r+b") as file:
        file.truncate(1000)
    object_id = hop.new_id()
    reading = streaming._Reading(attachment(), source, object_id, 1)
    with caplog.at_level(logging.ERROR, "hoplite_ray.safetensors"):
        reading._run(reading._reserve(None))
    assert f"{path} ends at byte 1000, because it was cut off" in caplog.text
    with pytest.raises(hop.ObjectLostError):
        attachment().store.begin_get(object_id, exists=True).result(WAIT_S)
