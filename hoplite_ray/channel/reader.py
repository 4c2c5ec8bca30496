"""A reader of a channel: it hears of the newest version, and fetches the next one early."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hoplite_ray.channel.names import name_delta, name_object
from hoplite_ray.channel.record import Record
from hoplite_ray.channel.steps import Steps
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import HopliteError, ObjectLostError
from hoplite_ray.pending import Pending, ReceivedObject
from hoplite_ray.values.deltas import choose_limit_bytes
from hoplite_ray.values.layout import Layout
from hoplite_ray.values.recipe import Attempt, Recipe
from hoplite_ray.values.versions import NO_VERSION, ChannelReader, Version, VersionNumber


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A version of a channel, with its value.

    version:     its number; versions of a channel ascend.
    value:       what was published.
    time_s:      when its bytes were whole, in seconds since 1970, by the publisher's clock.
    size_bytes:  of its value.
    """

    version: int
    value: Any
    time_s: float
    size_bytes: int
    _number: VersionNumber


@dataclass(frozen=True, slots=True)
class _Early:
    """A fetch of what the next version will need: its delta, or the whole of it."""

    number: VersionNumber
    is_delta: bool
    pending: Pending[Any]


class Reader:
    """This process's view of one channel. Any thread may use it.

    It remembers which version it has read last. While the caller holds that value, or the node has
    kept it, the node makes newer versions of it and of their deltas.
    """

    def __init__(self, channel: bytes) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._early: _Early | None = None
        self._last: tuple[VersionNumber, bytes] | None = None  # what was read, and its layout
        self._told: StoreClient | None = None  # that this process reads the channel

    def latest(
        self, store: StoreClient, newer_than: int | None, *, expects_more: bool
    ) -> Steps[Update]:
        """Return the newest version; wait until it is newer than that.

        newer_than:    a version; None takes any.
        expects_more:  True begins to fetch the version after it, before that is visible.
        """
        found: Version | None = yield store.watch_version(self._channel, wait=False)
        while True:
            known = NO_VERSION
            if found is not None:
                known = found.number
                record = None if found.is_end else Record.decode(found.payload)
                if record and (newer_than is None or record.version > newer_than):
                    update = yield from self._read(store, known, record, expects_more)
                    if update is not None:
                        return update
            found = yield store.watch_version(self._channel, known)

    def next(self, store: StoreClient, known: VersionNumber) -> Steps[Update | None]:
        """Wait for a version after that one; returns None if the channel is unpublished first.

        It begins to fetch the version after the one that it returns.

        known:  the last version that the caller has seen, or NO_VERSION.
        """
        has_seen = known != NO_VERSION
        while True:
            found: Version = yield store.watch_version(self._channel, known)
            known = found.number
            if found.is_end and has_seen:
                return None
            if not found.is_end:
                update = yield from self._read(store, known, Record.decode(found.payload), True)
                if update is not None:
                    return update

    def _read(
        self, store: StoreClient, number: VersionNumber, record: Record, expects_more: bool
    ) -> Steps[Update | None]:
        """Return a version; None if it has gone because there is a newer one."""
        try:
            received = yield self._fetch(store, number, record)
        except ObjectLostError:
            if (yield store.watch_version(self._channel, number, wait=False)) is None:
                raise
            return None
        self._last = number, received.layout
        if expects_more:
            self._expect(store, number, record)
            self._tell(store, number, record)
        return Update(record.version, received.value, record.time_s, record.size_bytes, number)

    def close(self) -> None:
        """Fetch nothing early any more, and be no reader of the channel."""
        if (early := self._take_early()) is not None:
            early.pending.cancel()
        if self._told is not None:
            self._tell(self._told, NO_VERSION, Record(0))
            self._told = None

    def _tell(self, store: StoreClient, number: VersionNumber, record: Record) -> None:
        """Tell the node which version this process has read, so that people see how it lags."""
        ordinal = record.origin.ordinal
        reader = ChannelReader(os.getpid(), record.version, ordinal, record.time_s)
        with suppress(HopliteError):  # a node that has ended shows no readers
            store.note_read(self._channel, number, reader)
            self._told = store

    def _fetch(
        self, store: StoreClient, number: VersionNumber, record: Record
    ) -> Pending[ReceivedObject]:
        early, recipe = self._take_early(), self._make_recipe(number, record)
        if early is not None and not early.is_delta and early.number == number:
            is_here = early.pending.wait(0)
            if not early.pending.has_failed and (recipe is None or is_here):
                return early.pending
            early.pending.cancel()  # first: a node makes nothing that it is fetching
        object_id = name_object(self._channel, number)
        if recipe is None:
            begun = store.begin_get(object_id, exists=True)
        else:
            begun = store.begin_rebuild(object_id, recipe)
        if early is not None:
            early.pending.cancel()  # last: by now the node has pinned a delta that it needs
        return begun

    def _make_recipe(self, number: VersionNumber, record: Record) -> Recipe | None:
        """Return how to make a version of the one that was read last; None if it can't be."""
        if self._last is None:
            return None
        base, layout = self._last
        missing = record.trail.find_missing(number, base)
        if not missing:
            return None
        return Recipe(
            layout=Layout.from_bytes(layout),
            block_bytes=record.trail.block_bytes,
            crc32c=record.trail.crc32c,
            base=Attempt(name_object(self._channel, base)),
            deltas=tuple(Attempt(name_delta(self._channel, each)) for each in missing),
        )

    def _expect(self, store: StoreClient, last: VersionNumber, record: Record) -> None:
        """Begin to fetch what the version after `last` will need, which is not there yet.

        A publisher whose last version had a delta will make another one. Its first version can't
        have one, and says nothing of the next.
        """
        number = last._replace(n=last.n + 1)
        may_have_one = choose_limit_bytes(record.size_bytes) > 0
        is_delta = may_have_one and (bool(record.trail.sizes_bytes) or last.n == 1)
        name = name_delta if is_delta else name_object
        try:
            pending = store.begin_get(name(self._channel, number))
        except HopliteError:  # the next call says so
            return
        with self._lock:
            other, self._early = self._early, _Early(number, is_delta, pending)
        if other is not None:
            other.pending.cancel()

    def _take_early(self) -> _Early | None:
        with self._lock:
            early, self._early = self._early, None
        return early
