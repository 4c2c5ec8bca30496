"""One source of a pending reduce or gather: from a ref to the handle of a value in the store.

The steward reads handles and nothing else. It reads no value or error of a user, because only the
caller's job may have the modules of these: a value that is no handle is the caller's to read
(bare_sources.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from hoplite_ray.plugin.handle import array as arrays
from hoplite_ray.plugin.handle.array import SMALL_BYTES_MAX, Array
from hoplite_ray.plugin.handle.fetching import get_bytes_async_of
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import values as value_seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.steward.looking import Looks

_FETCH_S = 1.0  # of a thread's time for one source, beyond which other sources have their turn
_NAMES = {
    (each.__module__, each.__name__): each for each in (arrays._unpickled, arrays._unpickled_put)
}


class SourceError(Exception):
    """The error of a source, still pickled: another process that unpickles it gets that error."""

    def __init__(self, message: bytes) -> None:
        super().__init__(message)
        self._message = message

    def __str__(self) -> str:
        text = value_seams.text_of(self._message).strip()
        return text.removeprefix("ray.exceptions.RayTaskError: ")

    def __reduce__(self) -> tuple[Any, ...]:
        return _read_error, (self._message,)


def _read_error(message: bytes) -> BaseException:
    error = value_seams.error_of(message)
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


@dataclass(slots=True, eq=False)
class Source:
    """A source and its result. Only this refers to its ref, so `drop_refs` drops the last one."""

    index: int
    ref: Ref | None
    handle: Array | None = None
    wrapped: Ref | None = None  # of a bare value: the ref of the handle that a task makes
    failure: Exception | None = None

    def describe_fate(self, *, is_lost: bool = False) -> str:
        """Return a line about it. `is_lost` is True if no holder of its bytes is left."""
        assert self.ref is not None
        name = f"source {self.index} ({self.ref.hex()[:12]}..)"
        if self.failure is None:
            if is_lost:
                return f"{name}: had been ready, then lost"
            return f"{name}: {'ready' if self.handle is not None else 'pending'}"
        last = (str(self.failure).strip().splitlines() or [""])[-1]
        if not isinstance(self.failure, SourceError):
            return f"{name}: {type(self.failure).__name__}: {last}"
        kind, colon, text = last.partition(": ")
        return f"{name}: {kind.rpartition('.')[2]}{colon}{text}"

    def drop_refs(self) -> None:
        """Drop refs now: the traceback of an error would keep them until Python collects it."""
        self.ref = self.handle = self.wrapped = self.failure = None


# Has a source's bare value put into the store. Its arguments: the source, a Ray node that has the
# value, and True if the value is too large to be sent to the caller.
TakeBare: TypeAlias = Callable[[Source, str | None, bool], Awaitable[Array | Ref]]


async def resolve(
    source: Source,
    arrivals: asyncio.Queue[Source],
    looks: Looks,
    take_bare: TakeBare,
    *,
    needs_bytes: bool = False,
) -> None:
    """Wait for a source's task, get its handle or its error, and queue the source in `arrivals`.

    If `needs_bytes`, the handle of a small value has the bytes, also if nodes have made the value.
    """
    try:
        assert source.ref is not None
        await seams.wait_ready(source.ref)
        look = await looks.at(source)
        handle = None if look.is_large else await _read_handle(lambda: source.ref, look.unread)
        if handle is None:
            taken = await take_bare(source, look.node, look.is_large)
            if isinstance(taken, Array):
                handle = taken
            else:
                source.wrapped = taken
                await seams.wait_ready(taken)
                del taken
                handle = await _read_handle(lambda: source.wrapped)
        source.handle = await _with_bytes(handle) if handle is not None and needs_bytes else handle
    except Exception as failure:
        source.failure = failure
    await arrivals.put(source)


async def _with_bytes(handle: Array) -> Array:
    """Return a handle that has the bytes, if its value is small; else the same one."""
    if handle.nbytes > SMALL_BYTES_MAX or handle._data is not None:
        return handle
    return handle._with_data(await get_bytes_async_of(handle._object_id))  # a share of a reduce


async def _read_handle(
    ref: Callable[[], Ref | None], unread: value_seams.Unread | None = None
) -> Array | None:
    """Return the handle that is the value of a ready ref; None for any other value.

    Args:
        unread: the value, if it is here already.

    Raises: SourceError for an error of the source's task; an error of Ray's own.
    """
    while unread is None:
        unread = await asyncio.to_thread(_fetch, ref)
    failure = value_seams.failure_in(unread)
    if failure is not None:
        raise SourceError(failure) if isinstance(failure, bytes) else failure
    value = value_seams.read_value(unread, _NAMES)
    return value if isinstance(value, Array) else None


def _fetch(ref: Callable[[], Ref | None]) -> value_seams.Unread | None:
    present = ref()
    assert present is not None, "the call has ended"
    return value_seams.fetch_unread(present, _FETCH_S)
