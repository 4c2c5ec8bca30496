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
from hoplite_ray.listener import Listener, detach
from hoplite_ray.pending import (
    FULL_HINT,
    SILENT_HINT,
    Pending,
    PendingPut,
    ReceivedObject,
)
from hoplite_ray.unsealed import Range, Unsealed
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
    """Return a new object id: 28 random bytes, which no other caller gets.

    Example:

        object_id = new_id()
    """
    return os.urandom(OBJECT_ID_BYTES)


class Store(Collectives):
    """This process's client of the store of its node.

    Any thread may use it; a forked child may not, and attaches a store of its own. Close it, or use
    it as a context manager. The arrays that it returned stay valid afterwards.

    Example:

        with Store.start() as store:
            object_id = new_id()
            store.put(object_id, np.arange(3))
            assert store.get(object_id).sum() == 3
    """

    def __init__(self, socket: str, node: NodeProcess | None = None) -> None:
        self._client = client = _native.Client(socket)
        self._node = node
        self._pid = os.getpid()
        self._listener = Listener(client, Path(socket).parent)
        self._detach = weakref.finalize(self, detach, self._pid, client, self._listener)

    @classmethod
    def attach(cls, socket: str | os.PathLike[str]) -> Self:
        """Attach to a node that runs on this machine.

        Args:    socket: the path of `node.sock` in the node's directory.
        Returns: a store of the caller's own, for this process only.
        Raises:  NodeLostError if no node listens there; UnauthenticatedError if the node is another
                 user's.
        Example:

            other = Store.attach(store.node.socket)
            other.close()
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

        The node ends when the store is closed, or with this process.

        Args:    listen: the addresses of the node's rails; port 0 takes any free port.
                 join: a store that `start` returned in this process; the node joins its node.
                 arena_bytes: the node's memory for objects; None takes 20 % of the machine's.
        Returns: a store that is attached to the new node, which is a member by then.
        Raises:  NodeLostError with the node's last words if the node does not start.
        Example:

            with Store.start(join=store, arena_bytes=64 << 20) as other:
                assert other.node_id != store.node_id
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

        Receivers on other nodes get the first blocks while the copy is still being made.

        Args:    object_id: 28 bytes, from `new_id`.
                 value: a numpy array, a torch tensor on the CPU, or a dict, list or tuple of
                 values; or what `codec.encode` made of one. An array that has several names in the
                 value is one array at the reader, too.
                 incarnation: the number of the attempt; a higher one replaces a lower one's bytes.
                 timeout_s: seconds to wait for memory; None waits without a limit.
        Returns: None, when every byte is written and the object is sealed.
        Raises:  InvalidArgumentError naming the part of the value that no object can hold;
                 StoreFullError; DuplicateObjectError; GetTimeoutError.
        Cost:    one copy of the bytes; two for an array that is not in C order.
        Example:

            object_id = new_id()
            store.put(object_id, {"weights": np.ones((2, 3), "float32"), "bias": np.zeros(3)})
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
        """Like `put`, but awaitable; cancelling it takes the put back.

        The value must not change before the put has ended. A put that ends in the moment of its
        cancelling stays.
        """
        await self.begin_put(object_id, value, incarnation=incarnation).result_async(timeout_s)

    def begin_put(self, object_id: bytes, value: Any, *, incarnation: int = 1) -> PendingPut:
        """Start a put; see `put`. The bytes of a large value are written by the result's waiter."""
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
        """Return an array of the store that the caller fills in place and then seals.

        Receivers get no byte before the array is sealed.

        Args:    object_id: 28 bytes, from `new_id`.
                 shape: the extents, or one extent.
                 dtype: a name, or the library's own object for a dtype.
                 kind: "numpy" for an array, "torch" for a tensor.
                 incarnation, timeout_s: as for `put`.
        Returns: the memory as `Unsealed`, whose `value` is the array; leaving its context seals it.
        Raises:  InvalidArgumentError if there is no such shape or dtype; otherwise as `put`.
        Cost:    no copy above 64 KiB, where a put copies all bytes.
        Example:

            object_id = new_id()
            with store.empty(object_id, (2, 3), "float32") as made:
                made.value[:] = 1
            assert store.get(object_id).sum() == 6
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
        """Like `empty`, but awaitable; cancelling it gives the memory back."""
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
            decode=Range(self._usable, self._listener, object_id, layout, request).mapped,
        )

    def get(self, object_id: bytes, *, exists: bool = False, timeout_s: float | None = None) -> Any:
        """Return the value of an object; wait until it has been put on any node.

        The arrays are the caller's own: writing into them changes no other process's arrays, and
        not those of a later get.

        Args:    object_id: the id under which the value was or will be put.
                 exists: True if the caller knows that the object was put. An object without a
                 holder then is lost; otherwise the get waits for a put.
                 timeout_s: seconds to wait for the last byte; None waits without a limit.
        Returns: the value, with the types that were put.
        Raises:  GetTimeoutError; ObjectLostError; StoreFullError; NodeLostError.
        Cost:    no copy above 64 KiB; the bytes stay in this node's arena until the arrays die.
        Example:

            object_id = new_id()
            store.put(object_id, np.arange(4))
            assert store.get(object_id, timeout_s=10).tolist() == [0, 1, 2, 3]
        """
        return self.begin_get(object_id, exists=exists).result(timeout_s).value

    async def get_async(
        self, object_id: bytes, *, exists: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Like `get`, but awaitable; cancelling it cancels the transfer."""
        return (await self.begin_get(object_id, exists=exists).result_async(timeout_s)).value

    def begin_get(self, object_id: bytes, *, exists: bool = False) -> Pending[ReceivedObject]:
        """Start a get; see `get`."""
        object_id = checked_id(object_id)
        return self._pending_get(object_id, self._usable().get(object_id, exists))

    def _begin_gets(
        self, object_ids: Sequence[bytes], exists: bool
    ) -> list[Pending[ReceivedObject]]:
        ids = [checked_id(each) for each in object_ids]
        requests = self._usable().gather(ids, exists)
        return list(map(self._pending_get, ids, requests))

    def _pending_get(self, object_id: bytes, request: _native.Request) -> Pending[ReceivedObject]:
        return Pending(
            self._listener,
            request,
            what=f"get of object {short_name(object_id)}",
            hint="it has not been put yet, its bytes are still coming, or "
            f"{SILENT_HINT}; raise timeout_s",
            decode=_received,
            object_id=object_id,
        )

    def delete(self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None) -> None:
        """Free an object on every node. Arrays that were received stay valid.

        Args:    object_id: the object; an id without an object is no error.
                 upto: the last incarnation to free, so that a later attempt's bytes stay; 0 frees
                 all of them.
                 timeout_s: seconds to wait for this node's answer; None waits without a limit.
        Returns: None, when this node has passed the deletion on; the other nodes follow within a
                 round trip or two.
        Raises:  GetTimeoutError; NodeLostError.
        Example:

            object_id = new_id()
            store.put(object_id, np.zeros(8))
            store.delete(object_id)
        """
        self._begin_delete(object_id, upto).result(timeout_s)

    async def delete_async(
        self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None
    ) -> None:
        """Like `delete`, but awaitable; cancelling it may leave the object."""
        await self._begin_delete(object_id, upto).result_async(timeout_s)

    def _begin_delete(self, object_id: bytes, upto: int) -> Pending[None]:
        object_id = checked_id(object_id)
        return self._said(
            self._usable().delete(object_id, checked_incarnation(upto, least=0)),
            what=f"delete of object {short_name(object_id)}",
        )

    def orphan(self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None) -> None:
        """Mark an object as one that no process will delete, because its owner has died.

        The object can still be read. Its copies are evicted before any other object's, and a get
        after the last eviction says why the object is lost. The plug-in uses it, not users.

        Args:    object_id, upto, timeout_s: as for `delete`.
        Returns: None, when this node has passed the mark on; the other nodes follow within a round
                 trip or two.
        Raises:  GetTimeoutError; NodeLostError.
        """
        self._begin_orphan(object_id, upto).result(timeout_s)

    async def orphan_async(
        self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None
    ) -> None:
        """Like `orphan`, but awaitable; cancelling it may leave the object unmarked."""
        await self._begin_orphan(object_id, upto).result_async(timeout_s)

    def _begin_orphan(self, object_id: bytes, upto: int) -> Pending[None]:
        object_id = checked_id(object_id)
        return self._said(
            self._usable().orphan(object_id, checked_incarnation(upto, least=0)),
            what=f"orphaning of object {short_name(object_id)}",
        )

    def _said(self, request: _native.Request, *, what: str) -> Pending[None]:
        """Return a request that ends when the object's home has answered it."""
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
        """The id of the node."""
        return self._client.node_id

    @property
    def node_incarnation(self) -> int:
        """The incarnation of the node, which is higher after each restart."""
        return self._client.node_incarnation

    @property
    def is_alive(self) -> bool:
        """True if the store can be used: it is open, its node runs, and this is no forked child."""
        return os.getpid() == self._pid and self._client.is_alive

    @property
    def node(self) -> NodeProcess:
        """The node process that `start` has started.

        Raises:  HopliteError if the store was attached to a node that ran already.
        """
        if self._node is None:
            raise HopliteError("this store was attached, not started; use the node's directory")
        return self._node

    def close(self) -> None:
        """Detach from the node, and end the node if `start` started it.

        Operations under way fail with NodeLostError. Closing a closed store does nothing.
        """
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


def _received(fetched: Any) -> ReceivedObject:
    return ReceivedObject(codec.decode(fetched.layout, fetched), fetched.incarnation)
