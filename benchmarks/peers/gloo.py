"""Gloo through torch.distributed: one process per node, with TCP over the emulated links.

A rank is a `Member`, and says its name by the file of torch's store, which is on no link.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import ExitStack

from meters import Links
from network import Network, rail_device
from ranks import Rank, serve
from scenes import Contender

from peers.ensemble import Array, Ensemble, Member

LEVEL = "store"


def why_absent() -> str | None:
    """Say why it can't play on this machine; None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "not installed: pip install --group peers"
    return None


def start(network: Network, links: Links, stack: ExitStack, *, store_bytes: int) -> list[Contender]:
    """Start its ranks; they end with the stack.

    Raises:  RankError if they don't find each other.
    """
    store = str(network.folder / "gloo")
    ranks = []
    for rank in range(network.count):
        within = network.within(rank)
        environment = os.environ | {"GLOO_SOCKET_IFNAME": rail_device(0), "OMP_NUM_THREADS": "1"}
        words = (str(rank), str(network.count), store)
        ranks.append(Rank.start(within, "peers.gloo.play", *words, environment=environment))
        stack.callback(ranks[-1].close)
    for each in ranks:
        each.tell("ready")
    for each in ranks:
        each.answer()
    return [Ensemble("gloo", network, ranks, links)]


def play(rank: str, count: str, store: str) -> None:
    """Be one of its ranks."""
    serve(_GlooMember(int(rank), int(count), store))


class _GlooMember(Member):
    """Works in place, as torch's collectives do."""

    def __init__(self, rank: int, count: int, store: str) -> None:
        super().__init__(rank, count)
        self._store = store

    def ready(self) -> None:
        """Connect to the others."""
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", init_method=f"file://{self._store}", rank=self.rank, world_size=self.count
        )

    def deed(self, collective: str, own: Array, result: Array | None) -> Callable[[], object]:
        import torch
        import torch.distributed as dist

        tensor = torch.from_numpy(own)
        into = tensor if result is None else torch.from_numpy(result)
        parts = list(into.chunk(self.count))
        match collective:
            case "broadcast":
                return lambda: dist.broadcast(into, 0)
            case "reduce" | "allreduce":
                into.copy_(tensor)
                if collective == "reduce":
                    return lambda: dist.reduce(into, 0)
                return lambda: dist.all_reduce(into)
            case "gather":
                return lambda: dist.gather(tensor, parts if self.rank == 0 else None, 0)
            case "allgather":
                return lambda: dist.all_gather(parts, tensor)
            case "round_trip":
                return lambda: self._round_trip(tensor, into)
        raise ValueError(f"no such collective: {collective}")

    def _round_trip(self, own: object, into: object) -> None:
        import torch.distributed as dist

        if self.rank == 0:
            dist.send(own, 1)
            dist.recv(into, 1)
        elif self.rank == 1:
            dist.recv(into, 0)
            dist.send(into, 0)
