"""Watches: each version of a channel that a reader is fast enough for, in order."""

from __future__ import annotations

from collections.abc import Callable

from hoplite_ray.channel.listing import explain_timeout
from hoplite_ray.channel.reader import Reader, Update
from hoplite_ray.channel.steps import Steps, run, run_async
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import NodeLostError
from hoplite_ray.values.deadlines import deadline_in
from hoplite_ray.values.versions import NO_VERSION

_Connect = Callable[[float | None], StoreClient]


class VersionWatch:
    """The versions of a channel, the newest first and then each newer one: `for` or `async for`.

    A reader that is slower than the publisher misses versions, and never sees one twice. It begins
    to fetch a version before that is visible. It ends when the channel is unpublished. One caller
    uses it at a time.
    """

    def __init__(
        self, connect: _Connect, reader: Reader, namespace: str, name: str, tries: int = 1
    ) -> None:
        """Begin to watch; programs call `watch`. `tries`: lives of its node that it may see."""
        self._connect = connect
        self._channel = (namespace, name)
        self._reader = reader
        self._tries = tries
        self._known = NO_VERSION

    def next(self, *, timeout_s: float | None = None) -> Update | None:
        """Wait for the next version.

        Args:    timeout_s: seconds to wait; None waits without a limit.
        Returns: the version with its value; None when the channel is unpublished.
        Raises:  GetTimeoutError, after which the watch goes on; ObjectLostError; NodeLostError.
        """
        deadline = deadline_in(timeout_s)
        for left in reversed(range(self._tries)):
            try:
                return self._note(run(self._begin_next(deadline), deadline))
            except NodeLostError:
                if left == 0:
                    raise
        raise AssertionError("a watch has at least one try")

    async def next_async(self, *, timeout_s: float | None = None) -> Update | None:
        """Like `next`, but awaitable; cancelling it loses no version."""
        deadline = deadline_in(timeout_s)
        for left in reversed(range(self._tries)):
            try:
                return self._note(await run_async(self._begin_next(deadline), deadline))
            except NodeLostError:
                if left == 0:
                    raise
        raise AssertionError("a watch has at least one try")

    def close(self) -> None:
        """End the watch: fetch nothing early any more. Idempotent."""
        self._reader.close()

    def __enter__(self) -> VersionWatch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> VersionWatch:
        return self

    def __next__(self) -> Update:
        if (update := self.next()) is None:
            raise StopIteration
        return update

    def __aiter__(self) -> VersionWatch:
        return self

    async def __anext__(self) -> Update:
        if (update := await self.next_async()) is None:
            raise StopAsyncIteration
        return update

    def _begin_next(self, deadline: float | None) -> Steps[Update | None]:
        store = self._connect(deadline)
        return explain_timeout(self._reader.next(store, self._known), store, *self._channel)

    def _note(self, update: Update | None) -> Update | None:
        if update is not None:
            self._known = update._number
        return update
