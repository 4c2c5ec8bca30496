"""MultiWorld's own calls, for programs that were written for it: worlds by name, tensors in place.

Source: github.com/cisco-open/pymultiworld, whose WorldCommunicator has these signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.worlds.events import State

if TYPE_CHECKING:
    from hoplite_ray.worlds.manager import WorldManager

_OPS = {"sum": "sum", "product": "prod", "min": "min", "max": "max"}


class WorldCalls:
    """The operations of all worlds of a manager."""

    def __init__(self, worlds: WorldManager) -> None:
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


def _op(op: Any) -> str:
    """Return this package's word for "sum", "prod", ReduceOp.SUM or ReduceOp.PRODUCT."""
    word = str(op).rpartition(".")[2].lower()
    found = _OPS.get(word, word if word in _OPS.values() else None)
    if found is None:
        raise InvalidArgumentError(f"op={op!r} is none of sum, product, min and max")
    return found
