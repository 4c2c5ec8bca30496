"""The channels of one process: publish, latest, watch and unpublish, each with its twin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hoplite_ray import _native
from hoplite_ray.channel.draft import Draft
from hoplite_ray.channel.listing import ListedChannel, collect_channels, explain_timeout
from hoplite_ray.channel.names import checked_name, name_channel
from hoplite_ray.channel.publisher import Publisher
from hoplite_ray.channel.reader import Reader, Update
from hoplite_ray.channel.record import KEPT_MAX
from hoplite_ray.channel.steps import Steps, run, run_async
from hoplite_ray.channel.watching import VersionWatch
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.codec import encode
from hoplite_ray.values.deadlines import checked_timeout, deadline_in, left_s


class Channels:
    """Publishers and readers of this process, by channel. Any thread may use it.

    `hoplite_ray.publish` and its neighbours describe arguments, results and errors.
    """

    def __init__(
        self, connect: Callable[[float | None], StoreClient], watch_tries: int = 1
    ) -> None:
        """`connect` returns the store's client by a deadline.

        watch_tries:  lives of this process's node that one wait of a watch may see.
        """
        self._connect = connect
        self._watch_tries = watch_tries
        self._lock = threading.Lock()
        self._publishers: dict[bytes, Publisher] = {}
        self._readers: dict[bytes, Reader] = {}  # of `latest`

    def publish(
        self,
        namespace: str,
        name: str,
        value: Any,
        version: int | None,
        keep: int,
        copies: int,
        delta: bool,
        timeout_s: float | None,
    ) -> int:
        """Publish a value, or a draft of one; returns its version."""
        return run(
            *self._begin_publish(namespace, name, value, version, keep, copies, delta, timeout_s)
        )

    async def publish_async(
        self,
        namespace: str,
        name: str,
        value: Any,
        version: int | None,
        keep: int,
        copies: int,
        delta: bool,
        timeout_s: float | None,
    ) -> int:
        """Like `publish`, but awaitable."""
        begun = self._begin_publish(namespace, name, value, version, keep, copies, delta, timeout_s)
        return await run_async(*begun)

    def latest(
        self, namespace: str, name: str, newer_than: int | None, timeout_s: float | None
    ) -> Update:
        """Return the newest version."""
        return run(*self._begin_latest(namespace, name, newer_than, timeout_s))

    async def latest_async(
        self, namespace: str, name: str, newer_than: int | None, timeout_s: float | None
    ) -> Update:
        """Like `latest`, but awaitable."""
        return await run_async(*self._begin_latest(namespace, name, newer_than, timeout_s))

    def watch(self, namespace: str, name: str) -> VersionWatch:
        """Return a watch of the channel's versions."""
        reader = Reader(name_channel(namespace, checked_name(name)))
        return VersionWatch(self._connect, reader, namespace, name, self._watch_tries)

    def list(self, namespace: str, timeout_s: float) -> list[ListedChannel]:
        """List the channels of a namespace, by what each node knows of them."""
        limit_s = checked_timeout(timeout_s)
        if limit_s is None:
            raise InvalidArgumentError(
                f"timeout_s is {timeout_s}; it is how long the nodes have to answer, in seconds"
            )
        deadline = deadline_in(limit_s)
        store = self._connect(deadline)
        answers = store.ask_channels(left_s(deadline) or 0.0)
        return [each for each in collect_channels(answers) if each.namespace == namespace]

    def unpublish(self, namespace: str, name: str, timeout_s: float | None) -> None:
        """End a channel, and free its versions."""
        deadline = deadline_in(timeout_s)
        run(self._publisher(namespace, name).end(self._connect(deadline)), deadline)

    async def unpublish_async(self, namespace: str, name: str, timeout_s: float | None) -> None:
        """Like `unpublish`, but awaitable."""
        deadline = deadline_in(timeout_s)
        await run_async(self._publisher(namespace, name).end(self._connect(deadline)), deadline)

    def _begin_publish(
        self,
        namespace: str,
        name: str,
        value: Any,
        version: int | None,
        keep: int,
        copies: int,
        delta: bool,
        timeout_s: float | None,
    ) -> tuple[Steps[int], float | None]:
        if version is not None and (type(version) is not int or version < 1):
            raise InvalidArgumentError(f"version is {version!r}; it is a whole number from 1 on")
        if type(keep) is not int or not 1 <= keep <= KEPT_MAX:
            raise InvalidArgumentError(
                f"keep is {keep!r}; it is the number of versions that are kept, 1 to {KEPT_MAX}"
            )
        if type(copies) is not int or not 1 <= copies <= _native.COPIES_MAX:
            raise InvalidArgumentError(
                f"copies is {copies!r}; it is the number of nodes that keep each version, 1 to "
                f"{_native.COPIES_MAX}"
            )
        if type(delta) is not bool:
            raise InvalidArgumentError(f"delta is {delta!r}; it is True or False")
        deadline = deadline_in(timeout_s)
        stored = value if isinstance(value, Draft) else encode(value)
        publisher = self._publisher(namespace, name)
        store = self._connect(deadline)
        steps = publisher.publish(store, stored, version, keep, copies, delta=delta)
        return steps, deadline

    def _begin_latest(
        self, namespace: str, name: str, newer_than: int | None, timeout_s: float | None
    ) -> tuple[Steps[Update], float | None]:
        deadline = deadline_in(timeout_s)
        reader = self._reader(namespace, name, newer_than)
        more = newer_than is not None
        store = self._connect(deadline)
        steps = reader.latest(store, newer_than, expects_more=more)
        return explain_timeout(steps, store, namespace, name), deadline

    def _publisher(self, namespace: str, name: str) -> Publisher:
        channel = name_channel(namespace, checked_name(name))
        with self._lock:
            return self._publishers.setdefault(channel, Publisher(channel, namespace, name))

    def _reader(self, namespace: str, name: str, newer_than: int | None) -> Reader:
        if newer_than is not None and type(newer_than) is not int:
            raise InvalidArgumentError(f"newer_than is {newer_than!r}; it is a version, or None")
        channel = name_channel(namespace, checked_name(name))
        with self._lock:
            return self._readers.setdefault(channel, Reader(channel))
