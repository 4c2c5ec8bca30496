"""hop.Array: the small handle that travels inside Ray's objects instead of a value's bytes."""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.handle.borrowing import register_borrow
from hoplite_ray.plugin.handle.fetching import (
    PendingValue,
    ToFetch,
    in_thread,
    put_async_of,
    start_fetches,
)
from hoplite_ray.plugin.handle.leaves import (
    copy_leaf,
    map_leaves,
    to_numpy,
    to_read_only,
    to_tensor,
)
from hoplite_ray.plugin.handle.operators import Operators
from hoplite_ray.plugin.handle.writable import Writable
from hoplite_ray.plugin.process import ids
from hoplite_ray.plugin.process.attachment import Attachment, attachment, is_attached
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.values.codec import Encoded
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.dtypes import Kind
from hoplite_ray.values.layout import Layout, short_name

# Ray keeps task results above 100 KB on the node that made them and re-executes the task when that
# copy is lost; smaller ones live with the task's caller, and carry their bytes.
PADDED_BYTES = 101 << 10
_PADDING = bytes(PADDED_BYTES)  # one object, which pickle writes once in a result of many Arrays
_PADDED_FROM_BYTES = 64 << 10  # smaller values cost less to carry than this padding costs

_naming = threading.Lock()  # held while an Array keeps its first ref, which a thread may race for

_DLPACK_CPU = (1, 0)  # kDLCPU of dlpack.h, and its only device


