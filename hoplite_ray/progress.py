"""Show the progress of a long get on one line of standard error, in a terminal or a notebook.

The line appears after one second. It shows the bytes that have landed, the rate, and the time left;
it goes when the get succeeds or fails. A thread that lives as long as the line asks the process's
own node for its transfers, over the control service. A shorter get imports and starts nothing.
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

SHOWN_AFTER_S = 1.0  # before the line appears: a shorter wait is over before a person reads it
_LOOK_S = 0.25  # between two looks at the transfers
_CALL_S = 1.0  # for the node to answer one look
_RATE_SHARE = 0.3  # weight of the newest look in the rate that is shown
_WIDTH_MAX = 110
_BAR_WIDTH, _BAR_WIDTH_MIN = 20, 4  # a narrow terminal shows the figures, and a shorter bar or none
_line_lock = threading.Lock()  # held by the one line that a process shows at a time


class ProgressLine:
    """The line of one get, or of several gets. One thread makes, starts and stops it."""

    def __init__(
        self, what: str, object_ids: Sequence[bytes], ended: Callable[[], int], directory: Path
    ) -> None:
        """`ended` returns how many of the gets have ended; any thread may call it."""
        self._what = what
        self._object_ids = object_ids
        self._count_ended = ended
        self._directory = directory  # of the node
        self._began_s = time.monotonic()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Show the line, unless the process shows another one."""
        if _line_lock.acquire(blocking=False):
            self._thread = threading.Thread(
                target=self._run, name="hoplite_ray progress", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Remove the line, and wait for its thread."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None
            _line_lock.release()

    def _run(self) -> None:
        with suppress(
            HopliteError, OSError, ValueError, KeyError
        ):  # the get goes on without a line
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
                    so_far.update(mine, time.monotonic() - self._began_s, self._count_ended())
                    excess = len(f"{self._what}: {so_far}") - _width()
                    bar_width = _BAR_WIDTH - max(excess, 0)
                    _write(f"{self._what}: {so_far.text(bar_width)}")
                await asyncio.to_thread(self._is_over.wait, _LOOK_S)
        finally:
            _write("", end="\r")
            await calls.close()


class DelayedLine:
    """A progress line that appears when a wait has lasted for `SHOWN_AFTER_S`."""

    def __init__(self, begin: Callable[[], ProgressLine | None], at_s: float) -> None:
        """`begin` shows the line; `poll` calls it once, at the monotonic time `at_s` or later."""
        self._begin: Callable[[], ProgressLine | None] | None = begin
        self._at_s = at_s
        self._line: ProgressLine | None = None

    def poll(self) -> None:
        """Show the line if it is time. The waiting loop calls this again and again."""
        if self._begin is not None and time.monotonic() > self._at_s:
            self._line = self._begin()
            self._begin = None

    def stop(self) -> None:
        """Remove the line: the wait is over."""
        if self._line is not None:
            self._line.stop()


class Progress:
    """The progress of one get or several, from looks at the stripes that are arriving."""

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._ended_count = 0
        self._stripes: dict[tuple[bytes, int], tuple[int, int]] = {}  # landed and size, in bytes
        self._stripe_counts: dict[bytes, int] = {}
        self._at_s = 0.0
        self._landed_bytes = 0
        self._bytes_per_s = 0.0

    def update(self, rows: Iterable[Any], at_s: float, ended: int = 0) -> None:
        """Take the transfers in flight now. A stripe that is no longer among them has landed.

        `ended` is the number of gets that have ended.
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
        self._at_s, self._landed_bytes, self._ended_count = at_s, landed_bytes, ended

    @property
    def size_bytes(self) -> int:
        """The bytes of the objects seen so far, estimated from their stripes."""
        largest: dict[bytes, int] = {}
        for (object_id, _), (_, size_bytes) in self._stripes.items():
            largest[object_id] = max(size_bytes, largest.get(object_id, 0))
        return sum(self._stripe_counts[each] * size for each, size in largest.items())

    def __str__(self) -> str:
        return self.text(_BAR_WIDTH)

    def text(self, bar_width: int) -> str:
        """Return the line, with a bar if there is room for one."""
        many = f"{self._ended_count} of {self._count} have come" if self._count > 1 else ""
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


def should_show(wanted: bool | None) -> bool:
    """Return `wanted`; if it is None, True in a terminal or a notebook."""
    return wanted if wanted is not None else sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


def _width() -> int:
    return min(shutil.get_terminal_size().columns - 1, _WIDTH_MAX)


def _write(text: str, end: str = "") -> None:
    """Overwrite the present line with spaces: notebooks have no other way to erase it."""
    width = _width()
    sys.stderr.write(f"\r{text[:width]:{width}}{end}")
    sys.stderr.flush()
