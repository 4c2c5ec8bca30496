"""The number of a Ray node's steward process, in a file that the steward and its callers share."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hoplite_ray.base import locks
from hoplite_ray.plugin.node.start import NodePlace

_NUMBER_DIGITS = 9
_ENDS_AT = _NUMBER_DIGITS
_ENDS = b"-"
_USED_AT = _ENDS_AT + 1
_USED = b"u"
_NO_MARK = b" "


class StewardIncarnation:
    """The number of the current steward process, which holds the file's flock while it is current.

    The file has the number, and two marks:
        the steward's   while it may be about to end
        a caller's      since it has begun to rely on this steward process
    The caller makes its mark and then looks for the steward's; the steward makes its mark and then
    looks for a caller's. So at least one of them sees the other's mark.
    """

    def __init__(self, place: NodePlace) -> None:
        file = place.directory / "steward"
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        locks.acquire(self._descriptor)
        self.number = int(os.pread(self._descriptor, _NUMBER_DIGITS, 0) or b"0") + 1
        os.pwrite(self._descriptor, b"%0*d " % (_NUMBER_DIGITS, self.number), 0)

    def take_use_mark(self) -> bool:
        """Remove a caller's mark; return True if there was one since the last call."""
        if os.pread(self._descriptor, 1, _USED_AT) != _USED:
            return False
        os.pwrite(self._descriptor, _NO_MARK, _USED_AT)
        return True

    @contextmanager
    def announce_end(self) -> Iterator[None]:
        """Keep callers in the body off this steward, unless `take_use_mark` returns True there."""
        os.pwrite(self._descriptor, _ENDS, _ENDS_AT)
        try:
            yield
        finally:
            os.pwrite(self._descriptor, _NO_MARK, _ENDS_AT)

    @staticmethod
    def current(place: NodePlace) -> int:
        """Return the number of the current steward, without a mark; 0 if there is none."""
        with _open_file(place) as descriptor:
            return _read_number(descriptor)[0]

    @staticmethod
    def use(place: NodePlace, timeout_s: float | None = None) -> int | None:
        """Mark the current steward as used, and return its number; 0 if there is none.

        The steward then stays for seconds, in which the caller gives it a duty. While the steward
        may be about to end, the call waits. This takes milliseconds, except when Ray does not
        answer the steward.
        Returns: None after `timeout_s`.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with _open_file(place) as descriptor:
            if descriptor is not None:
                os.pwrite(descriptor, _USED, _USED_AT)
            while True:
                life, ends = _read_number(descriptor)
                if not ends:
                    return life
                if time.monotonic() >= deadline:
                    return None
                time.sleep(0.001)


@contextmanager
def _open_file(place: NodePlace) -> Iterator[int | None]:
    """Open the steward's file; yield None if there is no file yet."""
    try:
        descriptor = os.open(place.directory / "steward", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_number(descriptor: int | None) -> tuple[int, bool]:
    """Return the current steward's number, or 0, and True if it may be about to end."""
    if descriptor is None:
        return 0, False
    if not locks.is_held_by_another(descriptor):
        return 0, False
    text = os.pread(descriptor, _USED_AT, 0)
    return int(text[:_NUMBER_DIGITS] or b"0"), text[_ENDS_AT:] == _ENDS
