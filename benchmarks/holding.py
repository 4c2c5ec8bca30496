"""Holds a process, or one thread of it, for as long as a block lasts: it lives and does nothing."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17  # linux/ptrace.h
_WALL = 0x40000000  # linux/wait.h


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process, all of its threads."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def held(thread: int) -> Iterator[None]:
    """Stop one thread, as a page fault or a debugger might, while the others run."""
    libc = ctypes.CDLL(None, use_errno=True)

    def ptrace(request: int) -> None:
        if libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    ptrace(_SEIZE)
    ptrace(_INTERRUPT)
    os.waitpid(thread, _WALL)
    try:
        yield
    finally:
        ptrace(_DETACH)


def threads_of(pid: int) -> dict[str, int]:
    """The thread ids of a process by name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found[(task / "comm").read_text().strip()] = int(task.name)
    return found


def reactor_of(pid: int) -> int:
    """Return the reactor thread of a node process, which does all work except liveness."""
    return threads_of(pid)["hoplite-node"]
