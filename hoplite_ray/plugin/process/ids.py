"""Which object an array is: the same one again when Ray executes its task again.

The n-th array of a task is H(task id, n). Its incarnation counts the executions of the task: a
later attempt's bytes replace those of an earlier one, whatever any clock says (design decision 9).
A driver is never executed again, and Ray gives each further thread of a task a random task id: ids
made there are unique and nothing else. Coroutines of one call that make arrays at the same time
number them in the order they run.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from functools import cache

from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.refs import OBJECT_ID_BYTES

_TASKS_REMEMBERED = 16_384  # calls of one process that have made arrays and may still be running

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


def incarnation() -> int:
    """Incarnation of what the running task puts now: higher than in each earlier execution of it.

    A retry has a higher attempt number and runs in no earlier life of its actor. In an async actor
    Ray says attempt 0 always, and a retry in the same life makes arrays of other ids: there the
    life decides.
    """
    if seams.task_id() is None:
        return 1
    return 1 + seams.attempt_number() + lives_before()


def lives_before() -> int:
    """How often Ray had restarted this process's actor; asks Ray at an actor's first call only."""
    return _restarts(seams.actor_id())


@cache  # a worker that has run tasks may become an actor, and stays that one
def _restarts(actor: str | None) -> int:
    return 0 if actor is None else seams.restarts()
