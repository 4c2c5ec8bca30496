"""Errors as they travel over edges, and answers that can't."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from hoplite_ray.serve.edge.frames import Message, Packed

logger = logging.getLogger("hoplite_ray.serve")

_IMMUTABLE = frozenset({bool, bytes, complex, float, int, str, type(None)})


def unsendable(what: str, error: BaseException) -> TypeError:
    """Return the error for what pickle can't take."""
    return TypeError(f"{what} can't be sent ({said(error)}); make it of what pickle takes")


def packed(answer: Any, what: str) -> Any:
    """Return an answer as it is now, whatever happens to its buffers until it is sent.

    what:  it is, for errors. An answer that pickle can't take becomes the TypeError that says so.
    """
    if isinstance(answer, BaseException) or type(answer) in _IMMUTABLE:
        return answer
    try:
        return Packed(answer)
    except BaseException as error:  # a SystemExit of its would end the stage's thread
        return unsendable(what, error)


def failure(kind: int, number: int, error: BaseException) -> Message:
    """Pack an error; one that can't be pickled, or is none when it is read, goes as its text."""
    notes = getattr(error, "__notes__", [])
    notes = [str(note) for note in notes] if isinstance(notes, list | tuple) else []
    try:
        message = Message.packed(kind, number, error)
        read = message.value()
        if isinstance(read, Exception):
            if getattr(read, "__notes__", []) == notes:
                return message
            return Message.packed(kind, number, _Noted(read, notes))
    except BaseException as why:
        logger.debug("%s can't be pickled: %s", type(error), said(why))
    return Message.packed(kind, number, _with_notes(RuntimeError(said(error)), notes))


class _Noted:
    """An error whose own `__reduce__` leaves its notes out, with them: reads as the error."""

    def __init__(self, error: Exception, notes: list[str]) -> None:
        self._both = error, notes

    def __reduce__(self) -> tuple[Callable[..., Exception], tuple[Exception, list[str]]]:
        return _with_notes, self._both


def _with_notes(error: Exception, notes: list[str]) -> Exception:
    with contextlib.suppress(Exception):  # it takes none
        error.__notes__ = notes
    return error


def said(error: BaseException) -> str:
    """Return an error's class and text, also if it is one that can't say it."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: <its text can't be had>"


def noted(error: Exception, note: str) -> Exception:
    """Return it with a note; another one in its place if it takes none, as a frozen dataclass."""
    try:
        error.add_note(note)
        return error
    except Exception:
        told = RuntimeError(said(error))
        told.add_note(note)
        return told
