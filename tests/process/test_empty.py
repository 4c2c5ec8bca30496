"""Arrays that are filled in place: no reader sees them before the seal, or a change after it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hoplite_ray.errors import (
    DuplicateObjectError,
    GetTimeoutError,
    InvalidArgumentError,
    ObjectLostError,
    StoreFullError,
)
from hoplite_ray.store import new_id
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

SIZES = [0, 100, 16 << 10, (16 << 10) + 1, MIB]  # of float32: 16 Ki are the last that are inline


@pytest.mark.parametrize("size", SIZES)
def test_what_was_filled_in_place_is_got_on_all(three: Nodes, size: int) -> None:
    object_id = new_id()
    early = three[1].begin_get(object_id)
    with three[0].empty(object_id, size, timeout_s=WAIT_S) as unsealed:
        assert (unsealed.value.dtype, unsealed.value.shape) == (np.float32, (size,))
        unsealed.value[:] = np.arange(size)
        assert not early.wait(0.01)
    assert unsealed.is_sealed
    for value in (early.result(WAIT_S).value, *(three.get(rank, object_id) for rank in range(3))):
        np.testing.assert_array_equal(value, np.arange(size, dtype=np.float32))
    np.testing.assert_array_equal(unsealed.value, np.arange(size, dtype=np.float32))


@pytest.mark.parametrize("size", [100, MIB])
def test_after_the_seal_a_write_raises_or_stays_here(three: Nodes, size: int) -> None:
    unsealed = three[0].empty(object_id := new_id(), (size, 2), "int16", timeout_s=WAIT_S)
    view = unsealed.value[1:]
    unsealed.value[:] = 1
    unsealed.seal(WAIT_S)
    unsealed.seal(WAIT_S)  # does nothing
    with pytest.raises(ValueError, match="read-only"):
        unsealed.value[0] = 2
    view[:] = 3
    for rank in range(3):
        assert (three.get(rank, object_id) == 1).all()


def test_a_range_that_is_not_sealed_goes_back(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=32 * MIB)
    for _ in range(4):  # more than the arena has
        with (
            pytest.raises(ZeroDivisionError),
            nodes[0].empty(new_id(), 20 * MIB, "uint8", timeout_s=WAIT_S) as unsealed,
        ):
            unsealed.value[:] = 1
            raise ZeroDivisionError
        array = unsealed.value
        with pytest.raises((StoreFullError, GetTimeoutError)):
            nodes[0].put(new_id(), numbers(20 * MIB), timeout_s=0.1)
        assert (array == 1).all()  # as long as a reference to it lives
        del unsealed, array
        gc.collect()
    nodes.put(0, numbers(20 * MIB))


def test_every_kind_and_dtype(three: Nodes) -> None:
    cases: list[tuple[Any, Any, Any]] = [
        ((3, 0), ">f8", np.dtype(">f8")),
        ([5], np.int8, np.dtype("int8")),
        (np.int64(70_000), "bfloat16", np.dtype(ml_dtypes.bfloat16)),
        ((), [("a", "f4"), ("b", "i8")], np.dtype([("a", "f4"), ("b", "i8")])),
    ]
    for shape, dtype, expected in cases:
        with three[0].empty(object_id := new_id(), shape, dtype, timeout_s=WAIT_S) as unsealed:
            unsealed.value[...] = 0
        assert three.get(1, object_id).dtype == expected
        np.testing.assert_array_equal(three.get(1, object_id), np.zeros(shape, expected))


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_tensor_is_filled_in_place(three: Nodes, size: int) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    with three[0].empty(object_id := new_id(), (size, 2), torch.bfloat16, kind="torch") as unsealed:
        unsealed.value.fill_(1.5)
    unsealed.value.fill_(7)  # torch has no read-only tensors: this process alone sees it
    for rank in range(3):
        value = three.get(rank, object_id)
        assert torch.equal(value, torch.full((size, 2), 1.5, dtype=torch.bfloat16))


def test_it_is_reduced_as_any_object(three: Nodes) -> None:
    ids = [new_id() for _ in range(3)]
    for index, object_id in enumerate(ids):
        with three[index].empty(object_id, 100_000, timeout_s=WAIT_S) as unsealed:
            unsealed.value[:] = index + 1
    three[0].reduce(target := new_id(), ids, timeout_s=WAIT_S)
    np.testing.assert_array_equal(three.get(1, target), np.full(100_000, 6, np.float32))


@pytest.mark.parametrize("size", [100, MIB])
def test_the_awaitable_twins(three: Nodes, size: int) -> None:
    async def fill() -> None:
        unsealed = await three[0].empty_async(object_id := new_id(), size, timeout_s=WAIT_S)
        unsealed.value[:] = 4
        await unsealed.seal_async(WAIT_S)
        await unsealed.seal_async(WAIT_S)
        assert ((await three[1].get_async(object_id)) == 4).all()

    asyncio.run(fill())


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        (-1, "float32", "numpy"),
        ((2, -3), "float32", "numpy"),
        ("ab", "float32", "numpy"),
        (2.5, "float32", "numpy"),
        (3, "float33", "numpy"),
        (3, object, "numpy"),
        (3, "qint8", "torch"),
        (3, "float32", "cupy"),
    ],
)
def test_no_such_array(three: Nodes, shape: Any, dtype: Any, kind: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="can be put: "):
        three[0].empty(new_id(), shape, dtype, kind=kind)


@pytest.mark.parametrize("size", [100, MIB])
def test_an_id_that_is_taken_or_deleted_meanwhile(three: Nodes, size: int) -> None:
    object_id = three.put(0, numbers(1000))
    with pytest.raises(DuplicateObjectError, match=object_id[:4].hex()):
        three[0].empty(object_id, size, timeout_s=WAIT_S).seal(WAIT_S)


def test_an_object_deleted_while_it_was_filled_is_lost(three: Nodes) -> None:
    unsealed = three[0].empty(object_id := new_id(), MIB, timeout_s=WAIT_S)
    three[0].delete(object_id, timeout_s=WAIT_S)
    with pytest.raises(ObjectLostError, match="deleted"):
        unsealed.seal(WAIT_S)


@pytest.mark.parametrize("size", [100, MIB])
def test_a_seal_that_fails_for_good_says_so_every_time(three: Nodes, size: int) -> None:
    unsealed = three[0].empty(object_id := new_id(), size, timeout_s=WAIT_S)
    if size == MIB:
        three[0].delete(object_id, timeout_s=WAIT_S)
    else:
        three[0].put(object_id, numbers(1000), timeout_s=WAIT_S)
    for _ in range(2):
        with pytest.raises((ObjectLostError, DuplicateObjectError), match=object_id[:4].hex()):
            unsealed.seal(WAIT_S)
        assert not unsealed.is_sealed


def test_a_seal_without_room_is_made_up_for_when_there_is_room(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=8 * MIB)
    unsealed = nodes[0].empty(object_id := new_id(), 10_000, "int32", timeout_s=WAIT_S)
    unsealed.value[:] = 7
    full = [new_id()]
    with pytest.raises(StoreFullError):  # a short limit might end a put that is only slow
        while True:
            nodes[0].put(full[-1], numbers(32 << 10), timeout_s=WAIT_S)
            full.append(new_id())
    with pytest.raises((StoreFullError, GetTimeoutError)):
        unsealed.seal(0.5)
    for each in full:
        nodes[0].delete(each, timeout_s=WAIT_S)
    unsealed.seal(WAIT_S)
    assert (nodes.get(0, object_id) == 7).all()


def test_more_than_the_arena_is_refused(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=8 * MIB)
    with pytest.raises(StoreFullError, match="arena"):
        nodes[0].empty(new_id(), 9 * MIB, "uint8", timeout_s=WAIT_S)
