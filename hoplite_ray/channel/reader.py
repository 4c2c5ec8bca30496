"""A reader of a channel: it hears of the newest version, and fetches the next one early."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hoplite_ray.channel.names import name_object
from hoplite_ray.channel.record import Record
from hoplite_ray.channel.steps import Steps
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import HopliteError, ObjectLostError
from hoplite_ray.pending import Pending, ReceivedObject
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


class Reader:
    """This process's view of one channel. Any thread may use it."""

    def __init__(self, channel: bytes) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._early: tuple[VersionNumber, Pending[ReceivedObject]] | None = None
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
            received = yield self._fetch(store, number)
        except ObjectLostError:
            if (yield store.watch_version(self._channel, number, wait=False)) is None:
                raise
            return None
        if expects_more:
            self._expect(store, number._replace(n=number.n + 1))
            self._tell(store, number, record)
        return Update(record.version, received.value, record.time_s, record.size_bytes, number)

    def close(self) -> None:
        """Fetch nothing early any more, and be no reader of the channel."""
        self._take_early(None)
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

    def _fetch(self, store: StoreClient, number: VersionNumber) -> Pending[ReceivedObject]:
        early = self._take_early(number)
        if early is not None and not early.has_failed:
            return early
        return store.begin_get(name_object(self._channel, number), exists=True)

    def _expect(self, store: StoreClient, number: VersionNumber) -> None:
        """Begin to fetch a version that is not there yet."""
        try:
            pending = store.begin_get(name_object(self._channel, number))
        except HopliteError:  # the next call says so
            return
        with self._lock:
            other, self._early = self._early, (number, pending)
        if other is not None:
            other[1].cancel()

    def _take_early(self, number: VersionNumber | None) -> Pending[ReceivedObject] | None:
        """Return the early fetch of a version; one of another version is cancelled."""
        with self._lock:
            early, self._early = self._early, None
        if early is None:
            return None
        if early[0] == number:
            return early[1]
        early[1].cancel()
        return None
