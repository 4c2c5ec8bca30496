"""Sends of arrays of `alloc`: a notice where the receiver can map the array, else its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hoplite_ray._native import WorldOperation
from hoplite_ray.values.deadlines import checked_timeout
from hoplite_ray.worlds.core.arrays import to_send
from hoplite_ray.worlds.core.waiting import CANCELLED, Deadline, Waits
from hoplite_ray.worlds.lending.lender import LENT_BYTES_MIN
from hoplite_ray.worlds.ops.call import SEND
from hoplite_ray.worlds.ops.membership import Membership

Array = np.ndarray[Any, Any]


def give_away(world: Membership, array: Array, dst: int, timeout_s: float | None) -> Waits[None]:
    """Send an array of `alloc`: its notice if the receiver can map it. It is read-only afterwards.

    Raises:  WorldTimeoutError, WorldBrokenError; a notice that never went is taken back.
    """
    world.check_usable()
    checked_timeout(timeout_s)
    dst = world.check_other("dst", dst)
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
                raise world.unbegun_error(dst, timeout_s)
            is_lent = is_lent and not (
                gift is not None and gift.trouble
            )  # the gift did not arrive: send the bytes
            sent, notice = _hand_over(world, array, dst, is_lent=is_lent)
    if sent is None:
        return
    try:
        yield from world.finish(sent, deadline.left_s(), f"send to rank {dst}")
    except BaseException:
        if notice is not None and sent.state == CANCELLED and not sent.has_moved:
            loans.take_back(notice)
        raise


def _hand_over(
    world: Membership, array: Array, dst: int, *, is_lent: bool
) -> tuple[WorldOperation | None, bytes | None]:
    """Begin to send; returns the operation, and the notice if the array was lent."""
    lent, notice = to_send(array), world.loans.lend(array, dst) if is_lent else None
    said: Any = lent.buffer if notice is None else notice
    try:
        sent = world.edges.send(dst, 0, SEND, lent.dtype, lent.shape, said, is_notice=is_lent)
    except BaseException:
        if notice is not None:
            world.loans.take_back(notice)
        raise
    world.loans.seal(array)
    return sent, notice
