"""The end of the process: native objects go while Python can still free them.

The interpreter never frees three things: what the frames of a daemon thread hold, the globals of
the modules whose functions these frames run, and what an extension keeps. At the end each object of
this package therefore releases its native part, and the calls that use one return.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import FrameType, ModuleType
from typing import Any

from hoplite_ray import _native
from hoplite_ray.errors import NodeLostError

_PACKAGE = __name__.partition(".")[0]
# For the threads of calls that have ended: each needs milliseconds to run on. Beyond that the
# process ends with native objects left.
_WAIT_S = 1.0
_LOOK_S = 0.001  # between two looks whether native objects are left


class _Released:
    """Replaces a native object that was released; any use raises NodeLostError."""

    def __getattr__(self, name: str) -> Any:
        raise NodeLostError("this process ends; nothing can be asked of its node any more")


_released = _Released()
_has_forked_threads = False


def _has_threads() -> bool:
    """Return whether another thread runs Python."""
    return len(sys._current_frames()) > 1


def _release_native() -> None:
    """Replace every native object, and wait at most `_WAIT_S` until no thread has one."""
    _native.begin_end()
    if not _native.handles():
        return
    is_ours: Callable[[type], bool] = cache(_is_our_type)
    for each in gc.get_objects():
        if type(each) is FrameType:
            _clear_frame(each)
        elif type(each) is ModuleType:
            if _is_of_package(vars(each).get("__name__")):
                _replace_native(vars(each))
        elif is_ours(type(each)) and hasattr(each, "__dict__"):
            _replace_native(vars(each))
    deadline_s = time.monotonic() + _WAIT_S
    while _native.handles() and _has_threads() and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)


def _is_of_package(module: object) -> bool:
    return str(module).partition(".")[0] == _PACKAGE


def _is_our_type(kind: type) -> bool:
    return any(_is_of_package(getattr(base, "__module__", "")) for base in kind.__mro__)


def _clear_frame(frame: FrameType) -> None:
    """Clear a frame of this package that has returned, and that an exception keeps."""
    if _is_of_package(frame.f_globals.get("__name__")):
        with suppress(RuntimeError):  # the frame still runs
            frame.clear()


def _replace_native(attributes: dict[str, Any]) -> None:
    """Replace native values, also those in a dict that is a value."""
    tables = [attributes, *(each for each in list(attributes.values()) if type(each) is dict)]
    for table in tables:
        for name, value in list(table.items()):
            if type(value).__module__ == _native.__name__:
                table[name] = _released
                if isinstance(value, _native.Client):
                    value.close()  # which ends the calls of other threads


def _record_threads() -> None:
    global _has_forked_threads
    _has_forked_threads = _has_threads()


def _ignore_forked_leaks() -> None:
    """Ignore leaks in a forked child: nothing frees the frames of its parent's other threads."""
    if _has_forked_threads and _native.handles():
        _native.ignore_leaks()


os.register_at_fork(before=_record_threads, after_in_child=_ignore_forked_leaks)
# Finalizers run in the reverse order of their making. This one is the last of all, so that every
# store is closed before it.
weakref.finalize(_released, _release_native)
