"""Parts of objects through real nodes: only their bytes move, and deaths harm no reader."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray import parts
from hoplite_ray.errors import GetTimeoutError, InvalidArgumentError, ObjectLostError
from hoplite_ray.store import new_id
from hoplite_ray.values.layout import forget_texts
from hoplite_ray.values.recipe import Attempt
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes
from tests.unit.values import assert_same

WRITERS = range(4)
READERS = range(4, 8)
ROWS, COLUMNS = 2048, 4096  # of floats: 32 MiB


def put(nodes: Nodes, rank: int, value: Any) -> bytes:
    object_id = new_id()
    nodes[rank].put(object_id, value, timeout_s=WAIT_S)
    return object_id


def get(nodes: Nodes, rank: int, source: Any, part: Any, **how: Any) -> Any:
    return nodes[rank].get(source, part=part, timeout_s=WAIT_S, **how)


def floats(rows: int = ROWS, columns: int = COLUMNS, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).random((rows, columns), np.float32)


def link_bytes(nodes: Nodes, rank: int) -> tuple[int, int]:
    counters = nodes.counters(rank)
    return counters["link_bytes_sent"], counters["link_bytes_received"]


def test_rows_of_four_writers_are_read_as_columns_by_four_readers(cluster: MakeNodes) -> None:
    nodes = cluster(8, arena_bytes=96 * MIB)
    whole = floats()
    ids = [put(nodes, rank, {"w": shard}) for rank, shard in enumerate(np.array_split(whole, 4))]
    value = nodes[0].compose({"w": parts.shards(ids, path="w")})
    before = {rank: link_bytes(nodes, rank) for rank in (*WRITERS, *READERS)}
    read: dict[int, Any] = {}

    def fetch(rank: int) -> None:
        part = {"w": parts.split(rank - 4, 4, axis=1)}
        read[rank] = get(nodes, rank, value, part)["w"]

    threads = [threading.Thread(target=fetch, args=(rank,)) for rank in READERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    for rank in READERS:
        assert_same(read[rank], np.array_split(whole, 4, axis=1)[rank - 4].copy())
    shard = whole.nbytes // 4
    for rank in WRITERS:
        sent = link_bytes(nodes, rank)[0] - before[rank][0]
        assert shard <= sent <= 1.05 * shard
    for rank in READERS:
        received = link_bytes(nodes, rank)[1] - before[rank][1]
        assert shard <= received <= 1.05 * shard
        assert nodes.stats(rank).arena_bytes_used < whole.nbytes / 2, "no node has the whole"


def test_readers_of_one_part_share_the_copy_of_its_maker(cluster: MakeNodes) -> None:
    nodes = cluster(4)
    value: dict[str, Any] = {"w": floats(), "b": np.arange(5), "name": "run"}
    object_id = put(nodes, 0, value)
    for rank in (1, 2, 3, 0):
        assert_same(
            get(nodes, rank, object_id, {"w": np.s_[:, 64:128]}), {"w": value["w"][:, 64:128]}
        )
    assert nodes.counters(0)["excerpts"] == 1
    for rank in (1, 2, 3):
        counters = nodes.counters(rank)
        assert counters["excerpts"] == 0
        assert counters["arena_bytes_used"] < MIB, "a 64th of the object"


def test_every_kind_of_part_comes_as_numpy_takes_it(three: Nodes) -> None:
    value: dict[str, Any] = {
        "layers": [{"w": floats(300, 70, seed), "n": seed} for seed in range(3)],
        "cube": np.arange(40 * 30 * 20, dtype="i8").reshape(40, 30, 20),
        "name": "run",
    }
    for holder in range(3):
        object_id = put(three, holder, value)
        for rank in range(3):
            assert_same(get(three, rank, object_id, "layers.1"), value["layers"][1])
            assert_same(
                get(three, rank, object_id, ["name", "layers.2.n"]),
                {"name": "run", "layers.2.n": 2},
            )
            index = {"cube": np.s_[3:9, ::2, -1], ("layers", 0, "w"): np.s_[7:9, 1:]}
            expected = {
                "cube": value["cube"][3:9, ::2, -1],
                ("layers", 0, "w"): value["layers"][0]["w"][7:9, 1:],
            }
            assert_same(get(three, rank, object_id, index), expected)
            assert_same(
                get(three, rank, object_id, {"cube": np.s_[:0]}), {"cube": value["cube"][:0]}
            )
        three[0].delete(object_id, timeout_s=WAIT_S)


def test_a_part_of_forty_thousand_leaves_reads_the_layout_by_itself(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    value = {f"layers.{n}.weight": np.full(100, n, np.float32) for n in range(40_000)}
    object_id = put(nodes, 0, value)
    forget_texts()  # so that the layout's text is fetched
    before = link_bytes(nodes, 1)[1]
    wanted = parts.take_share(list(value), 1, 8)
    assert_same(get(nodes, 1, object_id, wanted), {path: value[path] for path in wanted})
    assert link_bytes(nodes, 1)[1] - before < 4 * MIB, "an eighth of 16 MiB, and the text"


def test_small_values_and_into(three: Nodes) -> None:
    value: dict[str, Any] = {"w": np.arange(12.0).reshape(3, 4), "n": 3}
    object_id = put(three, 0, value)
    assert get(three, 1, object_id, "n") == 3
    mine = {"w": np.zeros((3, 2))}
    assert get(three, 1, object_id, {"w": np.s_[:, 1:3]}, into=mine) is mine
    assert_same(mine["w"], value["w"][:, 1:3].copy())
    large = floats()
    object_id = put(three, 0, large)
    here = np.zeros((10, COLUMNS), np.float32)
    asyncio.run(three[2].get_async(object_id, part=np.s_[5:15], into=here, timeout_s=WAIT_S))
    assert_same(here, large[5:15])
    three[0].delete(object_id, timeout_s=WAIT_S)


def test_a_part_is_awaited_until_its_object_is_put(three: Nodes) -> None:
    object_id, value = new_id(), floats(64, 4096)
    with pytest.raises(GetTimeoutError):
        three[1].get(object_id, part=np.s_[3], timeout_s=0.3)
    timer = threading.Timer(0.3, lambda: three[0].put(object_id, value))
    timer.start()
    assert_same(get(three, 1, object_id, np.s_[3]), value[3])
    timer.join()
    three[0].delete(object_id, timeout_s=WAIT_S)


def test_wrong_parts_name_what_there_is(three: Nodes) -> None:
    object_id = put(three, 0, {"w": floats(64, 4096)})
    with pytest.raises(InvalidArgumentError, match="no part 'v'; there is 'w'"):
        get(three, 1, object_id, "v")
    with pytest.raises(InvalidArgumentError, match=r"\(64, 4096\): 65 is out of bounds"):
        get(three, 1, object_id, {"w": np.s_[:65]})
    three[0].delete(object_id, timeout_s=WAIT_S)


def test_a_holder_killed_amid_it_is_replaced_by_another(cluster: MakeNodes) -> None:
    nodes = cluster(5)
    value = floats(4096, 4096)
    object_id = put(nodes, 0, value)
    nodes.get(1, object_id)  # so that it has a copy
    read: dict[int, Any] = {}

    def fetch(rank: int) -> None:
        read[rank] = get(nodes, rank, object_id, np.s_[:, : 2048 + rank])

    threads = [threading.Thread(target=fetch, args=(rank,)) for rank in (2, 3, 4)]
    for thread in threads:
        thread.start()
    nodes.kill(0)
    for thread in threads:
        thread.join(WAIT_S)
    for rank in (2, 3, 4):
        assert_same(read[rank], value[:, : 2048 + rank].copy())


def test_a_lost_source_is_an_error_that_names_it(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    object_id = put(nodes, 0, floats())
    assert get(nodes, 1, object_id, np.s_[7]).shape == (COLUMNS,)
    nodes.kill(0)
    with pytest.raises(ObjectLostError, match=object_id[:4].hex()):
        nodes.client(1).begin_excerpt(
            new_id(), Attempt(object_id), [(1, 4 * MIB)], [(0, 0, 4 * MIB, 0, 1)]
        ).result(WAIT_S)


def test_a_deleted_source_is_an_error(three: Nodes) -> None:
    object_id = put(three, 0, floats())
    three[0].delete(object_id, timeout_s=WAIT_S)
    three.converse()
    with pytest.raises(ObjectLostError):
        three.client(1).begin_excerpt(
            new_id(), Attempt(object_id), [(1, 4 * MIB)], [(0, 0, 4 * MIB, 0, 1)]
        ).result(WAIT_S)
