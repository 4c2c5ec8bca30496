"""One collective of one member, under way: its turn, its number, and what it has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from hoplite_ray._native import WorldOperation
from hoplite_ray.errors import WorldBrokenError, WorldTimeoutError
from hoplite_ray.values.deadlines import checked_timeout
from hoplite_ray.worlds.core.waiting import DONE, PENDING, Deadline, Waits
from hoplite_ray.worlds.ops.membership import Membership

Flat = np.ndarray[Any, Any]
Steps = Generator[
    Sequence[Any], None, Any
]  # the operations of each step; None for one that is done

# The number of a message says what its sender has called, so that a barrier is never taken for a
# broadcast. The number of a collective also has its op, and its root modulo 8. It is one byte, and
# no multiple of 8, which are the numbers of transfers.
SEND = 0
_OPERATIONS = {
    "broadcast": 1,
    "reduce": 2,
    "all_reduce": 3,
    "all_gather": 4,
    "gather": 5,
    "scatter": 6,
    "barrier": 7,
}


_OPS = ("sum", "prod", "min", "max", "mean")
_REDUCE_SCATTER = 12  # and 44, 76 and so on by its op: all_gather, 4, has no op and no root
_MEAN_TO_ALL = 35  # all_reduce, 3, has no root
_MEAN_TO_ONE = 15  # and 47, 79 and so on by its root: barrier, 7, has no op and no root


def number_call(name: str, op: str = "sum", root: int = 0) -> int:
    """Return the number of a collective's messages."""
    if name == "reduce_scatter":
        return _REDUCE_SCATTER + 32 * _OPS.index(op)
    if op == "mean":
        return _MEAN_TO_ALL if name == "all_reduce" else _MEAN_TO_ONE + 32 * (root % 8)
    return _OPERATIONS[name] + 8 * _OPS.index(op) + 32 * (root % 8)


class Call:
    """One collective of one member, from its call to its end. One thread or task runs it."""

    def __init__(
        self, world: Membership, name: str, dtype: str, op: str = "sum", root: int = 0
    ) -> None:
        self.rank = world.rank
        self.size = world.size
        self._world = world
        self._name = name
        self._dtype = dtype
        self._number = number_call(name, op, root)
        self._begun: list[WorldOperation | None] = []
        self._round = 0  # drawn when it is this call's turn
        self._turn, self._before = world.queue_turn()

    def send(self, to: int, part: Flat) -> WorldOperation | None:
        """Begin to send a part."""
        operation = self._world.edges.send(
            to, self._round, self._number, self._dtype, part.shape, _view_bytes(part)
        )
        self._begun.append(operation)
        return operation

    def receive(self, source: int, part: Flat) -> WorldOperation | None:
        """Begin to receive a part."""
        operation = self._world.edges.receive(
            source, self._round, self._number, self._dtype, _view_bytes(part)
        )
        self._begun.append(operation)
        return operation

    def note(self, operation: WorldOperation) -> None:
        """Note an operation that was begun for this call by other means than its edges."""
        self._begun.append(operation)

    def report_mismatch(self, why: str) -> WorldBrokenError:
        """End the world because members call different things; returns the error to raise."""
        return self._world.report_mismatch(why)

    def run(self, steps: Steps, timeout_s: float | None) -> Waits[None]:
        """Run the steps, after the collectives that were called before.

        An early end leaves nothing in flight. It ends the world if a part of the call has moved.
        """
        try:
            checked_timeout(timeout_s)
            deadline = Deadline(timeout_s)
            # Side by side they could fill the window with messages that no member waits for yet.
            for turn in self._before:
                if turn.state == PENDING and not (yield turn, deadline.left_s()):
                    raise WorldTimeoutError(
                        f"{self._name} in {self._world} waited {timeout_s} s for those before it"
                    )
            self._round = self._world.begin_round()
            for operations in steps:
                for operation in operations:
                    if operation is None:
                        continue
                    if operation.state == PENDING and not (yield operation, deadline.left_s()):
                        raise WorldTimeoutError(
                            f"{self._name} in {self._world} did not finish within {timeout_s} s"
                        )
                    self._world.check(operation)
        except WorldBrokenError:
            self._take_back()
            raise
        except WorldTimeoutError as error:
            raise WorldTimeoutError(f"{error}; {self._give_up('a timeout')}") from None
        except asyncio.CancelledError:
            self._give_up("being cancelled")
            raise
        except BaseException as error:
            self._give_up(f"an error: {error!r:.200}")
            raise
        finally:
            self._world.end_turn(self._turn)

    def _give_up(self, why: str) -> str:
        """Take the call back if no part has moved; else end the world. Returns which, in words."""
        has_moved = any(
            each is None or each.state == DONE or each.has_moved for each in self._begun
        )
        self._take_back()
        if not has_moved:
            if self._round > 0:
                self._world.take_back_round()
            return "nothing of it had moved, and the world stays usable"
        self._world.abort(f"{self._name} was given up by rank {self.rank} after {why}")
        return "it had begun, so the world was aborted"

    def _take_back(self) -> None:
        for operation in self._begun:
            if operation is not None:
                operation.cancel()


def _view_bytes(part: Flat) -> Any:
    """Return the part's memory as a buffer, also of dtypes that numpy does not export."""
    return part.view(np.uint8)
