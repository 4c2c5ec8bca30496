"""Transfers between GPUs: the members agree over the host's edges, and then begin together.

Nothing is issued before all members of a transfer have agreed. An offer has a dtype and a size, so
that a mismatch ends the world, and no kernel waits for a peer that never comes.

* Between two members the sender offers, the receiver answers when it has an array, and the lower
  rank gives the turn.
* In a collective all members report to rank 0, which gives the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hoplite_ray._native import WorldOperation
from hoplite_ray.errors import InvalidArgumentError, WorldBrokenError, WorldTimeoutError
from hoplite_ray.worlds.core.waiting import PENDING, Deadline, Waits
from hoplite_ray.worlds.gpu.arrays import OnGpu, stream_of
from hoplite_ray.worlds.gpu.nccl import Gpu, give_back
from hoplite_ray.worlds.ops.call import Call, Steps
from hoplite_ray.worlds.ops.membership import Membership

_MARK = "@gpu"  # after the dtype of a message that is an offer

# Numbers of messages: multiples of eight, which the numbers of collectives are not. The bit keeps
# their keys apart from the rounds of collectives.
_SEND, _READY, _GO = 0, 8, 16
_KEY = 1 << 63
_OFFER_BYTES = 16


class Offer:
    """The offer of an array that a member wants to send from its GPU."""

    __slots__ = ("dtype", "number", "shape", "size_bytes")

    def __init__(self, dtype: str, shape: tuple[int, ...], said: Any) -> None:
        """Read an offer. Raises InvalidArgumentError for bytes that are none."""
        if memoryview(said).nbytes != _OFFER_BYTES:
            raise InvalidArgumentError(
                f"{memoryview(said).nbytes} B can't be an offer of {dtype}; the sender is at fault"
            )
        self.dtype = dtype.removesuffix(_MARK)
        self.shape = shape
        self.number, self.size_bytes = (int(each) for each in np.frombuffer(said, np.uint64))

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} ({self.size_bytes} B) on its GPU"


def mark_offer(dtype: str) -> str:
    """Return the dtype of the messages by which members agree on arrays of `dtype`."""
    return dtype + _MARK


def is_offer(dtype: str) -> bool:
    """Return True if a message of this dtype is an offer."""
    return dtype.endswith(_MARK)


class _Talk:
    """One transfer between two members. Both know of it, so that an early end ends the world."""

    def __init__(self, world: Membership, what: str, timeout_s: float | None) -> None:
        self._world = world
        self._what = what
        self._timeout_s = timeout_s
        self._deadline = Deadline(timeout_s)

    def wait(self, *operations: WorldOperation | None) -> Waits[None]:
        """Wait for each operation, and raise unless it has succeeded."""
        for operation in operations:
            if operation is None:
                continue
            if operation.state == PENDING and not (yield operation, self._deadline.left_s()):
                raise WorldTimeoutError(
                    f"{self._what} in {self._world} did not finish within {self._timeout_s} s"
                )
            self._world.check(operation)

    def run(self, steps: Waits[None]) -> Waits[None]:
        """Run the steps; an error leaves nothing in flight."""
        try:
            yield from steps
        except WorldBrokenError:
            raise
        except WorldTimeoutError as error:
            self._give_up("a timeout")
            raise WorldTimeoutError(
                f"{error}; the other member knew of it, so the world was aborted"
            ) from None
        except BaseException as error:
            self._give_up(f"{type(error).__name__} {error}"[:200])
            raise
        finally:
            give_back()

    def _give_up(self, why: str) -> None:
        self._world.abort(f"{self._what} was given up by rank {self._world.rank} after {why}")


def send(world: Membership, array: Any, dst: int, timeout_s: float | None) -> Waits[None]:
    """Send an array on a GPU; ends when it may be written to again.

    Raises:  WorldTimeoutError at the limit, which has ended the world.
    """
    lent = world.gpu.lend(array, is_filled=False)
    talk = _Talk(world, f"send to rank {dst}", timeout_s)
    return talk.run(_send(world, talk, lent, dst))


def _send(world: Membership, talk: _Talk, lent: OnGpu, dst: int) -> Waits[None]:
    number = world.gpu.next_offer(dst)
    said = np.array([number, lent.size_bytes], np.uint64)
    yield from talk.wait(world.edges.send(dst, 0, _SEND, mark_offer(lent.dtype), lent.shape, said))
    if lent.size_bytes == 0:
        return
    yield from _transfer(world, talk, "send", lent, dst, number)


def receive(
    world: Membership, offer: Offer, into: Any, src: int, timeout_s: float | None
) -> Waits[None]:
    """Receive an array that was offered, into an array on the GPU."""
    lent = world.gpu.lend(into, is_filled=True)
    if (lent.dtype, lent.size_bytes) != (offer.dtype, offer.size_bytes):
        raise world.report_mismatch(f"rank {src} sent {offer}, and {lent} was to be received")
    if lent.size_bytes == 0:
        return
    talk = _Talk(world, f"receive from rank {src}", timeout_s)
    yield from talk.run(_transfer(world, talk, "receive", lent, src, offer.number))


def _transfer(
    world: Membership, talk: _Talk, kind: str, lent: OnGpu, other: int, number: int
) -> Waits[None]:
    """Agree: the receiver is ready, the lower rank gives the turn, and both issue."""
    among = (min(world.rank, other), max(world.rank, other))
    sender = world.rank if kind == "send" else other
    key = _KEY | number << 1 | (sender == among[0])
    arrays: Any = ([lent], []) if kind == "send" else ([], [lent])
    if world.rank == among[0]:
        if kind == "send":
            heard = world.edges.receive(other, key, _READY, "", bytearray())
            yield from talk.wait(heard)
        operation, turn = world.gpu.issue(among, kind, *arrays, peer=other)
        go = world.edges.send(other, key, _GO, "", (), turn.to_bytes(8, "little"))
        yield from talk.wait(go, operation)
        return
    ready = None
    if kind == "receive":
        ready = world.edges.send(other, key, _READY, "", (), b"")
    turn_said = bytearray(8)
    heard = world.edges.receive(other, key, _GO, "", turn_said)
    yield from talk.wait(ready, heard)
    turn = int.from_bytes(turn_said, "little")
    operation, _ = world.gpu.issue(among, kind, *arrays, peer=other, turn=turn)
    yield from talk.wait(operation)


def plan_reduce_scatter(
    call: Call, gpu: Gpu, shares: Sequence[OnGpu], into: OnGpu, op: str
) -> Steps:
    """Yield the steps of a reduce-scatter on GPUs: a reduce of each share to its rank.

    NCCL's own reduce-scatter takes shares of one size only.
    """
    for rank, share in enumerate(shares):
        target = into if rank == call.rank else share
        yield from plan_collective(call, gpu, "reduce", [share], [target], root=rank, op=op)


def plan_collective(
    call: Call,
    gpu: Gpu,
    kind: str,
    sources: Sequence[OnGpu],
    targets: Sequence[OnGpu],
    *,
    root: int = 0,
    op: str | None = None,
) -> Steps:
    """Yield the steps of a collective on GPUs: all report to rank 0, which gives the turn."""
    size_bytes = (*sources, *targets)[0].size_bytes
    stream_of([*sources, *targets])
    everybody = tuple(range(call.size))
    others = everybody[1:]
    if call.rank > 0:
        yield [call.send(0, np.array([size_bytes], np.uint64))]
        given = np.zeros(1, np.uint64)
        yield [call.receive(0, given)]
        turn = int(given[0])
    else:
        said = {rank: np.zeros(1, np.uint64) for rank in others}
        yield [call.receive(rank, each) for rank, each in said.items()]
        for rank, each in said.items():
            if each[0] != size_bytes:
                raise call.report_mismatch(
                    f"rank {rank} called {kind} with {each[0]} B, and rank 0 with {size_bytes} B"
                )
        turn = 0
    if size_bytes == 0:
        if call.rank == 0:
            yield [call.send(rank, np.zeros(1, np.uint64)) for rank in others]
        return
    operation, turn = gpu.issue(
        everybody, kind, sources, targets, peer=root, op=op, turn=turn or None
    )
    call.note(operation)
    if call.rank == 0:
        yield [call.send(rank, np.array([turn], np.uint64)) for rank in others]
    try:
        yield [operation]
    finally:
        give_back()
