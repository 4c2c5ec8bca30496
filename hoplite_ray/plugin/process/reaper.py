"""Deletes objects to which no reference is left, on a thread of its own.

All callbacks of a process share one thread of Ray's, which must not block. So a callback queues its
id here, and does nothing else. For refs that are alive at `ray.shutdown` no callback comes: the
thread notices the shutdown, and leaves them and all that is queued to the steward.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

import ray

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref

_logger = logging.getLogger("hoplite_ray.lifetime")

_LOOK_EVERY_S = 1.0  # between two looks for a ray.shutdown


class Reaper:
    """Calls `release(id)` after the ref of that id has gone out of scope everywhere.

    It calls `shut_down` once, soon after the process has left the Ray that it was in.
    """

    def __init__(
        self, release: Callable[[bytes], None], shut_down: Callable[[], None] = lambda: None
    ) -> None:
        self._release = release
        self._shut_down = shut_down
        self._connection = seams.connection()
        self._gone: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hoplite-reaper", daemon=True)
        self._thread.start()

    def watch(self, ref: Ref) -> None:
        """Release the object of `ref`, which this process owns, when no reference to it is left."""
        if not seams.add_out_of_scope_callback(ref, self._gone.put):
            self._gone.put(ref.binary())

    def close(self) -> None:
        self._gone.put(None)
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while True:
            object_id: bytes | None = b""
            with suppress(queue.Empty):
                object_id = self._gone.get(timeout=_LOOK_EVERY_S)
            if object_id is None:
                return
            if not self._is_connected():
                return self._shut_down()
            if not object_id:
                continue
            try:
                self._release(object_id)
            except (HopliteError, ray.exceptions.RayError):
                pass  # the node has gone, and the object with it
            except Exception as error:  # for example a full disk; the next object may succeed
                _logger.warning("object %s is left to its steward: %s", object_id.hex(), error)

    def _is_connected(self) -> bool:
        """Return True if this process is still in the Ray that it was in."""
        try:
            return seams.connection() == self._connection
        except Exception:  # Ray's objects are half gone, because a ray.shutdown is under way
            return False
