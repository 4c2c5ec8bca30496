"""A program on a terminal of its own: what it shows there, and keys for it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.process.nodes import WAIT_S


class Terminal:
    """A process on a terminal of its own, and all that it has written there."""

    def __init__(self, source: str, before: Sequence[str], environment: dict[str, str]) -> None:
        self._own, other = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", source],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, **environment},
            preexec_fn=lambda: _lead(other),
        )
        os.close(other)

    def press(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until it is there."""
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self._own], [], [], WAIT_S)
            assert ready, self.seen
            self.seen += os.read(self._own, 4096).decode()
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


def _lead(terminal: int) -> None:
    """Make it the controlling terminal, so that its Ctrl-C is a signal to this process."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@contextmanager
def terminal(source: str, *, before: Sequence[str] = (), **environment: str) -> Iterator[Terminal]:
    """`before` are words to put before the command, such as `ip netns exec NAME`."""
    made = Terminal(source, before, environment)
    try:
        yield made
    finally:
        made.end()
