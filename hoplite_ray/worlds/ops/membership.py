"""One member of one epoch of a world, as every operation takes it: START HERE for operations."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from hoplite_ray._native import WorldEdges, WorldOperation
from hoplite_ray.errors import (
    InvalidArgumentError,
    UnusableAfterForkError,
    WorldBrokenError,
    WorldTimeoutError,
)
from hoplite_ray.worlds.core.checks import check_whole
from hoplite_ray.worlds.core.events import Cause, WorldEvent
from hoplite_ray.worlds.core.sending import Sendings
from hoplite_ray.worlds.core.waiting import BROKEN, DONE, PENDING, Turn, Waits, running_loop
from hoplite_ray.worlds.gpu.nccl import Gpu
from hoplite_ray.worlds.lending.loans import Loans


class Membership:
    """The place of this process in one epoch of a world: its rank, its edges, and their use.

    edges:       the native core's end of each edge; they are closed when the world is over.
    transports:  how each other rank is reached.
    gpu:         the communicators for arrays on GPUs, or why there are none.
    loans:       the memory that is lent to other members, and borrowed from them.
    sending:     the sends that have not begun, in their order.
    broken:      the event that has ended the world, once the manager has noted it.
    gone:        the events of the members that have left, by rank.

    Any thread may use it, in the process that has joined. The collectives that were called and have
    not ended are in the order of their calls: of two threads that call at once one waits for the
    other.
    """

    def __init__(
        self, name: str, epoch: int, rank: int, size: int, edges: WorldEdges, gpu: Gpu, loans: Loans
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.rank = rank
        self.size = size
        self.edges = edges
        self.gpu = gpu
        self.loans = loans
        others = [other for other in range(size) if other != rank]
        self.transports = {other: edges.transport(other) for other in others}
        self.sending = Sendings()
        self.broken: WorldEvent | None = None
        self.gone: dict[int, WorldEvent] = {}
        self._rounds = 0
        self._turns: list[Turn] = []
        self._turns_lock = threading.Lock()
        self._pid = os.getpid()

    def __str__(self) -> str:
        return f"world {self.name!r} (epoch {self.epoch})"

    # ---- checks

    def check_usable(self) -> None:
        """Raise UnusableAfterForkError in a forked child.

        The child would write between the bytes of its parent.
        """
        if os.getpid() != self._pid:
            raise UnusableAfterForkError(
                f"{self} was joined by this process's parent; join worlds after the fork, with a "
                "manager of this process"
            )

    def usable(self) -> Membership:
        """Return itself, in the process that has joined.

        Raises:  UnusableAfterForkError in a forked child.
        """
        self.check_usable()
        return self

    def check_other(self, what: str, rank: Any) -> int:
        """Return the rank of another member, as Python's own number.

        Raises:  WrongTypeError or InvalidArgumentError for a value that is none.
        """
        number: int = rank if type(rank) is int else check_whole(what, rank)
        if number not in self.transports:
            raise InvalidArgumentError(
                f"{what}={number} is no other rank of {self}, which has 0 to {self.size - 1}; this "
                f"is rank {self.rank}"
            )
        return number

    def check(self, operation: WorldOperation) -> None:
        """Raise unless the operation has succeeded."""
        if operation.state == DONE:
            return
        if operation.state == BROKEN:
            raise self.broken_error()
        raise WorldTimeoutError(f"an operation in {self} was taken back")

    # ---- the order of collectives

    def queue_turn(self) -> tuple[Turn, list[Turn]]:
        """Queue a collective; returns its turn, and the turns that it must wait for."""
        with self._turns_lock:
            before = list(self._turns)
            turn = Turn(running_loop())
            self._turns.append(turn)
        return turn, before

    def end_turn(self, turn: Turn) -> None:
        """Let the collectives go on that wait for this one."""
        with self._turns_lock:
            self._turns.remove(turn)
        turn.end()

    def begin_round(self) -> int:
        """Return the number of the collective that begins. REQUIRES: it is its turn."""
        self._rounds += 1
        return self._rounds

    def take_back_round(self) -> None:
        """Give the last number to the next collective. REQUIRES: nothing has moved under it."""
        self._rounds -= 1

    # ---- waiting

    def finish(
        self,
        operation: WorldOperation,
        timeout_s: float | None,
        what: str,
        keep: Callable[[], None] | None = None,
    ) -> Waits[None]:
        """Wait for one operation. Taken back, it loses nothing: the world stays usable.

        keep:  called if a receive is taken back when its message has just come.

        Raises:  WorldTimeoutError at the limit; WorldBrokenError once the world has ended.
        """
        try:
            has_ended = operation.state != PENDING or (yield operation, timeout_s)
        except BaseException:
            if not operation.cancel() and operation.state == DONE and keep is not None:
                keep()
            raise
        if not has_ended and operation.cancel():
            raise WorldTimeoutError(
                f"{what} in {self} did not finish within {timeout_s} s; it was taken back (what "
                "had begun to go still arrives), and the world stays usable"
            )
        self.check(operation)

    # ---- ends and errors

    def abort(self, why: str) -> None:
        """End the world for all members, at once. From any thread; idempotent."""
        self.check_usable()
        self.edges.abort(Cause.ABORTED, why)

    def report_mismatch(self, why: str) -> WorldBrokenError:
        """End the world because members do different things; returns the error to raise."""
        self.edges.abort(Cause.PROTOCOL, why)
        return self.broken_error()

    def broken_error(self) -> WorldBrokenError:
        """Return the error that says how the world has ended."""
        now_ns = time.monotonic_ns()
        end = self.edges.end()
        if end is None:  # the world was closed, and the operation was pending
            cause = Cause.LOCAL.name
            text = f"{self} was left; join it anew"
            return WorldBrokenError(text, self.name, self.epoch, self.rank, cause, now_ns)
        number, rank, why = end
        cause = Cause(number).name
        return WorldBrokenError(
            f"{self} has ended: {cause}, rank {rank}: {why}; join it again, with all members, for "
            "its next epoch",
            self.name,
            self.epoch,
            rank,
            cause,
            now_ns if self.broken is None else self.broken.at_ns,
        )

    def unbegun_error(self, dst: int, timeout_s: float | None) -> WorldTimeoutError:
        """Return the error of a send whose time ran out before it began."""
        return WorldTimeoutError(
            f"send to rank {dst} in {self} did not begin within {timeout_s} s; the array is still "
            "yours"
        )
