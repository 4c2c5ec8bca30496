"""Store: put, get, reduce and delete on this process's node. START HERE (Python).

Ids go in, arrays come out; the module-level functions of hoplite_ray, which take Ray's references,
are written with this class.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from hoplite_ray import _native
from hoplite_ray.collectives import Collectives
from hoplite_ray.errors import HopliteError, NodeLostError, UnusableAfterForkError
from hoplite_ray.launch import NodeProcess
from hoplite_ray.pending import (
    FULL_HINT,
    SEAL_HINT,
    SILENT_HINT,
    Listener,
    Pending,
    PendingPut,
    Received,
    detach,
)
from hoplite_ray.unsealed import Unsealed
from hoplite_ray.values import codec
from hoplite_ray.values.dtypes import Kind
from hoplite_ray.values.layout import (
    OBJECT_ID_BYTES,
    Layout,
    checked_id,
    checked_incarnation,
    short_name,
)


def new_id() -> bytes:
    """Return an object id that nobody else has."""
    return os.urandom(OBJECT_ID_BYTES)


class Store(Collectives):
    """This process's part in the store of its node. Any thread may use it; a forked child may not.

    Close it, or use it as a context manager; arrays that it returned stay valid afterwards.
    """

    def __init__(self, socket: str, node: NodeProcess | None = None) -> None:
        self._client = client = _native.Client(socket)
        self._node = node
        self._pid = os.getpid()
        self._listener = Listener(client, Path(socket).parent)
        self._detach = weakref.finalize(self, detach, self._pid, client, self._listener)

    @classmethod
    def attach(cls, socket: str | os.PathLike[str]) -> Self:
        """Attach to the node whose clients' socket this is (`node.sock` in the node's directory).

        Raises:  NodeLostError if nobody listens there; UnauthenticatedError if another user does.
        """
        return cls(os.fspath(socket))

    @classmethod
    def start(
        cls,
        *,
        listen: Sequence[str] = ("127.0.0.1:0",),
        join: Store | None = None,
        arena_bytes: int | None = None,
    ) -> Self:
        """Start a node of this process's own, without Ray, and attach to it.

        The node joins the one of `join`, which must have been started here as well; it ends when
        the store is closed, or with this process.

        Raises:  NodeLostError with the node's last words if it does not start.
        """
        beside = None if join is None else join.node
        node = NodeProcess.start(listen=listen, beside=beside, arena_bytes=arena_bytes)
        try:
            return cls(node.socket, node)
        except BaseException:
            node.stop()
            raise

    def put(
        self,
        object_id: bytes,
        value: Any,
        *,
        incarnation: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        """Put a copy of `value` under `object_id`, on this node, until it is deleted.

        A value is a numpy array, a torch tensor on the CPU, or a dict, list or tuple of values; or
        what codec.encode made of one. An array with several names in it is one array at the reader,
        too. Receivers on other nodes stream while the copy is still being
        made. `incarnation` is the attempt: a higher one replaces the bytes of a lower one.

        Raises:  InvalidArgumentError naming the part of the value that no object can hold;
                 StoreFullError, DuplicateObjectError, GetTimeoutError while it waits for memory.
        Cost:    one copy of the bytes; two of an array that is not in C order.
        """
        self.begin_put(object_id, value, incarnation=incarnation).result(timeout_s)

    async def put_async(
        self,
        object_id: bytes,
        value: Any,
        *,
        incarnation: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        """Await what `put` does; the value must not change meanwhile.

        A task that is cancelled takes the put back, unless it has ended in that very moment.
        """
        await self.begin_put(object_id, value, incarnation=incarnation).result_async(timeout_s)

    def begin_put(self, object_id: bytes, value: Any, *, incarnation: int = 1) -> PendingPut:
        """Start what `put` waits for. Of a large value nothing is written before its result is."""
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

    def empty(
        self,
        object_id: bytes,
        shape: int | Sequence[int],
        dtype: Any = "float32",
        *,
        kind: Kind = "numpy",
        incarnation: int = 1,
        timeout_s: float | None = None,
    ) -> Unsealed:
        """Return an array of the store to fill in place; sealed, it is the object.

        With kind="torch" it is a tensor. Receivers get nothing of it before it is sealed.

        Raises:  InvalidArgumentError for no such shape or dtype; as `put` otherwise.
        Cost:    none of the bytes is copied above 64 KiB, where a put copies all of them.
        """
        begun = self._begin_empty(object_id, Layout.of_array(shape, dtype, kind), incarnation)
        return begun if isinstance(begun, Unsealed) else begun.result(timeout_s)

    async def empty_async(
        self,
        object_id: bytes,
        shape: int | Sequence[int],
        dtype: Any = "float32",
        *,
        kind: Kind = "numpy",
        incarnation: int = 1,
        timeout_s: float | None = None,
    ) -> Unsealed:
        """Await what `empty` returns."""
        begun = self._begin_empty(object_id, Layout.of_array(shape, dtype, kind), incarnation)
        return begun if isinstance(begun, Unsealed) else await begun.result_async(timeout_s)

    def _begin_empty(
        self, object_id: bytes, layout: Layout, incarnation: int
    ) -> Unsealed | Pending[Unsealed]:
        object_id, incarnation = checked_id(object_id), checked_incarnation(incarnation)
        client = self._usable()
        if layout.size_bytes <= _native.INLINE_BYTES_MAX:  # those are copied, never mapped
            memory = bytearray(layout.size_bytes)
            encoded = codec.Encoded(layout, [memoryview(memory)])
            return Unsealed(
                layout,
                memory,
                partial(self.begin_put, object_id, encoded, incarnation=incarnation),
            )
        request = client.reserve(
            object_id, incarnation, layout.to_bytes(), layout.parts, layout.size_bytes
        )
        return Pending(
            self._listener,
            request,
            what=f"reservation for object {short_name(object_id)} ({layout.size_bytes} bytes)",
            hint=FULL_HINT,
            decode=_Range(self, object_id, layout, request).mapped,
        )

    def get(self, object_id: bytes, *, exists: bool = False, timeout_s: float | None = None) -> Any:
        """Return what was put under `object_id`; waits until somebody has done so.

        Its arrays are this process's own: writing into them changes nobody else's, nor the next
        get's. With `exists`, for a caller who knows that it was put, an object that nobody holds is
        lost instead of waited for.

        Raises:  GetTimeoutError, ObjectLostError, StoreFullError, NodeLostError.
        Cost:    nothing is copied above 64 KiB; memory is this node's arena until the arrays die.
        """
        return self.begin_get(object_id, exists=exists).result(timeout_s).value

    async def get_async(
        self, object_id: bytes, *, exists: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Await what `get` returns."""
        return (await self.begin_get(object_id, exists=exists).result_async(timeout_s)).value

    def begin_get(self, object_id: bytes, *, exists: bool = False) -> Pending[Received]:
        """Start what `get` waits for."""
        object_id = checked_id(object_id)
        return self._pending_get(object_id, self._usable().get(object_id, exists))

    def _begin_gets(self, object_ids: Sequence[bytes], exists: bool) -> list[Pending[Received]]:
        ids = [checked_id(each) for each in object_ids]
        requests = self._usable().gather(ids, exists)
        return list(map(self._pending_get, ids, requests))

    def _pending_get(self, object_id: bytes, request: _native.Request) -> Pending[Received]:
        return Pending(
            self._listener,
            request,
            what=f"get of object {short_name(object_id)}",
            hint="it has not been put yet, its bytes are still coming, or "
            f"{SILENT_HINT}; raise timeout_s",
            decode=_received,
            fetched=object_id,
        )

    def delete(self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None) -> None:
        """Free the object on every node; arrays that were received stay valid.

        With `upto` only incarnations up to that one go; a later attempt's bytes stay.

        Returns: when this node has passed it on; the others follow within a round trip or two.
        """
        self._begin_delete(object_id, upto).result(timeout_s)

    async def delete_async(
        self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None
    ) -> None:
        """Await what `delete` does."""
        await self._begin_delete(object_id, upto).result_async(timeout_s)

    def _begin_delete(self, object_id: bytes, upto: int) -> Pending[None]:
        object_id = checked_id(object_id)
        return self._said(
            self._usable().delete(object_id, checked_incarnation(upto, least=0)),
            what=f"delete of object {short_name(object_id)}",
        )

    def orphan(self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None) -> None:
        """Say that nobody will delete the object: its owner has died.

        It can be read on, but no node keeps it: all its copies are evicted before anything else is,
        and when the last one has gone, a get says why. `upto` as in `delete`.

        Returns: when this node has passed it on; the others follow within a round trip or two.
        """
        self._begin_orphan(object_id, upto).result(timeout_s)

    async def orphan_async(
        self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None
    ) -> None:
        """Await what `orphan` does."""
        await self._begin_orphan(object_id, upto).result_async(timeout_s)

    def _begin_orphan(self, object_id: bytes, upto: int) -> Pending[None]:
        object_id = checked_id(object_id)
        return self._said(
            self._usable().orphan(object_id, checked_incarnation(upto, least=0)),
            what=f"orphaning of object {short_name(object_id)}",
        )

    def _said(self, request: _native.Request, *, what: str) -> Pending[None]:
        """A request that is answered once the object's home has been told."""
        return Pending(
            self._listener,
            request,
            what=what,
            hint="the node that keeps its directory entry does not answer, or "
            f"{SILENT_HINT}; raise timeout_s",
            decode=lambda nothing: None,
        )

    @property
    def node_id(self) -> int:
        """Id of the node."""
        return self._client.node_id

    @property
    def node_incarnation(self) -> int:
        """Which life of the node this is."""
        return self._client.node_incarnation

    @property
    def is_alive(self) -> bool:
        """False once the node is known to be gone, the store is closed, or this is a fork."""
        return os.getpid() == self._pid and self._client.is_alive

    @property
    def node(self) -> NodeProcess:
        """The node process that `start` has started.

        Raises:  HopliteError if this store was attached to a node that was there already.
        """
        if self._node is None:
            raise HopliteError("this store was attached, not started; use the node's directory")
        return self._node

    def close(self) -> None:
        """Detach from the node; what is under way fails. A node that `start` started ends."""
        self._detach()
        if self._node is not None and os.getpid() == self._pid:
            self._node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _usable(self) -> _native.Client:
        if os.getpid() != self._pid:
            raise UnusableAfterForkError(
                f"process {os.getpid()} was forked from {self._pid}, which attached this store; "
                "attach a new one after the fork"
            )
        if not self._detach.alive:
            raise NodeLostError("this store was closed; attach or start a new one")
        return self._client


class _Range:
    """The range of the arena that an array is written into, from its reservation to its seal."""

    def __init__(
        self, store: Store, object_id: bytes, layout: Layout, reservation: _native.Request
    ) -> None:
        self._store = store
        self._object_id = object_id
        self._layout = layout
        self._reservation = reservation
        self._sealing: _native.Request | None = None  # asked for once, and awaited again

    def mapped(self, _: None) -> Unsealed:
        self._range = self._store._usable().map(self._reservation)
        memory: Any = self._range  # a buffer, which its stub can't say
        return Unsealed(self._layout, memory, self._begin_seal)

    def _begin_seal(self) -> Pending[None]:
        self._store._usable()
        if self._sealing is None:
            self._sealing = self._range.seal()
        return Pending(
            self._store._listener,
            self._sealing,
            what=f"seal of object {short_name(self._object_id)}",
            hint=SEAL_HINT,
            decode=lambda nothing: None,
        )


def _received(fetched: Any) -> Received:
    return Received(codec.decode(fetched.layout, fetched), fetched.incarnation)
