"""Values of very many leaves, and of more kinds of leaves, between Ray's processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import ray
from ray._private.worker import global_worker

import hoplite_ray as hop
from tests.ray.raycluster import RayCluster

LEAVES = 40_000
HANDLE_BYTES_MAX = 4096


def state(start: float = 0.0) -> dict[str, Any]:
    names = (f"model.layers.{n // 8}.attention.{n % 8}.weight" for n in range(LEAVES))
    return {name: np.full(2, start + n, np.float32) for n, name in enumerate(names)}


def serialized_bytes(value: Any) -> int:
    size: int = global_worker.get_serialization_context().serialize(value).total_bytes
    return size


@ray.remote(num_cpus=0)
def look(array: hop.Array) -> tuple[int, str, float, float]:
    value = hop.get(array)
    total = sum(float(leaf[0]) for leaf in value.values())
    return serialized_bytes(array), str(array), total, float(next(iter(value.values()))[1])


@ray.remote(num_cpus=0)
def fill(start: float) -> hop.Array:
    value = state(start)
    made = hop.empty(like={name: hop.spec(leaf.shape) for name, leaf in value.items()})
    for name, leaf in value.items():
        made[name] = leaf
    return made


def test_a_handle_of_40_000_leaves_stays_small_and_its_readers_know_all(
    cluster: RayCluster,
) -> None:
    ref = hop.put(state())
    for node in (0, 1):
        size, text, total, first = ray.get(look.options(**cluster.on(node)).remote(ref), timeout=90)
        assert size < HANDLE_BYTES_MAX
        assert text.startswith(f"<hoplite_ray.Array dict of {LEAVES} leaves ")
        assert (total, first) == (LEAVES * (LEAVES - 1) / 2, 0)
    assert serialized_bytes(hop.array(state())) < HANDLE_BYTES_MAX


def test_states_that_were_filled_in_place_are_reduced(cluster: RayCluster) -> None:
    refs = [fill.options(**cluster.on(node)).remote(float(node)) for node in range(3)]
    mean = hop.get(hop.reduce(refs, op="mean"), timeout_s=90)
    for name, leaf in state(1.0).items():
        np.testing.assert_array_equal(mean[name], leaf)


def test_sources_of_long_layouts_that_differ_are_refused(cluster: RayCluster) -> None:
    one, other = state(), state()
    other["other"] = other.pop("model.layers.7.attention.3.weight")
    with pytest.raises(hop.LayoutMismatchError, match=rf"dict of {LEAVES} leaves"):
        hop.get(hop.reduce([hop.put(one), hop.put(other)]), timeout_s=60)


class Step(NamedTuple):
    observation: Any
    reward: float
    info: dict[str, Any] | None = None


@ray.remote(num_cpus=0)
def take_step(array: hop.Array) -> hop.Array:
    step = hop.get(array)
    assert type(step) is Step
    return hop.array(step._replace(reward=step.reward + 1, info={"by": "far", "ok": True}))


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_named_tuple_of_numbers_and_texts_goes_there_and_back(
    cluster: RayCluster, size: int
) -> None:
    step = Step(np.arange(size), 0.5)
    back = hop.get(take_step.options(**cluster.on(1)).remote(hop.put(step)), timeout_s=60)
    assert type(back) is Step
    assert (back.reward, back.info, back.observation.tolist()) == (
        1.5,
        {"by": "far", "ok": True},
        list(range(size)),
    )
    array = hop.array(step)
    assert (array[1], array.numpy().reward, array.tolist().observation[2]) == (0.5, 0.5, 2)


def test_numbers_alone_are_values(cluster: RayCluster) -> None:
    for value in (5, -0.5, True, None, "text", b"bytes", 1j):
        back = hop.get(hop.put(value), timeout_s=60)
        assert (type(back), back) == (type(value), value)
    losses = [hop.put({"loss": n / 2, "step": n}) for n in (1, 2, 3)]
    assert hop.get(hop.reduce(losses), timeout_s=60) == {"loss": 3.0, "step": 6}
