"""An operator's questions to one node: its description, links and objects; and its draining."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hoplite_ray import _native
from hoplite_ray.base.release import release
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.client import ControlClient
from hoplite_ray.control.view import Member
from hoplite_ray.errors import ControlError, InvalidArgumentError
from hoplite_ray.values.versions import NO_ID, ChannelState, read_channels

ROWS_MAX = 100_000  # 10 MB on the wire, and the longest turn that a node may spend on a list
_ROWS_PER_MESSAGE = 1000  # some 60 to 100 bytes each; gRPC refuses messages over 4 MiB
_OBJECTS_NAMED = 100  # of those that keep a node from being drained
_PROBES_AT_ONCE_MAX = 64  # of 1024 members with 8 rails: well below the limit of open files
_PROBE_TIMEOUT_MAX_S = 30.0
_DRAIN_TIMEOUT_MAX_S = 86400.0
_DRAIN_LOOK_S = 0.02  # between looks at counters that the node publishes every 10 ms
_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_STATUS = Path("/proc/self/status")


class AdministeredNode(Protocol):
    """The part of NativeNode that `Administration` uses."""

    def stats(self) -> dict[str, int]:
        """Return the published counters by name."""
        ...

    def objects(self, limit: int = 1000, object_ids: Sequence[bytes] = ()) -> list[dict[str, Any]]:
        """Return the largest objects that this node knows, or what it knows of some."""
        ...

    def transfers(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Return the largest stripes that come in."""
        ...

    def channels(self, after: bytes) -> list[dict[str, Any]]:
        """Return a page of the live version channels, those after that id."""
        ...

    def moments(self, object_id: bytes, digits: int) -> dict[str, Any]:
        """Return what the node remembers of some objects."""
        ...

    def drain(self) -> None:
        """Begin to move what is held only here. Idempotent."""
        ...


