"""put with a base, and publish, under Ray: readers on other nodes fetch only what changed."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.process.attachment import attachment
from tests.ray.raycluster import RayCluster, eventually, is_gone
from tests.ray.rounds import stats_at
from tests.ray.test_long_layouts import HANDLE_BYTES_MAX, serialized_bytes

COUNT = 2 << 20  # elements of 2 bytes
WAIT_S = 60

Value = dict[str, Any]


def make_value(seed: int, before: npt.NDArray[np.uint16] | None = None) -> Value:
    """Weights, or those before with 2 % of their elements changed."""
    rng = np.random.default_rng(seed)
    if before is None:
        return {"w": rng.integers(0, 1 << 16, COUNT).astype(np.uint16), "step": seed}
    changed = before.copy()
    changed[rng.integers(0, COUNT, COUNT // 50)] += 1
    return {"w": changed, "step": seed}


def count_rebuilds() -> int:
    return stats_at(str(attachment().place.directory)).rebuilds


@ray.remote(num_cpus=0)
class Reader:
    """Holds the last value that it has read."""

    def __init__(self) -> None:
        self.held: Any = None

    def read(self, array: Any) -> tuple[bytes, int, int]:
        """Return the weights, the step, and how many objects the node has made."""
        self.held = hop.get(array, timeout_s=WAIT_S)
        return self.held["w"].tobytes(), self.held["step"], count_rebuilds()

    def latest(self, name: str, newer_than: int) -> tuple[bytes, int]:
        update = self.held = hop.latest(name, newer_than=newer_than, timeout_s=WAIT_S)
        return update.value["w"].tobytes(), count_rebuilds()

    def measure_handle(self, array: hop.Array) -> int:
        return serialized_bytes(array)


@pytest.fixture
def readers(cluster: RayCluster) -> list[Any]:
    return [Reader.options(**cluster.on(node)).remote() for node in (1, 2)]


def read_all(readers: list[Any], ref: Any, value: Value) -> list[int]:
    """Let all read a value; return how many objects each node has made by then."""
    found = ray.get([each.read.remote(ref) for each in readers], timeout=WAIT_S)
    for weights, step, _ in found:
        assert weights == value["w"].tobytes() and step == value["step"]
    return [rebuilds for _, _, rebuilds in found]


def test_put_with_a_base_is_made_on_each_node_that_has_the_base(readers: list[Any]) -> None:
    first = make_value(1)
    base = hop.put(first)
    before = read_all(readers, base, first)
    second = make_value(2, first["w"])
    newer = hop.put(second, base=base)
    assert read_all(readers, newer, second) == [each + 1 for each in before]
    assert ray.get(readers[0].measure_handle.remote(newer), timeout=WAIT_S) < HANDLE_BYTES_MAX
    third = make_value(3, second["w"])
    newest = asyncio.run(hop.put_async(third, base=newer))
    assert read_all(readers, newest, third) == [each + 2 for each in before]
    recipe = ray.get(newest)._find_recipe()
    delta_id = recipe.deltas[0].object_id
    assert not is_gone(delta_id)
    object_id = newest.binary()
    del newest
    assert eventually(lambda: is_gone(object_id) and is_gone(delta_id), within_s=WAIT_S)


def test_put_whose_base_has_gone_or_differs(readers: list[Any]) -> None:
    first = make_value(4)
    base = hop.put(first)
    second = make_value(5, first["w"])
    newer = hop.put(second, base=base)
    hop.delete(base)
    read_all(readers, newer, second)  # whole
    whole = hop.put(first, base=base)
    assert ray.get(whole)._find_recipe() is None
    with pytest.raises(hop.InvalidArgumentError, match="another layout than the value") as error:
        hop.put({"w": first["w"][:-1], "step": 1}, base=newer)
    assert 'value["w"] is uint16[' in str(error.value)
    dense = hop.put({"w": first["w"] + np.uint16(1), "step": 6}, base=newer)
    assert ray.get(dense)._find_recipe() is None
    for wrong, text in ((ray.put(1), "holds no array"), (7, "takes refs and Arrays")):
        with pytest.raises((hop.InvalidArgumentError, hop.WrongTypeError), match=text):
            hop.put(first, base=wrong)  # type: ignore[arg-type]
    small = hop.put(np.zeros(3))
    assert hop.get(hop.put(np.ones(3), base=small), timeout_s=WAIT_S).sum() == 3
    with pytest.raises(hop.InvalidArgumentError, match="leave base out"):
        hop.put(hop.array(np.zeros(3)), base=small)


def test_publish_sends_only_what_changed(readers: list[Any]) -> None:
    value = make_value(1)
    before = 0
    for version in range(1, 5):
        assert hop.publish("changed", value, timeout_s=WAIT_S) == version
        found = ray.get(
            [each.latest.remote("changed", version - 1) for each in readers], timeout=WAIT_S
        )
        assert all(weights == value["w"].tobytes() for weights, _ in found)
        made = sum(rebuilds for _, rebuilds in found)
        assert version == 1 or made == before + len(readers)
        before = made
        value = make_value(version + 1, value["w"])
    hop.unpublish("changed", timeout_s=WAIT_S)
