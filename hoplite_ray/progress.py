"""How far a long get is, on one line of standard error, for who looks at a terminal or a notebook.

The line comes after a second, says what has come, how fast, and when it will be all, and goes when
the get ends, however it does. A thread that lives as long as the line asks the process's own node
for its transfers, over the control service; nothing is imported or started before.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hoplite_ray.errors import HopliteError

PATIENCE_S = 1.0  # before the line: shorter waits are over before it is read
_LOOK_S = 0.25
_CALL_S = 1.0  # for the node's answer to one look
_RATE_SHARE = 0.3  # of the newest look in the rate that is shown
_WIDTH_MAX = 110
_BAR_WIDTH, _BAR_WIDTH_MIN = 20, 4  # where a terminal is narrow the figures are worth more
_place = threading.Lock()  # of the one line that a process shows at a time


class ProgressLine:
    """The line of one get, or of several at once. One thread makes, starts and stops it."""

    def __init__(
        self, what: str, object_ids: Sequence[bytes], ended: Callable[[], int], directory: Path
    ) -> None:
        """`ended` says how many of the gets have; any thread may ask it."""
        self._what = what
        self._object_ids = object_ids
        self._ended = ended
        self._directory = directory  # of the node
        self._began_s = time.monotonic()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Show it from now on, unless another one is shown."""
        if _place.acquire(blocking=False):
            self._thread = threading.Thread(
                target=self._run, name="hoplite_ray progress", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Take it away; nothing of it is left."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None
            _place.release()

    def _run(self) -> None:
        with suppress(HopliteError, OSError, ValueError, KeyError):  # a line less; the get goes on
            asyncio.run(self._show())

    async def _show(self) -> None:
        from hoplite_ray.control.client import ControlClient

        control = json.loads((self._directory / "node.json").read_text())["control"]
        calls = ControlClient((self._directory / "secret").read_bytes().strip())
        so_far = Progress(len(self._object_ids))
        try:
            while not self._is_over.is_set():
                try:
                    rows = await calls.transfers(control, limit=1000, timeout_s=_CALL_S)
                except HopliteError:  # a busy node: the next call may be answered
                    _write(f"{self._what}: this machine's node does not answer")
                else:
                    mine = [row for row in rows if row.target_id in self._object_ids]
                    so_far.look(mine, time.monotonic() - self._began_s, self._ended())
                    excess = len(f"{self._what}: {so_far}") - _width()
                    bar_width = _BAR_WIDTH - max(excess, 0)
                    _write(f"{self._what}: {so_far.text(bar_width)}")
                await asyncio.to_thread(self._is_over.wait, _LOOK_S)
        finally:
            _write("", end="\r")
            await calls.close()


class LateLine:
    """A line that comes when a wait has taken so long that somebody may look for one."""

    def __init__(self, begin: Callable[[], ProgressLine | None], at_s: float) -> None:
        """From `at_s` of the monotonic clock on; `begin` shows it, unless nobody looks."""
        self._begin: Callable[[], ProgressLine | None] | None = begin
        self._at_s = at_s
        self._line: ProgressLine | None = None

    def look(self) -> None:
        """The wait goes on."""
        if self._begin is not None and time.monotonic() > self._at_s:
            self._line = self._begin()
            self._begin = None

    def stop(self) -> None:
        """The wait is over."""
        if self._line is not None:
            self._line.stop()


class Progress:
    """What looks at the stripes that come, of one object or of several, add up to."""

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._ended = 0
        self._stripes: dict[tuple[bytes, int], tuple[int, int]] = {}  # landed and size, in bytes
        self._stripe_counts: dict[bytes, int] = {}
        self._at_s = 0.0
        self._landed_bytes = 0
        self._bytes_per_s = 0.0

    def look(self, rows: Iterable[Any], at_s: float, ended: int = 0) -> None:
        """Take what is under way now; a stripe that was and is no more has come.

        `ended`: of how many objects it is known that all of them has.
        """
        rows = list(rows)
        under_way = {(row.target_id, row.stripe) for row in rows}
        for stripe, (_, size_bytes) in self._stripes.items():
            if rows and stripe not in under_way:
                self._stripes[stripe] = (size_bytes, size_bytes)
        for row in rows:
            self._stripes[row.target_id, row.stripe] = (row.landed_bytes, row.size_bytes)
            self._stripe_counts[row.target_id] = row.stripe_count
        landed_bytes = sum(landed for landed, _ in self._stripes.values())
        if at_s > self._at_s and self._at_s:
            now = max(landed_bytes - self._landed_bytes, 0) / (at_s - self._at_s)
            self._bytes_per_s += _RATE_SHARE * (now - self._bytes_per_s)
        self._at_s, self._landed_bytes, self._ended = at_s, landed_bytes, ended

    @property
    def size_bytes(self) -> int:
        """Of the objects that have been under way, as far as their stripes tell."""
        largest: dict[bytes, int] = {}
        for (object_id, _), (_, size_bytes) in self._stripes.items():
            largest[object_id] = max(size_bytes, largest.get(object_id, 0))
        return sum(self._stripe_counts[each] * size for each, size in largest.items())

    def __str__(self) -> str:
        return self.text(_BAR_WIDTH)

    def text(self, bar_width: int) -> str:
        """All of it on one line, with a bar unless that would be too short to be one."""
        many = f"{self._ended} of {self._count} have come" if self._count > 1 else ""
        if not self._stripes:
            return f"{many or 'nothing has come'} after {self._at_s:.0f} s"
        share = min(self._landed_bytes / max(self.size_bytes, 1), 1.0)
        left = self.size_bytes - self._landed_bytes
        until = f", {left / self._bytes_per_s:.0f} s left" if self._bytes_per_s > 1 else ""
        bar = f"[{('#' * int(share * bar_width)).ljust(bar_width, '-')}] "
        if bar_width < _BAR_WIDTH_MIN:
            bar = ""
        mib, rate = self.size_bytes / 2**20, self._bytes_per_s / 2**20
        come = f"{many}; " if many else ""
        return f"{come}{bar}{share:.0%} of {mib:.1f} MiB, {rate:.1f} MiB/s{until}"


def is_seen(wanted: bool | None) -> bool:
    """Whether the user wants lines, or has said nothing and looks at a terminal or a notebook."""
    return wanted if wanted is not None else sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


def _width() -> int:
    return min(shutil.get_terminal_size().columns - 1, _WIDTH_MAX)


def _write(text: str, end: str = "") -> None:
    """Write it over the line that is there: by spaces, as notebooks know no other way."""
    width = _width()
    sys.stderr.write(f"\r{text[:width]:{width}}{end}")
    sys.stderr.flush()
