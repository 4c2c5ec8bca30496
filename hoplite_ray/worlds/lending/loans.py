"""Arrays on memory that processes of one machine share: sent without a copy.

`alloc` makes an array on a slab: a piece of memory of its own. The sender sends a notice of where
the array lies, and the receiver gets a read-only array there. The two processes have a connection
for that. By it the sender gives a slab's descriptor before the slab's first notice, and the
receiver reports each loan that has ended.

A slab is used again when neither process has an array on it. When a world ends before the receiver
has reported a loan, its slab is given back to the machine instead, and stays whole for a process
that still maps it. The same holds for the slabs that a sender leaves behind.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from hoplite_ray.worlds.lending.borrower import Borrower
from hoplite_ray.worlds.lending.lender import Gift, Lender
from hoplite_ray.worlds.lending.notice import Notice

Array = np.ndarray[Any, Any]


class Loans:
    """The lender and the borrower as one world uses them, with members named by rank."""

    def __init__(
        self,
        lender: Lender,
        borrower: Borrower,
        world: int,
        peers: Mapping[int, str],
        dial: Callable[[int], Awaitable[socket.socket]],
    ) -> None:
        self._lender = lender
        self._borrower = borrower
        self._world = world
        self._peers = peers
        self._dial = dial
        self.alloc = lender.alloc
        self.is_ours = lender.is_ours
        self.seal = lender.seal
        self.take_back = lender.take_back
        self.array = borrower.array

    def give(self, array: Array, rank: int) -> Gift | None:
        """Like `Lender.give`."""
        peer = self._peers[rank]
        return self._lender.give(array, self._world, peer, lambda: self._dial(rank))

    def lend(self, array: Array, rank: int) -> bytes:
        """Like `Lender.lend`."""
        return self._lender.lend(array, self._world, self._peers[rank])

    def notice(self, said: Any, rank: int) -> Notice:
        """Like `Notice.parsed`."""
        return Notice.parse(said, self._peers[rank])
