"""Processes that publish to a channel and watch it, and that can be killed.

`python -m tests.process.channel_players publish SOCKET` publishes on, after the newest version, and
`... watch SOCKET` sees versions, until it is killed. Each version's number is a line of its output.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hoplite_ray.errors import InvalidArgumentError, NodeLostError
from hoplite_ray.store import Store

CHANNEL = "played"
COPIES = 2
_COUNT = 60_000  # elements: 240 KB, above what travels inside of messages
_LIMIT_S = 60.0  # a call that takes longer hangs
_GAP_S = 0.02  # between versions: readers on busy cores see some of them


def value_of(version: int) -> dict[str, npt.NDArray[np.uint32]]:
    """The value of a version, each element of which depends on it."""
    return {"layer": np.arange(version, version + _COUNT, dtype=np.uint32) * np.uint32(2654435761)}


def check(update: Any) -> int:
    """Return the version of an update. Raises: AssertionError unless its bytes are that one's."""
    right = value_of(update.version)["layer"]
    assert np.array_equal(update.value["layer"], right), f"version {update.version} has other bytes"
    return int(update.version)


class Player:
    """Another process that publishes or watches, and the versions that it has named."""

    def __init__(self, role: str, rank: int, socket: str) -> None:
        self.role = role
        self.rank = rank  # of its node
        self.versions: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.channel_players", role, socket],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._news = threading.Condition()
        self._has_ended = False
        self._told = ""
        assert self._process.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._thread.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            with self._news:
                self.versions.append(int(line))
                self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    @property
    def newest(self) -> int:
        """The last version that it has named; 0: none."""
        return self.versions[-1] if self.versions else 0

    def wait_for(self, version: int, timeout_s: float) -> None:
        """Return once it has named that version, or a newer one.

        Raises:  AssertionError if it ends before, or hangs.
        """
        with self._news:
            self._news.wait_for(lambda: self.newest >= version or self._has_ended, timeout_s)
        if self.newest >= version:
            return
        what = "has ended" if self._has_ended else f"has none after {timeout_s:g} s"
        raise AssertionError(f"the process that is to {self.role} version {version} {what}")

    def end(self) -> None:
        """Kill it."""
        self._process.kill()

    def join(self) -> str:
        """Wait for its end, which must come; returns what it says of its errors. Idempotent."""
        self._process.wait(_LIMIT_S)
        self._thread.join(_LIMIT_S)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            if pipe is self._process.stderr and not pipe.closed:
                self._told = pipe.read()
            pipe.close()
        return self._told


def _publish(store: Store) -> None:
    version = _find_next(store)
    pause = threading.Event()
    while True:
        try:
            store.publish(
                CHANNEL, value_of(version), version=version, copies=COPIES, timeout_s=_LIMIT_S
            )
        except InvalidArgumentError:  # the publisher before has published it before it died
            version = _find_next(store)
            continue
        _say(version)
        version += 1
        pause.wait(_GAP_S)


def _find_next(store: Store) -> int:
    return check(store.latest(CHANNEL, timeout_s=_LIMIT_S)) + 1


def _watch(store: Store) -> None:
    for update in store.watch(CHANNEL):
        _say(check(update))


def _say(version: int) -> None:
    sys.stdout.write(f"{version}\n")
    sys.stdout.flush()


def main() -> None:
    """Play one role until the process or its node is killed."""
    role, socket = sys.argv[1:3]
    try:
        {"publish": _publish, "watch": _watch}[role](Store.attach(socket))
    except NodeLostError:
        sys.exit("its node was killed")


if __name__ == "__main__":
    main()
