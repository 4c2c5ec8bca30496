"""Kills under Ray of all that a version channel has: publisher, reader, and the store's nodes."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.node.start import NodePlace
from tests.process.channel_players import COPIES, check, value_of
from tests.ray.raycluster import RayCluster, eventually

WAIT_S = 60.0
VICTIMS = ("publisher", "node 0", "reader", "node 1", "node 2")  # one of the nodes is the home
GAP_S = 0.05  # between versions
MOMENT_S = 0.3  # a kill comes at any time of some versions


@ray.remote(num_cpus=0)
class Player:
    """Publishes to a channel or watches it, in a thread, until it is killed."""

    def __init__(self, role: str, channel: str) -> None:
        self.channel = channel
        self.versions: list[int] = []
        self.error: BaseException | None = None
        run = {"publish": self._publish, "watch": self._watch}[role]
        threading.Thread(target=self._note_error, args=(run,), daemon=True).start()

    def pid(self) -> int:
        return os.getpid()

    def directory(self) -> str:
        """That of the node here."""
        return str(NodePlace.of_this_process().directory)

    def list_versions(self) -> list[int]:
        if self.error is not None:
            raise self.error
        return list(self.versions)

    def read(self) -> int:
        """Read as one that comes late."""
        return check(hop.latest(self.channel, timeout_s=WAIT_S))

    def _note_error(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self.error = error

    def _publish(self) -> None:
        version, pause = self.read() + 1, threading.Event()
        while not pause.wait(GAP_S):
            try:
                hop.publish(
                    self.channel,
                    value_of(version),
                    version=version,
                    copies=COPIES,
                    timeout_s=WAIT_S,
                )
            except hop.InvalidArgumentError:  # it was visible before its node or publisher died
                version = self.read() + 1
                continue
            self.versions.append(version)
            version += 1

    def _watch(self) -> None:
        for update in hop.watch(self.channel):
            self.versions.append(check(update))


class Game:
    """A publisher, a reader that is killed, one on each node that is not, and the kills."""

    def __init__(self, cluster: RayCluster, channel: str, seed: int) -> None:
        self._cluster = cluster
        self._channel = channel
        self._random = random.Random(seed)
        self._pause = threading.Event()
        hop.publish(channel, value_of(1), version=1, copies=COPIES, timeout_s=WAIT_S)
        self.floor = 1  # a version that is visible
        self.players = {
            name: self._start(name, node) for node, name in enumerate(("publisher", "reader"))
        }
        self._witnesses = [self._start("reader", node) for node in range(3)]  # never killed
        self._await_news()

    def _start(self, name: str, node: int) -> Any:
        role = "publish" if name == "publisher" else "watch"
        return Player.options(**self._cluster.on(node)).remote(role, self._channel)

    def _ask(self, found: Any) -> Any:
        return ray.get(found, timeout=WAIT_S)

    def kill(self, victim: str) -> None:
        """Kill it at a random moment, replace it, and check what the others see."""
        pid = self._find_process(victim)
        self._pause.wait(self._random.uniform(0, MOMENT_S))
        os.kill(pid, signal.SIGKILL)
        if victim in self.players:
            self.players[victim] = self._start(victim, self._random.randrange(3))
        self._await_news()
        floor = self.floor
        version = self._ask(self._random.choice(self._witnesses).read.remote())
        assert version >= floor, f"version {version} was the newest before {floor}"

    def _find_process(self, victim: str) -> int:
        if victim in self.players:
            return int(self._ask(self.players[victim].pid.remote()))
        witness = self._witnesses[int(victim.split()[1])]
        directory = self._ask(witness.directory.remote())
        return int(json.loads(Path(directory, "node.json").read_text())["pid"])

    def _list_versions(self) -> list[list[int]]:
        actors = [*self.players.values(), *self._witnesses]
        return list(self._ask([each.list_versions.remote() for each in actors]))

    def _await_news(self) -> None:
        """Return once each process has named a version above all that was named by now."""
        floor = max([self.floor, *(each[-1] for each in self._list_versions() if each)])

        def have_news() -> bool:
            return all(each and each[-1] > floor for each in self._list_versions())

        assert eventually(have_news, within_s=WAIT_S), f"{self._list_versions()} after {floor}"
        for each in self._list_versions():
            assert each == sorted(set(each)), f"versions of a process ascend: {each}"
        self.floor = floor

    def end(self) -> int:
        """End the channel; returns its versions."""
        ray.kill(self.players["publisher"])
        versions = max(
            each[-1] for each in self._ask([w.list_versions.remote() for w in self._witnesses])
        )
        hop.unpublish(self._channel, timeout_s=WAIT_S)
        for each in [*self.players.values(), *self._witnesses]:
            ray.kill(each)
        return versions


@pytest.mark.parametrize(
    "kills", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_versions_grow_at_every_reader_through_kills(
    cluster: RayCluster, kills: int, record_property: Callable[[str, object], None]
) -> None:
    game = Game(cluster, f"killed-{kills}", seed=kills)
    for turn in range(kills):
        game.kill(VICTIMS[turn % len(VICTIMS)])
    record_property("versions", game.end())
