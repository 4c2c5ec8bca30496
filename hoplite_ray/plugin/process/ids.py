"""The ids of arrays: an array has the same id when Ray executes its task again.

The n-th array of a task is H(task id, n). Its incarnation counts the executions of the task: a
later attempt's bytes replace those of an earlier one, independent of any clock (design decision 9).
In a driver, and in a further thread of a task, ids are only unique: Ray never executes a driver
again, and gives each such thread a random task id. Coroutines of one call number their arrays in
the order in which they run.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from functools import cache

from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.values.layout import OBJECT_ID_BYTES

_TASKS_REMEMBERED = 16_384  # running calls of one process; beyond it the oldest counts anew

_lock = threading.Lock()
_counts: OrderedDict[tuple[bytes, int], int] = OrderedDict()


def next_array_id() -> bytes:
    """Return the id of the next array that the running task makes."""
    task = seams.task_id()
    if task is None:
        return os.urandom(OBJECT_ID_BYTES)
    running = (task, seams.attempt_number())
    with _lock:
        number = _counts.pop(running, 0)
        _counts[running] = number + 1
        if len(_counts) > _TASKS_REMEMBERED:
            _counts.popitem(last=False)
    text = task + number.to_bytes(8, "little")
    return hashlib.blake2b(text, digest_size=OBJECT_ID_BYTES, person=b"hoplite array").digest()


def incarnation() -> int:
    """Return the incarnation of the running task's objects: higher than in earlier executions.

    A retry has a higher attempt number, and its actor has restarted as often or more often. In an
    async actor the attempt is always 0, and only restarts count: a retry without a restart makes
    other ids.
    """
    if seams.task_id() is None:
        return 1
    return 1 + seams.attempt_number() + count_restarts()


def count_restarts() -> int:
    """Return how often Ray has restarted this process's actor; only the first call asks Ray."""
    return _restarts(seams.actor_id())


@cache  # by actor, because a worker that has run tasks may become one
def _restarts(actor: str | None) -> int:
    return 0 if actor is None else seams.restarts()
