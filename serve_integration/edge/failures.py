"""Errors as they travel over edges, and values that can't travel."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from hoplite_ray.serve.edge.frames import Message, Packed

logger = logging.getLogger("hoplite_ray.serve")

_IMMUTABLE = frozenset({bool, bytes, complex, float, int, str, type(None)})


def unsendable_error(what: str, error: BaseException) -> TypeError:
    """Return the TypeError for a value that pickle can't take; `what` names the value."""
    return TypeError(
        f"{what} can't be sent ({describe_error(error)}); make it of what pickle takes"
    )


def pack_answer(answer: Any, what: str) -> Any:
    """Return an answer as it is now. Later changes to its buffers don't reach the caller.

    what:  names the answer in errors.

    Returns: a TypeError in place of an answer that pickle can't take.
    """
    if isinstance(answer, BaseException) or type(answer) in _IMMUTABLE:
        return answer
    try:
        return Packed(answer)
    except BaseException as error:  # a SystemExit of the answer would end the stage's thread
        return unsendable_error(what, error)


def pack_failure(kind: int, number: int, error: BaseException) -> Message:
    """Pack an error. It goes as its text if it can't be pickled, or does not read as an error."""
    notes = getattr(error, "__notes__", [])
    notes = [str(note) for note in notes] if isinstance(notes, list | tuple) else []
    try:
        message = Message.pack(kind, number, error)
        read = message.value()
        if isinstance(read, Exception):
            if getattr(read, "__notes__", []) == notes:
                return message
            return Message.pack(kind, number, _ErrorWithNotes(read, notes))
    except BaseException as why:
        logger.debug("%s can't be pickled: %s", type(error), describe_error(why))
    return Message.pack(kind, number, _with_notes(RuntimeError(describe_error(error)), notes))


class _ErrorWithNotes:
    """An error with its notes, which its own `__reduce__` leaves out. It reads as the error."""

    def __init__(self, error: Exception, notes: list[str]) -> None:
        self._both = error, notes

    def __reduce__(self) -> tuple[Callable[..., Exception], tuple[Exception, list[str]]]:
        return _with_notes, self._both


def _with_notes(error: Exception, notes: list[str]) -> Exception:
    with contextlib.suppress(Exception):  # the error takes no notes
        error.__notes__ = notes
    return error


def describe_error(error: BaseException) -> str:
    """Return an error's class and text. An error whose `__str__` raises gets a text of ours."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: <its text can't be had>"


def as_exception(error: BaseException) -> Exception:
    """Return an error that a future takes; others are replaced by a RuntimeError with their text.

    A future takes no StopIteration, for example of a `next` in the user's code.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(describe_error(error))


def attach_note(error: Exception, note: str) -> Exception:
    """Return an error with a note.

    An error that takes no notes, for example a frozen dataclass, is replaced by a RuntimeError.
    """
    try:
        error.add_note(note)
        return error
    except Exception:
        replacement = RuntimeError(describe_error(error))
        replacement.add_note(note)
        return replacement
