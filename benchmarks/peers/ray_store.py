"""Ray's own object store, and hoplite_ray under Ray: actors on real Ray nodes in the namespaces.

Actors put the sources on their nodes; a late rank returns its source, as a task does. A collective
begins when the actors of the receivers call get or reduce, and ends when they hold the value. Both
stores use the same Ray nodes, actors and driver, in turns.
"""

from __future__ import annotations

import importlib.util
import time
from contextlib import ExitStack, nullcontext

from meters import Links, Meters
from network import Network
from ranks import Rank
from scenes import OBJECTS, SLOW_SHARE, Contender, Sample, Scene, Variant

from peers.ray_cluster import RayCluster

LEVEL = "ray"
_LEAD_S = 0.2  # for all actors to have read what to do


class UnderRay(Contender):
    """One of the ways to play under Ray."""

    level = LEVEL

    def __init__(self, peer: str, network: Network, driver: Rank, meters: Meters) -> None:
        self.peer = peer
        self._network = network
        self._driver = driver
        self._meters = meters

    def why_not(self, scene: Scene) -> str | None:
        """Objects of tasks are read when they are there, and a raylet does not come back."""
        if scene.variant in (Variant.WAITS, Variant.DEATH):
            return "not played under Ray"
        if self.peer == "ray tree" and scene.collective not in ("reduce", "allreduce"):
            return "has no tree here"
        return None

    def play(self, scene: Scene) -> Sample:
        """Have the driver play it."""
        what = {"store": self.peer, "collective": scene.collective}
        what["size_bytes"] = scene.size_bytes
        late = [rank for rank, after_s in enumerate(scene.arrivals_s) if after_s > 0]
        if scene.collective == "broadcast":
            late = []  # only receivers come late in a broadcast
        self._driver.do("prepare", **what, late=late)
        slow = scene.slow_rank
        with nullcontext() if slow is None else self._network.slowed(slow, SLOW_SHARE):
            start_s = time.monotonic() + _LEAD_S
            self._driver.tell("play", **what, at_s=start_s, arrivals_s=scene.arrivals_s)
            time.sleep(max(0.0, start_s - time.monotonic()))
            self._meters.restart()
            ended = {int(rank): at_s - start_s for rank, at_s in self._driver.answer().items()}
            sample = scene.sample(ended, self._meters.usage())
        count, addends = 1, [0]
        match scene.collective:
            case "reduce" | "allreduce":
                count, addends = scene.nodes, [sum(range(scene.nodes))]
            case "gather" | "allgather":
                addends = list(range(scene.nodes))
            case "objects":
                addends = [0] * OBJECTS
        self._driver.do("check", ranks=list(ended), count=count, addends=addends)
        return sample


def why_absent() -> str | None:
    """Say why it can't play on this machine; None if it can."""
    if importlib.util.find_spec("ray") is None:
        return "not installed: pip install ray"
    return None


def start(network: Network, links: Links, stack: ExitStack, *, store_bytes: int) -> list[Contender]:
    """Start Ray's nodes, and the driver, which ends with the stack; ours comes first.

    Raises:  OSError with the last words of a Ray node that did not start; RankError.
    """
    others = {pid for rank in range(network.count) for pid in network.processes(rank)}
    cluster = RayCluster.start(network, store_bytes=store_bytes)
    driver = Rank.start(
        network.within(0),
        "peers.ray_driver.play",
        *(cluster.address, str(network.count), str(store_bytes), str(network.slowest_mbit)),
        environment=cluster.environment,
    )
    stack.callback(driver.close)
    driver.do("ready")
    everybody = {pid for rank in range(network.count) for pid in network.processes(rank)}
    own = sorted(everybody - others)
    meters = Meters(links, lambda: own)
    names = ("hoplite", "ray", "ray tree")
    return [UnderRay(name, network, driver, meters) for name in names]
