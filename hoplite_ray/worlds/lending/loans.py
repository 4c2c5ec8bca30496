"""Arrays on memory that processes of one machine share: sent without a copy.

`alloc` makes an array on a slab of memory of its own. What is sent of it is a notice of where it
lies, and its receiver has a read-only array there. Two processes have a connection for that, by
which the sender gives a slab's descriptor before its first notice, and the receiver says when it
has no array on one any more: then, and when the sender has none either, the slab is used anew. One
of which nobody can say that, as when a world has ended before, is given back to the machine, and
stays whole for whoever still maps it. So does all that a sender leaves behind.
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
    """What a world has of both: its members by their ranks."""

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
        """As `Lender.give`."""
        peer = self._peers[rank]
        return self._lender.give(array, self._world, peer, lambda: self._dial(rank))

    def lend(self, array: Array, rank: int) -> bytes:
        """As `Lender.lend`."""
        return self._lender.lend(array, self._world, self._peers[rank])

    def notice(self, said: Any, rank: int) -> Notice:
        """As `Notice.parsed`."""
        return Notice.parsed(said, self._peers[rank])
