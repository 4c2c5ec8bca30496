"""Store: put, get, reduce and delete on this process's node. START HERE (Python).

Ids go in, arrays come out. client.py starts each operation; the module-level functions of
hoplite_ray, which take Ray's references, are written with that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from hoplite_ray.client import StoreClient
from hoplite_ray.collectives import Collectives
from hoplite_ray.errors import HopliteError
from hoplite_ray.launch import NodeProcess
from hoplite_ray.parts import fetching as parts
from hoplite_ray.parts.composed import Composed, compose
from hoplite_ray.pending import Pending, PendingPut, ReceivedObject
from hoplite_ray.publishing import Publishing
from hoplite_ray.streams.streaming import Streaming
from hoplite_ray.unsealed import Unsealed
from hoplite_ray.values.codec import describe_empty, encode
from hoplite_ray.values.deadlines import deadline_in
from hoplite_ray.values.dtypes import Kind
from hoplite_ray.values.filling import fill
from hoplite_ray.values.layout import OBJECT_ID_BYTES, checked_id

if TYPE_CHECKING:
    from hoplite_ray.control.holders import Holder


def new_id() -> bytes:
    """Return a new object id: 28 random bytes, which no other caller gets.

    Example:

        object_id = new_id()
    """
    return os.urandom(OBJECT_ID_BYTES)


class Store(Collectives, Publishing, Streaming):
    """This process's client of the store of its node.

    Any thread may use it; a forked child may not, and attaches a store of its own. Close it, or use
    it as a context manager. The arrays that it returned stay valid afterwards.

    Example:

        with Store.start() as store:
            object_id = new_id()
            store.put(object_id, np.arange(3))
            assert store.get(object_id).sum() == 3
    """

    def __init__(self, client: StoreClient, node: NodeProcess | None = None) -> None:
        """Use `client`; end `node` with it. Programs call `attach` or `start`."""
        self._client = client
        self._node = node
        self._pid = os.getpid()

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
        return cls(StoreClient(socket))

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
            return cls(StoreClient(node.socket), node)
        except BaseException:
            node.stop()
            raise

    def put(
        self,
        object_id: bytes,
        value: Any,
        *,
        ordered: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Put a copy of `value` under `object_id`, on this node, until it is deleted.

        Receivers on other nodes get the first blocks while the copy is still being made.

        Args:    object_id: 28 bytes, from `new_id`.
                 value: a numpy array, a torch tensor on the CPU, a number, str, bytes or None, or a
                 dict, list, tuple, named tuple or dataclass of values. An array that has several
                 names in the value is one array at the reader, too.
                 ordered: True if a `stream` gives the arrays in the order of the value. Otherwise
                 those of one dtype come together. A value whose dtype changes more than 15 times
                 can't be reduced then.
                 timeout_s: seconds to wait for memory; None waits without a limit.
        Returns: None, when every byte is written and the object is sealed.
        Raises:  InvalidArgumentError naming the part of the value that no object can hold;
                 StoreFullError; DuplicateObjectError; GetTimeoutError.
        Cost:    one copy of the bytes; two for an array that is not in C order.
        Example:

            object_id = new_id()
            store.put(object_id, {"weights": np.ones((2, 3), "float32"), "bias": np.zeros(3)})
        """
        self.begin_put(object_id, encode(value, ordered=ordered)).result(timeout_s)

    async def put_async(
        self,
        object_id: bytes,
        value: Any,
        *,
        ordered: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Like `put`, but awaitable; cancelling it takes the put back.

        The value must not change before the put has ended. A put that ends in the moment of its
        cancelling stays.
        """
        await self.begin_put(object_id, encode(value, ordered=ordered)).result_async(timeout_s)

    def begin_put(self, object_id: bytes, value: Any) -> PendingPut:
        """Start a put; see `put`. The bytes of a large value are written by the result's waiter."""
        return self._client.begin_put(object_id, value)

    def empty(
        self,
        object_id: bytes,
        shape: int | Sequence[int] | None = None,
        dtype: Any = "float32",
        *,
        kind: Kind = "numpy",
        like: Any = None,
        timeout_s: float | None = None,
    ) -> Unsealed:
        """Return an array of the store, or a value of arrays, that the caller fills and then seals.

        Receivers get no byte before it is sealed.

        Args:    object_id: 28 bytes, from `new_id`.
                 shape: the extents, or one extent.
                 dtype: a name, or the library's own object for a dtype.
                 kind: "numpy" for an array, "torch" for a tensor.
                 like: in place of `shape`, a value that the object is laid out like: its arrays are
                 there to be filled, also those that `hoplite_ray.spec` describes. Its numbers, str
                 and bytes are taken as they are.
                 timeout_s: as for `put`.
        Returns: the memory as `Unsealed`, whose `value` is the array or the value of arrays;
                 leaving its context seals it.
        Raises:  InvalidArgumentError if there is no such shape, dtype or value; otherwise as `put`.
        Cost:    no copy above 64 KiB, where a put copies all bytes.
        Example:

            object_id = new_id()
            with store.empty(object_id, (2, 3), "float32") as made:
                made.value[:] = 1
            assert store.get(object_id).sum() == 6
        """
        begun = self._client.begin_empty(object_id, describe_empty(shape, dtype, kind, like))
        return begun if isinstance(begun, Unsealed) else begun.result(timeout_s)

    async def empty_async(
        self,
        object_id: bytes,
        shape: int | Sequence[int] | None = None,
        dtype: Any = "float32",
        *,
        kind: Kind = "numpy",
        like: Any = None,
        timeout_s: float | None = None,
    ) -> Unsealed:
        """Like `empty`, but awaitable; cancelling it gives the memory back."""
        begun = self._client.begin_empty(object_id, describe_empty(shape, dtype, kind, like))
        return begun if isinstance(begun, Unsealed) else await begun.result_async(timeout_s)

    def get(
        self,
        object_id: bytes | Composed,
        *,
        part: Any = None,
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Return the value of an object, or a part of it; wait until it has been put on any node.

        The arrays are the caller's own: writing into them changes no other process's arrays, and
        not those of a later get.

        Args:    object_id: the id under which the value was or will be put, or what `compose` has
                 returned.
                 part: what to take of it: a path, as "layers.3.weight" or a tuple of keys; a dict
                 of indices by path; a list of paths; or an index, if the value is one array. An
                 index has ints, slices and `...`, and steps of at least 1. None takes all.
                 into: memory for the value: an array, a tensor on any device, a module of torch, or
                 a dict, list or tuple of these, with the value's keys, shapes and dtypes. It is
                 written when all bytes are here; after an error it holds what it held before.
                 timeout_s: seconds to wait for the last byte; None waits without a limit.
        Returns: the value, with the types that were put; of a dict or list of paths a dict by them;
                 `into` if it is given.
        Raises:  GetTimeoutError; ObjectLostError; StoreFullError; NodeLostError;
                 InvalidArgumentError naming the part that is not there, or does not fit `into`.
        Cost:    no copy above 64 KiB; the bytes stay in this node's arena until the arrays die.
                 With `into` one copy. With `part` only the part's bytes move: a node that has the
                 object copies them together, at most 4,096 ranges.
        Example:

            object_id = new_id()
            store.put(object_id, np.arange(4))
            assert store.get(object_id, timeout_s=10).tolist() == [0, 1, 2, 3]
            assert store.get(object_id, part=np.s_[2:]).tolist() == [2, 3]
        """
        if part is None and not isinstance(object_id, Composed):
            value = self.begin_get(object_id).result(timeout_s).value
        else:
            value = parts.run(self._begin_part(object_id, part), deadline_in(timeout_s))
        if into is None:
            return value
        fill(into, value)
        return into

    async def get_async(
        self,
        object_id: bytes | Composed,
        *,
        part: Any = None,
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Like `get`, but awaitable; cancelling it cancels the transfer. A thread fills `into`."""
        if part is None and not isinstance(object_id, Composed):
            value = (await self.begin_get(object_id).result_async(timeout_s)).value
        else:
            begun = self._begin_part(object_id, part)
            value = await parts.run_async(begun, deadline_in(timeout_s))
        if into is None:
            return value
        await asyncio.to_thread(fill, into, value)
        return into

    def _begin_part(self, object_id: bytes | Composed, part: Any) -> parts.Steps[Any]:
        if isinstance(object_id, Composed):
            return object_id.fetch(
                part,
                self._client,
                lambda ref: parts.read_source(self._client, checked_id(ref), exists=False),
            )
        return parts.fetch_part(self._client, checked_id(object_id), part, exists=False)

    def compose(self, arrays: Any) -> Composed:
        """Describe one value whose shards are arrays in several objects. No bytes move.

        `get` reads it, or a part of it, in any other sharding.

        Args:    arrays: as for `hoplite_ray.compose`, with ids in place of refs.
        Returns: a description. The objects live until they are deleted.
        Raises:  InvalidArgumentError for what describes no array.
        Example:

            from hoplite_ray import parts

            ids = [new_id(), new_id()]
            for number, each in enumerate(ids):
                store.put(each, np.full((2, 4), number))
            whole = store.compose({"w": parts.shards(ids, axis=0)})
            assert store.get(whole, part={"w": np.s_[1:3, 0]})["w"].tolist() == [0, 1]
        """
        return compose(arrays)

    def begin_get(self, object_id: bytes) -> Pending[ReceivedObject]:
        """Start a get; see `get`."""
        return self._client.begin_get(object_id)

    def delete(self, object_id: bytes, *, timeout_s: float | None = None) -> None:
        """Free an object on every node. Arrays that were received stay valid.

        Args:    object_id: the object; an id without an object is no error.
                 timeout_s: seconds to wait for this node's answer; None waits without a limit.
        Returns: None, when this node has passed the deletion on; the other nodes follow within a
                 round trip or two.
        Raises:  GetTimeoutError; NodeLostError.
        Example:

            object_id = new_id()
            store.put(object_id, np.zeros(8))
            store.delete(object_id)
        """
        self._client.begin_delete(object_id).result(timeout_s)

    async def delete_async(self, object_id: bytes, *, timeout_s: float | None = None) -> None:
        """Like `delete`, but awaitable; cancelling it may leave the object."""
        await self._client.begin_delete(object_id).result_async(timeout_s)

    def locate(
        self, object_ids: Iterable[bytes], *, timeout_s: float = 5.0
    ) -> dict[bytes, list[Holder]]:
        """Return which nodes have each object, or some of it.

        Every member says what it has at that moment, so a holder may have gone when the caller
        reads of it. No bytes move.

        Args:    object_ids: the objects, at most 10,000.
                 timeout_s: seconds to wait for the members. A member without an answer is left out.
        Returns: the holders of each id, those with all bytes first; none for an id that no member
                 knows.
        Raises:  ControlError if this process's own node does not answer; InvalidArgumentError;
                 NodeLostError.
        Cost:    one call to each member at once.
        Example:

            object_id = new_id()
            store.put(object_id, np.zeros(100_000))
            [holder] = store.locate([object_id])[object_id]
            assert holder.node_id == store.node_id and holder.is_complete
        """
        return self._client.find_holders(object_ids, timeout_s)

    async def locate_async(
        self, object_ids: Iterable[bytes], *, timeout_s: float = 5.0
    ) -> dict[bytes, list[Holder]]:
        """Like `locate`, but awaitable; cancelling it lets the calls end by their time limit."""
        return await asyncio.to_thread(self.locate, object_ids, timeout_s=timeout_s)

    @property
    def node_id(self) -> int:
        """The id of the node."""
        return self._client.node_id

    @property
    def is_alive(self) -> bool:
        """True if the store can be used: it is open, its node runs, and this is no forked child."""
        return self._client.is_alive

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
        self._client.close()
        if self._node is not None and os.getpid() == self._pid:
            self._node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
