"""Versions of a channel that travel as deltas: few bytes, bit for bit, else the whole."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray.channel.names import name_channel, name_delta
from hoplite_ray.channel.reader import Update
from hoplite_ray.channel.record import Record
from hoplite_ray.channel.watching import VersionWatch
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.specs import spec
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

SIZE = 16 * MIB
SHARE_MAX = 0.033  # of the bytes, when 2 % of the elements have changed

Array = npt.NDArray[np.uint16]


def first_value(size_bytes: int = SIZE) -> Array:
    return np.random.default_rng(0).integers(0, 1 << 16, size_bytes // 2).astype(np.uint16)


def change(value: Array, seed: int, share: float = 0.02) -> None:
    """Change that share of the elements in place."""
    rng = np.random.default_rng(seed)
    where = rng.choice(value.size, int(value.size * share), replace=False)
    value[where] += 1


class Watcher:
    """A reader of one node, which holds the last version that it has read."""

    def __init__(self, nodes: Nodes, rank: int, name: str) -> None:
        self._watch: VersionWatch = nodes[rank].watch(name)
        self.held: Update | None = None

    def read(self, version: int, value: Array) -> None:
        """Read until that version has come, and compare its bits."""
        while self.held is None or self.held.version < version:
            self.held = self._watch.next(timeout_s=WAIT_S)
            assert self.held is not None
        assert self.held.version == version
        np.testing.assert_array_equal(self.held.value, value)

    def close(self) -> None:
        self._watch.close()
        self.held = None


def count_sent(nodes: Nodes, ranks: Sequence[int]) -> int:
    return sum(nodes.stats(rank).bytes_sent for rank in ranks)


def check_rebuilds(nodes: Nodes, rank: int, count: int) -> None:
    """Check how many versions a node has made; it publishes its counters every 10 ms."""
    stats = nodes.wait_for(rank, lambda stats: stats.rebuilds >= count)
    assert (stats.rebuilds, stats.rebuilds_failed) == (count, 0)


def test_three_readers_get_only_what_changed(cluster: MakeNodes) -> None:
    nodes = cluster(4)
    value = first_value()
    watchers = [Watcher(nodes, rank, "sparse") for rank in (1, 2, 3)]
    shares = []
    for version in range(1, 7):
        change(value, version)
        sent = count_sent(nodes, range(4))
        nodes[0].publish("sparse", value, timeout_s=WAIT_S)
        for each in watchers:
            each.read(version, value)
        shares.append((count_sent(nodes, range(4)) - sent) / SIZE / len(watchers))
    assert shares[0] >= 1
    assert max(shares[2:]) <= SHARE_MAX, shares
    for rank in (1, 2, 3):
        check_rebuilds(nodes, rank, 5)
    for each in watchers:
        each.close()
    nodes[0].unpublish("sparse", timeout_s=WAIT_S)
    gc.collect()
    for rank in range(4):
        nodes.wait_for(rank, lambda stats: stats.objects == 0)


def test_a_reader_that_missed_five_versions_makes_the_last_in_one_pass(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(2)
    value = first_value()
    watcher = Watcher(nodes, 1, "missed")
    nodes[0].publish("missed", value, timeout_s=WAIT_S)
    watcher.read(1, value)
    sent = nodes.stats(0).bytes_sent
    for version in range(2, 7):
        change(value, version)
        nodes[0].publish("missed", value, timeout_s=WAIT_S)
    nodes.wait_for(0, lambda stats: stats.objects == 2 + 5)  # the first one is deleted
    watcher.read(6, value)
    check_rebuilds(nodes, 1, 1)
    assert (nodes.stats(0).bytes_sent - sent) / SIZE < 6 * SHARE_MAX
    watcher.close()


def test_a_reader_that_dropped_its_version_takes_the_whole(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    value = first_value()
    nodes[0].publish("dropped", value, timeout_s=WAIT_S)
    assert nodes[1].latest("dropped", timeout_s=WAIT_S).version == 1
    gc.collect()
    for version in (2, 3):  # the first version is deleted everywhere
        change(value, version)
        nodes[0].publish("dropped", value, timeout_s=WAIT_S)
    nodes.wait_for(1, lambda stats: stats.objects == 0)
    update = nodes[1].latest("dropped", newer_than=1, timeout_s=WAIT_S)
    np.testing.assert_array_equal(update.value, value)
    assert nodes.stats(1).rebuilds == 0


def test_another_layout_and_a_dense_change_travel_whole(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    rng = np.random.default_rng(1)
    few: dict[str, Any] = {"w": first_value(MIB), "step": 1}
    values: list[Any] = [few, {**few, "step": 2}]  # a scalar keeps the layout
    values.append({"w": few["w"][:-1], "step": 3})
    values.append({"w": rng.integers(0, 1 << 16, few["w"].size - 1).astype(np.uint16), "step": 4})
    values.append(np.arange(9))
    held = None
    for version, value in enumerate(values, 1):
        nodes[0].publish("mixed", value, timeout_s=WAIT_S)
        held = nodes[1].latest("mixed", newer_than=version - 1, timeout_s=WAIT_S)
        expected = value["w"] if isinstance(value, dict) else value
        got = held.value["w"] if isinstance(value, dict) else held.value
        np.testing.assert_array_equal(got, expected)
        check_rebuilds(nodes, 1, min(version - 1, 1))  # the second one
    nodes.wait_for(0, lambda stats: stats.objects == 2)  # no delta is left
    nodes[0].publish("mixed", few, delta=False, timeout_s=WAIT_S)
    nodes[0].publish("mixed", few, delta=False, timeout_s=WAIT_S)
    nodes.wait_for(0, lambda stats: stats.objects == 2)
    with pytest.raises(InvalidArgumentError, match="delta is 1"):
        nodes[0].publish("mixed", few, delta=1)  # type: ignore[arg-type]


def test_the_next_publisher_deletes_what_a_dead_one_has_left(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    value = first_value(MIB)
    for version in (1, 2, 3):
        change(value, version)
        nodes[0].publish("left", value, timeout_s=WAIT_S)
    client = nodes.client(0)
    channel = name_channel("", "left")
    visible = client.watch_version(channel, wait=False).result(WAIT_S)
    assert visible is not None
    assert len(Record.decode(visible.payload).trail.sizes_bytes) == 2
    # The publisher dies when the delta of its next version is there, and not yet the whole.
    begun = visible.number._replace(n=visible.number.n + 1)
    client.begin_put(name_delta(channel, begun), np.zeros(MIB, np.uint8)).result(WAIT_S)
    nodes.wait_for(0, lambda stats: stats.objects == 2 + 2 + 1)
    change(value, 4)
    assert nodes[1].publish("left", value, timeout_s=WAIT_S) == 4
    nodes.wait_for(0, lambda stats: stats.objects == 1)  # version 3, which is kept
    np.testing.assert_array_equal(nodes[2].latest("left", timeout_s=WAIT_S).value, value)
    nodes[1].unpublish("left", timeout_s=WAIT_S)
    for rank in range(3):
        nodes.wait_for(rank, lambda stats: stats.objects == 0)


def test_versions_with_deltas_that_are_written_in_place_outlive_their_node(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(4)
    value = first_value(MIB)
    watcher = Watcher(nodes, 1, "copied")

    def write(place: Array) -> None:
        place[:] = value

    for version in range(1, 5):
        change(value, version)
        nodes[0].publish(
            "copied", spec(value.shape, value.dtype), fill=write, copies=2, timeout_s=WAIT_S
        )
        watcher.read(version, value)
    nodes.kill(0)
    update = nodes[3].latest("copied", timeout_s=WAIT_S)
    np.testing.assert_array_equal(update.value, value)
    change(value, 5)
    assert nodes[2].publish("copied", value, copies=2, timeout_s=WAIT_S) == 5
    watcher.read(5, value)
    nodes[2].unpublish("copied", timeout_s=WAIT_S)
    watcher.close()
    del update
    gc.collect()
    for rank in (1, 2, 3):
        nodes.wait_for(rank, lambda stats: stats.objects == 0)


def test_a_publisher_without_room_for_a_delta_sends_the_whole(cluster: MakeNodes) -> None:
    """Three versions have room beside one another, and no delta of 0.6 MiB beside them."""
    nodes = cluster(2, arena_bytes=7 * MIB + 48 * 4096)
    value = first_value(2 * MIB)
    held = None
    for version in range(1, 6):
        change(value, version, share=0.2)
        nodes[0].publish("narrow", value, timeout_s=WAIT_S)
        held = nodes[1].latest("narrow", newer_than=version - 1, timeout_s=WAIT_S)
        np.testing.assert_array_equal(held.value, value)
        check_rebuilds(nodes, 1, min(version - 1, 1))  # the third takes the room of a delta
    nodes.wait_for(0, lambda stats: stats.objects == 2)


def test_a_version_of_many_leaves_is_made_of_its_delta(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    weights = {f"layer {each}": np.full(64, each, np.float32) for each in range(5000)}
    held = None
    for version in range(1, 4):
        for each in range(0, 5000, 100):
            weights[f"layer {each}"][:] = version
        nodes[0].publish("leaves", weights, timeout_s=WAIT_S)
        held = nodes[1].latest("leaves", newer_than=version - 1, timeout_s=WAIT_S)
        for name, array in weights.items():
            np.testing.assert_array_equal(held.value[name], array)
    check_rebuilds(nodes, 1, 2)


@settings(max_examples=3, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 999)), min_size=100, max_size=100))
def test_a_hundred_versions_are_equal_bit_for_bit(
    three: Nodes, changes: list[tuple[int, int]]
) -> None:
    name = f"hundred {len(three.processes)} {changes[0]}"
    rng = np.random.default_rng(changes[0][1])
    value = rng.integers(0, 256, 512 << 10).astype(np.uint8).view(np.float32)
    held: dict[int, Any] = {}
    for version, (kind, seed) in enumerate(changes, 1):
        rng = np.random.default_rng(seed)
        bits = value.view(np.uint32)
        if kind == 0:  # at random, NaN and -0 included
            where = rng.integers(0, bits.size, bits.size // 50)
            bits[where] = rng.integers(0, 1 << 32, where.size)
        elif kind == 1:  # in runs
            start = int(rng.integers(0, bits.size - 1000))
            bits[start : start + 1000] ^= np.uint32(0x80000000)
        elif kind == 2:  # most of them
            bits[: int(bits.size * 0.7)] += np.uint32(1)
        three[0].publish(name, value, timeout_s=WAIT_S)
        for rank in (1, 2):
            if rank == 1 or seed % 4 == 0:  # one of them misses versions
                held[rank] = three[rank].latest(name, newer_than=version - 1, timeout_s=WAIT_S)
                np.testing.assert_array_equal(held[rank].value.view(np.uint32), bits)
    three[0].unpublish(name, timeout_s=WAIT_S)
    made = [three.stats(rank) for rank in (1, 2)]
    assert all(each.rebuilds > 0 and each.rebuilds_failed == 0 for each in made)


def test_the_twins_do_the_same(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    value = first_value(MIB)

    async def program() -> None:
        held = None
        for version in range(1, 5):
            change(value, version)
            await nodes[0].publish_async("twins", value, timeout_s=WAIT_S)
            held = await nodes[1].latest_async("twins", newer_than=version - 1, timeout_s=WAIT_S)
            np.testing.assert_array_equal(held.value, value)
        await nodes[0].unpublish_async("twins", timeout_s=WAIT_S)

    asyncio.run(program())
    check_rebuilds(nodes, 1, 3)


def test_readers_of_one_node_make_it_once(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    value = first_value(4 * MIB)
    watchers = [Watcher(nodes, 1, "shared") for _ in range(3)]
    for version in range(1, 5):
        change(value, version)
        nodes[0].publish("shared", value, timeout_s=WAIT_S)
        threads = [threading.Thread(target=each.read, args=(version, value)) for each in watchers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert all(each.held and each.held.version == version for each in watchers)
    check_rebuilds(nodes, 1, 3)
    for each in watchers:
        each.close()