class Administration:
    """Answers for one incarnation of a node. One event loop owns it."""

    def __init__(
        self,
        native: AdministeredNode,
        *,
        directory: Path,
        arena_bytes: int,
        options: Mapping[str, int],
        calls: ControlClient,
    ) -> None:
        self._native = native
        self._directory = directory
        self._arena_bytes = arena_bytes
        self._options = dict(options)
        self._calls = calls
        self.is_draining = False

    def counters(self) -> dict[str, int]:
        """Return the counters of the native node, and the memory of this process."""
        return {**self._native.stats(), "memory_bytes": _anonymous_bytes(_STATUS.read_text())}

    def describe(self, own: Member) -> pb.Description:
        """Return the node's id, its options and its releases."""
        return pb.Description(
            node_id=own.node_id,
            incarnation=own.incarnation,
            release=release(),
            wire_version=_native.WIRE_VERSION,
            python=platform.python_version(),
            pid=os.getpid(),
            directory=str(self._directory),
            congestion_control=_CONGESTION_CONTROL.read_text().strip(),
            arena_bytes=self._arena_bytes,
            options=self._options,
            clock_s=time.time(),
            draining=self.is_draining,
        )

    async def probe(self, others: Sequence[Member], timeout_s: float) -> pb.Probes:
        """Try every address of `others` at once."""
        timeout_s = _clamp(timeout_s, _PROBE_TIMEOUT_MAX_S)
        turns = asyncio.Semaphore(_PROBES_AT_ONCE_MAX)

        async def one(member: Member) -> pb.Probe:
            async with turns:
                control, *rails = await asyncio.gather(
                    self._control_failure(member, timeout_s),
                    *(_rail_failure(rail, timeout_s) for rail in member.rails),
                )
            return pb.Probe(
                node_id=member.node_id,
                incarnation=member.incarnation,
                control_failure=control,
                rail_failures=filter(None, rails),
            )

        return pb.Probes(probes=await asyncio.gather(*map(one, others)))

    async def objects(
        self, limit: int, object_ids: Sequence[bytes] = ()
    ) -> AsyncIterator[pb.Objects]:
        """Yield the `limit` largest objects, all of one moment.

        object_ids:  of the objects to yield in place of the largest; unknown ones are left out.

        Raises:  ControlError if that is more than one answer may have, or an id is none.
        """
        _check_limit(max(limit, len(object_ids)))
        try:
            rows = await asyncio.to_thread(self._native.objects, limit, list(object_ids))
        except InvalidArgumentError as error:
            raise ControlError(str(error)) from error
        for page in _pages(rows):
            yield pb.Objects(objects=[pb.Object(**each) for each in page])

    async def transfers(self, limit: int) -> AsyncIterator[pb.Transfers]:
        """Yield the `limit` largest stripes that come in, all of one moment.

        Raises:  ControlError if that is more than one answer may have.
        """
        _check_limit(limit)
        for page in _pages(await asyncio.to_thread(self._native.transfers, limit)):
            yield pb.Transfers(transfers=[pb.Transfer(**each) for each in page])

    async def channels(self) -> AsyncIterator[pb.Channels]:
        """Yield the live version channels page by page, each page of one moment."""
        after = NO_ID
        while page := read_channels(await asyncio.to_thread(self._native.channels, after)):
            yield pb.Channels(channels=[_channel_to_proto(each) for each in page])
            after = page[-1].channel

    async def trace(self, object_id: bytes, digits: int) -> pb.Traced:
        """Return the node's memory of the objects whose ids begin with these hex digits.

        Raises:  ControlError if that is no beginning of an id.
        """
        try:
            memory = await asyncio.to_thread(self._native.moments, object_id, digits)
        except InvalidArgumentError as error:
            raise ControlError(str(error)) from error
        moments = [pb.Moment(**each) for each in memory.pop("moments")]
        return pb.Traced(moments=moments, now_ns=time.monotonic_ns(), **memory)

    def begin_drain(self) -> None:
        """Move what is held only here to other nodes, from now on. Idempotent."""
        self.is_draining = True
        self._native.drain()

    async def drain(self, timeout_s: float) -> pb.DrainReply:
        """Wait until nothing is held only here.

        Returns: the objects that are left at `timeout_s`. The counters decide, because the node's
                 own event may come before this call. Only counters that the node publishes after
                 this call count.
        """
        deadline_s = time.monotonic() + _clamp(timeout_s, _DRAIN_TIMEOUT_MAX_S)
        turns_before = self._native.stats()["turns"]
        self._native.drain()  # idempotent: it wakes the reactor, which then publishes its counters
        while True:
            stats = self._native.stats()
            is_new = stats["turns"] != turns_before
            if is_new and stats["draining"] and stats["sole_copies"] == 0:
                return pb.DrainReply(drained=True)
            if is_new and time.monotonic() >= deadline_s:
                break  # the caller's own limit ends the wait for a node that takes no turn
            await asyncio.sleep(_DRAIN_LOOK_S)
        rows = await asyncio.to_thread(self._native.objects, ROWS_MAX)
        left = [pb.Object(**each) for each in rows if each["sole"]]
        return pb.DrainReply(sole_copies=stats["sole_copies"], left=left[:_OBJECTS_NAMED])

    async def _control_failure(self, member: Member, timeout_s: float) -> str:
        if await self._calls.is_healthy(member.control, timeout_s=timeout_s):
            return ""
        return f"{member.control} does not say that it is healthy within {timeout_s:g} s"


def _anonymous_bytes(status: str) -> int:
    """The memory of a process without its files and its shared memory, such as the arena."""
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def _channel_to_proto(state: ChannelState) -> pb.Channel:
    readers = [
        pb.ChannelReader(
            process=each.process, version=each.version, ordinal=each.ordinal, time_s=each.time_s
        )
        for each in state.readers
    ]
    number = state.newest.number
    return pb.Channel(
        channel_id=state.channel,
        epoch=number.epoch,
        counter=number.counter,
        n=number.n,
        record=state.newest.payload,
        is_home=state.is_home,
        readers=readers,
    )


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= ROWS_MAX:
        raise ControlError(f"limit {limit} is out of range; it takes 1 to {ROWS_MAX}")


def _pages(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for first in range(0, len(rows), _ROWS_PER_MESSAGE):
        yield rows[first : first + _ROWS_PER_MESSAGE]


async def _rail_failure(rail: str, timeout_s: float) -> str:
    """Connect and close: a node takes that for a connection without a handshake."""
    address, _, port = rail.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(address.strip("[]"), int(port))
            writer.close()
            await writer.wait_closed()
    except TimeoutError:
        return f"{rail} takes no connection within {timeout_s:g} s"
    except OSError as error:
        return f"{rail}: {os.strerror(error.errno) if error.errno else error}"
    return ""


def _clamp(timeout_s: float, most_s: float) -> float:
    return min(max(timeout_s, 0.0), most_s)
