"""The lower half of `Store`: starts each operation on this process's node.

Under Ray the plug-in uses it without `Store`, because it numbers the attempts of a put, knows which
objects were put, and names the reader of each share of a reduce-scatter.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError, NodeLostError, UnusableAfterForkError
from hoplite_ray.listener import Listener, detach
from hoplite_ray.pending import (
    FULL_HINT,
    SILENT_HINT,
    Pending,
    PendingPut,
    PendingReduce,
    ReceivedObject,
)
from hoplite_ray.unsealed import Filling, Range, Unsealed, pend_seal
from hoplite_ray.values import codec
from hoplite_ray.values.layout import (
    REDUCE_OPS,
    Layout,
    ReduceOp,
    Share,
    checked_id,
    checked_incarnation,
    short_name,
)
from hoplite_ray.values.recipe import Attempt, Recipe
from hoplite_ray.values.versions import (
    NO_ID,
    NO_VERSION,
    ChannelReader,
    ChannelState,
    TakenTerm,
    Term,
    Version,
    VersionNumber,
    check_number,
    check_payload,
    read_channels,
    read_taken,
    read_version,
)

if TYPE_CHECKING:
    from hoplite_ray.control import control_pb2 as pb
    from hoplite_ray.control.client import ControlClient
    from hoplite_ray.control.holders import Holder
    from hoplite_ray.control.view import Member

T = TypeVar("T")

_NO_MAJORITY = "no majority of the nodes can be reached"


class StoreClient:
    """This process's attachment to its node. Any thread may use it; a forked child may not.

    Each `begin_*` returns at once, and its result ends when the operation does. Where it is given,
    `incarnation` is the number of an attempt: the bytes of a higher one replace those of a lower.
    """

    def __init__(self, socket: str | os.PathLike[str]) -> None:
        """Attach to the node of `socket`; `Store.attach` says what it raises."""
        self._client = client = _native.Client(os.fspath(socket))
        self._pid = os.getpid()
        self._directory = Path(socket).parent
        self._listener = Listener(client, self._directory)
        self._detach = weakref.finalize(self, detach, self._pid, client, self._listener)

    def begin_put(self, object_id: bytes, value: Any, *, incarnation: int = 1) -> PendingPut:
        """Start a put. The bytes of a large value are written by the result's waiter.

        Args:    value: what `Store.put` takes, or what `codec.encode` made of it.
        """
        object_id, incarnation = checked_id(object_id), checked_incarnation(incarnation)
        layout, data = value if isinstance(value, codec.Encoded) else codec.encode(value)
        request = self._usable().put(object_id, incarnation, layout.to_bytes(), layout.parts, data)
        return PendingPut(
            self._listener,
            self._client,
            request,
            what=f"put of object {short_name(object_id)} ({layout.size_bytes} bytes)",
            size_bytes=layout.size_bytes,
            data=data,
        )

    def begin_empty(
        self, object_id: bytes, template: codec.Template, *, incarnation: int = 1
    ) -> Unsealed | Pending[Unsealed]:
        """Start to reserve memory for an object; a small one's is there at once."""
        layout = template.layout
        object_id, incarnation = checked_id(object_id), checked_incarnation(incarnation)
        self._usable()
        if layout.size_bytes <= _native.INLINE_BYTES_MAX:  # those are copied, never mapped
            memory = bytearray(layout.size_bytes)
            encoded = codec.Encoded(layout, [memoryview(memory)])
            return Unsealed(
                template,
                memory,
                partial(self.begin_put, object_id, encoded, incarnation=incarnation),
            )
        reserved = Range(self._usable, self._listener, object_id, template)
        return self._reserve(object_id, layout, incarnation, reserved.lay_out)

    def begin_reserve(self, object_id: bytes, layout: Layout) -> Pending[_native.Unsealed]:
        """Start to reserve memory for a large object; returns it as a buffer to be written."""
        return self._reserve(object_id, layout, 1, lambda memory: memory)

    def begin_seal(self, object_id: bytes, reserved: _native.Unsealed) -> Pending[None]:
        """Start to let all nodes read memory that was reserved, of which all bytes are written."""
        return pend_seal(self._listener, object_id, reserved.seal())

    def begin_fill(
        self, object_id: bytes, layout: Layout, *, incarnation: int = 1
    ) -> Pending[Filling]:
        """Start to reserve memory that is read while it is written, of more than 64 KiB."""
        return self._reserve(
            object_id,
            layout,
            incarnation,
            lambda memory: Filling(memory, self._listener, object_id),
        )

    def _reserve(
        self,
        object_id: bytes,
        layout: Layout,
        incarnation: int,
        decode: Callable[[_native.Unsealed], T],
    ) -> Pending[T]:
        object_id, incarnation = checked_id(object_id), checked_incarnation(incarnation)
        request = self._usable().reserve(
            object_id, incarnation, layout.to_bytes(), layout.parts, layout.size_bytes
        )
        return Pending(
            self._listener,
            request,
            what=f"reservation for object {short_name(object_id)} ({layout.size_bytes} bytes)",
            hint=FULL_HINT,
            decode=lambda _: decode(self._usable().map(request)),
        )

    def begin_get(self, object_id: bytes, *, exists: bool = False) -> Pending[ReceivedObject]:
        """Start a get.

        Args:    exists: True if the caller knows that the object was put. An object without a
                 holder then is lost; otherwise the get waits for a put.
        """
        object_id = checked_id(object_id)
        request = self._usable().get(object_id, exists)
        return self._pending_get(object_id, request, _decode_received)

    def begin_rebuild(self, object_id: bytes, recipe: Recipe) -> Pending[ReceivedObject]:
        """Start a get of an object that was put, which this node may make itself.

        A node that has the recipe's base makes the object of it and the deltas, once for all of its
        processes. Any other node fetches the object whole, and so does a node where that fails.

        Args:    recipe: as the process that put the object described it. Bytes that a wrong recipe
                 leads to are never taken for the object, because their checksums differ.
        """
        object_id = checked_id(object_id)
        request = self._usable().rebuild(
            object_id,
            incarnation=checked_incarnation(recipe.incarnation),
            layout=recipe.layout.to_bytes(),
            parts=recipe.layout.parts,
            block_bytes=recipe.block_bytes,
            crc32c=recipe.crc32c,
            base=recipe.base,
            deltas=recipe.deltas,
        )
        return self._pending_get(object_id, request, _decode_received)

    def begin_view(self, object_id: bytes) -> Pending[_native.Fetched]:
        """Start a get of an object that was put, as memory with its description."""
        object_id = checked_id(object_id)
        request = self._usable().get(object_id, True)
        return self._pending_get(object_id, request, lambda fetched: fetched)

    def begin_get_early(
        self, object_id: bytes, upto_bytes: int, *, exists: bool = False
    ) -> Pending[_native.Fetched]:
        """Start a get that ends when the leading bytes of an object are here, or all of them.

        The rest comes into the same memory, as long as a `begin_get` of the object is under way.
        A get of a small object, or of a reduce's result, ends when all bytes are here.

        Args:    upto_bytes: how many; 0 for the description, and memory that gets the bytes.
                 exists: as for `begin_get`.
        Returns: a buffer of all bytes, of which `ready_bytes` are there.
        """
        object_id = checked_id(object_id)
        request = self._usable().get(object_id, exists, upto_bytes=upto_bytes)
        return Pending(
            self._listener,
            request,
            what=f"stream of object {short_name(object_id)} at byte {upto_bytes}",
            hint="it has not been put yet, its bytes are still coming, or "
            f"{SILENT_HINT}; raise timeout_s",
            decode=lambda fetched: fetched,
        )

    def begin_describe(
        self, object_id: bytes, *, exists: bool = False
    ) -> Pending[tuple[Layout, int]]:
        """Start to ask for an object's layout and incarnation. No bytes of it move.

        Args:    exists: like `begin_get`'s.
        Cost:    a round trip to the object's home; nothing if the object is on this node.
        """
        object_id = checked_id(object_id)
        request = self._usable().excerpt(
            object_id, source=(object_id, 0), layout=b"", parts=[], runs=[], exists=exists
        )
        return self._pending_get(object_id, request, _read_description)

    def begin_excerpt(
        self,
        object_id: bytes,
        source: Attempt,
        parts: Sequence[tuple[int, int]],
        runs: Sequence[tuple[int, int, int, int, int]],
    ) -> Pending[memoryview]:
        """Start a get of an object that is made of another one's bytes, where the other one is.

        Args:    object_id: a hash of all that follows: equal ids must have equal bytes.
                 source: an attempt that was put.
                 parts: the runs of one dtype in the made object: pairs of native dtype and bytes.
                 runs: offset in the made object, offset in the source, bytes, bytes from one to the
                 next in the source, and how many of them; at most 4,096, in the order of the first.
        Raises:  ObjectLostError naming the source, from the result.
        """
        object_id = checked_id(object_id)
        request = self._usable().excerpt(
            object_id, source=source, layout=b"", parts=parts, runs=runs, exists=True
        )
        return self._pending_get(object_id, request, memoryview)

    def begin_get_bytes(self, object_id: bytes) -> Pending[bytes]:
        """Start a get of the bytes alone of an object that was put."""
        object_id = checked_id(object_id)
        request = self._usable().get(object_id, True)
        return self._pending_get(object_id, request, lambda fetched: bytes(memoryview(fetched)))

    def begin_get_encoded(self, object_id: bytes) -> Pending[codec.Encoded]:
        """Start a get of an object that was put, for a put of the same value under another id."""
        object_id = checked_id(object_id)
        request = self._usable().get(object_id, True)
        return self._pending_get(object_id, request, _read_encoded)

    def begin_gets(
        self, object_ids: Sequence[bytes], *, exist: bool = False
    ) -> list[Pending[ReceivedObject]]:
        """Start several gets; the node is asked for all of them at once.

        Args:    exist: like `exists` of `begin_get`, for all of them.
        """
        ids = [checked_id(each) for each in object_ids]
        requests = self._usable().gather(ids, exist)
        return [
            self._pending_get(object_id, request, _decode_received)
            for object_id, request in zip(ids, requests, strict=True)
        ]

    def _pending_get(
        self, object_id: bytes, request: _native.Request, decode: Callable[[Any], T]
    ) -> Pending[T]:
        return Pending(
            self._listener,
            request,
            what=f"get of object {short_name(object_id)}",
            hint="it has not been put yet, its bytes are still coming, or "
            f"{SILENT_HINT}; raise timeout_s",
            decode=decode,
            object_id=object_id,
        )

    def begin_delete(self, object_id: bytes, *, upto: int = 0) -> Pending[None]:
        """Start to free an object on every node.

        Args:    upto: the last incarnation to free, so that a later attempt's bytes stay; 0 frees
                 all of them.
        """
        object_id = checked_id(object_id)
        return self._pending_answer(
            self._usable().delete(object_id, checked_incarnation(upto, least=0)),
            what=f"delete of object {short_name(object_id)}",
        )

    def begin_orphan(self, object_id: bytes, *, upto: int = 0) -> Pending[None]:
        """Start to mark an object as one that no process will delete, because its owner has died.

        The object can still be read. Its copies are evicted before any other object's, and a get
        after the last eviction says why the object is lost.

        Args:    upto: as for `begin_delete`.
        """
        object_id = checked_id(object_id)
        return self._pending_answer(
            self._usable().orphan(object_id, checked_incarnation(upto, least=0)),
            what=f"orphaning of object {short_name(object_id)}",
        )

    def begin_keep(self, object_id: bytes, *, copies: int, incarnation: int = 1) -> Pending[None]:
        """Start to have several nodes keep an object that was put, or is being put, on this node.

        Other nodes receive it while it is written, those first that want it anyway. It has no owner
        any more: it stays until it is deleted, and a copy whose node dies is made again.

        Args:    copies: nodes that keep it, this one among them; 1 to 3. Where there are fewer
                 nodes, all of them keep it, and later ones get what is missing.
        Raises:  ObjectLostError if it was deleted, or was not put on this node.
        """
        object_id, incarnation = checked_id(object_id), checked_incarnation(incarnation)
        return Pending(
            self._listener,
            self._usable().keep(object_id, incarnation, copies),
            what=f"{copies} copies of object {short_name(object_id)}",
            hint="its bytes are still coming to the other nodes, none of them has room for it, or "
            f"{SILENT_HINT}; raise timeout_s, or ask for fewer copies",
            decode=lambda nothing: None,
        )

    def _pending_answer(self, request: _native.Request, *, what: str) -> Pending[None]:
        """Return a request that ends when the object's home has answered it."""
        return Pending(
            self._listener,
            request,
            what=what,
            hint="the node that keeps its directory entry does not answer, or "
            f"{SILENT_HINT}; raise timeout_s",
            decode=lambda nothing: None,
        )

    def begin_reduce(
        self,
        target: bytes,
        *,
        source_count: int,
        op: ReduceOp = "sum",
        count: int | None = None,
        everywhere: bool = False,
        deterministic: bool = False,
        share: Share | None = None,
    ) -> PendingReduce:
        """Start a reduce of the first `count` of `source_count` sources that the caller confirms.

        With `everywhere` all nodes fold. With `share` it combines that share of each source only,
        for one target of a reduce-scatter.
        """
        count = source_count if count is None else count
        if op not in REDUCE_OPS:
            raise InvalidArgumentError(f"op is {op!r}; it takes {', '.join(REDUCE_OPS)}")
        if source_count < 1:
            raise InvalidArgumentError("a reduce takes at least one source, not none")
        if type(count) is not int or not 1 <= count <= source_count:
            raise InvalidArgumentError(
                f"count is {count!r}; it takes 1 to {source_count}, the number of sources"
            )
        if type(deterministic) is not bool:
            raise InvalidArgumentError(f"deterministic is {deterministic!r}; it is True or False")
        target = checked_id(target)
        request = self._usable().reduce(
            target,
            op=REDUCE_OPS[op],
            source_count=source_count,
            count=count,
            everywhere=everywhere,
            deterministic=deterministic,
            share=None
            if share is None
            else (
                *(share.source.size_bytes, share.offset, share.reader),
                *(share.layout.to_bytes(), share.layout.parts),
            ),
        )
        return PendingReduce(self._listener, self._client, target, request)

    def take_term(self, channel: bytes) -> Pending[TakenTerm]:
        """Start to take the newest term of a channel, which ends all older ones.

        Args:    channel: 28 bytes, a hash of its name.
        Returns: the term, and the newest version that was visible by then. A request that is
                 cancelled may still end the older terms.
        Raises:  StoreFullError if the cluster has as many channels as it may.
        Cost:    two round trips: to the channel's home, and from there to a majority of the nodes.
        """
        channel = checked_id(channel)
        return self._pending_channel(
            channel, self._usable().take_term(channel), "taking a term of", read_taken, _NO_MAJORITY
        )

    def publish_version(
        self, channel: bytes, term: Term, n: int, payload: bytes, *, is_end: bool = False
    ) -> Pending[None]:
        """Start to publish version `n` of a term. It ends when the version is visible.

        The same version may be published again, for example after its publisher's node has died.

        Args:    n: greater than every number of the term before, from 1 on.
                 payload: at most 4 KiB, which only the readers understand; none with `is_end`.
                 is_end: True to tell the readers that the channel ends. A later version begins it
                 again.
        Raises:  VersionRefusedError if another publisher has taken the channel or `n` is not
                 greater; InvalidArgumentError if no home has given the term.
        Cost:    two round trips, and the payload to every node. Without a majority of the nodes it
                 waits. A publication that is cancelled may still become visible.
        """
        channel = checked_id(channel)
        number = check_number(VersionNumber(*term, n))
        request = self._usable().publish(channel, number, check_payload(payload), is_end)
        return self._pending_channel(
            channel, request, f"publishing of version {n} to", lambda nothing: None, _NO_MAJORITY
        )

    def watch_version(
        self, channel: bytes, newer_than: VersionNumber = NO_VERSION, *, wait: bool = True
    ) -> Pending[Version | None]:
        """Start to wait for a visible version that is newer; the newest one if there are several.

        Args:    newer_than: the number of the newest version that the caller has.
                 wait: False to ask the channel's home, which answers at once, with None if nothing
                 is newer. It never misses a version that was published before.
        Cost:    no message if the node has heard of one. All processes of a node share one watch.
        """
        channel = checked_id(channel)
        request = self._usable().watch_channel(channel, newer_than, wait)
        hint = f"nothing newer was published yet, {_NO_MAJORITY}"
        return self._pending_channel(channel, request, "a watch of", read_version, hint)

    def list_channels(self, after: bytes = NO_ID) -> Pending[list[ChannelState]]:
        """Start to list the live channels, of which every node keeps the newest version.

        Args:    after: the last channel of the page before; a page has at most 64, in the order of
                 their ids.
        Cost:    no message to other nodes. A version may be listed a round trip before it is
                 visible.
        """
        return Pending(
            self._listener,
            self._usable().list_channels(checked_id(after)),
            what="a list of channels",
            hint=f"{SILENT_HINT}; raise timeout_s",
            decode=read_channels,
        )

    def note_read(self, channel: bytes, number: VersionNumber, reader: ChannelReader) -> None:
        """Tell the node which version this process has read last, for people. Waits for nothing.

        Args:    number: of the version; NO_VERSION if the process reads the channel no more.
        """
        self._usable().note_read(
            checked_id(channel),
            number,
            reader.process,
            min(reader.version, 2**64 - 1),
            reader.ordinal,
            max(int(reader.time_s * 1e6), 0),
        )

    def _pending_channel(
        self,
        channel: bytes,
        request: _native.Request,
        what: str,
        decode: Callable[[Any], T],
        hint: str,
    ) -> Pending[T]:
        return Pending(
            self._listener,
            request,
            what=f"{what} channel {short_name(channel)}",
            hint=f"{hint}, or {SILENT_HINT}; see hoplite-ray status, or raise timeout_s",
            decode=decode,
        )

    @property
    def node_id(self) -> int:
        """The id of the node."""
        return self._client.node_id

    @property
    def node_incarnation(self) -> int:
        """The incarnation of the node, which is higher after each restart."""
        return self._client.node_incarnation

    @property
    def is_alive(self) -> bool:
        """True if it can be used: it is open, its node runs, and this is no forked child."""
        return os.getpid() == self._pid and self._client.is_alive

    def close(self) -> None:
        """Detach; operations in flight fail with NodeLostError. Closing again does nothing."""
        self._detach()

    def find_holders(
        self, object_ids: Iterable[bytes], timeout_s: float
    ) -> dict[bytes, list[Holder]]:
        """Return the nodes that have each object; `Store.locate` says more."""
        from hoplite_ray.control import holders  # here, because gRPC takes long to import

        wanted = [checked_id(each) for each in object_ids]
        self._usable()
        return holders.find_holders(self._directory, wanted, timeout_s)

    def ask_channels(self, timeout_s: float) -> dict[int, list[pb.Channel]]:
        """Return the channels that each node knows, by its id; `Store.channels` says more."""
        from hoplite_ray.control import asking

        async def ask(calls: ControlClient, member: Member, left_s: float) -> list[pb.Channel]:
            return await calls.channels(member.control, timeout_s=left_s)

        self._usable()
        answers = asking.ask_members(self._directory, ask, timeout_s)
        return {member.node_id: rows for member, rows in answers.items()}

    def _usable(self) -> _native.Client:
        if os.getpid() != self._pid:
            raise UnusableAfterForkError(
                f"process {os.getpid()} was forked from {self._pid}, which attached this store; "
                "attach a new one after the fork"
            )
        if not self._detach.alive:
            raise NodeLostError("this store was closed; attach or start a new one")
        return self._client


def _read_encoded(fetched: Any) -> codec.Encoded:
    return codec.Encoded(Layout.from_bytes(fetched.layout), [memoryview(fetched)])


def _read_description(fetched: Any) -> tuple[Layout, int]:
    return Layout.from_bytes(fetched.layout), fetched.incarnation


def _decode_received(fetched: Any) -> ReceivedObject:
    value = codec.decode(fetched.layout, fetched)
    return ReceivedObject(value, fetched.incarnation, fetched.layout)
