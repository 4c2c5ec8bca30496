"""A publisher of a channel: it takes a term, puts each version, and has its home make it visible.

Pure but for the store's operations, which its generators yield.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hoplite_ray.channel.draft import Draft
from hoplite_ray.channel.names import name_delta, name_object
from hoplite_ray.channel.putting import put_beside, put_draft
from hoplite_ray.channel.record import Origin, Record
from hoplite_ray.channel.steps import Steps
from hoplite_ray.channel.trail import Pace, Trail
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import (
    DuplicateObjectError,
    HopliteError,
    InvalidArgumentError,
    ObjectLostError,
    StoreFullError,
    VersionRefusedError,
)
from hoplite_ray.values.codec import Encoded
from hoplite_ray.values.deltas import choose_limit_bytes
from hoplite_ray.values.recipe import Delta
from hoplite_ray.values.versions import NO_VERSION, TakenTerm, VersionNumber

_TERMS_BEGUN_MAX = 16  # terms without a visible version that a publisher clears away behind others

# Another publisher has taken the channel, and has deleted what this one has begun.
_TAKEN_ERRORS = (VersionRefusedError, ObjectLostError, DuplicateObjectError)


@dataclass(frozen=True, slots=True)
class _Base:
    """The newest version of this publisher, which the next one may be compared with."""

    object_id: bytes
    layout: bytes
    limit_bytes: int  # of a delta between two such values; 0: none is worth it
    node: tuple[int, int]  # that has it: its id and incarnation

    def may_lead_to(self, other: _Base) -> bool:
        """Return True if both have one layout, of which a delta is worth it, on one node."""
        is_like = (self.layout, self.node) == (other.layout, other.node)
        return is_like and other.limit_bytes > 0


class Publisher:
    """This process's right to publish to one channel. Any thread may use it.

    It takes a term at its first publish, and again after any failure: what an operation that failed
    has left behind is then known, and deleted.
    """

    def __init__(self, channel: bytes, namespace: str, name: str) -> None:
        self._channel = channel
        self._namespace = namespace
        self._name = name
        self._lock = threading.Lock()
        self._turn: Future[None] | None = None  # ends when the last publish does
        self._newest = NO_VERSION  # its term is this publisher's, while `_has_term`
        self._has_term = False
        self._version = 0  # of the newest
        self._ordinal = 0  # of the newest, among all versions of the channel
        self._kept: list[VersionNumber] = []  # whose objects exist, ascending
        self._base: _Base | None = None
        self._trail = Trail()  # of the newest
        self._pace = Pace()

    def publish(
        self,
        store: StoreClient,
        value: Encoded | Draft,
        version: int | None,
        keep: int,
        copies: int,
        *,
        delta: bool,
    ) -> Steps[int]:
        """Publish a value; returns its version. One publish at a time is under way."""
        return self._in_turn(lambda: self._publish(store, value, version, keep, copies, delta))

    def end(self, store: StoreClient) -> Steps[None]:
        """Unpublish: no version can be read any more; the next one is the first again."""
        return self._in_turn(lambda: self._end(store))

    def _in_turn(self, begin: Callable[[], Steps[Any]]) -> Steps[Any]:
        turn: Future[None] = Future()
        turn.set_running_or_notify_cancel()
        with self._lock:
            before, self._turn = self._turn, turn
        if before is not None:
            try:
                yield before
            except BaseException:  # the one before goes on, and the next one waits for it
                before.add_done_callback(lambda _: turn.set_result(None))
                raise
        try:
            return (yield from begin())
        finally:
            turn.set_result(None)

    def _publish(
        self,
        store: StoreClient,
        value: Encoded | Draft,
        version: int | None,
        keep: int,
        copies: int,
        with_delta: bool,
    ) -> Steps[int]:
        if not self._has_term:
            yield from self._take_term(store)
        chosen = self._version + 1 if version is None else version
        if chosen <= self._version:
            raise InvalidArgumentError(
                f"version {chosen} of channel {self._name!r} is not above {self._version}, which "
                "is published; versions ascend: leave version out, or give a higher one"
            )
        number = self._next()
        try:
            delta = yield from self._put_in_room(store, number, value, copies, with_delta)
            kept = self._kept[max(len(self._kept) - keep + 1, 0) :]
            dropped = self._kept[: len(self._kept) - len(kept)]
            size_bytes = value.layout.size_bytes
            origin = Origin(self._namespace, self._name, self._ordinal + 1, store.node_id)
            trail = self._trail.add(delta, size_bytes) if delta else self._trail.end()
            numbers = tuple(kept), tuple(dropped)
            record = Record(chosen, time.time(), size_bytes, *numbers, origin, trail)
            yield store.publish_version(self._channel, number.term, number.n, record.encode())
        except BaseException as error:
            self._has_term = False
            # Only the next publisher deletes a version that is not there yet.
            if not isinstance(error, _TAKEN_ERRORS) or _has_failed(value):
                raise
            yield from self._delete(store, [number], [number])
            raise self._taken_error() from error
        self._newest, self._version, self._kept = number, chosen, [*kept, number]
        self._ordinal += 1
        self._trail = trail
        yield from self._delete(store, dropped, trail.list_dropped(number))
        return chosen

    def _put_in_room(
        self,
        store: StoreClient,
        number: VersionNumber,
        value: Encoded | Draft,
        copies: int,
        with_delta: bool,
    ) -> Steps[Delta | None]:
        """Like `_put`; if a version finds no room, the deltas before it give theirs."""
        try:
            return (yield from self._put(store, number, value, copies, with_delta))
        except StoreFullError:
            if not self._trail.sizes_bytes or _has_failed(value):
                raise
        yield from self._delete(store, [], self._trail.list_kept(self._newest))
        self._trail = Trail()
        self._pace.note(has_found=False)
        yield from _put_whole(store, name_object(self._channel, number), value, copies)
        return None

    def _put(
        self,
        store: StoreClient,
        number: VersionNumber,
        value: Encoded | Draft,
        copies: int,
        with_delta: bool,
    ) -> Steps[Delta | None]:
        """Put a version on so many nodes, and its delta from the one before, if it may have one."""
        object_id, layout = name_object(self._channel, number), value.layout
        before = self._base if with_delta else None
        node = store.node_id, store.node_incarnation
        self._base = _Base(
            object_id, layout.to_bytes(), choose_limit_bytes(layout.size_bytes), node
        )
        base = None
        if before is not None and before.may_lead_to(self._base) and self._pace.is_due():
            with suppress(ObjectLostError):
                base = yield store.begin_view(before.object_id)
        if base is None:
            yield from _put_whole(store, object_id, value, copies)
            return None
        delta_id = name_delta(self._channel, number)
        delta = yield from put_beside(store, object_id, value, base, delta_id)
        self._pace.note(delta is not None)
        if copies > 1:
            yield store.begin_keep(object_id, copies=copies)
        return delta

    def _end(self, store: StoreClient) -> Steps[None]:
        yield from self._take_term(store)
        # The end has no record, so no later publisher could delete what were left behind it.
        yield from self._delete(store, self._kept, [])
        number = self._next()
        try:
            yield store.publish_version(self._channel, number.term, number.n, b"", is_end=True)
        except BaseException as error:
            self._has_term = False
            if isinstance(error, VersionRefusedError):
                raise self._taken_error() from error
            raise
        self._newest, self._version, self._kept, self._ordinal = number, 0, [], 0

    def _take_term(self, store: StoreClient) -> Steps[None]:
        """Take the channel over, and delete what the publisher before has left behind."""
        self._has_term = False
        taken = yield store.take_term(self._channel)
        newest = yield store.watch_version(self._channel, wait=False)
        self._newest, self._version, self._kept = (
            VersionNumber(taken.term.epoch, taken.term.counter, 0),
            0,
            [],
        )
        self._ordinal, self._base, self._trail = 0, None, Trail()
        if newest is not None and newest.number.term > taken.term:  # what it begins is not ours
            raise self._taken_error()
        left = _list_begun(taken, NO_VERSION if newest is None else newest.number)
        deltas = list(left)
        if newest is not None:
            if not newest.is_end:
                record = Record.decode(newest.payload)
                self._version, self._kept = record.version, [*record.kept, newest.number]
                self._ordinal = record.origin.ordinal
                left += record.dropped
                deltas += record.trail.list_dropped(newest.number)
                deltas += record.trail.list_kept(newest.number)
        yield from self._delete(store, left, deltas)
        self._has_term = True

    def _next(self) -> VersionNumber:
        return self._newest._replace(n=self._newest.n + 1)

    def _delete(
        self, store: StoreClient, versions: list[VersionNumber], deltas: list[VersionNumber]
    ) -> Steps[None]:
        """Delete versions, and the deltas of versions.

        The node is asked for all of them before the first wait: no caller that stops to wait leaves
        any. If the node dies, the publisher that takes the next term deletes them.
        """
        object_ids = [name_object(self._channel, each) for each in versions]
        object_ids += [name_delta(self._channel, each) for each in deltas]
        with suppress(HopliteError):
            begun = [store.begin_delete(each) for each in object_ids]
            for pending in begun:
                with suppress(HopliteError):
                    yield pending

    def _taken_error(self) -> VersionRefusedError:
        return VersionRefusedError(
            f"another process has taken channel {self._name!r}: its versions are the newest, and "
            "this one was not published; let one process publish, or publish again to take it back"
        )


def _has_failed(value: Encoded | Draft) -> bool:
    """Return True if the error is that of a function that writes a version."""
    return isinstance(value, Draft) and value.has_failed


def _list_begun(taken: TakenTerm, newest: VersionNumber) -> list[VersionNumber]:
    """Return the versions that publishers before may have put, and that were never visible.

    In the newest version's term that is the next one, in a later term the first. Each publisher
    that takes a term deletes what terms before have begun, so few of them are left to look at.
    """
    begun = [] if newest == NO_VERSION else [newest._replace(n=newest.n + 1)]
    term, before = newest.term, taken.before
    first = term.counter + 1 if before.epoch == term.epoch else 1
    first = max(first, before.counter - _TERMS_BEGUN_MAX + 1)
    counters = range(first, before.counter + 1) if before > term else ()
    return begun + [VersionNumber(before.epoch, counter, 1) for counter in counters]


def _put_whole(
    store: StoreClient, object_id: bytes, value: Encoded | Draft, copies: int
) -> Steps[None]:
    """Put a value, or have it written where it will lie, and wait until that many nodes keep it."""
    if isinstance(value, Draft):
        yield from put_draft(store, object_id, value)
        if copies > 1:
            yield store.begin_keep(object_id, copies=copies)
        return
    put = store.begin_put(object_id, value)
    copied = store.begin_keep(object_id, copies=copies) if copies > 1 else None
    try:
        yield put
        if copied is not None:
            yield copied
    except BaseException:
        if copied is not None:
            copied.cancel()
        raise
