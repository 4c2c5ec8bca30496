"""Kills at random moments of all that a channel has: publisher, readers, nodes and its home."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from hoplite_ray.channel.names import name_channel
from tests.process.channel_players import CHANNEL, COPIES, Player, check, value_of
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

NODES = 4
READERS = 2
VICTIMS = ("publisher", "reader", "publisher's node", "reader's node", "home")
MOMENT_S = 0.3  # a kill comes at any time of some versions
LATE_WORDS = ("its node was killed", "NodeLostError")


class Game:
    """Nodes, a publisher and readers on them, and the kills."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self._nodes = nodes
        self._random = random.Random(seed)
        self._pause = threading.Event()
        nodes[0].publish(CHANNEL, value_of(1), copies=COPIES, timeout_s=WAIT_S)
        self.floor = 1  # a version that is visible
        self.players = [self._start("publish", 0)]
        self.players += [self._start("watch", rank) for rank in range(1, 1 + READERS)]
        self._await_news()

    def _start(self, role: str, rank: int | None = None) -> Player:
        rank = self._random.choice(self._nodes.ranks()) if rank is None else rank
        return Player(role, rank, self._nodes.processes[rank].socket)

    def kill(self, victim: str) -> None:
        """Kill it at a random moment, replace it, and check what the others see."""
        self._pause.wait(self._random.uniform(0, MOMENT_S))
        role = "publish" if "publisher" in victim else "watch"
        player = self._random.choice([each for each in self.players if each.role == role])
        if victim in ("publisher", "reader"):
            self._replace([player])
        else:
            self._kill_node(self._find_home() if victim == "home" else player.rank)
        self._await_news()
        self._read_late()

    def _kill_node(self, rank: int) -> None:
        self._nodes.kill(rank)
        self._nodes[rank].close()
        self._replace([each for each in self.players if each.rank == rank])
        self._nodes.add()
        self._nodes.meet()

    def _replace(self, gone: list[Player]) -> None:
        for each in gone:
            each.end()
            self._check_end(each)
            self.players.remove(each)
            self.players.append(self._start(each.role))

    def _check_end(self, player: Player) -> None:
        told = player.join()
        assert not told or any(each in told for each in LATE_WORDS), f"{player.role}: {told}"
        seen = player.versions
        assert seen == sorted(set(seen)), f"versions of a process ascend: {seen}"
        self.floor = max(self.floor, player.newest)

    def _find_home(self) -> int:
        channel = name_channel("", CHANNEL)
        for rank in self._nodes.ranks():
            listed = self._nodes.client(rank).list_channels().result(WAIT_S)
            if any(each.channel == channel for each in listed):
                return rank
        return self._random.choice(self._nodes.ranks())  # its home hears claims just now

    def _await_news(self) -> None:
        """Return once each process has named a version above all that was named by now."""
        floor = max([self.floor, *(each.newest for each in self.players)])
        for each in self.players:
            each.wait_for(floor + 1, WAIT_S)
        self.floor = floor

    def _read_late(self) -> None:
        """Read as one that comes late, on a node that may have none of the versions."""
        floor = max([self.floor, *(each.newest for each in self.players)])
        rank = self._random.choice(self._nodes.ranks())
        version = check(self._nodes[rank].latest(CHANNEL, timeout_s=WAIT_S))
        assert version >= floor, f"version {version} was the newest before {floor}"

    def end(self) -> int:
        """Kill the players, end the channel, check that nothing is left; returns the versions."""
        for each in self.players:
            each.end()
            self._check_end(each)
        newest = self.floor
        self._nodes[self._nodes.ranks()[0]].unpublish(CHANNEL, timeout_s=WAIT_S)
        for rank in self._nodes.ranks():
            self._nodes.wait_for(rank, lambda stats: stats.objects == 0)
        return newest

    def stop(self) -> None:
        """Leave no process behind, whatever happened."""
        for each in self.players:
            each.end()
            each.join()


MANY = pytest.param(150, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("kills", [10, MANY])
def test_versions_grow_at_every_reader_through_kills(
    cluster: MakeNodes, kills: int, record_property: Callable[[str, object], None]
) -> None:
    nodes = cluster(NODES, arena_bytes=32 * MIB)
    game = Game(nodes, seed=kills)
    try:
        for turn in range(kills):
            game.kill(VICTIMS[turn % len(VICTIMS)])
        record_property("versions", game.end())
    finally:
        game.stop()
