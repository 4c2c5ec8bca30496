"""The tables that this process uses: one follower for each, of the present Ray session."""

from __future__ import annotations

import atexit
import secrets
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import ray

from hoplite_ray.errors import HopliteError, InvalidArgumentError
from hoplite_ray.plugin.process.attachment import need_ray
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table as seams_table
from hoplite_ray.plugin.tables.follower import Follower, UnknownOutcomeError, over_error
from hoplite_ray.plugin.tables.janitor import Janitor, Kind, end_janitors
from hoplite_ray.plugin.tables.values import Values
from hoplite_ray.tables.calls import NumbersGiven, PutDone
from hoplite_ray.tables.log import COPIES_MAX, Garbage, Options

_CALL_S = 10.0  # of a call to Ray's GCS, beyond which its outcome is unknown
# For the deletions that wait at the end of the process. They take milliseconds each; beyond it
# another process deletes, minutes later (decision 45).
_END_S = 2.0


@dataclass(frozen=True, slots=True)
class OpenTable:
    """This process's part of one table."""

    options: Options
    follower: Follower
    values: Values

    def forget_numbers(self, given: NumbersGiven) -> None:
        """Take numbers back under which no value was stored."""
        self.follower.release(given.writer, given.numbers)

    def discard_refused(self, given: NumbersGiven, put: Future[PutDone]) -> None:
        """Discard the values of a put that has ended, if it has not taken effect and never will."""
        error = put.exception()
        if error is not None and not isinstance(error, UnknownOutcomeError):
            self.discard(given)

    def discard(self, given: NumbersGiven) -> None:
        """Delete values that will have no version, and then forget their numbers.

        After `Follower.close` the log may have them. So they stay then, until another process
        deletes what has no version, because the table has forgotten this writer.
        """
        if self.follower.is_closed:
            return

        def delete() -> None:
            self.values.delete(Garbage(given.writer, given.numbers, COPIES_MAX))
            self.forget_numbers(given)

        self.follower.janitor.do(delete, Kind.DELETION)


_lock = threading.Lock()  # guards both
_open: dict[str, OpenTable] = {}
_session: bytes | None = None  # that of all of `_open`


def open_table(name: str, options: Options) -> OpenTable:
    """Return this process's part of a table; make it at the first use.

    Raises: InvalidArgumentError if this process has opened the table with other options;
            HopliteError if Ray is not running here.
    """
    global _session
    need_ray()
    session = seams.connection()
    with _lock:
        if session != _session:
            _close_all()
            _session = session
        found = _open.get(name)
        if found is None or found.follower.is_closed:
            found = _open[name] = _begin(name, options, session)
    refuse_other(name, found.options, options)
    return found


def refuse_other(name: str, agreed: Options, asked: Options) -> None:
    """Refuse options of a table that differ from those of the process that has made it.

    Raises: InvalidArgumentError.
    """
    if (agreed.keep, agreed.keep_us) != (asked.keep, asked.keep_us):
        raise InvalidArgumentError(
            f"table {name!r} keeps {agreed.keep} versions and older ones for "
            f"{agreed.keep_us / 1e6:g} s, as its first process has asked; open it with "
            f"keep={agreed.keep}, keep_s={agreed.keep_us / 1e6:g}, or take another name"
        )


def _begin(name: str, options: Options, session: bytes | None) -> OpenTable:
    address = ray.get_runtime_context().gcs_address
    janitor = Janitor(name)
    values = Values(name, janitor)
    follower = Follower(
        name,
        secrets.token_hex(8),
        options,
        partial(seams_table.KeyValues, address, timeout_s=_CALL_S),
        janitor=janitor,
        delete=values.delete,
        is_over=lambda: not _is_in(session),
        leave=partial(_forget, name),
    )
    return OpenTable(options, follower, values)


def _forget(name: str, follower: Follower) -> None:
    """Forget a table whose follower has ended, so that the next operation opens it anew."""
    with _lock:
        found = _open.get(name)
        if found is not None and found.follower is follower:
            del _open[name]


def _is_in(session: bytes | None) -> bool:
    """Return True if this process is still in that Ray session."""
    try:
        return seams.connection() == session
    except Exception:  # Ray's objects are half gone, because a ray.shutdown is under way
        return False


def _close_all() -> None:
    for name, each in _open.items():
        each.follower.close(over_error(name))
    _open.clear()


@atexit.register
def _end() -> None:
    """Close all tables at the end of the process, while its store and Ray still answer."""
    with _lock:
        ended = [each.follower for each in _open.values()]
        _open.clear()
    for each in ended:
        each.close(HopliteError("this process ends; no table can be used any more"))
    end_janitors([each.janitor for each in ended], _END_S)
