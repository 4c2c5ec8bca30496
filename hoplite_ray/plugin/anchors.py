"""Anchors: tiny refs of the node's steward, one per array, that end when the array's handles do.

An array must outlive the worker that made it, so the worker can't own what keeps it alive. Each
process keeps a few anchors in store, so that making an array doesn't wait for the steward (1 ms).
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import ray

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.seams import Ref

_ANCHORS_PER_CALL = 32
_ANCHORS_LOW = 8
_TAKE_S = 60.0  # the first call starts the steward's process, which takes seconds on a busy machine


class AnchorSupply:
    """The anchors in store of one process. Any thread may take."""

    def __init__(self, steward: Any) -> None:
        self._steward = steward
        self._ready: queue.SimpleQueue[Ref | Exception] = queue.SimpleQueue()
        self._refilling = threading.Lock()

    def take(self) -> Ref:
        """An anchor that nobody else has."""
        if self._ready.qsize() < _ANCHORS_LOW and self._refilling.acquire(blocking=False):
            threading.Thread(target=self._refill, name="hoplite-anchors", daemon=True).start()
        try:
            anchor = self._ready.get(timeout=_TAKE_S)
        except queue.Empty:
            raise HopliteError(
                f"the steward of this Ray node has not answered for {_TAKE_S:.0f} s; "
                "see its log in the Ray session directory"
            ) from None
        if isinstance(anchor, Exception):
            raise HopliteError(
                f"the steward of this Ray node does not answer: {anchor}"
            ) from anchor
        return anchor

    def _refill(self) -> None:
        try:
            for anchor in ray.get(self._steward.anchors.remote(_ANCHORS_PER_CALL)):
                self._ready.put(anchor)
        except Exception as error:
            self._ready.put(error)  # one taker is told; the next one asks again
        finally:
            self._refilling.release()
