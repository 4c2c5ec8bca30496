"""Version channels without Ray: versions grow at every reader, through the deaths of nodes."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hoplite_ray.channel.listing import ListedChannel
from hoplite_ray.errors import (
    GetTimeoutError,
    InvalidArgumentError,
    ObjectLostError,
    VersionRefusedError,
)
from hoplite_ray.values.specs import spec
from tests.process.command import stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

COUNT = 300_000  # elements of a value: above what travels inside of messages


def value_of(version: int) -> dict[str, Any]:
    return {"layer": np.full(COUNT, version, np.float32), "step": np.array(version)}


def check(update: Any) -> int:
    """Return the version of an update whose bytes are all of that version."""
    assert update.value["step"] == update.version
    assert (update.value["layer"] == update.version).all(), "a version is whole"
    return int(update.version)


def test_every_node_reads_what_one_publishes(three: Nodes) -> None:
    for version in (1, 2, 3):
        assert three[0].publish("policy", value_of(version), timeout_s=WAIT_S) == version
        for rank in (2, 1, 0):
            assert check(three[rank].latest("policy", timeout_s=WAIT_S)) == version
    assert three[0].publish("policy", value_of(9), version=9, timeout_s=WAIT_S) == 9
    assert check(three[1].latest("policy", newer_than=3, timeout_s=WAIT_S)) == 9
    three[0].unpublish("policy", timeout_s=WAIT_S)


def test_watches_hear_each_version_once_in_order_and_end(three: Nodes) -> None:
    heard: dict[int, list[int]] = {1: [], 2: []}

    def listen(rank: int) -> None:
        for update in three[rank].watch("watched"):
            heard[rank].append(check(update))

    async def await_all() -> None:
        async for update in three[2].watch("watched"):
            heard[2].append(check(update))

    threads = [
        threading.Thread(target=listen, args=(1,)),
        threading.Thread(target=lambda: asyncio.run(await_all())),
    ]
    for each in threads:
        each.start()
    for version in range(1, 31):
        three[0].publish("watched", value_of(version), timeout_s=WAIT_S)
    three[2].latest("watched", newer_than=29, timeout_s=WAIT_S)
    for rank in (1, 2):
        three[rank].latest("watched", newer_than=29, timeout_s=WAIT_S)
    wait_until(lambda: all(each and each[-1] == 30 for each in heard.values()))
    three[0].unpublish("watched", timeout_s=WAIT_S)
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a watch ends when its channel does"
    for each in heard.values():
        assert each == sorted(set(each)) and each[-1] == 30


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_S / 0.02)):
        if holds():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it has not come")


def test_a_second_publisher_takes_the_channel(three: Nodes) -> None:
    for version in (1, 2):
        three[0].publish("taken", value_of(version), timeout_s=WAIT_S)
    assert three[1].publish("taken", value_of(3), timeout_s=WAIT_S) == 3
    with pytest.raises(VersionRefusedError, match="another process has taken channel 'taken'"):
        three[0].publish("taken", value_of(3), timeout_s=WAIT_S)
    assert check(three[2].latest("taken", timeout_s=WAIT_S)) == 3
    assert three[0].publish("taken", value_of(4), timeout_s=WAIT_S) == 4, "it takes it back"
    three[0].unpublish("taken", timeout_s=WAIT_S)


def test_only_the_last_versions_are_kept_and_unpublish_frees_all(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    for version in range(1, 8):
        nodes[0].publish("kept", value_of(version), keep=3, timeout_s=WAIT_S)
    nodes.wait_for(0, lambda stats: stats.objects == 3)
    assert nodes[1].publish("kept", value_of(8), keep=3, timeout_s=WAIT_S) == 8
    nodes.wait_for(0, lambda stats: stats.objects == 2)
    nodes[0].unpublish("kept", timeout_s=WAIT_S)
    for rank in (0, 1):
        nodes.wait_for(rank, lambda stats: stats.objects == 0)
    with pytest.raises(VersionRefusedError):
        nodes[1].publish("kept", value_of(9), timeout_s=WAIT_S)
    assert nodes[1].publish("kept", value_of(1), timeout_s=WAIT_S) == 1, "it begins again"
    nodes[1].unpublish("kept", timeout_s=WAIT_S)


def test_a_dead_publisher_is_followed_by_another(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    for version in (1, 2):
        nodes[0].publish("followed", value_of(version), timeout_s=WAIT_S)
        check(nodes[1].latest("followed", timeout_s=WAIT_S))
    nodes.kill(0)
    assert check(nodes[2].latest("followed", timeout_s=WAIT_S)) == 2, "from a reader's copy"
    assert nodes[2].publish("followed", value_of(3), timeout_s=WAIT_S) == 3
    assert check(nodes[1].latest("followed", newer_than=2, timeout_s=WAIT_S)) == 3


def test_a_version_whose_bytes_are_gone_says_so_until_there_is_a_newer_one(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(3)
    nodes[0].publish("lost", value_of(1), timeout_s=WAIT_S)
    nodes.kill(0)
    with pytest.raises(ObjectLostError):
        nodes[1].latest("lost", timeout_s=WAIT_S)
    assert nodes[1].publish("lost", value_of(2), timeout_s=WAIT_S) == 2
    assert check(nodes[2].latest("lost", timeout_s=WAIT_S)) == 2


def test_a_version_of_two_copies_outlives_its_publisher_and_its_node(cluster: MakeNodes) -> None:
    nodes = cluster(4)
    for version in (1, 2, 3):
        nodes[0].publish("copied", value_of(version), copies=2, timeout_s=WAIT_S)
    nodes.kill(0)
    for rank in (1, 2, 3):
        assert check(nodes[rank].latest("copied", timeout_s=WAIT_S)) == 3
    assert nodes[3].publish("copied", value_of(4), copies=2, timeout_s=WAIT_S) == 4
    assert check(nodes[1].latest("copied", newer_than=3, timeout_s=WAIT_S)) == 4
    nodes[3].unpublish("copied", timeout_s=WAIT_S)
    for rank in (1, 2, 3):
        nodes.wait_for(rank, lambda stats: stats.objects == 0)


def test_copies_are_pinned_and_freed_with_their_versions(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    for version in range(1, 6):
        nodes[0].publish("freed", value_of(version), keep=2, copies=3, timeout_s=WAIT_S)
        for rank in range(3):
            assert nodes.stats(rank).arena_bytes_pinned > 4 * COUNT, (
                "it is there when it is visible"
            )
    for rank in range(3):
        nodes.wait_for(rank, lambda stats: stats.objects == 2)
    nodes[1].unpublish("freed", timeout_s=WAIT_S)
    for rank in range(3):
        nodes.wait_for(rank, lambda stats: stats.objects == 0)


def test_where_there_are_fewer_nodes_than_copies_all_keep_it(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    nodes[0].publish("few", value_of(1), copies=3, timeout_s=WAIT_S)
    nodes.add()
    nodes.wait_for(1, lambda stats: stats.arena_bytes_pinned > 4 * COUNT)
    nodes.kill(0)
    assert check(nodes[1].latest("few", timeout_s=WAIT_S)) == 1


def test_copies_that_no_node_has_room_for_end_with_the_timeout(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=8 * MIB)
    nodes.put(1, np.zeros(6 * MIB, np.uint8))
    value = np.zeros(3 * MIB, np.uint8)
    with pytest.raises(GetTimeoutError, match=r"2 copies of object .* none of them has room"):
        nodes[0].publish("roomless", value, copies=2, timeout_s=3)
    assert nodes[0].publish("roomless", value, timeout_s=WAIT_S) == 1


def test_wrong_uses_are_named(three: Nodes) -> None:
    three[0].publish("wrong", value_of(5), version=5, timeout_s=WAIT_S)
    for version in (5, 4):
        with pytest.raises(InvalidArgumentError, match=f"version {version} .* is not above 5"):
            three[0].publish("wrong", value_of(5), version=version)
    for options in ({"version": 0}, {"version": 1.5}, {"keep": 0}, {"keep": True}, {"copies": 4}):
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(options))} is"):
            three[0].publish("wrong", value_of(6), **options)
    for name in ("", "x" * 1025, 7):
        with pytest.raises(InvalidArgumentError, match="a channel's name is a text"):
            three[0].latest(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="newer_than is"):
        three[0].latest("wrong", newer_than="5")  # type: ignore[arg-type]
    with pytest.raises(GetTimeoutError, match=r"channel 'nobody publishes': .* nothing newer"):
        three[1].latest("nobody publishes", timeout_s=0.2)
    with pytest.raises(InvalidArgumentError, match=r'value\["layers"\]\[1\] is set'):
        three[0].publish("wrong", {"layers": [np.ones(2), {1}]})
    with pytest.raises(InvalidArgumentError, match=r"value is an array whose dtype object"):
        three[0].publish("wrong", np.array([object()]))
    assert check(three[1].latest("wrong", timeout_s=WAIT_S)) == 5, "the channel is as it was"
    three[0].unpublish("wrong", timeout_s=WAIT_S)


def test_channels_lists_the_newest_version_and_the_lag_of_each_reader(three: Nodes) -> None:
    before = time.time()
    for version in (10, 20, 30):
        three[0].publish("listed/b", value_of(version), version=version, timeout_s=WAIT_S)
        if version == 10:
            watch = three[1].watch("listed/b")
            assert check(watch.next(timeout_s=WAIT_S)) == 10
    three[1].publish("listed/a", value_of(1), timeout_s=WAIT_S)
    three[2].latest("listed/b", timeout_s=WAIT_S)  # asks once, and so is no reader
    ids = [three[rank].node_id for rank in (0, 1, 2)]
    for rank in (0, 1, 2):
        first, second = find_listed(three, rank)
        assert (first.name, second.name) == ("listed/a", "listed/b")
        assert (second.namespace, second.version, second.kept) == ("", 30, 2)
        assert before <= second.time_s <= time.time() and second.size_bytes > 4 * COUNT
        assert [first.publisher_node_id, second.publisher_node_id] == [ids[1], ids[0]]
        assert second.home_node_id in ids and first.readers == ()
        (reader,) = second.readers
        assert (reader.node_id, reader.process) == (ids[1], os.getpid())
        assert (reader.version, reader.lag_versions) == (10, 2) and reader.lag_s > 0
    assert check(watch.next(timeout_s=WAIT_S)) == 30
    (reader,) = find_listed(three, 0)[1].readers
    assert (reader.version, reader.lag_versions, reader.lag_s) == (30, 0, 0)
    watch.close()
    assert find_listed(three, 0)[1].readers == ()
    assert asyncio.run(three[0].channels_async()) == three[0].channels()
    for name in ("listed/a", "listed/b"):
        three[0].unpublish(name, timeout_s=WAIT_S)
    assert find_listed(three, 2) == []


def find_listed(nodes: Nodes, rank: int) -> list[ListedChannel]:
    return [each for each in nodes[rank].channels() if each.name.startswith("listed/")]


def test_a_list_counts_versions_through_publishers_and_needs_a_time_limit(three: Nodes) -> None:
    for version in (1, 2):
        three[0].publish("listed/c", value_of(version), timeout_s=WAIT_S)
    assert three[2].latest("listed/c", newer_than=0, timeout_s=WAIT_S).version == 2
    three[1].publish("listed/c", value_of(3), timeout_s=WAIT_S)
    (channel,) = find_listed(three, 0)
    assert channel.lag_versions == 1
    with pytest.raises(InvalidArgumentError, match="how long the nodes have to answer"):
        three[0].channels(timeout_s=math.inf)
    three[0].unpublish("listed/c", timeout_s=WAIT_S)


def test_a_timeout_names_other_namespaces_with_that_name(three: Nodes) -> None:
    apart = three[0]._channels  # as the plug-in uses it, for Ray's namespaces
    apart.publish("other", "apart", value_of(1), None, 2, 1, True, WAIT_S)
    named = "namespace '' has no channel 'apart', and a channel of that name is in 'other'"
    with pytest.raises(GetTimeoutError, match=named):
        three[1].latest("apart", timeout_s=0.5)
    with three[1].watch("apart") as watch, pytest.raises(GetTimeoutError, match=named):
        watch.next(timeout_s=0.5)
    with pytest.raises(GetTimeoutError, match=named):
        asyncio.run(three[1].latest_async("apart", timeout_s=0.5))
    apart.unpublish("other", "apart", WAIT_S)


def test_the_twins_do_the_same(three: Nodes) -> None:
    async def program() -> None:
        def write(value: dict[str, Any]) -> None:
            value["layer"].fill(1)

        first = {"layer": spec(COUNT), "step": 1}
        assert await three[0].publish_async("twins", first, fill=write, timeout_s=WAIT_S) == 1
        waiting = asyncio.create_task(
            three[1].latest_async("twins", newer_than=1, timeout_s=WAIT_S)
        )
        both = [
            three[0].publish_async("twins", value_of(each), timeout_s=WAIT_S) for each in (2, 3)
        ]
        assert await asyncio.gather(*both) == [2, 3]
        assert check(await waiting) in (2, 3)
        await three[0].unpublish_async("twins", timeout_s=WAIT_S)

    asyncio.run(program())


def test_a_publish_without_a_majority_says_so_within_its_time_limit(cluster: MakeNodes) -> None:
    nodes = cluster(3, options={"liveness_dead_ms": 3_600_000})
    nodes[0].publish("cut", value_of(1), timeout_s=WAIT_S)
    with (
        stopped(nodes.processes[1]),
        stopped(nodes.processes[2]),
        pytest.raises(GetTimeoutError, match="no majority of the nodes can be reached"),
    ):
        nodes[0].publish("cut", value_of(2), timeout_s=1.0)
    assert nodes[0].publish("cut", value_of(2), timeout_s=WAIT_S) in (2, 3)


def test_a_publish_without_room_says_so_and_the_channel_goes_on(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=8 * MIB)
    with pytest.raises(Exception, match=r"arena|room|memory"):
        nodes[0].publish("large", np.zeros(16 * MIB, np.uint8), timeout_s=WAIT_S)
    assert nodes[0].publish("large", np.zeros(100), timeout_s=WAIT_S) == 1


@pytest.mark.parametrize("count", [COUNT, 4], ids=["mapped", "small"])
def test_a_version_is_written_in_place(three: Nodes, count: int) -> None:
    like = {"layer": spec(count), "step": 1}
    written: list[Any] = []

    def fill(value: dict[str, Any]) -> None:
        value["layer"][:] = value["step"]
        written.append(value["layer"].shape)

    for version in (1, 2, 3):
        like["step"] = version
        assert three[0].publish("in place", like, fill=fill, timeout_s=WAIT_S) == version
        assert check(three[1].latest("in place", timeout_s=WAIT_S)) == version
        assert three[1].latest("in place", timeout_s=WAIT_S).value["layer"].shape == (count,)
    assert written == [(count,)] * 3
    three[0].unpublish("in place", timeout_s=WAIT_S)


def test_a_version_whose_writing_fails_is_none_and_the_next_one_is_whole(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(2)

    def fail(value: dict[str, Any]) -> None:
        value["layer"][:] = 7
        raise KeyError("no such layer")

    nodes[0].publish("halves", value_of(1), timeout_s=WAIT_S)
    for _ in range(3):
        with pytest.raises(KeyError, match="no such layer"):
            nodes[0].publish("halves", value_of(2), fill=fail, timeout_s=WAIT_S)
        assert check(nodes[1].latest("halves", timeout_s=WAIT_S)) == 1
    assert nodes[0].publish("halves", value_of(2), timeout_s=WAIT_S) == 2
    assert check(nodes[1].latest("halves", newer_than=1, timeout_s=WAIT_S)) == 2
    nodes[0].unpublish("halves", timeout_s=WAIT_S)
    for rank in (0, 1):
        nodes.wait_for(rank, lambda stats: stats.objects == 0)


def test_what_writes_a_version_is_a_function(three: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match="fill is 7; it is a function"):
        three[0].publish("wrong", spec(3), fill=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        three[0].publish("wrong", object(), fill=print)
