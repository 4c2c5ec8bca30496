"""Processes inside the namespaces, which run commands of the benchmark at given times.

Commands and answers go over pipes or a Unix socket, never over the shaped links. All processes of a
machine share the monotonic clock, so that a time is the same moment for all.

Values are chosen so that a sum of any of them is exact, and a block in a wrong place is seen:
element i of the object with `addend` a is i mod 1021 + a, as float32.
"""

from __future__ import annotations

import io
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

TIMEOUT_S = 300.0  # far longer than anything that works, also at 1 GiB over slow links
ANSWER_S = 330.0
OBJECTS = 1000  # where many small ones are put and got
_CYCLE = 1021  # a prime, so that no block begins where another one does
_KEPT_BYTES_MAX = 32 << 20  # larger values are made anew each time
_CHECKED_AT_ONCE = 4 << 20  # elements


class RankError(Exception):
    """A command failed in the process of a rank."""


class Rank:
    """The benchmark's end of one rank's connection."""

    def __init__(self, pid: int, to: IO[str], back: IO[bytes]) -> None:
        self.pid = pid
        self._to = to
        self._back = back
        self._read = bytearray()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        within: Sequence[str],
        play: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
    ) -> Rank:
        """Start a process that calls `play`, as in "store_rank.play", with text as arguments."""
        process = subprocess.Popen(
            [*within, *command(play, *arguments)],
            cwd=Path(__file__).parent,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        started = cls(process.pid, io.TextIOWrapper(process.stdin), process.stdout)
        started._process = process
        return started

    def tell(self, verb: str, **arguments: Any) -> None:
        """Send a command; its result has to be fetched by `answer`, in the same order."""
        try:
            self._to.write(json.dumps([verb, arguments]) + "\n")
            self._to.flush()
        except BrokenPipeError:
            pass  # its answer will be that it has ended

    def answer(self) -> Any:
        """Wait for the result of the oldest command without an answer.

        Raises:  RankError if it failed there, or takes ANSWER_S.
        """
        kind, value = json.loads(self._line())
        if kind == "error":
            raise RankError(value)
        return value

    def _line(self) -> bytes:
        while b"\n" not in self._read:
            if not select.select([self._back], [], [], ANSWER_S)[0]:
                raise RankError(f"no answer in {ANSWER_S:.0f} s")
            try:
                read = os.read(self._back.fileno(), 1 << 16)
            except ConnectionError:
                read = b""
            if not read:
                raise RankError("its process has ended")
            self._read += read
        line, _, self._read = self._read.partition(b"\n")
        return bytes(line)

    def do(self, verb: str, **arguments: Any) -> Any:
        """Tell, and wait for the answer."""
        self.tell(verb, **arguments)
        return self.answer()

    def close(self) -> None:
        """End the process; one that the benchmark has not started ends by itself."""
        try:
            self._to.close()
        except BrokenPipeError:
            pass
        if self._process is not None:
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._back.close()


def command(play: str, *arguments: str) -> list[str]:
    """The words that call a function of a module of this folder, in a process of its own."""
    module = play.rpartition(".")[0]
    return [sys.executable, "-c", f"import {module}; {play}({', '.join(map(repr, arguments))})"]


def serve(player: object) -> None:
    """Do what standard input says until it ends; one line in, one line out.

    Text that libraries print on standard output goes to the benchmark's standard error.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        _serve(player, sys.stdin, answers)


def serve_at(player: object, address: str) -> None:
    """The same over a Unix socket, where this process says its id first."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("r") as told, connection.makefile("w") as answers:
            _say(answers, "done", os.getpid())
            _serve(player, told, answers)


def _serve(player: object, told: IO[str], answers: IO[str]) -> None:
    for line in told:
        verb, arguments = json.loads(line)
        deed: Callable[..., Any] = getattr(player, verb)
        try:
            _say(answers, "done", deed(**arguments))
        except Exception as error:  # whatever it is, the benchmark has to hear of it
            _say(answers, "error", f"{verb}: {type(error).__name__}: {error}")


def _say(answers: IO[str], kind: str, value: Any) -> None:
    answers.write(json.dumps([kind, value]) + "\n")
    answers.flush()


def values(size_bytes: int, addend: int) -> npt.NDArray[np.float32]:
    """Return the object with that addend, read-only."""
    if size_bytes > _KEPT_BYTES_MAX:
        return _made(size_bytes, addend)
    return _kept(size_bytes, addend)


def check(received: npt.NDArray[np.float32], *, count: int, addend: int) -> None:
    """Prove that it is the sum of `count` objects whose addends sum up to `addend`.

    Raises:  AssertionError if a single element differs.
    """
    for begin in range(0, received.size, _CHECKED_AT_ONCE):
        part = received[begin : begin + _CHECKED_AT_ONCE]
        expected = _counted(begin, part.size) * np.float32(count) + np.float32(addend)
        if not np.array_equal(part, expected):
            wrong = int(np.flatnonzero(part != expected)[0])
            what = f"{part[wrong]}, not {expected[wrong]}"
            raise AssertionError(f"element {begin + wrong} is {what}")


def sleep_until(at_s: float) -> None:
    """Until that moment of the machine's monotonic clock."""
    time.sleep(max(0.0, at_s - time.monotonic()))


@lru_cache(maxsize=8)
def _kept(size_bytes: int, addend: int) -> npt.NDArray[np.float32]:
    return _made(size_bytes, addend)


def _made(size_bytes: int, addend: int) -> npt.NDArray[np.float32]:
    made = _counted(0, size_bytes // 4)
    made += np.float32(addend)
    return made


def _counted(begin: int, count: int) -> npt.NDArray[np.float32]:
    counted = np.arange(begin, begin + count, dtype=np.uint32)
    counted %= _CYCLE
    return counted.astype(np.float32)
