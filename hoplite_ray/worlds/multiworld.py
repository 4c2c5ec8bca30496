"""MultiWorld's own names, for programs that were written for it; no other file has them.

Its rule differs from this package's: a plain name is awaited. Worlds are named in each call, and
tensors are filled in place.

Source: github.com/cisco-open/pymultiworld, whose WorldManager and WorldCommunicator have these
signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hoplite_ray.errors import InvalidArgumentError, WorldBrokenError
from hoplite_ray.values.layout import ReduceOp
from hoplite_ray.worlds.events import State
from hoplite_ray.worlds.manager import WorldManager as PlainManager

BrokenWorldException = WorldBrokenError
JOIN_S = 30.0

_OPS: dict[str, ReduceOp] = {
    "sum": "sum",
    "product": "prod",
    "prod": "prod",
    "min": "min",
    "max": "max",
    "avg": "mean",
    "mean": "mean",
}


class WorldManager(PlainManager):
    """This package's WorldManager, with MultiWorld's methods and its `communicator`.

    communicator:  the operations of all worlds, by the world's name.
    """

    def __init__(self, **limits: Any) -> None:
        """Take the arguments of this package's WorldManager; MultiWorld gives none."""
        super().__init__(**limits)
        self.communicator = WorldCalls(self)

    async def initialize_world(
        self,
        world_name: str,
        rank: int,
        size: int,
        backend: str = "gloo",
        addr: str = "127.0.0.1",
        port: int = 29500,
        timeout: float = JOIN_S,  # noqa: ASYNC109 - MultiWorld's own name
        device: object = None,
    ) -> None:
        """Join a world whose rank 0 listens at an address.

        Args:    world_name, rank, size: as for `join_async`.
                 backend: "nccl" is transport="nccl"; others are "auto".
                 addr, port: where rank 0 listens.
                 timeout: seconds to wait for the other members.
                 device: changes nothing; the calling thread's current GPU is used.
        Returns: None, when all members are there.
        Raises:  as `join_async`.
        """
        meet_at = f"tcp://[{addr}]:{port}" if ":" in addr else f"tcp://{addr}:{port}"
        transport = "nccl" if backend == "nccl" else "auto"
        await self.join_async(
            world_name,
            rank=rank,
            size=size,
            rendezvous=meet_at,
            transport=transport,
            timeout_s=timeout,
        )

    def remove_world(self, world_name: str) -> None:
        """Leave a world without waiting, broken or not; its name may be used again at once.

        Raises:  InvalidArgumentError if this process is in no such world.
        """
        self._check_usable()
        self.leave_unwaited(self.world(world_name))


class WorldCalls:
    """The operations of all worlds of a manager."""

    def __init__(self, worlds: PlainManager) -> None:
        self._worlds = worlds

    def is_broken(self, world_name: str) -> bool:
        """Return whether the world has ended."""
        return self._worlds.world(world_name).state is State.BROKEN

    async def send(self, tensor: Any, dst: int, world_name: str) -> None:
        """Send a tensor."""
        await self._worlds.world(world_name).send_async(tensor, dst=dst)

    async def recv(self, tensor: Any, src: int, world_name: str) -> None:
        """Receive into a tensor."""
        await self._worlds.world(world_name).recv_async(tensor, src=src)

    async def broadcast(self, tensor: Any, src: int, world_name: str) -> None:
        """Fill all members' tensors from that of `src`."""
        await self._worlds.world(world_name).broadcast_async(tensor, src=src)

    async def all_reduce(self, tensor: Any, op: Any, world_name: str) -> None:
        """Fold all members' tensors into each; `op` is torch.distributed's, or its name."""
        await self._worlds.world(world_name).all_reduce_async(tensor, op=_op(op))

    async def reduce(self, tensor: Any, dst: int, op: Any, world_name: str) -> None:
        """Fold all members' tensors into that of `dst`."""
        await self._worlds.world(world_name).reduce_async(tensor, dst=dst, op=_op(op))

    async def all_gather(self, tensors: Sequence[Any], tensor: Any, world_name: str) -> None:
        """Fill `tensors`, one for each rank, with all members' tensors."""
        await self._worlds.world(world_name).all_gather_async(tensor, out=tensors)

    async def gather(
        self, tensor: Any, gather_list: Sequence[Any] | None, dst: int, world_name: str
    ) -> None:
        """Fill `gather_list` of `dst`."""
        await self._worlds.world(world_name).gather_async(tensor, dst=dst, out=gather_list)

    async def scatter(
        self, tensor: Any, scatter_list: Sequence[Any] | None, src: int, world_name: str
    ) -> None:
        """Fill `tensor` from the `scatter_list` of `src`."""
        await self._worlds.world(world_name).scatter_async(scatter_list, src=src, into=tensor)


def _op(op: Any) -> ReduceOp:
    """Return this package's word for "sum", "prod", ReduceOp.SUM or ReduceOp.PRODUCT."""
    word = str(op).rpartition(".")[2].lower()
    found = _OPS.get(word)
    if found is None:
        raise InvalidArgumentError(f"op={op!r} is none of sum, product, min, max and avg")
    return found
