"""Participants of a reduce are killed, two at once and ten times in a row; sources are made again.

Both broke Hoplite's own implementation.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray.errors import ReduceError
from hoplite_ray.pending import PendingReduce
from hoplite_ray.store import new_id
from hoplite_ray.unsealed import Unsealed
from tests.process.nodes import WAIT_S, MakeNodes, Nodes
from tests.process.test_failures import SLOW

# The simulator lets them die at every moment (ReduceFaults.TwoParticipantsDieAtOnce...).
ROUNDS = [
    turn if turn in (0, 3, 9) else pytest.param(turn, marks=pytest.mark.slow) for turn in range(10)
]
ELEMENTS = 1 << 18


class Crew(Nodes):
    """A caller's node, which lives, and five others, of which two die in each round."""

    def complete(self) -> list[int]:
        """Replace the dead; returns the ranks of the caller's node and of five others."""
        while len(self.ranks()) < 6:
            self.add()
        self.meet()
        return self.ranks()

    def kill_at_once(self, *ranks: int) -> None:
        """End several nodes before any peer can notice the first one's end."""
        for rank in ranks:
            os.kill(self.processes[rank].process.pid, signal.SIGKILL)
        for rank in ranks:
            self.kill(rank)


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Six nodes; each round finds six again."""
    nodes = Crew(0, options=SLOW)
    try:
        yield nodes
    finally:
        nodes.end()


class Round:
    """A reduce over a source on each of five nodes; it can't end before the third is sealed."""

    def __init__(self, crew: Crew, *, source_count: int) -> None:
        self.crew = crew
        self.caller, *self.others = crew.complete()
        generator = np.random.default_rng(source_count)
        self.arrays = [
            generator.integers(-1000, 1000, ELEMENTS).astype(np.float32) for _ in range(5)
        ]
        self.ids = [new_id() for _ in range(5)]
        for index in (0, 1, 3, 4):
            crew[self.others[index]].put(self.ids[index], self.arrays[index], timeout_s=WAIT_S)
        self.unsealed: list[Unsealed] = [
            crew[self.others[2]].empty(self.ids[2], ELEMENTS, np.float32, timeout_s=WAIT_S)
        ]
        self.received_before = self.received()
        self.target = new_id()
        self.pending: PendingReduce = crew.client(self.caller).begin_reduce(
            self.target, source_count=source_count, count=3
        )
        for index in range(source_count):
            self.pending.confirm(index, self.ids[index])

    def received(self) -> int:
        """How many blocks have reached the nodes that may own a stripe, members' or not."""
        return sum(self.crew.stats(rank).blocks_received for rank in self.others)

    def kill_two_after(self, blocks: int) -> None:
        """Kill the nodes of two members once owners have received more than so many blocks."""
        while self.received() <= self.received_before + blocks:
            pass  # the test's limit ends it else
        self.crew.kill_at_once(*self.others[:2])

    def seal(self) -> npt.NDArray[np.float32]:
        """Let the last source come; returns the sum of what is left."""
        memory = self.unsealed.pop()
        memory.value[:] = self.arrays[2]
        memory.seal(WAIT_S)
        return self.arrays[2] + self.arrays[3] + self.arrays[4]

    def expect_nothing_left(self) -> None:
        """Delete everything, and check that all memory comes back and no operation waits."""
        for each in (*self.ids, self.target):
            self.crew[self.caller].delete(each, timeout_s=WAIT_S)
        for rank in (self.caller, *self.others[2:]):
            self.crew.wait_for(rank, lambda stats: stats.arena_bytes_used == stats.waiters == 0)


@pytest.mark.parametrize("turn", ROUNDS)
def test_two_participants_die_at_once_and_spares_take_their_place(crew: Crew, turn: int) -> None:
    reduce = Round(crew, source_count=5)
    early = crew[reduce.others[4]].begin_get(reduce.target)
    reduce.kill_two_after(blocks=2 * turn)
    expected = reduce.seal()
    assert sorted(reduce.pending.result(WAIT_S).members) == [2, 3, 4]
    np.testing.assert_array_equal(early.result(WAIT_S).value, expected)
    np.testing.assert_array_equal(crew.get(reduce.caller, reduce.target), expected)
    del early  # and what it has mapped
    reduce.expect_nothing_left()


@pytest.mark.parametrize("turn", ROUNDS)
def test_two_participants_die_at_once_and_without_spares_it_says_so(crew: Crew, turn: int) -> None:
    reduce = Round(crew, source_count=3)
    early = crew[reduce.others[4]].begin_get(reduce.target)
    reduce.kill_two_after(blocks=2 * turn)
    cause = r"needs 3 of 3 sources, and only [12] can still come: source [01]: all its holders"
    with pytest.raises(ReduceError, match=cause) as caught:
        reduce.pending.result(WAIT_S)
    assert caught.value.lost in ((0,), (1,), (0, 1))
    with pytest.raises(ReduceError, match=cause):
        early.result(WAIT_S)
    reduce.seal()
    reduce.expect_nothing_left()


@pytest.mark.parametrize("turn", range(3))
def test_a_node_dies_that_combines_its_sources(cluster: MakeNodes, turn: int) -> None:
    nodes = cluster(4, options=SLOW)
    arrays = [np.full(32 * ELEMENTS, 1 + index, np.float32) for index in range(9)]
    ids = [nodes.put(1 + index % 3, array) for index, array in enumerate(arrays[:8])]
    ids.append(new_id())
    pending = nodes.client(0).begin_reduce(target := new_id(), source_count=9, count=6)
    for index in (8, *range(8)):  # it begins when the first of them has been put
        pending.confirm(index, ids[index])
    nodes.converse()  # Want, Locate, Located
    unsealed = nodes[2].empty(ids[8], arrays[8].size, np.float32, timeout_s=WAIT_S)
    nodes.wait_for(1, lambda stats: stats.blocks_combined > 20 * turn)
    nodes.kill(1)  # with sources 0, 3 and 6; the reduce can't end before 8 is sealed
    unsealed.value[:] = arrays[8]
    unsealed.seal(WAIT_S)
    assert set(pending.result(WAIT_S).members) == {1, 2, 4, 5, 7, 8}
    np.testing.assert_array_equal(nodes.get(0, target), sum(arrays[i] for i in (1, 2, 4, 5, 7, 8)))


@pytest.mark.parametrize("again", ["the same", "other"])
def test_a_source_that_is_made_again_goes_in_whole_or_a_spare_does(crew: Crew, again: str) -> None:
    reduce = Round(crew, source_count=5)
    reduce.kill_two_after(blocks=4)
    remade = reduce.arrays[0] if again == "the same" else reduce.arrays[0] + 1000
    crew.client(reduce.others[4]).begin_put(reduce.ids[0], remade, incarnation=2).result(WAIT_S)
    reduce.seal()
    members = reduce.pending.result(WAIT_S).members
    assert len(set(members)) == 3
    assert 1 not in members
    parts = [remade if index == 0 else reduce.arrays[index] for index in members]
    np.testing.assert_array_equal(crew.get(reduce.caller, reduce.target), sum(parts))
    reduce.expect_nothing_left()
