"""Version channels between real nodes: order, watches, and processes that are killed."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable

import pytest

from hoplite_ray.errors import GetTimeoutError, InvalidArgumentError, VersionRefusedError
from hoplite_ray.values.versions import NO_VERSION, Term, Version, VersionNumber
from tests.process.nodes import WAIT_S, MakeNodes, Nodes

VERSIONS = 50
CHANNEL = hashlib.sha256(b"tests/weights").digest()[:28]


class Watcher:
    """A thread on one node that follows a channel until it ends."""

    def __init__(self, nodes: Nodes, rank: int) -> None:
        self.seen: list[Version] = []
        self.failure: BaseException | None = None
        self._client = nodes.client(rank)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        newest = NO_VERSION
        try:
            while not self.seen or not self.seen[-1].is_end:
                version = self._client.watch_version(CHANNEL, newest).result(WAIT_S)
                assert version is not None
                self.seen.append(version)
                newest = version.number
        except BaseException as failure:
            self.failure = failure

    def end(self) -> list[VersionNumber]:
        """Wait for the end of the channel; return the numbers that came, which must grow."""
        self._thread.join(WAIT_S)
        assert self.failure is None
        assert not self._thread.is_alive()
        numbers = [each.number for each in self.seen]
        assert numbers == sorted(set(numbers)), "versions grow"
        for each in self.seen[:-1]:
            assert each.payload == payload(each.number), "one number has one content"
        return numbers


def payload(number: VersionNumber) -> bytes:
    """The payload that the publishers of these tests give that version."""
    return f"{number.epoch}.{number.counter}: {number.n}".encode()


def unpublish(nodes: Nodes, rank: int, term: Term, n: int) -> None:
    nodes.client(rank).publish_version(CHANNEL, term, n, b"", is_end=True).result(WAIT_S)


def take(nodes: Nodes, rank: int) -> Term:
    return nodes.client(rank).take_term(CHANNEL).result(WAIT_S).term


def publish(nodes: Nodes, rank: int, term: Term, n: int) -> None:
    content = payload(VersionNumber(*term, n))
    nodes.client(rank).publish_version(CHANNEL, term, n, content).result(WAIT_S)


def find_home(nodes: Nodes) -> int:
    """The rank of the channel's home. REQUIRES: the channel has a version."""
    for rank in nodes.ranks():
        listed = nodes.client(rank).list_channels().result(WAIT_S)
        if any(each.channel == CHANNEL and each.is_home for each in listed):
            return rank
    raise AssertionError("no node is the channel's home")


def test_three_readers_follow_fifty_versions(cluster: MakeNodes) -> None:
    nodes = cluster(4)
    term = take(nodes, 0)
    watchers = [Watcher(nodes, rank) for rank in (1, 2, 3)]
    for n in range(1, VERSIONS + 1):
        publish(nodes, 0, term, n)
    late = nodes.client(1).watch_version(CHANNEL, wait=False).result(WAIT_S)
    assert late is not None
    assert late.number == VersionNumber(*term, VERSIONS), "a late reader has the newest"
    (listed,) = nodes.client(find_home(nodes)).list_channels().result(WAIT_S)
    assert listed.newest == late
    unpublish(nodes, 0, term, VERSIONS + 1)
    for watcher in watchers:
        assert watcher.end()[-1] == VersionNumber(*term, VERSIONS + 1)


def find_reader(nodes: Nodes) -> int:
    home = find_home(nodes)
    return next(rank for rank in nodes.ranks() if rank not in (home, 0))


