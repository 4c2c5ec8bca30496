"""An emulated cluster: nodes at the ends of a network's links (network.py). Needs root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from network import Network, why_impossible

from hoplite_ray.launch import NodeProcess

__all__ = ["Cluster", "Network", "why_impossible"]


class Cluster:
    """A network with a node at the end of each link, which knows its rate. A context manager."""

    def __init__(
        self,
        count: int,
        *,
        rate_mbit: float | Sequence[float],
        second_rail_mbit: float | Sequence[float] | None = None,
        arena_bytes: int,
        options: Mapping[str, int] | None = None,
    ) -> None:
        self.network = Network(count, rate_mbit=rate_mbit, second_rail_mbit=second_rail_mbit)
        self.nodes: list[NodeProcess] = []
        self._arena_bytes = arena_bytes
        self._options = {"link_mbit": self.network.slowest_mbit, **(options or {})}

    def __enter__(self) -> Self:
        try:
            self.network.__enter__()
            for rank in range(self.network.count):
                self.nodes.append(self._start(rank))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            node.stop()
        self.network.__exit__(kind, error, trace)

    def kill(self, rank: int) -> None:
        """End a node as `kill -9` does; its link stays."""
        self.nodes[rank].kill()

    def revive(self, rank: int) -> None:
        """Start a killed node's next incarnation, beside the running nodes."""
        self.nodes[rank] = self._start(rank)

    def _start(self, rank: int) -> NodeProcess:
        return NodeProcess.start(
            directory=self.network.folder / str(rank),
            listen=[f"{self.network.address(rank, rail)}:0" for rail in self.network.rails],
            beside=next((node for node in self.nodes if node.process.poll() is None), None),
            arena_bytes=self._arena_bytes,
            options=self._options,
            before=self.network.within(rank),
        )
