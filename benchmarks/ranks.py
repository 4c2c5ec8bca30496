"""One process per node, inside its namespace, that does at a given time what it is told.

What it is told, and when it was done, goes over pipes: nothing of it is on the shaped links. All
processes of a machine share the monotonic clock, so that a time is the same moment for all.

Values are chosen so that a sum of any of them is exact, and a block in a wrong place is seen:
element i of the object with `addend` a is i mod 1021 + a, as float32.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hoplite_ray.store import Store

TIMEOUT_S = 60.0  # far longer than anything that works
_CYCLE = 1021  # a prime, so that no block begins where another one does


class RankError(Exception):
    """What a rank was told to do failed there."""


class Rank:
    """The benchmark's end of one rank's pipes."""

    def __init__(self, within: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [*within, sys.executable, "-c", "import ranks; ranks.play()"],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, verb: str, **arguments: Any) -> None:
        """Have it do something; `answer` has to be asked for, in the same order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for what the oldest deed without an answer has returned.

        Raises:  RankError if it failed there.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RankError("its process has ended")
        kind, value = json.loads(line)
        if kind == "error":
            raise RankError(value)
        return value

    def do(self, verb: str, **arguments: Any) -> Any:
        """Tell, and wait for the answer."""
        self.tell(verb, **arguments)
        return self.answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def play() -> None:
    """Do what standard input says until it ends; one line in, one line out."""
    player = _Player()
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        deed: Callable[..., Any] = getattr(player, verb)
        try:
            answer = ["done", deed(**arguments)]
        except Exception as error:  # whatever it is, the benchmark has to hear of it
            answer = ["error", f"{verb}: {type(error).__name__}: {error}"]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class _Player:
    """What a rank can be told. Object ids are in hex.

    What has to begin at `at_s` returns when it had ended.
    """

    def __init__(self) -> None:
        self._store: Store | None = None
        self._received: dict[str, npt.NDArray[np.float32]] = {}

    def attach(self, *, node: str) -> None:
        if self._store is not None:
            self._store.close()
        self._store = Store.attach(node)

    def put(self, *, object_id: str, size_bytes: int, addend: int, at_s: float = 0) -> float:
        values = _values(size_bytes, addend)
        _sleep_until(at_s)
        self._attached.put(bytes.fromhex(object_id), values, timeout_s=TIMEOUT_S)
        return time.monotonic()

    def get(self, *, object_id: str, at_s: float = 0) -> float:
        _sleep_until(at_s)
        value = self._attached.get(bytes.fromhex(object_id), timeout_s=TIMEOUT_S)
        ended_s = time.monotonic()
        self._received[object_id] = value
        return ended_s

    def gather(self, *, object_ids: Sequence[str], at_s: float = 0) -> float:
        _sleep_until(at_s)
        ids = [bytes.fromhex(each) for each in object_ids]
        values = self._attached.gather(ids, timeout_s=TIMEOUT_S)
        ended_s = time.monotonic()
        self._received.update(zip(object_ids, values, strict=True))
        return ended_s

    def reduce(
        self, *, target: str, sources: Sequence[str], everywhere: bool, at_s: float = 0
    ) -> float:
        """Reduce, and get the result."""
        _sleep_until(at_s)
        reduction = self._attached.begin_reduce(
            bytes.fromhex(target), source_count=len(sources), everywhere=everywhere
        )
        for index, source in enumerate(sources):
            reduction.await_source(index, bytes.fromhex(source))
        ended_s = self.get(object_id=target)
        reduction.result(TIMEOUT_S)
        return ended_s

    def check(self, *, object_id: str, count: int, addend: int) -> None:
        """Let go of a received object, once it proves to be the sum of `count` objects.

        Raises:  AssertionError if a single element differs.
        """
        value = self._received.pop(object_id)
        expected = _values(value.nbytes, 0) * count + addend
        if not np.array_equal(value, expected):
            wrong = int(np.flatnonzero(value != expected)[0])
            raise AssertionError(f"element {wrong} is {value[wrong]}, not {expected[wrong]}")

    def delete(self, *, object_id: str) -> None:
        self._attached.delete(bytes.fromhex(object_id), timeout_s=TIMEOUT_S)

    @property
    def _attached(self) -> Store:
        assert self._store is not None, "attach first"
        return self._store


@lru_cache(maxsize=8)
def _values(size_bytes: int, addend: int) -> npt.NDArray[np.float32]:
    values = np.arange(size_bytes // 4, dtype=np.uint32) % _CYCLE
    return values.astype(np.float32) + np.float32(addend)


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))
