"""Makes this process known to the stewards whose anchors it has.

A borrower tells a ref's owner of its own borrowers only when it drops the ref. If it dies first,
Ray forgets them 2 s later, and their arrays would go. So a process that receives an array asks the
anchor's steward for the anchor. From then on it is the steward's own borrower.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections import defaultdict
from concurrent.futures import Future
from typing import Any

import ray

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward_client.client import steward_on

_logger = logging.getLogger("hoplite_ray.holding")

# A twentieth of Ray's 2 s. Arguments of short tasks have gone by then, and cost nothing.
_DELAY_S = 0.1


class BorrowedArrays:
    """The arrays that this process has received lately. Any thread may add."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._received: queue.SimpleQueue[weakref.ref[Any]] = queue.SimpleQueue()
        self._calls: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="hoplite-holdings", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True if the thread that asks for added arrays runs."""
        return self.pid == os.getpid() and self._thread.is_alive()

    def add(self, array: Any) -> None:
        """Ask for the anchor of `array` soon, unless it has gone by then."""
        self._received.put(weakref.ref(array))

    def _run(self) -> None:
        while True:
            received = [self._received.get()]
            time.sleep(_DELAY_S)
            while not self._received.empty():
                received.append(self._received.get())
            connection = seams.connection()
            if connection is None:
                continue  # an array from before a ray.shutdown needs nothing any more
            try:
                with seams.stay_connected(connection):
                    self._borrow(received)
            except HopliteError:
                continue  # that was a ray.shutdown
            except Exception as error:  # the next arrays may succeed
                _logger.warning("%d arrays are not asked for: %s", len(received), error)

    def _borrow(self, received: list[weakref.ref[Any]]) -> None:
        of_node = defaultdict(set)
        for each in received:
            array = each()
            if array is not None and (owner := seams.owner_node_id(array._anchor)) is not None:
                of_node[owner].add(array._anchor.binary())
        for owner, anchors in of_node.items():
            try:
                call = steward_on(owner).hold.remote(list(anchors)).future()
            except (ValueError, ray.exceptions.RayError):
                continue  # that steward has gone, and its anchors with it
            self._calls.add(call)
            call.add_done_callback(self._forget_call)

    def _forget_call(self, call: Future[Any]) -> None:
        call.exception()  # a steward that has died has no anchors any more
        self._calls.discard(call)


_current: BorrowedArrays | None = None


def register_borrow(array: Any) -> None:
    """Have this process ask for the anchor of `array`, which it has received."""
    global _current
    if _current is None or not _current.is_alive:
        _current = BorrowedArrays()
    _current.add(array)
