"""The peers of hoplite_ray in the benchmarks, each on the same emulated network.

A module has `why_absent`, and a `start` that returns contenders (scenes.py), whose processes end
with a stack. A peer that can't be started becomes an `Absent` contender, which says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from meters import Links
from network import Network
from ranks import RankError
from scenes import Contender, Sample, Scene

from peers import gloo, openmpi, ray_store

PEERS = {"openmpi": openmpi, "gloo": gloo, "ray": ray_store}


class Absent(Contender):
    """A peer that is not there."""

    def __init__(self, peer: str, level: str, why: str) -> None:
        self.peer = peer
        self.level = level
        self._why = why

    def why_not(self, scene: Scene) -> str | None:
        """Say why the peer is absent."""
        return self._why

    def play(self, scene: Scene) -> Sample:
        """Fail like a peer that could not go on."""
        raise RankError(self._why)


def start_peers(
    names: Sequence[str], network: Network, links: Links, stack: ExitStack, store_bytes: int
) -> list[Contender]:
    """Start these peers on the network; `store_bytes` is the size of an object store, per node."""
    contenders: list[Contender] = []
    for name in names:
        module = PEERS[name]
        why = module.why_absent()
        if why is None:
            try:
                contenders += module.start(network, links, stack, store_bytes=store_bytes)
                continue
            except (OSError, RankError) as error:
                why = f"did not start: {error}"
        contenders.append(Absent(name, module.LEVEL, why))
    return contenders
