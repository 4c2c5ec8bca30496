"""publish, latest, watch, channels and unpublish, which `hoplite_ray` exports."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ray

from hoplite_ray.channel.channels import Channels
from hoplite_ray.channel.draft import draft
from hoplite_ray.channel.listing import ListedChannel
from hoplite_ray.channel.reader import Update
from hoplite_ray.channel.watching import VersionWatch
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import InvalidArgumentError, NodeLostError
from hoplite_ray.plugin.process.attachment import TRIES, attachment
from hoplite_ray.values.deadlines import deadline_in

T = TypeVar("T")


def publish(
    name: str,
    value: Any,
    *,
    version: int | None = None,
    keep: int = 2,
    copies: int = 1,
    delta: bool = True,
    fill: Callable[[Any], None] | None = None,
    namespace: str | None = None,
    timeout_s: float | None = None,
) -> int:
    """Publish a value as the newest version of a channel, for readers in every process.

    A version is visible when all of its bytes are on `copies` nodes; it never changes. These nodes,
    this process's among them, keep the last `keep` versions until `unpublish`, also when this
    process and its node have died. One process publishes to a channel: another one that begins
    takes it over, and this one's next publish fails.

    Args:    name: of the channel, a text of at most 1,024 bytes.
             value: as for `hoplite_ray.put`, for example a state dict of torch on the CPU.
             version: a number above those before; None takes the next one, 1 at first.
             keep: versions to keep, 1 to 65,536. Memory for one more is needed while it publishes.
             copies: nodes that keep each version, 1 to 3. A copy whose node dies is made again
             while another lives. Where there are fewer nodes, all of them keep it.
             delta: False to send every version whole. Otherwise readers that have an older version
             get what has changed since, where that is at most half of the bytes. The deltas need
             memory of half a version, and of the next one.
             fill: a function that writes the version where it will lie. It is called with a value
             laid out like `value`, whose arrays it writes; there specs may stand for arrays, as in
             `hoplite_ray.empty`. It is called again if this node dies meanwhile.
             namespace: of Ray, in which the channel is; None takes this job's. Jobs that don't name
             theirs have one each.
             timeout_s: seconds to wait; None waits without a limit.
    Returns: the version, when every process can read it.
    Raises:  InvalidArgumentError for a version that does not ascend, or naming the part of `value`
             that can't be stored; VersionRefusedError if another process has taken the channel;
             StoreFullError; GetTimeoutError, after which it may still become visible.
    Cost:    a copy of the bytes, or none but what `fill` writes, which also compares them with the
             version before if both have one layout; and two messages to each other node. With
             `copies` the bytes go over the link of each further node, which a reader's node has
             received anyway.
    Example:

        assert hop.publish("policy", {"layer": np.zeros(4)}) == 1
        assert hop.latest("policy").value["layer"].sum() == 0
        write = lambda value: np.copyto(value["layer"], 1)
        assert hop.publish("policy", {"layer": hop.spec(4)}, fill=write) == 2
        hop.unpublish("policy")
    """
    space = _choose(namespace, timeout_s)
    stored = value if fill is None else draft(value, fill)
    return _retry(
        lambda channels: channels.publish(
            space, name, stored, version, keep, copies, delta, timeout_s
        )
    )


async def publish_async(
    name: str,
    value: Any,
    *,
    version: int | None = None,
    keep: int = 2,
    copies: int = 1,
    delta: bool = True,
    fill: Callable[[Any], None] | None = None,
    namespace: str | None = None,
    timeout_s: float | None = None,
) -> int:
    """Like `publish`, but awaitable; cancelling it may leave a version that becomes visible.

    `fill` runs in the event loop of the caller.
    """
    space = _choose(namespace, timeout_s)
    stored = value if fill is None else draft(value, fill)
    return await _retry_async(
        lambda channels: channels.publish_async(
            space, name, stored, version, keep, copies, delta, timeout_s
        )
    )


def latest(
    name: str,
    *,
    newer_than: int | None = None,
    namespace: str | None = None,
    timeout_s: float | None = None,
) -> Update:
    """Return the newest version of a channel; wait until there is one.

    Args:    name: of the channel.
             newer_than: a version; the call waits for one above it, and begins to fetch the one
             after that, before it is visible.
             namespace: as for `publish`.
             timeout_s: seconds to wait for the version and its bytes; None waits without a limit.
    Returns: an `Update`: `version`, `value`, `time_s`, `size_bytes`. The value is the caller's own,
             also when newer versions have taken its place.
    Raises:  GetTimeoutError; ObjectLostError if all nodes with its bytes are gone.
    Cost:    one question to the channel's home, and the bytes over this node's link once for all of
             its processes. With `newer_than` the node also needs memory for the version that comes.
    Example:

        hop.publish("critic", [np.ones(3)])
        assert hop.latest("critic", timeout_s=60).version == 1
        hop.unpublish("critic")
    """
    space = _choose(namespace, timeout_s)
    return _retry(lambda channels: channels.latest(space, name, newer_than, timeout_s))


async def latest_async(
    name: str,
    *,
    newer_than: int | None = None,
    namespace: str | None = None,
    timeout_s: float | None = None,
) -> Update:
    """Like `latest`, but awaitable; cancelling it cancels the transfer."""
    space = _choose(namespace, timeout_s)
    return await _retry_async(
        lambda channels: channels.latest_async(space, name, newer_than, timeout_s)
    )


def watch(name: str, *, namespace: str | None = None) -> VersionWatch:
    """Return a watch of a channel: `for update in hop.watch(name)`, or `async for`.

    Args:    name: of the channel, which need not be there yet.
             namespace: as for `publish`.
    Returns: a `VersionWatch`, which yields an `Update` for the newest version, and for each one
             after it that this reader is fast enough for. It ends with `unpublish`.
    Raises:  InvalidArgumentError if no channel can have that name.
    Cost:    as `latest` with `newer_than`, for each version.
    Example:

        hop.publish("watched", np.ones(3))
        with hop.watch("watched") as updates:
            assert updates.next(timeout_s=60).version == 1
        hop.unpublish("watched")
    """
    return _channels().watch(_choose(namespace, None), name)


def channels(*, namespace: str | None = None, timeout_s: float = 5.0) -> list[ListedChannel]:
    """List the channels of a namespace, each with its newest version and that of each reader.

    A reader is a process that has a watch of the channel, or that asks for the version after the
    one that it has. It is listed from its first version on, until it closes the watch or ends.

    Args:    namespace: as for `publish`.
             timeout_s: seconds for the nodes to answer. A node that does not answer is left out,
             with its readers.
    Returns: a `ListedChannel` for each channel that was not unpublished, in the order of names. A
             version may be listed a moment before it is visible.
    Raises:  ControlError if this Ray node's own node does not answer; InvalidArgumentError.
    Cost:    one call to each node at once, and at most 4 KiB of each for each channel.
    Example:

        hop.publish("listed", np.zeros(4), version=7)
        [listed] = [each for each in hop.channels() if each.name == "listed"]
        assert listed.version == 7 and listed.readers == ()
        hop.unpublish("listed")
    """
    space = _choose(namespace, timeout_s)
    return _retry(lambda channels: channels.list(space, timeout_s))


def unpublish(name: str, *, namespace: str | None = None, timeout_s: float | None = None) -> None:
    """End a channel: free its versions, and end its watches.

    Args:    name: of the channel.
             namespace: as for `publish`.
             timeout_s: seconds to wait; None waits without a limit.
    Returns: None. Values that readers hold stay theirs. A later `publish` begins the channel again,
             with version 1.
    Raises:  GetTimeoutError.
    Cost:    two messages to each other node.
    Example:

        hop.publish("gone", np.ones(3))
        hop.unpublish("gone")
    """
    space = _choose(namespace, timeout_s)
    _retry(lambda channels: channels.unpublish(space, name, timeout_s))


async def unpublish_async(
    name: str, *, namespace: str | None = None, timeout_s: float | None = None
) -> None:
    """Like `unpublish`, but awaitable; cancelling it may leave the channel without versions."""
    space = _choose(namespace, timeout_s)
    await _retry_async(lambda channels: channels.unpublish_async(space, name, timeout_s))


_here: tuple[tuple[int, Any], Channels] | None = None  # of which process and Ray session


def _channels() -> Channels:
    """Return this process's channels; another session of Ray has others."""
    global _here
    session = (os.getpid(), attachment().connection)
    if _here is None or _here[0] != session:
        _here = session, Channels(_connect, watch_tries=TRIES)
    return _here[1]


def _connect(deadline: float | None) -> StoreClient:
    return attachment(deadline).store_by(deadline)


def _choose(namespace: Any, timeout_s: float | None) -> str:
    """Return the namespace of a call, and attach to the node within the call's time limit."""
    attachment(deadline_in(timeout_s))
    if namespace is None:
        return str(ray.get_runtime_context().namespace)
    if isinstance(namespace, str):
        return namespace
    raise InvalidArgumentError(f"namespace is {namespace!r}; it is a text, or None")


def _retry(work: Callable[[Channels], T]) -> T:
    """Do it, and again on the next life of this process's node if that dies."""
    for _ in range(TRIES - 1):
        try:
            return work(_channels())
        except NodeLostError:
            continue
    return work(_channels())


async def _retry_async(work: Callable[[Channels], Awaitable[T]]) -> T:
    for _ in range(TRIES - 1):
        try:
            return await work(_channels())
        except NodeLostError:
            continue
    return await work(_channels())
