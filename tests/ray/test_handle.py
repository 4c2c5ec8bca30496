"""hop.Array: what it knows without fetching, and what becomes of it when it is pickled."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.handle.array import PADDED_BYTES
from tests.ray.raycluster import LARGE, RayCluster, is_gone


def test_it_knows_its_layout_without_its_bytes(cluster: RayCluster) -> None:
    array = ray.get(hop.put(np.zeros((3, LARGE), np.float32)))
    hop.delete(array)
    assert is_gone(array._object_id)
    assert (array.shape, array.dtype, array.ndim) == ((3, LARGE), np.float32, 2)
    assert (array.size, array.nbytes, len(array)) == (3 * LARGE, 12 * LARGE, 3)
    assert repr(array).startswith(f"<hoplite_ray.Array float32[3, {LARGE}] ")
    with pytest.raises(hop.ObjectLostError):
        np.asarray(array)


def test_numpy_takes_it_for_an_array(cluster: RayCluster) -> None:
    array = hop.array(np.arange(4, dtype=np.int64))
    assert np.add(array, 1).tolist() == [1, 2, 3, 4]
    assert np.array(array).dtype == np.int64
    assert np.asarray(array, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="float32 without a copy"):
        np.asarray(array, dtype=np.float32, copy=False)


def test_a_scalar_array_has_no_length(cluster: RayCluster) -> None:
    array = hop.array(np.array(3.0))
    assert array.shape == ()
    assert float(np.asarray(array)) == 3.0
    with pytest.raises(TypeError, match="without dimensions"):
        len(array)


@pytest.mark.parametrize("take", [copy.deepcopy, lambda array: pickle.loads(pickle.dumps(array))])
def test_outside_ray_a_copy_is_the_bytes(cluster: RayCluster, take: Any) -> None:
    array = hop.array(np.arange(LARGE))
    taken = take(array)
    assert type(taken) is np.ndarray
    np.testing.assert_array_equal(taken, np.arange(LARGE))


def test_a_large_result_is_padded_so_that_ray_keeps_it_with_its_task(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    class Maker:
        def make(self, size: int) -> hop.Array:
            self.made = hop.array(np.zeros(size, np.uint8))
            return self.made

        def again(self) -> hop.Array:
            return self.made

    maker = Maker.options(**cluster.on(1)).remote()
    refs = [maker.make.remote(1 << 20), maker.again.remote(), maker.make.remote(100)]
    ray.wait(refs, num_returns=3, fetch_local=False)
    facts = ray.experimental.get_object_locations(refs)
    sizes = [facts[ref]["object_size"] for ref in refs]
    assert PADDED_BYTES < sizes[0] < 2 * PADDED_BYTES
    assert max(sizes[1:]) < 10_000
    assert facts[refs[0]]["node_ids"]
    assert not facts[refs[1]]["node_ids"]
