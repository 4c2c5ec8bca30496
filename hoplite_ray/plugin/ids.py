"""Which object an array is: the same one again when Ray executes its task again.

The n-th array of a task is H(task id, n). Its incarnation is (attempt, time of the put): a later
attempt's bytes replace those of an earlier one. In an async actor Ray says attempt 0 always, so the
time decides there; it also tells the lives of a node apart. A driver is never executed again, and
Ray gives each further thread of a task a random task id: ids made there are unique and nothing
else. Coroutines of one call that make arrays at the same time number them in the order they run.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict

from hoplite_ray.plugin import seams
from hoplite_ray.refs import OBJECT_ID_BYTES

_TASKS_REMEMBERED = 16_384  # calls of one process that have made arrays and may still be running

# An incarnation's 32 bits: attempts, and ticks since the cluster's first node started. No actor
# restarts within a quarter of a second, and 26 bits of them are 194 days.
_TICK_BITS = 26
_TICKS_PER_S = 4
_ATTEMPTS_MAX = (1 << 32 - _TICK_BITS) - 1

_lock = threading.Lock()
_made: OrderedDict[tuple[bytes, int], int] = OrderedDict()


def next_array_id() -> bytes:
    """Id of the next array that the running task makes."""
    task = seams.task_id()
    if task is None:
        return os.urandom(OBJECT_ID_BYTES)
    running = (task, seams.attempt_number())
    with _lock:
        number = _made.pop(running, 0)
        _made[running] = number + 1
        if len(_made) > _TASKS_REMEMBERED:
            _made.popitem(last=False)
    text = task + number.to_bytes(8, "little")
    return hashlib.blake2b(text, digest_size=OBJECT_ID_BYTES, person=b"hoplite array").digest()


def incarnation(began_s: float) -> int:
    """Incarnation of what the running task puts now; `began_s`: when the nodes began."""
    attempt = seams.attempt_number() + 1 if seams.task_id() is not None else 1
    ticks = max(0, int((time.time() - began_s) * _TICKS_PER_S)) % (1 << _TICK_BITS)
    return min(attempt, _ATTEMPTS_MAX) << _TICK_BITS | ticks
