"""Anchors: tiny refs of the node's steward, one per array, that end with the array's handles.

An array outlives the worker that made it, so the steward owns the ref that keeps it alive. Each
process keeps a few anchors in store: without them each new array would wait for the steward.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from hoplite_ray.errors import GetTimeoutError, HopliteError
from hoplite_ray.plugin.node.start import NodePlace
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.steward_client.client import ask_any
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation

_ANCHORS_PER_CALL = 32
_ANCHORS_LOW = 8
_TAKE_S = 60.0  # of a taker's wait, beyond which it fails; the first call may start the steward
_LOOK_S = 0.1  # between looks, because more takers may wait than the last call brought anchors for


class AnchorSupply:
    """The anchors in store of one process. Any thread may take."""

    def __init__(
        self,
        place: NodePlace,
        steward: Callable[[], Any],
        elsewhere: Callable[[], Iterable[Callable[[], Any]]] = lambda: (),
    ) -> None:
        """Take no anchor yet. `elsewhere`: other Ray nodes' stewards, if Ray places none here."""
        self._place = place
        self._steward = steward
        self._elsewhere = elsewhere
        self._connection = seams.connection()
        self._ready: queue.SimpleQueue[tuple[int | None, Ref]] = queue.SimpleQueue()
        self._failures: deque[Exception] = deque(maxlen=1)  # of the last call, for one taker
        self._refill_lock = threading.Lock()

    def take(self, timeout_s: float | None = None) -> Ref:
        """Return an anchor for this caller alone, of the current steward or of another node's.

        Raises: GetTimeoutError after `timeout_s`; HopliteError if the steward does not answer.
        """
        limit_s = _TAKE_S if timeout_s is None else min(timeout_s, _TAKE_S)
        deadline = time.monotonic() + limit_s
        while True:
            if self._ready.qsize() < _ANCHORS_LOW and self._refill_lock.acquire(blocking=False):
                self._failures.clear()  # the failure of an earlier call does not matter
                threading.Thread(target=self._refill, name="hoplite-anchors", daemon=True).start()
            left_s = deadline - time.monotonic()
            try:
                life, anchor = self._ready.get(timeout=min(_LOOK_S, max(0.0, left_s)))
            except queue.Empty:
                with suppress(IndexError):
                    failure = self._failures.popleft()
                    raise HopliteError(
                        f"the steward of this Ray node does not answer: {failure}"
                    ) from failure
                if left_s > 0:
                    continue  # other takers may have all anchors of the last call
                raise _late_error(limit_s, timeout_s) from None
            used = StewardIncarnation.use(self._place, max(0.0, deadline - time.monotonic()))
            if life == used or life is None:
                return anchor
            if used is None:
                raise _late_error(limit_s, timeout_s)

    def _refill(self) -> None:
        try:
            life, anchors = self._ask()
            for anchor in anchors:
                self._ready.put((life, anchor))
        except Exception as error:
            self._failures.append(error)  # one waiting taker raises it; the next taker asks again
        finally:
            self._refill_lock.release()

    def _ask(self) -> tuple[int | None, list[Ref]]:
        """Return the incarnation and anchors of the steward here; or None and one of another's.

        On a node that Ray drains no steward can begin, if the last one has left before.
        """
        return ask_any(self._steward, self._elsewhere, self._request_anchors)

    def _request_anchors(self, steward: Any, is_here: bool) -> tuple[int | None, list[Ref]]:
        # One from elsewhere: a later steward here would take an array with it for an orphan.
        count = _ANCHORS_PER_CALL if is_here else 1
        life, anchors = seams.wait_for_answer(
            lambda: steward.anchors.remote(count), self._connection
        )
        return life if is_here else None, anchors


def _late_error(limit_s: float, timeout_s: float | None) -> HopliteError:
    """Return the error of a taker that has no anchor within `limit_s`."""
    kind = GetTimeoutError if limit_s == timeout_s else HopliteError
    return kind(
        f"the steward of this Ray node has not answered for {limit_s:g} s; "
        "see its log in the Ray session directory"
    )
