"""Store: put, get, reduce and delete on this process's node. START HERE (Python).

Ids go in, arrays come out; the module-level functions of hoplite_ray, which take Ray's references,
are written with this class.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from hoplite_ray import _native, codec
from hoplite_ray.errors import (
    GetTimeoutError,
    HopliteError,
    InvalidArgumentError,
    UnusableAfterForkError,
)
from hoplite_ray.launch import NodeProcess
from hoplite_ray.refs import OBJECT_ID_BYTES, REDUCE_OPS, ReduceOp, checked_id, short_name

T = TypeVar("T")

_STEP_S = 0.1  # Python handles signals between two waits, so Ctrl-C is answered within this


@dataclass(frozen=True, slots=True)
class Received:
    """A received object: its array, and which attempt's bytes they are."""

    array: npt.NDArray[Any]
    incarnation: int


@dataclass(frozen=True, slots=True)
class Reduction:
    """A committed reduce: where the result is, and which sources went in, by order of arrival."""

    target: bytes
    members: tuple[int, ...]


def new_id() -> bytes:
    """Return an object id that nobody else has."""
    return os.urandom(OBJECT_ID_BYTES)


class Pending(Generic[T]):
    """One operation under way. Whoever waits for it, and however, waits for this one completion."""

    def __init__(
        self, request: _native.Request, *, what: str, hint: str, decode: Callable[[Any], T]
    ) -> None:
        self._request = request
        self._what = what  # for error texts: "get of object 7f3a09c1..01000000"
        self._hint = hint  # why it may take so long, and what to do
        self._decode = decode

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the operation has ended, well or badly; False if it has not in `timeout_s`."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _STEP_S if deadline_s is None else deadline_s - time.monotonic()
            if self._request.wait(min(_STEP_S, max(0.0, left_s))):
                return True
            if left_s <= 0:
                return False

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the operation and return what it ended with; may be taken once.

        Raises:  GetTimeoutError after `timeout_s`; the operation is then taken back, as it is by
                 Ctrl-C. Otherwise what the operation itself failed with.
        """
        try:
            finished = self.wait(timeout_s)
        except BaseException:
            self._request.cancel()
            raise
        if not finished:
            self._request.cancel()
            raise GetTimeoutError(f"{self._what} has not ended after {timeout_s} s: {self._hint}")
        return self._decode(self._request.result())

    def cancel(self) -> None:
        """Take the operation back; a waiting `result` raises RequestCancelledError."""
        self._request.cancel()


class PendingReduce(Pending[Reduction]):
    """A reduce under way, which takes its sources in the order in which they are confirmed."""

    def __init__(self, client: _native.Client, target: bytes, request: _native.Request) -> None:
        super().__init__(
            request,
            what=f"reduce into object {short_name(target)}",
            hint="too few of its sources are there yet; raise timeout_s or lower count",
            decode=lambda members: Reduction(target, tuple(members)),
        )
        self._client = client
        self._target = target

    def confirm(self, index: int, object_id: bytes, *, incarnation: int = 0) -> None:
        """Say that source `index` is `object_id` and exists; earlier ones go in first."""
        self._client.reduce_source(self._target, index, checked_id(object_id), incarnation)

    def await_source(self, index: int, object_id: bytes) -> None:
        """Say that source `index` is `object_id`: it goes in when some node has it."""
        self._client.reduce_source(self._target, index, checked_id(object_id), confirmed=False)

    def fail(self, index: int) -> None:
        """Say that source `index` will never come; the others go in without it."""
        self._client.reduce_source_failed(self._target, index)


class Store:
    """This process's part in the store of its node. Any thread may use it; a forked child may not.

    Close it, or use it as a context manager; arrays that it returned stay valid afterwards.
    """

    def __init__(self, client: _native.Client, node: NodeProcess | None = None) -> None:
        self._client = client
        self._node = node
        self._pid = os.getpid()

    @classmethod
    def attach(cls, socket: str | os.PathLike[str]) -> Self:
        """Attach to the node whose clients' socket this is (`node.sock` in the node's directory).

        Raises:  NodeLostError if nobody listens there; UnauthenticatedError if another user does.
        """
        return cls(_native.Client(os.fspath(socket)))

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
            return cls(_native.Client(node.socket), node)
        except BaseException:
            node.stop()
            raise

    def put(
        self,
        object_id: bytes,
        array: npt.NDArray[Any] | np.generic,
        *,
        incarnation: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        """Put a copy of `array` under `object_id`, on this node, until it is deleted.

        Receivers on other nodes stream while the copy is still being made. `incarnation` is the
        attempt: a higher one replaces the bytes of a lower one.

        Raises:  StoreFullError, DuplicateObjectError, GetTimeoutError while it waits for memory.
        Cost:    one copy of the bytes; two if the array is not in C order.
        """
        encoded = codec.encode(array)
        object_id = checked_id(object_id)
        request = self._usable().put(object_id, incarnation, *encoded)
        pending = Pending[None](
            request,
            what=f"put of object {short_name(object_id)} ({encoded.data.nbytes} bytes)",
            hint="the arena is full; delete objects, drop received arrays, or raise arena_bytes",
            decode=lambda nothing: None,
        )
        pending.result(timeout_s)
        if encoded.data.nbytes > _native.INLINE_BYTES_MAX:
            self._client.write(request, encoded.data)
            pending.result(timeout_s)

    def get(
        self, object_id: bytes, *, exists: bool = False, timeout_s: float | None = None
    ) -> npt.NDArray[Any]:
        """Return the array of `object_id`; waits until somebody has put it.

        The array is this process's own: writing into it changes nobody else's, nor the next get's.
        With `exists`, for a caller who knows that it was put, an object that nobody holds is lost
        instead of waited for.

        Raises:  GetTimeoutError, ObjectLostError, StoreFullError, NodeLostError.
        Cost:    nothing is copied above 64 KiB; memory is this node's arena until the array dies.
        """
        return self.begin_get(object_id, exists=exists).result(timeout_s).array

    def begin_get(self, object_id: bytes, *, exists: bool = False) -> Pending[Received]:
        """Start what `get` waits for."""
        object_id = checked_id(object_id)
        return Pending(
            self._usable().get(object_id, exists),
            what=f"get of object {short_name(object_id)}",
            hint="nobody has put it yet, or its bytes are still coming; raise timeout_s",
            decode=lambda fetched: Received(
                codec.decode(fetched.layout, fetched), fetched.incarnation
            ),
        )

    def reduce(
        self,
        target: bytes,
        sources: Sequence[bytes],
        *,
        op: ReduceOp = "sum",
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> Reduction:
        """Combine the first `count` of `sources` (all, if None) element by element into `target`.

        Sources need not be put yet; they go in as they arrive, whatever their order in the list.
        With `begin_reduce` the caller confirms them one by one.

        Shapes:  all sources share dtype (float32, float64 or int64) and shape; so does the result.
        Raises:  ReduceError if fewer than `count` sources are left; LayoutMismatchError.
        Source:  Zhuang et al., "Hoplite", SIGCOMM 2021, reduce; docs/design.md.
        """
        pending = self.begin_reduce(target, source_count=len(sources), op=op, count=count)
        try:
            for index, source in enumerate(sources):
                pending.await_source(index, source)
        except BaseException:
            pending.cancel()
            raise
        return pending.result(timeout_s)

    def begin_reduce(
        self,
        target: bytes,
        *,
        source_count: int,
        op: ReduceOp = "sum",
        count: int | None = None,
    ) -> PendingReduce:
        """Start a reduce of the first `count` of `source_count` sources that are confirmed."""
        count = source_count if count is None else count
        if op not in REDUCE_OPS:
            raise InvalidArgumentError(f"op is {op!r}; it takes {' or '.join(REDUCE_OPS)}")
        if not 1 <= count <= source_count:
            raise InvalidArgumentError(
                f"count is {count}; it takes 1 to {source_count}, the number of sources"
            )
        target = checked_id(target)
        request = self._usable().reduce(
            target, op=REDUCE_OPS[op], source_count=source_count, count=count
        )
        return PendingReduce(self._client, target, request)

    def delete(self, object_id: bytes, *, upto: int = 0, timeout_s: float | None = None) -> None:
        """Free the object on every node; arrays that were received stay valid.

        With `upto` only incarnations up to that one go; a later attempt's bytes stay.

        Returns: when this node has passed it on; the others follow within a round trip or two.
        """
        object_id = checked_id(object_id)
        Pending[None](
            self._usable().delete(object_id, upto),
            what=f"delete of object {short_name(object_id)}",
            hint="the node that keeps its directory entry does not answer; raise timeout_s",
            decode=lambda nothing: None,
        ).result(timeout_s)

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
        if os.getpid() != self._pid:
            return
        self._client.close()
        if self._node is not None:
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
        return self._client
