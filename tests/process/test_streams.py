"""Streams between real nodes: a leaf is read before the origin has written the next one."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray.errors import (
    GetTimeoutError,
    InvalidArgumentError,
    NodeLostError,
    ObjectLostError,
)
from hoplite_ray.store import Store, new_id
from hoplite_ray.unsealed import Filling
from hoplite_ray.values.layout import Layout
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

LAYERS = 16
LAYER_BYTES = MIB // 2  # whole blocks and whole pages


def layer(number: int) -> npt.NDArray[np.float32]:
    return np.full(LAYER_BYTES // 4, number, np.float32)


MODEL = {f"l{number}": layer(number) for number in range(LAYERS)}
MODEL_LAYOUT = Layout.of(MODEL)


class Origin:
    """Writes a model on one node, a layer at a time."""

    def __init__(self, store: Store, *, incarnation: int = 1, object_id: bytes = b"") -> None:
        self.object_id = object_id or new_id()
        begun = store._client.begin_fill(self.object_id, MODEL_LAYOUT, incarnation=incarnation)
        self.filling: Filling = begun.result(WAIT_S)
        self.written = 0

    def write(self, layers: int = 1) -> None:
        for _ in range(layers):
            start = self.written * LAYER_BYTES
            self.filling.memory[start : start + LAYER_BYTES] = layer(self.written).data.cast("B")
            self.written += 1
            if self.written < LAYERS:
                self.filling.report(start + LAYER_BYTES)
            else:
                self.filling.seal(WAIT_S)


def check(pair: tuple[Any, Any], number: int) -> Any:
    path, leaf = pair
    assert path == (f"l{number}",)
    assert (leaf == number).all()
    return leaf


def test_the_layout_lies_as_the_test_writes_it() -> None:
    assert MODEL_LAYOUT.head_bytes == 0
    assert MODEL_LAYOUT.columns.offsets == tuple(range(0, LAYERS * LAYER_BYTES, LAYER_BYTES))


def test_each_layer_is_read_everywhere_before_the_next_one_is_written(three: Nodes) -> None:
    origin = Origin(three[0])
    streams = [three[rank].stream(origin.object_id, timeout_s=WAIT_S) for rank in range(3)]
    leaves = []
    for number in range(LAYERS):
        origin.write()
        leaves += [check(next(each), number) for each in streams]
    for each in streams:
        with pytest.raises(StopIteration):
            next(each)
    for number, leaf in enumerate(leaves):  # all leaves stay as they were
        assert (leaf == number // 3).all()
        assert not leaf.flags.writeable


def test_an_awaited_stream_gives_layers_meanwhile_too(three: Nodes) -> None:
    origin = Origin(three[0])

    async def read() -> None:
        number = 0
        origin.write()
        async for pair in three[1].stream(origin.object_id, timeout_s=WAIT_S):
            check(pair, number)
            number += 1
            assert origin.written == number
            if number < LAYERS:
                origin.write()
        assert number == LAYERS

    asyncio.run(read())


def test_two_streams_and_a_get_of_one_object(three: Nodes) -> None:
    origin = Origin(three[0])
    first = three[1].stream(origin.object_id, timeout_s=WAIT_S)
    second = three[1].stream(origin.object_id, timeout_s=WAIT_S)
    whole = three[1].begin_get(origin.object_id)
    origin.write(3)
    for number in range(3):
        check(next(first), number)
    check(next(second), 0)
    assert not whole.wait(0)
    origin.write(LAYERS - 3)
    for number in range(3, LAYERS):
        check(next(first), number)
    for number in range(1, LAYERS):
        check(next(second), number)
    value = whole.result(WAIT_S).value
    value["l0"][:] = 77  # the caller's own
    for number, each in enumerate(three[1].get(origin.object_id, timeout_s=WAIT_S).values()):
        assert (each == number).all()


def test_a_tensor_that_is_written_early_hides_no_byte_that_comes_later(three: Nodes) -> None:
    torch = pytest.importorskip("torch")
    # Odd sizes: the last page of each tensor has the first bytes of the next one.
    value = {f"t{number}": torch.full((30_011,), float(number)) for number in range(20)}
    object_id = new_id()
    three[0].put(object_id, value, timeout_s=WAIT_S)
    kept = []
    for number, (path, leaf) in enumerate(three[1].stream(object_id, timeout_s=WAIT_S)):
        assert path == (f"t{number}",)
        assert (leaf == number).all()
        leaf[:] = -1
        kept.append(leaf)
    assert all((leaf == -1).all() for leaf in kept)
    got = three[1].get(object_id, timeout_s=WAIT_S)
    assert all((got[f"t{number}"] == number).all() for number in range(20))


def test_a_loss_in_the_middle_comes_after_the_leaves_that_were_whole(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    origin = Origin(nodes[0])
    stream = nodes[1].stream(origin.object_id, timeout_s=WAIT_S)
    origin.write(5)
    leaves = [check(next(stream), number) for number in range(5)]
    nodes.kill(0)
    with pytest.raises(ObjectLostError):
        next(stream)
    with pytest.raises(StopIteration):  # it has ended
        next(stream)
    for number, leaf in enumerate(leaves):
        assert (leaf == number).all()


@pytest.mark.parametrize("reader", [0, 1])
def test_bytes_of_another_attempt_are_never_mixed_in(three: Nodes, reader: int) -> None:
    origin = Origin(three[0])
    stream = three[reader].stream(origin.object_id, timeout_s=WAIT_S)
    origin.write(3)
    leaves = [check(next(stream), number) for number in range(3)]
    object_id = origin.object_id
    del origin  # takes the put back
    gc.collect()
    again = Origin(three[0], incarnation=2, object_id=object_id)
    again.write(LAYERS)
    with pytest.raises(ObjectLostError):
        check(next(stream), 3)
    for number, leaf in enumerate(leaves):
        assert (leaf == number).all()
    for number, pair in enumerate(three[reader].stream(object_id, timeout_s=WAIT_S)):
        check(pair, number)


def test_a_deleted_object_ends_its_streams(three: Nodes) -> None:
    origin = Origin(three[0])
    stream = three[1].stream(origin.object_id, timeout_s=WAIT_S)
    origin.write(3)
    leaf = check(next(stream), 0)
    three[2].delete(origin.object_id, timeout_s=WAIT_S)
    with pytest.raises(ObjectLostError):
        for number in range(1, LAYERS):
            check(next(stream), number)
    assert (leaf == 0).all()


def test_a_stream_goes_on_after_a_timeout(three: Nodes) -> None:
    origin = Origin(three[0])
    stream = three[1].stream(origin.object_id, timeout_s=0.05)
    with pytest.raises(GetTimeoutError, match="stream of object"):
        next(stream)
    origin.write()
    number = 0
    while number < LAYERS:
        try:
            check(next(stream), number)
        except GetTimeoutError:
            continue
        number += 1
        if number < LAYERS:
            with pytest.raises(GetTimeoutError, match=r"stream of object .* at byte"):
                next(stream)
            origin.write()


def test_a_stream_that_is_left_gives_its_memory_back(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    origin = Origin(nodes[0])
    with nodes[1].stream(origin.object_id, timeout_s=WAIT_S) as stream:
        origin.write(2)
        leaf = check(next(stream), 0)
    assert list(stream) == []
    nodes[1].delete(origin.object_id, timeout_s=WAIT_S)
    nodes.wait_for(1, lambda stats: stats.objects == 0)
    assert nodes.stats(1).arena_bytes_used > 0  # the leaf maps it
    assert (leaf == 0).all()
    del leaf, stream
    gc.collect()
    nodes.wait_for(1, lambda stats: stats.arena_bytes_used == 0)


def test_a_client_that_dies_gives_its_memory_back(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    origin = Origin(nodes[0])
    other = Store.attach(nodes.processes[1].socket)
    stream = other.stream(origin.object_id, timeout_s=WAIT_S)
    origin.write(2)
    leaf = check(next(stream), 0)
    other.close()
    with pytest.raises(NodeLostError):
        next(stream), next(stream)
    assert (leaf == 0).all()
    del leaf, stream, other  # its socket closes with the last of them
    gc.collect()
    nodes.wait_for(1, lambda stats: stats.arena_bytes_used == 0)


def test_small_objects_results_and_empty_values_are_streamed_whole(three: Nodes) -> None:
    small = new_id()
    three[0].put(small, {"a": np.ones(3), "none": None, "n": 4, "text": "abc"})
    assert [path for path, _ in three[1].stream(small, timeout_s=WAIT_S)] == [
        *(("text",), ("a",), ("n",))
    ]
    nothing = new_id()
    three[0].put(nothing, [])
    assert list(three[1].stream(nothing, timeout_s=WAIT_S)) == []
    target, sources = new_id(), [new_id(), new_id()]
    for source in sources:
        three[0].put(source, MODEL, timeout_s=WAIT_S)
    three[0].reduce(target, sources, timeout_s=WAIT_S)
    for number, (_, leaf) in enumerate(three[2].stream(target, timeout_s=WAIT_S)):
        assert (leaf == 2 * number).all()


def test_a_value_of_many_leaves_begins_with_its_text(three: Nodes) -> None:
    value = {f"model.layers.{n}.weight": np.full(50 + n % 7, n, "f4") for n in range(3_000)}
    object_id = new_id()
    three[0].put(object_id, value, timeout_s=WAIT_S)
    count = 0
    for (name,), leaf in three[2].stream(object_id, timeout_s=WAIT_S):
        np.testing.assert_array_equal(leaf, value[name])
        count += 1
    assert count == len(value)


def test_a_spilled_object_is_streamed_as_it_is_read_back(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=32 * MIB, options={"when_full": "spill"})
    object_id = new_id()
    nodes[0].put(object_id, MODEL, timeout_s=WAIT_S)
    for _ in range(5):
        nodes.put(0, np.zeros(8 * MIB, np.uint8))
    nodes.wait_for(0, lambda stats: stats.spill_bytes > 0)
    for number, pair in enumerate(nodes[0].stream(object_id, timeout_s=WAIT_S)):
        check(pair, number)


def test_wrong_arguments_are_refused(three: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match="28 bytes"):
        three[0].stream(b"short")
    with pytest.raises(InvalidArgumentError, match="timeout_s"):
        three[0].stream(new_id(), timeout_s=-1)


# ---- files ----


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A file of tensors of several dtypes, of some 9 MiB, and what is in it."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors = {
        f"layer.{number:02}": torch.arange(100_003).to(
            (torch.bfloat16, torch.float32, torch.int8)[number % 3]
        )
        for number in range(40)
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    yield path, tensors


def test_a_file_is_read_once_and_streamed_in_its_order(
    three: Nodes, file: tuple[Path, dict[str, Any]]
) -> None:
    from safetensors import safe_open

    path, tensors = file
    object_id = new_id()
    found: dict[int, list[str]] = {1: [], 2: []}

    def read(rank: int) -> None:
        for (name,), tensor in three[rank].stream(object_id, timeout_s=WAIT_S):
            assert tensor.equal(tensors[name])
            found[rank].append(name)

    readers = [threading.Thread(target=read, args=[rank]) for rank in found]
    for each in readers:
        each.start()
    three[0].open_safetensors(object_id, path, timeout_s=WAIT_S)
    for each in readers:
        each.join(WAIT_S)
    with safe_open(path, "pt") as theirs:
        in_file_order = list(theirs.offset_keys())
    assert found == {1: in_file_order, 2: in_file_order}
    value = three[1].get(object_id, timeout_s=WAIT_S)
    assert list(value) == in_file_order
    assert all(value[name].equal(tensor) for name, tensor in tensors.items())


def test_a_file_as_arrays_and_a_small_one(three: Nodes, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    for count in (3, 300_000):
        path = tmp_path / f"{count}.safetensors"
        save_file({"w": np.arange(count), "b": np.ones(2, "f4")}, path)
        object_id = new_id()
        three[0].open_safetensors(object_id, path, kind="numpy", timeout_s=WAIT_S)
        value = three[1].get(object_id, timeout_s=WAIT_S)
        np.testing.assert_array_equal(value["w"], np.arange(count))
        assert value["b"].tolist() == [1, 1]


def test_a_bad_file_leaves_nothing_behind(cluster: MakeNodes, tmp_path: Path) -> None:
    nodes = cluster(1)
    with pytest.raises(InvalidArgumentError, match="No such file"):
        nodes[0].open_safetensors(new_id(), tmp_path / "missing.safetensors")
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(InvalidArgumentError, match=r"bad\.safetensors can't be opened"):
        nodes[0].open_safetensors(new_id(), path)
    nodes.wait_for(0, lambda stats: stats.arena_bytes_used == 0)
