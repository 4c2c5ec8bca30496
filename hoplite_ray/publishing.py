"""The version channels of `Store`: publish, latest, watch, channels and unpublish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Any

from hoplite_ray.channel.channels import Channels
from hoplite_ray.channel.draft import draft
from hoplite_ray.channel.listing import ListedChannel
from hoplite_ray.channel.reader import Update
from hoplite_ray.channel.watching import VersionWatch
from hoplite_ray.client import StoreClient

_NAMESPACE = ""  # a store without Ray has one


class Publishing:
    """The part of `Store` that publishes values under names."""

    _client: StoreClient

    @cached_property
    def _channels(self) -> Channels:
        return Channels(lambda deadline: self._client)

    def publish(
        self,
        name: str,
        value: Any,
        *,
        version: int | None = None,
        keep: int = 2,
        copies: int = 1,
        delta: bool = True,
        fill: Callable[[Any], None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Publish a value as the newest version of a channel, for readers on every node.

        A version is visible when all of its bytes are on `copies` nodes; it never changes. These
        nodes, this process's among them, keep the last `keep` versions until `unpublish`, also when
        this process and its node have died. One process publishes to a channel: another one that
        begins takes it over, and this one's next publish fails.

        Args:    name: of the channel, a text of at most 1,024 bytes.
                 value: as for `put`.
                 version: a number above those before; None takes the next one, 1 at first.
                 keep: versions to keep, 1 to 65,536. While it publishes, memory for one more is
                 needed.
                 copies: nodes that keep each version, 1 to 3. A copy whose node dies is made again
                 while another lives. Where there are fewer nodes, all of them keep it.
                 delta: False to send every version whole. Otherwise readers that have an older
                 version get what has changed since, where that is at most half of the bytes. The
                 deltas need memory of half a version, and of the next one.
                 fill: a function that writes the version where it will lie. It is called with a
                 value laid out like `value`, whose arrays it writes; there specs may stand for
                 arrays, as in `empty`.
                 timeout_s: seconds to wait; None waits without a limit.
        Returns: the version, when every node can read it.
        Raises:  InvalidArgumentError for a version that does not ascend, or a value that no object
                 can hold; VersionRefusedError if another process has taken the channel;
                 StoreFullError; GetTimeoutError, after which it may still become visible.
        Cost:    a copy of the bytes, or none but what `fill` writes, which also compares them with
                 the version before if both have one layout; and two messages to each other node.
                 With `copies` the bytes go over the link of each further node, which a reader's
                 node has received anyway.
        Example:

            assert store.publish("policy", np.zeros(4)) == 1
            assert store.latest("policy").value.sum() == 0
        """
        stored = value if fill is None else draft(value, fill)
        return self._channels.publish(
            _NAMESPACE, name, stored, version, keep, copies, delta, timeout_s
        )

    async def publish_async(
        self,
        name: str,
        value: Any,
        *,
        version: int | None = None,
        keep: int = 2,
        copies: int = 1,
        delta: bool = True,
        fill: Callable[[Any], None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Like `publish`, but awaitable; cancelling it may leave a version that becomes visible.

        `fill` runs in the event loop of the caller.
        """
        stored = value if fill is None else draft(value, fill)
        return await self._channels.publish_async(
            _NAMESPACE, name, stored, version, keep, copies, delta, timeout_s
        )

    def latest(
        self, name: str, *, newer_than: int | None = None, timeout_s: float | None = None
    ) -> Update:
        """Return the newest version of a channel; wait until there is one.

        Args:    name: of the channel.
                 newer_than: a version; the call waits for one above it, and begins to fetch the
                 one after that, before it is visible.
                 timeout_s: seconds to wait for the version and its bytes; None has no limit.
        Returns: an `Update`: `version`, `value`, `time_s`, `size_bytes`. The value is the caller's
                 own, also when newer versions have taken its place.
        Raises:  GetTimeoutError; ObjectLostError if all nodes with its bytes are gone;
                 NodeLostError.
        Cost:    one question to the channel's home, and the bytes over this node's link once. With
                 `newer_than` the node also needs memory for the version that comes.
        Example:

            store.publish("critic", [np.ones(3)])
            assert store.latest("critic", timeout_s=10).version == 1
        """
        return self._channels.latest(_NAMESPACE, name, newer_than, timeout_s)

    async def latest_async(
        self, name: str, *, newer_than: int | None = None, timeout_s: float | None = None
    ) -> Update:
        """Like `latest`, but awaitable; cancelling it cancels the transfer."""
        return await self._channels.latest_async(_NAMESPACE, name, newer_than, timeout_s)

    def watch(self, name: str) -> VersionWatch:
        """Return a watch of a channel: `for update in store.watch(name)`, or `async for`.

        Args:    name: of the channel, which need not be there yet.
        Returns: a `VersionWatch`, which yields an `Update` for the newest version, and for each one
                 after it that this reader is fast enough for. It ends with `unpublish`.
        Raises:  InvalidArgumentError if no channel can have that name.
        Cost:    as `latest` with `newer_than`, for each version.
        Example:

            store.publish("watched", np.ones(3))
            with store.watch("watched") as updates:
                assert updates.next(timeout_s=10).version == 1
        """
        return self._channels.watch(_NAMESPACE, name)

    def channels(self, *, timeout_s: float = 5.0) -> list[ListedChannel]:
        """List the channels, each with its newest version and the version of each reader.

        A reader is a process that has a watch of the channel, or that asks for the version after
        the one that it has. It is listed from its first version on, until it closes the watch or
        ends.

        Args:    timeout_s: seconds for the nodes to answer. A node that does not answer is left
                 out, with its readers.
        Returns: a `ListedChannel` for each channel that was not unpublished, in the order of names.
                 A version may be listed a moment before it is visible.
        Raises:  ControlError if this process's own node does not answer; InvalidArgumentError;
                 NodeLostError.
        Cost:    one call to each node at once, and at most 4 KiB of each for each channel.
        Example:

            store.publish("listed", np.zeros(4), version=7)
            [listed] = [each for each in store.channels() if each.name == "listed"]
            assert listed.version == 7 and listed.publisher_node_id == store.node_id
        """
        return self._channels.list(_NAMESPACE, timeout_s)

    async def channels_async(self, *, timeout_s: float = 5.0) -> list[ListedChannel]:
        """Like `channels`, but awaitable; cancelling it lets the calls end by their time limit."""
        return await asyncio.to_thread(self.channels, timeout_s=timeout_s)

    def unpublish(self, name: str, *, timeout_s: float | None = None) -> None:
        """End a channel: free its versions, and end its watches.

        Args:    name: of the channel.
                 timeout_s: seconds to wait; None waits without a limit.
        Returns: None. Values that readers hold stay theirs. A later `publish` begins the channel
                 again, with version 1.
        Raises:  GetTimeoutError; NodeLostError.
        Cost:    two messages to each other node.
        Example:

            store.publish("gone", np.ones(3))
            store.unpublish("gone")
        """
        self._channels.unpublish(_NAMESPACE, name, timeout_s)

    async def unpublish_async(self, name: str, *, timeout_s: float | None = None) -> None:
        """Like `unpublish`, but awaitable; cancelling it may leave the channel without versions."""
        await self._channels.unpublish_async(_NAMESPACE, name, timeout_s)
