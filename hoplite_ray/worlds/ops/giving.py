"""Sending an array of `alloc`: a notice of where it lies, or its bytes where that can't be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from hoplite_ray._native import WorldEdges, WorldOperation
from hoplite_ray.errors import WorldTimeoutError
from hoplite_ray.worlds.core.arrays import to_send
from hoplite_ray.worlds.core.checks import check_timeout
from hoplite_ray.worlds.core.sending import Sendings
from hoplite_ray.worlds.core.waiting import Deadline, Waits
from hoplite_ray.worlds.lending.lender import LENT_BYTES_MIN
from hoplite_ray.worlds.lending.loans import Loans
from hoplite_ray.worlds.ops import collectives

Array = np.ndarray[Any, Any]

_CANCELLED = 3  # an operation's state


class Giver(Protocol):
    """The world that an array is given away in."""

    edges: WorldEdges
    loans: Loans
    sending: Sendings

    @property
    def transports(self) -> Mapping[int, str]:
        """How each other rank is reached."""

    def check_usable(self) -> None:
        """Raise in a forked child."""

    def other(self, what: str, rank: Any) -> int:
        """Return another member's rank, as Python's own number."""

    def not_begun(self, dst: int, timeout_s: float | None) -> WorldTimeoutError:
        """Return what to raise for a send whose time ran out before it."""

    def finish(self, operation: WorldOperation, timeout_s: float | None, what: str) -> Waits[None]:
        """Wait for one operation."""


def give_away(world: Giver, array: Array, dst: int, timeout_s: float | None) -> Waits[None]:
    """As `World.give_away`."""
    world.check_usable()
    check_timeout(timeout_s)
    dst = world.other("dst", dst)
    deadline, loans = Deadline(timeout_s), world.loans
    is_near = world.transports[dst] == "shared_memory" and world.edges.end() is None
    is_lent = is_near and array.flags.c_contiguous and array.nbytes >= LENT_BYTES_MIN
    gift = loans.give(array, dst) if is_lent else None
    if gift is None and dst not in world.sending:
        sent, notice = _hand_over(world, array, dst, is_lent=is_lent)
    else:
        with world.sending.queued(dst) as turn:
            has_turn = yield from turn.wait_for_others(deadline)
            if not has_turn or (gift is not None and not (yield gift, deadline.left_s())):
                raise world.not_begun(dst, timeout_s)
            is_lent = is_lent and not (gift is not None and gift.trouble)  # copied, then
            sent, notice = _hand_over(world, array, dst, is_lent=is_lent)
    if sent is None:
        return
    try:
        yield from world.finish(sent, deadline.left_s(), f"send to rank {dst}")
    except BaseException:
        if notice is not None and sent.state == _CANCELLED and not sent.has_moved:
            loans.take_back(notice)
        raise


def _hand_over(
    world: Giver, array: Array, dst: int, *, is_lent: bool
) -> tuple[WorldOperation | None, bytes | None]:
    """Begin to send it; returns what is under way, and the notice that it was lent by."""
    lent, notice = to_send(array), world.loans.lend(array, dst) if is_lent else None
    said: Any = lent.buffer if notice is None else notice
    try:
        sent = world.edges.send(
            dst, 0, collectives.SEND, lent.dtype, lent.shape, said, is_notice=is_lent
        )
    except BaseException:
        if notice is not None:
            world.loans.take_back(notice)
        raise
    world.loans.seal(array)
    return sent, notice
