"""Large values for several stages: one copy in the store, and its id on each edge.

The object is freed when its sender releases it, or dies. The value goes over the edges itself if

    it has one receiver        on one host that is one copy as well
    it is small                below _BYTES_MIN an id saves nothing
    it has arrays on GPUs, or handles of Ray
    the store is not there, is full, or has lost the object

Source: Hoplite 5.4.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import numpy as np

import hoplite_ray
from hoplite_ray.client import StoreClient
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge import gpu_arrays
from hoplite_ray.serve.edge.failures import unsendable_error
from hoplite_ray.serve.edge.frames import Message, pack_frame, unpack_frame
from hoplite_ray.serve.errors import StoredLostError

logger = logging.getLogger("hoplite_ray.serve")

_BYTES_MIN = 256 << 10  # of a value; smaller values cost less on each edge
_SHARE = 0.5  # of a query's remaining time, for the store; the first value starts its node
_START_S = 30.0  # for the first value of a process: a node, its steward and room
_ROOM_S = 1.0  # for room in the store; then the value goes over the edges
_AGAIN_S = 10.0  # after the store was missing or silent, before it is used again
_TELLING_S = 0.1  # a get with a shorter limit proves nothing about the store

_no_store_until_s = 0.0
_no_get_until_s = 0.0
_has_put = False  # True if this process has put a value, so its store is there
_is_logged = False  # True if the log says why there is no store
_attach_task: asyncio.Task[StoreClient] | None = None
_overdue_puts: set[asyncio.Task[Any]] = set()  # puts under way for which no query waits


class Stored:
    """A value in the store, of which the id travels. Its maker keeps the object and the value."""

    __slots__ = ("array", "object_id", "value")

    def __init__(self, object_id: bytes, value: Any = None, array: Any = None) -> None:
        self.object_id = object_id
        self.value = value
        self.array = array

    def __reduce__(self) -> tuple[type[Stored], tuple[bytes]]:
        return Stored, (self.object_id,)


async def share(value: Any, receivers: int, what: str, left_s: float) -> Any:
    """Return what to send to `receivers` replicas: a Stored if that saves bytes, else the value.

    what:    names the value in errors.
    left_s:  the time until its query's deadline. The store may take a share of it.

    Raises:  TypeError for a value that pickle can't take.
    """
    if receivers < 2 or _overdue_puts or time.monotonic() < _no_store_until_s:
        return value
    try:
        message = Message.pack(0, 0, value, gpu_arrays.ANY if gpu_arrays.is_in_use() else None)
    except BaseException as error:  # like Edge: a SystemExit of the value would end this loop
        raise unsendable_error(what, error) from error
    if message.size_bytes < _BYTES_MIN or message.arrays or message.handles:
        return value
    putting = asyncio.create_task(asyncio.to_thread(_put, value, message))
    try:
        done, _ = await asyncio.wait({putting}, timeout=_SHARE * left_s)
    finally:
        if not putting.done():
            _overdue_puts.add(putting)
            putting.add_done_callback(_forget_put)
    return putting.result() if done else value


def _forget_put(putting: asyncio.Task[Any]) -> None:
    _overdue_puts.discard(putting)
    if not putting.cancelled() and (error := putting.exception()) is not None:
        logger.debug("a value that no query waited for could not be put: %s", error)


def _begin_attach() -> asyncio.Task[StoreClient]:
    """Return the task that gets the store. All queries wait for the same one, and its thread.

    The task starts a node that has died again, which may take minutes.
    """
    global _attach_task
    loop = asyncio.get_running_loop()
    if _attach_task is None or _attach_task.done() or _attach_task.get_loop() is not loop:
        _attach_task = loop.create_task(asyncio.to_thread(lambda: attachment().store))
        _attach_task.add_done_callback(_log_refusal)
    return _attach_task


def _log_refusal(attaching: asyncio.Task[StoreClient]) -> None:
    if not attaching.cancelled() and (error := attaching.exception()) is not None:
        logger.debug("there is no store here: %s", error)


async def fetch(value: Any, timeout_s: float) -> Any:
    """Return a value that was sent; a Stored is read from the store.

    The store may take a share of the time, because the sender needs the rest. After a node did not
    answer in that time, later values are refused at once for _AGAIN_S.

    Raises:  StoredLostError if the value can't be read; the sender then sends the value itself.
    """
    if not isinstance(value, Stored):
        return value
    began_s = time.monotonic()
    if began_s < _no_get_until_s:
        raise StoredLostError("the store here has not answered in time, and is asked again later")
    share_s = _SHARE * timeout_s
    try:
        store = await asyncio.wait_for(asyncio.shield(_begin_attach()), share_s)
        left_s = max(0.0, began_s + share_s - time.monotonic())
        received = await store.begin_get(value.object_id, exists=True).result_async(left_s)
    except TimeoutError as error:
        why = str(error) or "there is no store here yet"
        _refuse_gets(share_s, why)
        raise StoredLostError(why) from None
    except Exception as error:  # of any class: the sender has the value
        raise StoredLostError(str(error)) from None
    return unpack_frame(received.value)[0].value()


def _refuse_gets(waited_s: float, why: str) -> None:
    global _no_get_until_s
    now_s = time.monotonic()
    if waited_s < _TELLING_S or now_s < _no_get_until_s:
        return
    _no_get_until_s = now_s + _AGAIN_S
    logger.warning("large values come over the edges for %s s: %s", _AGAIN_S, why)


def _put(value: Any, message: Message) -> Any:
    global _no_store_until_s, _has_put, _is_logged
    limit_s = _ROOM_S if _has_put else _START_S
    made: list[hoplite_ray.Array] = []

    def empty(size_bytes: int) -> Any:
        made.append(hoplite_ray.empty(size_bytes, "uint8", timeout_s=limit_s))
        return np.asarray(made[0])

    try:
        pack_frame([message], empty)
        kept = hoplite_ray.array(made[0], timeout_s=limit_s)  # which seals it
    except Exception as error:  # for example a full disk, or options of another job
        _no_store_until_s = time.monotonic() + _AGAIN_S
        level = logging.DEBUG if _is_logged else logging.WARNING
        logger.log(level, "large values go over the edges, each one several times: %s", error)
        _is_logged = True
        return value
    _has_put, _is_logged = True, False
    metrics.count("serve_stored_bytes", kept.nbytes)
    return Stored(kept._object_id, value, kept)
