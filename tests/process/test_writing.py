"""How bytes get into the arena: buffers that are never joined, ranges written in place, Ctrl-C."""

from __future__ import annotations

import gc
import signal
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError, ObjectLostError
from hoplite_ray.store import Store, new_id
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

_BYTES = 2 * MIB
_UINT8 = 9  # the number of native/plan/messages/dtypes.h
_PUTS_MAX = 200  # of which one is interrupted, for sure


def ended(request: _native.Request) -> Any:
    assert request.wait(WAIT_S)
    return request.result()


def client_of(store: Store) -> _native.Client:
    return store._client._client


def reserve(store: Store, object_id: bytes) -> tuple[_native.Unsealed, npt.NDArray[np.uint8]]:
    client = client_of(store)
    request = client.reserve(object_id, 1, b"bytes", [(_UINT8, _BYTES)], _BYTES)
    ended(request)
    unsealed = client.map(request)
    return unsealed, np.frombuffer(unsealed, np.uint8)


def got(store: Store, object_id: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(ended(client_of(store).get(object_id, True)), np.uint8)


def test_what_was_written_in_place_is_got_on_all(three: Nodes) -> None:
    object_id = new_id()
    unsealed, array = reserve(three[0], object_id)
    array[:] = numbers(_BYTES)
    ended(unsealed.seal())
    for rank in range(3):
        np.testing.assert_array_equal(got(three[rank], object_id), numbers(_BYTES))
    three[0].delete(object_id)


def test_a_sealed_array_is_its_writers_own_whatever_becomes_of_the_object(three: Nodes) -> None:
    object_id = new_id()
    unsealed, array = reserve(three[0], object_id)
    array[:] = 1
    ended(unsealed.seal())
    array[0] = 2
    assert got(three[1], object_id)[0] == 1
    three[0].delete(object_id, timeout_s=WAIT_S)
    others = [three.put(0, numbers(_BYTES, seed)) for seed in range(8)]
    assert array[0] == 2 and (array[1:] == 1).all()
    for each in others:
        three[0].delete(each)


def test_an_object_deleted_while_it_is_written_leaves_the_memory_to_its_writer(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(1)
    object_id = new_id()
    unsealed, array = reserve(nodes[0], object_id)
    array[:] = 1
    nodes[0].delete(object_id, timeout_s=WAIT_S)
    with pytest.raises(ObjectLostError, match="deleted"):
        ended(unsealed.seal())
    others = [nodes.put(0, numbers(_BYTES, seed)) for seed in range(8)]
    assert (array == 1).all()
    del unsealed, array
    for each in others:
        nodes[0].delete(each)
    gc.collect()
    nodes.wait_for(0, lambda stats: stats.arena_bytes_used == 0)


def test_a_range_that_is_dropped_unsealed_goes_back(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    unsealed, array = reserve(nodes[0], new_id())
    array[:] = 1
    nodes.wait_for(0, lambda stats: stats.arena_bytes_used >= _BYTES)
    del unsealed
    assert (array == 1).all()  # the array itself keeps it
    del array
    gc.collect()
    nodes.wait_for(0, lambda stats: stats.arena_bytes_used == 0)


def test_small_objects_are_not_written_in_place(three: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match="put"):
        client_of(three[0]).reserve(new_id(), 1, b"", [(_UINT8, 100)], 100)


class _Interrupted(Exception):
    """What the handler of the test's timer raises, as that of SIGINT raises KeyboardInterrupt."""


def test_a_signal_ends_a_big_write_and_leaves_nothing_behind(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    client = client_of(nodes[0])
    size_bytes = 224 * MIB - 4096
    page = [memoryview(bytes(4096))] * (size_bytes // 4096)

    def interrupt(number: int, frame: object) -> None:
        raise _Interrupted

    previous = signal.signal(signal.SIGPROF, interrupt)
    try:
        for _ in range(_PUTS_MAX):
            object_id = new_id()
            request = client.put(object_id, 1, b"", [(0, size_bytes)], page)
            ended(request)
            signal.setitimer(signal.ITIMER_PROF, 0.01)  # the write takes longer than that
            with suppress(_Interrupted):
                client.write(request, page)
            if not is_there(nodes[0], object_id):
                break
            nodes[0].delete(object_id, timeout_s=WAIT_S)
        else:
            pytest.fail("no write was interrupted")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    nodes.wait_for(0, lambda stats: stats.arena_bytes_used == 0)


def is_there(store: Store, object_id: bytes) -> bool:
    try:
        got(store, object_id)
    except ObjectLostError:
        return False
    return True