class Array(Operators):
    """An immutable value in the store; its bytes are fetched when they are asked for.

    Shape, dtype, size and repr fetch nothing. Operators, indexing, iteration and numpy's ufuncs
    fetch one read-only view and keep it; it occupies arena as long as this handle lives.
    torch's functions fetch a private mapping at each call, because torch has no read-only tensors.
    np.asarray(a), a.copy(), a.numpy(), a.torch(), DLPack and `await a` give the caller its own
    value: writing into it changes nothing else.

    A value that is a dict, list or tuple has no shape and dtype: take what is in it by a["w"], or
    all with hop.get(a). Two Arrays are compared element by element, so they have no hash.
    Inside Ray (arguments, results, ray.put) only this handle travels; plain pickle, copy.copy and
    copy.deepcopy take the bytes. Any thread may use it.
    """

    __slots__ = (
        "__weakref__",
        "_anchor",
        "_fetched",
        "_incarnation",
        "_layout",
        "_made_by",
        "_members",
        "_object_id",
        "_prefetch",
        "_ref",
        "_spare",
        "_writing",
    )

    def __init__(
        self,
        object_id: bytes,
        incarnation: int,
        layout: Layout,
        anchor: Ref | None,
        *,
        made_by: bytes | None = None,
        members: tuple[bytes, ...] | None = None,
        writing: Writable | None = None,
        spare: bytes | None = None,
    ) -> None:
        self._object_id = object_id
        self._incarnation = incarnation
        self._layout = layout
        self._anchor = anchor  # keeps the object alive
        self._made_by = made_by  # the task of this process that made it, if one did
        self._members = members  # of a reduce's result: ids of the source refs that went in
        self._writing = writing  # of `empty`, until it is sealed
        self._spare = spare  # the bytes of a task's small result, in case the object is lost
        self._fetched: Any = None  # the value that operators work on
        self._prefetch: weakref.finalize[Any, Any] | None = None
        self._ref: Ref | None = None  # of this handle, from its first `_as_ref` on

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents; of a dict, list or tuple there are none."""
        self._require_array("shape", AttributeError)
        return self._layout.shape

    @property
    def dtype(self) -> Any:
        """numpy's dtype of a numpy array, torch's of a tensor."""
        self._require_array("dtype", AttributeError)
        return self._layout.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the object, with what aligns the arrays of a container."""
        return self._layout.size_bytes

    @property
    def T(self) -> Any:
        self._require_array("T", AttributeError)
        return self._view().T

    def __len__(self) -> int:
        if not self._layout.is_array:
            return len(self._view())
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        state = "" if self._writing is None else " not sealed"
        name = short_name(self._object_id)
        return f"<hoplite_ray.Array {self._layout} {name}{state}>"

    def item(self, *index: int) -> Any:
        """One element as a Python number; without `index` the only one."""
        self._require_array("item", TypeError)
        return self._view()[index].item() if index else self._scalar("item")

    def tolist(self) -> Any:
        """All elements as Python numbers in nested lists; containers stay what they are."""
        return map_leaves(self._view(), lambda leaf: leaf.tolist())

    def copy(self) -> Any:
        """The value, the caller's own: what hop.get(a) returns."""
        value = self._own_value()
        return value if self._writing is None else map_leaves(value, copy_leaf)

    def numpy(self) -> Any:
        """The value, the caller's own, with numpy arrays in place of tensors.

        Raises: WrongTypeError for a tensor whose dtype numpy lacks; HopliteError without ml_dtypes,
                which has bfloat16.
        """
        return map_leaves(self._own_value(), to_numpy)

    def torch(self) -> Any:
        """The value, the caller's own, with tensors in place of numpy arrays.

        Raises: WrongTypeError for an array whose dtype torch lacks; HopliteError without torch.
        """
        return map_leaves(self._own_value(), to_tensor)

    def prefetch(self) -> None:
        """Start to fetch the bytes to this node, so that the next use finds them here.

        Returns at once. The bytes stay in the arena until it needs their room. A failure, for
        example of a full arena, shows at the next use. The fetch ends with this handle.
        """
        is_under_way = self._prefetch is not None and self._prefetch.alive
        if is_under_way or self._fetched is not None or self._writing is not None:
            return
        pending = attachment().store.begin_get(self._object_id, exists=True)
        prefetch = self._prefetch = weakref.finalize(self, pending.cancel)

        def unpin() -> None:
            prefetch.detach()  # `pending` goes, and its pin with it

        pending.add_end_callback(unpin)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        self._require_array("numpy array", TypeError)
        array: npt.NDArray[Any] = to_numpy(self._own_value())
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"{self!r} can't become {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        is_shared = self._writing is not None  # else it is the caller's own, as a copy is
        return array.copy() if copy and is_shared else array

    def __dlpack__(self, **options: Any) -> Any:
        self._require_array("DLPack", BufferError)
        value = self._own_value()
        return value.__dlpack__(**{**options, "copy": None} if options.get("copy") else options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CPU

    def __await__(self) -> Generator[Any, None, Any]:
        """The value, the caller's own, as hop.get(a) returns it."""
        return self._await_value().__await__()

    async def _await_value(self) -> Any:
        pending = await asyncio.to_thread(self.begin)
        return await pending.result_async(None)

    def _find_bytes(self, deadline: float | None = None) -> ToFetch:
        """Return what a get fetches; an `empty` is sealed for it, by `deadline`."""
        self._seal(deadline)
        spare = None if self._spare is None else Encoded(self._layout, [memoryview(self._spare)])
        return ToFetch(self._object_id, self._incarnation, spare)

    def begin(self, deadline: float | None = None) -> PendingValue:
        """Start to fetch, by `deadline`; the result's `result(timeout_s)` takes the value."""
        fetches: list[PendingValue] = start_fetches([self._find_bytes(deadline)], deadline)
        return fetches[0]

    def _as_ref(self, deadline: float | None = None) -> Ref:
        """Return a ref of this object, the same at each call. REQUIRES: Ray runs here.

        An `empty` is sealed for it, by `deadline`: Ray's pickling seals without a limit.
        """
        self._seal(deadline)
        if self._ref is None:
            made = ray.put(self)
            with _naming:
                self._ref = self._ref or made
        return self._ref

    def _own_value(self) -> Any:
        """Return the caller's own value; of an unsealed `empty` the memory itself."""
        writing = self._writing
        return self.begin().result(None) if writing is None else writing.value

    def _view(self) -> Any:
        writing = self._writing
        if writing is not None:
            return writing.value
        if self._fetched is None:  # two threads may both fetch, and either result is right
            self._fetched = map_leaves(self._own_value(), to_read_only)
        return self._fetched

    def _writable_value(self) -> Any:
        writing = self._writing
        if writing is None:
            raise TypeError(
                f"{self!r} is immutable; write into a copy: np.asarray(a), a.torch() or a.copy()"
            )
        return writing.value

    def _require_array(self, wanted: str, kind: type[Exception]) -> None:
        if not self._layout.is_array:
            raise kind(
                f"{self!r} is no single array and has no {wanted}; take one that is in it by "
                "indexing, or the whole with hoplite_ray.get"
            )

    def _seal(self, deadline: float | None = None) -> None:
        """End the writing of an `empty`, by `deadline`; the object is then like any other."""
        writing = self._writing
        if writing is not None:
            writing.seal(deadline)
            self._writing = None

    def __reduce__(self) -> tuple[Any, ...]:
        if not seams.is_ray_pickling():
            return _taken, (self.copy(),)
        self._seal()
        fields = (self._object_id, self._incarnation, self._layout.to_bytes(), self._anchor)
        return _unpickled, (*fields, self._members, self._spare, self._padding())

    def _padding(self) -> bytes:
        """Return bytes that make a task's own large result large for Ray, too."""
        if self._made_by is None or self.nbytes < _PADDED_FROM_BYTES:
            return b""
        return _PADDING if self._made_by == seams.task_id() else b""


def _spare_of(encoded: Encoded) -> bytes | None:
    """Return the bytes of a task's small value, which then live with the handle at its caller."""
    if seams.task_id() is None or encoded.layout.size_bytes >= _PADDED_FROM_BYTES:
        return None
    return b"".join(encoded.data)


def _taken(value: Any) -> Any:
    """Return the value; a plain pickle of an Array calls it. Files of users have this name."""
    return value


class PutHandle:
    """The value that put() stores under a ref without knowing its id; read, it is an Array."""

    __slots__ = ("_incarnation", "_layout")

    def __init__(self, incarnation: int, layout: Layout) -> None:
        self._incarnation = incarnation
        self._layout = layout

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled_put, (self._incarnation, self._layout.to_bytes())


def make(encoded: Encoded, *, timeout_s: float | None = None) -> Array:
    """Put a value as the running task's next array; an anchor of a steward keeps it alive."""
    here, anchor, timeout_s = _take_anchor(timeout_s)
    object_id, incarnation = _name_next(here, anchor)
    here.put(object_id, encoded, incarnation=incarnation, timeout_s=timeout_s)
    spare = _spare_of(encoded)
    return Array(
        object_id, incarnation, encoded.layout, anchor, made_by=seams.task_id(), spare=spare
    )


async def make_async(
    here: Attachment, anchor: Ref, encoded: Encoded, *, timeout_s: float | None
) -> Array:
    """Like `make`, but awaitable, and with an anchor that the caller has taken."""
    object_id, incarnation = _name_next(here, anchor)
    await put_async_of(object_id, encoded, incarnation, timeout_s)
    spare = _spare_of(encoded)
    return Array(
        object_id, incarnation, encoded.layout, anchor, made_by=seams.task_id(), spare=spare
    )


def make_empty(
    shape: int | Sequence[int], dtype: Any, kind: Kind, timeout_s: float | None
) -> Array:
    """Reserve the running task's next array, which the caller writes until it is sealed."""
    here, anchor, timeout_s = _take_anchor(timeout_s)
    object_id, incarnation = _name_next(here, anchor)
    writing = Writable(here, object_id, incarnation, shape, dtype, kind=kind, timeout_s=timeout_s)
    made_by = seams.task_id()
    return Array(object_id, incarnation, writing.layout, anchor, made_by=made_by, writing=writing)


async def make_empty_async(
    here: Attachment,
    anchor: Ref,
    shape: int | Sequence[int],
    dtype: Any,
    kind: Kind,
    *,
    timeout_s: float | None,
) -> Array:
    """Like `make_empty`, but awaitable, and with an anchor that the caller has taken."""
    object_id, incarnation = _name_next(here, anchor)
    reserve = partial(Writable, here, object_id, incarnation, shape, dtype, kind=kind)
    writing = await in_thread(deadline_in(timeout_s), reserve, timeout_s=timeout_s)
    made_by = seams.task_id()
    return Array(object_id, incarnation, writing.layout, anchor, made_by=made_by, writing=writing)


def _take_anchor(timeout_s: float | None) -> tuple[Attachment, Ref, float | None]:
    """Return the attachment, an anchor, and the rest of `timeout_s`."""
    deadline = deadline_in(timeout_s)
    here = attachment(deadline)
    return here, here.anchors.take(left_s(deadline)), left_s(deadline)


def _name_next(here: Attachment, anchor: Ref) -> tuple[bytes, int]:
    """Return the next array's id and incarnation, which the journal has before it exists."""
    object_id = ids.next_array_id()
    incarnation = ids.incarnation()
    here.journal.record_anchored(object_id, anchor.binary(), incarnation)
    return object_id, incarnation


def _unpickled(
    object_id: bytes,
    incarnation: int,
    layout: bytes,
    anchor: Ref | None,
    members: tuple[bytes, ...] | None,
    spare: bytes | None,
    padding: bytes,
) -> Array:
    decoded = Layout.from_bytes(layout)
    array = Array(object_id, incarnation, decoded, anchor, members=members, spare=spare)
    if anchor is not None:
        register_borrow(array)
    return array


def _unpickled_put(incarnation: int, layout: bytes) -> Array:
    ref = seams.outer_ref()
    if ref is None:
        raise HopliteError(
            "an object of hoplite_ray.put was read without its ref, so its id is unknown; "
            "this Ray copies small ray.put objects into task calls, which 2.60 to 2.61 don't"
        )
    if is_attached():
        attachment().remember_put(ref.binary(), incarnation)
    return Array(ref.binary(), incarnation, Layout.from_bytes(layout), ref)
