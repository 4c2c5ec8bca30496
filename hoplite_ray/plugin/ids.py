"""Which object an array is: the same one again when Ray executes its task again.

The n-th array of a task is H(task id, n). Its incarnation is (attempt, life of the node): a later
attempt's bytes replace those of an earlier one. A driver is never executed again, and Ray gives
each further thread of a task a random task id: ids made there are unique and nothing else. Two
coroutines of one task that make arrays at the same time number them in the order they run.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict

from hoplite_ray.plugin import seams
from hoplite_ray.refs import OBJECT_ID_BYTES

_TASKS_REMEMBERED = 16_384  # calls of one process that have made arrays and may still be running
_LIFE_BITS = 12  # of an incarnation's 32; the rest counts attempts

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


def incarnation(node_life: int) -> int:
    """Incarnation of the bytes that the running task puts now."""
    attempt = seams.attempt_number() if seams.task_id() is not None else 0
    return (attempt + 1) << _LIFE_BITS | node_life & (1 << _LIFE_BITS) - 1