@pytest.mark.parametrize(
    "find", [find_home, lambda nodes: 0, find_reader], ids=["home", "publisher", "reader"]
)
def test_versions_go_on_when_a_node_is_killed(
    cluster: MakeNodes, find: Callable[[Nodes], int]
) -> None:
    nodes = cluster(5)
    term = take(nodes, 0)
    watchers = {rank: Watcher(nodes, rank) for rank in nodes.ranks()}
    for n in range(1, 11):
        publish(nodes, 0, term, n)
    before = VersionNumber(*term, 10)
    next_one = VersionNumber(*term, 11)
    under_way = nodes.client(0).publish_version(CHANNEL, term, 11, payload(next_one))
    killed = find(nodes)
    nodes.kill(killed)
    del watchers[killed]
    publisher, n = 0, 12
    if killed == 0:  # another process goes on, in a term of its own
        publisher, n = nodes.ranks()[0], 1
        taken = nodes.client(publisher).take_term(CHANNEL).result(WAIT_S)
        term = taken.term
        assert taken.newest >= before, "no version that was published is lost"
    else:
        under_way.result(WAIT_S)
    for number in range(n, n + 10):
        publish(nodes, publisher, term, number)
    unpublish(nodes, publisher, term, n + 10)
    for watcher in watchers.values():
        assert watcher.end()[-1] == VersionNumber(*term, n + 10)


def test_of_two_publishers_only_the_newer_one_goes_on(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    older = take(nodes, 0)
    publish(nodes, 0, older, 5)
    taken = nodes.client(1).take_term(CHANNEL).result(WAIT_S)
    assert taken.term > older
    assert taken.newest == VersionNumber(*older, 5)
    with pytest.raises(
        VersionRefusedError, match="another publisher has taken the channel"
    ) as refused:
        publish(nodes, 0, older, 6)
    assert refused.value.is_taken
    assert refused.value.newest == tuple(taken.newest)
    publish(nodes, 1, taken.term, 1)
    publish(nodes, 1, taken.term, 1)  # the same one again
    with pytest.raises(VersionRefusedError, match="immutable") as other:
        nodes.client(1).publish_version(CHANNEL, taken.term, 1, b"other").result(WAIT_S)
    assert not other.value.is_taken
    publish(nodes, 1, taken.term, 3)
    with pytest.raises(VersionRefusedError, match="its number is not greater"):
        publish(nodes, 1, taken.term, 2)


def test_a_question_for_the_latest_is_answered_at_once(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    assert nodes.client(1).watch_version(CHANNEL, wait=False).result(WAIT_S) is None
    term = take(nodes, 0)
    publish(nodes, 0, term, 1)

    async def ask() -> Version | None:
        return await nodes.client(1).watch_version(CHANNEL, wait=False).result_async(WAIT_S)

    found = asyncio.run(ask())
    assert found == Version(VersionNumber(*term, 1), payload(VersionNumber(*term, 1)), False)
    end = nodes.client(0).publish_version(CHANNEL, term, 2, b"", is_end=True)
    end.result(WAIT_S)
    assert found is not None
    found = nodes.client(1).watch_version(CHANNEL, found.number).result(WAIT_S)
    assert found == Version(VersionNumber(*term, 2), b"", True)


def test_a_watch_ends_with_its_timeout_and_leaves_nothing(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    with pytest.raises(GetTimeoutError, match="nothing newer was published yet"):
        nodes.client(1).watch_version(CHANNEL).result(0.05)
    nodes.counters(1, lambda counters: counters["channel_requests"] == counters["channels"] == 0)


def test_wrong_versions_are_refused(cluster: MakeNodes) -> None:
    client = cluster(1).client(0)
    with pytest.raises(InvalidArgumentError, match="4097 bytes, of at most 4096"):
        client.publish_version(CHANNEL, Term(1, 1), 1, b"x" * 4097)
    with pytest.raises(InvalidArgumentError, match="whole numbers from 1 on"):
        client.publish_version(CHANNEL, Term(1, 1), 0, b"")
    with pytest.raises(InvalidArgumentError, match="no home has given term 900"):
        client.publish_version(CHANNEL, Term(900, 1), 1, b"").result(WAIT_S)
    with pytest.raises(InvalidArgumentError, match="28 bytes"):
        client.take_term(b"name")
