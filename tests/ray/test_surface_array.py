"""hop.Array as an operand, an index, a number, a tensor, and outside of Ray."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.client import StoreClient
from hoplite_ray.pending import Pending, ReceivedObject
from tests.ray.raycluster import LARGE, RayCluster, eventually
from tests.ray.surface_values import assert_same, needs_torch, value_of


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The ids of what is fetched, once for each fetch."""
    seen: list[bytes] = []
    begin = StoreClient.begin_gets

    def counted(
        store: StoreClient, object_ids: Sequence[bytes], *, exist: bool = False
    ) -> list[Pending[ReceivedObject]]:
        seen.extend(object_ids)
        return begin(store, object_ids, exist=exist)

    monkeypatch.setattr(StoreClient, "begin_gets", counted)
    return seen


def test_operators_fetch_once_and_the_rest_nothing(
    cluster: RayCluster, fetches: list[bytes]
) -> None:
    rows = LARGE // 40
    value = np.zeros((rows, 4))
    value[:3] = np.arange(12.0).reshape(3, 4)
    array = ray.get(hop.put(value))
    assert (array.shape, array.dtype, array.ndim, array.size, len(array)) == (
        (rows, 4),
        "<f8",
        2,
        4 * rows,
        rows,
    )
    assert repr(array).startswith(f"<hoplite_ray.Array float64[{rows}, 4] ")
    assert not fetches
    assert (2 * array + array @ array.T.sum(axis=1)[:, None]).shape == (rows, 4)
    assert array[1, 2] == 6.0
    assert array[2].tolist() == [8, 9, 10, 11]
    assert ((array > 5) | (array == 3)).sum() == 7
    assert float(array[0, 1]) == 1.0
    assert array.item(2, 3) == 11.0
    assert array.tolist()[0] == [0, 1, 2, 3]
    assert sum(row.sum() for row in array) == 66
    assert len(fetches) == 1


def test_what_the_caller_gets_is_his_own(cluster: RayCluster) -> None:
    array = hop.array(np.zeros(LARGE))
    assert array[:3].tolist() == [0, 0, 0]
    for own in (np.asarray(array), array.copy(), array.numpy(), np.from_dlpack(array)):
        own[:] = 7
    assert array[:].max() == 0
    assert hop.get(array).max() == 0


def test_it_is_immutable_and_says_so(cluster: RayCluster) -> None:
    array = hop.array(np.zeros(3))
    with pytest.raises(TypeError, match=r"is immutable; write into a copy: np.asarray\(a\)"):
        array[0] = 1
    with pytest.raises(TypeError, match="is immutable"):
        array += 1
    with pytest.raises(TypeError, match="is immutable"):
        np.add(1, 1, out=array)
    with pytest.raises(ValueError, match="read-only"):
        array[:2][0] = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(array)


def test_a_container_is_indexed_and_has_no_shape(cluster: RayCluster) -> None:
    array = ray.get(hop.put(value_of("dict")))
    assert "dict" in repr(array)
    assert (len(array), list(array), "w" in array) == (2, ["w", "layers"], True)
    assert array["layers"][1][0].tolist() == [0, 1, 2]
    for attribute in ("shape", "dtype", "ndim", "size", "T"):
        assert not hasattr(array, attribute)
    with pytest.raises(AttributeError, match="is no single array and has no shape; take one"):
        array.shape  # noqa: B018
    with pytest.raises(TypeError, match="has no numpy array"):
        np.asarray(array)
    assert array.nbytes > LARGE * 2
    assert_same(hop.get(array), value_of("dict"))
    assert array.tolist()["layers"][0] == [0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize("kind", ["numpy", "dict"])
@pytest.mark.parametrize(
    "take", [copy.copy, copy.deepcopy, lambda array: pickle.loads(pickle.dumps(array))]
)
def test_outside_ray_a_copy_is_the_value(cluster: RayCluster, take: Any, kind: str) -> None:
    assert_same(take(hop.array(value_of(kind))), value_of(kind))


@needs_torch
def test_tensors(cluster: RayCluster) -> None:
    import torch

    array = hop.array(value_of("torch"))
    assert (array.dtype, array.shape) == (torch.float32, (LARGE,))
    assert repr(array).startswith("<hoplite_ray.Array torch float32[")
    assert (array + 1)[4] == 5
    assert torch.equal(array.torch(), value_of("torch"))
    assert torch.equal(torch.from_dlpack(array), value_of("torch"))
    assert torch.equal(torch.as_tensor(array), value_of("torch"))
    np.testing.assert_array_equal(np.asarray(array), value_of("torch").numpy())
    own = array.torch()
    own.fill_(9)
    assert array.torch().max() == 4
    matrix = hop.array(np.eye(3, dtype=np.float32))
    assert type(matrix.torch()) is torch.Tensor
    assert torch.equal(torch.ones(3) @ matrix, torch.ones(3))
    state = hop.array(value_of("state"))
    assert state["weight"].dtype is torch.bfloat16
    assert type(state.torch()["mean"]) is torch.Tensor
    assert state.numpy()["weight"].dtype.name == "bfloat16"
    with pytest.raises(TypeError):
        hop.array(np.array(["a"])).torch()


def test_threads_share_a_handle(cluster: RayCluster) -> None:
    array = hop.array(np.ones(LARGE))
    sums: list[float] = []
    threads = [
        threading.Thread(target=lambda: sums.append(float((array + 1).sum()))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [2 * LARGE] * 8


def test_prefetch_brings_the_bytes_and_pins_nothing(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def filled() -> hop.Array:
        return hop.array(np.full(LARGE, 3.0))

    array = ray.get(filled.options(**cluster.on(1)).remote())
    array.prefetch()
    array.prefetch()  # one is enough
    assert eventually(lambda: not array._prefetch.alive)
    assert hop.get(array, timeout_s=30)[-1] == 3.0


def test_a_prefetch_of_what_is_lost_shows_at_the_next_use(cluster: RayCluster) -> None:
    array = hop.array(np.zeros(LARGE))
    hop.delete(array)
    array.prefetch()
    assert eventually(lambda: not array._prefetch.alive)
    with pytest.raises(hop.ObjectLostError):
        array + 1
