"""Anchors: tiny refs of the node's steward, one per array, that end when the array's handles do.

An array must outlive the worker that made it, so the worker can't own what keeps it alive. Each
process keeps a few anchors in store, so that making an array doesn't wait for the steward (1 ms).
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
from typing import Any

import ray

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.seams import Ref
from hoplite_ray.plugin.start import NodePlace

_ANCHORS_PER_CALL = 32
_ANCHORS_LOW = 8
_LIFE_DIGITS = 9
_TAKE_S = 60.0  # the first call starts the steward's process, which takes seconds on a busy machine


class StewardLife:
    """Which life of the steward this is, as long as this is it: it holds the file's flock."""

    def __init__(self, place: NodePlace) -> None:
        file = place.directory / "steward"
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self.number = int(os.pread(self._descriptor, _LIFE_DIGITS, 0) or b"0") + 1
        os.pwrite(self._descriptor, b"%0*d" % (_LIFE_DIGITS, self.number), 0)

    @staticmethod
    def of(place: NodePlace) -> int:
        """The number of the present life; 0 between two lives."""
        descriptor = os.open(place.directory / "steward", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.pread(descriptor, _LIFE_DIGITS, 0) or b"0")
        finally:
            os.close(descriptor)
        return 0


class AnchorSupply:
    """The anchors in store of one process. Any thread may take."""

    def __init__(self, place: NodePlace, steward: Any) -> None:
        self._place = place
        self._steward = steward
        self._ready: queue.SimpleQueue[tuple[int, Ref] | Exception] = queue.SimpleQueue()
        self._refilling = threading.Lock()

    def take(self) -> Ref:
        """An anchor that nobody else has, of the steward's present life."""
        while True:
            if self._ready.qsize() < _ANCHORS_LOW and self._refilling.acquire(blocking=False):
                threading.Thread(target=self._refill, name="hoplite-anchors", daemon=True).start()
            try:
                taken = self._ready.get(timeout=_TAKE_S)
            except queue.Empty:
                raise HopliteError(
                    f"the steward of this Ray node has not answered for {_TAKE_S:.0f} s; "
                    "see its log in the Ray session directory"
                ) from None
            if isinstance(taken, Exception):
                raise HopliteError(
                    f"the steward of this Ray node does not answer: {taken}"
                ) from taken
            life, anchor = taken
            if life == StewardLife.of(self._place):
                return anchor

    def _refill(self) -> None:
        try:
            life, anchors = ray.get(self._steward.anchors.remote(_ANCHORS_PER_CALL))
            for anchor in anchors:
                self._ready.put((life, anchor))
        except Exception as error:
            self._ready.put(error)  # one taker is told; the next one asks again
        finally:
            self._refilling.release()
