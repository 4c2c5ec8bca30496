"""Locks of files between processes. The kernel releases a lock when its last holder ends.

A lock belongs to an open file (flock), and not to a process: a forked child has the same open file,
and holds the lock with its parent. `hold` and `try_hold` therefore unlock the file before they
close it. `acquire` leaves the lock to the descriptor: it lasts until the process ends, or until the
descriptor and every copy of it in a forked child are closed. All files are opened with O_CLOEXEC,
so that no other program inherits a lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_S = 0.01  # between two tries; a reader that looks at a lock holds it for microseconds


class HeldError(Exception):
    """Another process has held the lock for the whole time limit."""


@contextmanager
def hold(file: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock of `file` while the body runs; create the file if it is missing.

    Raises:  HeldError if another process still holds the lock after `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    with _open(file, os.O_RDWR | os.O_CREAT) as descriptor:
        while not _try_acquire(descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline_s:
                raise HeldError(f"{file} is held by another process")
            time.sleep(_LOOK_S)
        yield


@contextmanager
def try_hold(file: Path) -> Iterator[bool]:
    """Hold the lock of `file` while the body runs, if it is free now; gives True if it is held.

    Creates the file if it is missing.
    """
    with _open(file, os.O_RDWR | os.O_CREAT) as descriptor:
        yield _try_acquire(descriptor, fcntl.LOCK_EX)


def acquire(descriptor: int) -> None:
    """Wait for the lock of an open file, and leave it to the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def is_held(file: Path) -> bool:
    """Return whether another process holds the lock of `file`.

    Raises:  OSError if the file can't be opened, for example because it is missing.
    """
    with _open(file, os.O_RDONLY) as descriptor:
        return is_held_by_another(descriptor)


def is_held_by_another(descriptor: int) -> bool:
    """Return whether the lock of an open file is held through another open file of it.

    REQUIRES: the descriptor holds no lock itself; it holds none afterwards.
    The lock is shared for the look, so that two looks at a time don't see each other.
    """
    try:
        return not _try_acquire(descriptor, fcntl.LOCK_SH)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def _open(file: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(file, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has it open
        os.close(descriptor)


def _try_acquire(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
