"""Nodes that make a version of an object of the version before it and a delta."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.store import new_id
from hoplite_ray.values.layout import Layout
from hoplite_ray.values.recipe import Attempt, Recipe
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

SIZE = 64 * MIB
READERS = (1, 2, 3)

Array = npt.NDArray[np.uint16]


def change(array: Array, seed: int) -> Array:
    """A copy with 2 % of its elements changed."""
    rng = np.random.default_rng(seed)
    changed = array.copy()
    where = rng.integers(0, array.size, array.size // 50)
    changed[where] += 1
    return changed


def find_delta(old: Any, new: Any) -> tuple[npt.NDArray[np.uint8], int]:
    """The bytes that make `new` of `old`, and the checksum of `new`."""
    data = [memoryview(new).cast("B")]
    delta: Any = _native.find_delta(old, data, [(new.nbytes, 2)], limit_bytes=new.nbytes)
    return np.asarray(memoryview(delta)), _native.describe_delta(delta)["new_crc"]


@dataclass
class Publisher:
    """Puts versions on node 0, each with the delta from the one before it."""

    nodes: Nodes
    base: bytes
    values: list[Array]
    deltas: list[bytes]
    whole: bytes
    crc32c: int = 0  # of the newest version

    @staticmethod
    def start(nodes: Nodes, size_bytes: int = SIZE) -> Publisher:
        first = np.arange(size_bytes // 2, dtype=np.uint32).astype(np.uint16)
        base = nodes.put(0, first)
        return Publisher(nodes, base, [first], [], base)

    def publish(self, versions: int = 1) -> None:
        for _ in range(versions):
            old, new = self.values[-1], change(self.values[-1], len(self.values))
            delta, self.crc32c = find_delta(old, new)
            self.deltas.append(self.nodes.put(0, delta))
            self.whole = self.nodes.put(0, new)
            self.values.append(new)

    def recipe(self, **changes: Any) -> Recipe:
        fetched = self.nodes.client(0)._client.get(self.whole, True)
        assert fetched.wait(WAIT_S)
        description = fetched.result()
        assert isinstance(description, _native.Fetched)
        return Recipe(
            **{
                "layout": Layout.from_bytes(description.layout),
                "block_bytes": description.block_bytes,
                "crc32c": self.crc32c,
                "base": Attempt(self.base),
                "deltas": tuple(map(Attempt, self.deltas)),
                **changes,
            }
        )

    def read(self, rank: int, recipe: Recipe) -> Array:
        pending = self.nodes.client(rank).begin_rebuild(self.whole, recipe)
        value: Array = pending.result(WAIT_S).value
        return value


def fetch(nodes: Nodes, ranks: Sequence[int], object_id: bytes) -> None:
    """The nodes have a copy afterwards, which no process maps."""
    for rank in ranks:
        nodes.get(rank, object_id)
    gc.collect()


def test_three_readers_make_it_once_each_and_bit_for_bit(cluster: MakeNodes) -> None:
    nodes = cluster(4)
    publisher = Publisher.start(nodes)
    fetch(nodes, READERS, publisher.base)
    publisher.publish()
    recipe = publisher.recipe()
    sent = nodes.stats(0).bytes_sent
    values: dict[tuple[int, int], Array] = {}

    def read(rank: int, process: int) -> None:
        values[rank, process] = publisher.read(rank, recipe)

    threads = [
        threading.Thread(target=read, args=(rank, process))
        for rank in READERS
        for process in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(values) == len(threads)
    for value in values.values():
        np.testing.assert_array_equal(value, publisher.values[-1])
    for rank in READERS:
        stats = nodes.wait_for(rank, lambda s: s.rebuilds == 1)
        assert stats.rebuilds_failed == 0
    all_sent = sum(nodes.stats(rank).bytes_sent for rank in (0, *READERS)) - sent
    assert nodes.stats(0).bytes_sent - sent < SIZE // 4, "the delta, and not the whole"
    assert all_sent > 0


def test_a_reader_that_missed_versions_makes_the_last_of_them_in_one_pass(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(2)
    publisher = Publisher.start(nodes, 16 * MIB)
    fetch(nodes, (1,), publisher.base)
    publisher.publish(4)
    np.testing.assert_array_equal(publisher.read(1, publisher.recipe()), publisher.values[-1])
    nodes.wait_for(1, lambda s: s.rebuilds == 1)


def test_a_copy_that_was_made_is_read_by_others_after_its_publisher_died(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(3)
    publisher = Publisher.start(nodes, 16 * MIB)
    fetch(nodes, (1,), publisher.base)
    publisher.publish()
    publisher.read(1, publisher.recipe())
    nodes.kill(0)
    np.testing.assert_array_equal(nodes.get(2, publisher.whole), publisher.values[-1])


def test_a_reader_without_the_base_fetches_the_whole(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=160 * MIB)
    publisher = Publisher.start(nodes, 48 * MIB)
    fetch(nodes, (1,), publisher.base)
    others = [nodes.put(1, np.zeros(48 * MIB, np.uint8)) for _ in range(2)]  # no room for a third
    nodes.wait_for(1, lambda s: s.evictions == 1)
    for other in others:
        nodes[1].delete(other, timeout_s=WAIT_S)
    publisher.publish()
    np.testing.assert_array_equal(publisher.read(1, publisher.recipe()), publisher.values[-1])
    stats = nodes.stats(1)
    assert (stats.rebuilds, stats.rebuilds_failed) == (0, 0)


def test_a_recipe_of_another_version_leads_to_the_whole(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    publisher = Publisher.start(nodes, 16 * MIB)
    other = nodes.put(0, change(publisher.values[0], seed=77))
    fetch(nodes, (1,), other)
    fetch(nodes, (2,), publisher.base)
    publisher.publish(2)
    of_another_base = publisher.recipe(base=Attempt(other))
    lacks_a_delta = publisher.recipe(deltas=(Attempt(publisher.deltas[0]),))
    for rank, recipe in ((1, of_another_base), (2, lacks_a_delta)):
        np.testing.assert_array_equal(publisher.read(rank, recipe), publisher.values[-1])
        stats = nodes.wait_for(rank, lambda s: s.rebuilds_failed == 1)
        assert stats.rebuilds == 0


def test_a_node_killed_amid_it_harms_no_other_reader(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    publisher = Publisher.start(nodes)
    fetch(nodes, (1, 2), publisher.base)
    publisher.publish()
    recipe = publisher.recipe()
    nodes.client(1).begin_rebuild(publisher.whole, recipe)
    pending = nodes.client(2).begin_rebuild(publisher.whole, recipe)
    nodes.kill(1)
    np.testing.assert_array_equal(pending.result(WAIT_S).value, publisher.values[-1])
    nodes.wait_for(2, lambda s: s.rebuilds == 1)


def test_a_recipe_that_makes_no_sense_is_refused(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    publisher = Publisher.start(nodes, MIB)
    publisher.publish()
    rows: dict[str, dict[str, Any]] = {
        "no delta": {"deltas": ()},
        "too many deltas": {"deltas": (Attempt(new_id()),) * 33},
        "no size of a block": {"block_bytes": 0},
        "of itself": {"deltas": (Attempt(publisher.whole),)},
    }
    for text, changes in rows.items():
        with pytest.raises(InvalidArgumentError, match=text):
            publisher.read(0, publisher.recipe(**changes))
