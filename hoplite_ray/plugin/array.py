"""hop.Array: the small handle that travels inside Ray's objects instead of an array's bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hoplite_ray.codec import encode
from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin import ids, seams
from hoplite_ray.plugin.attachment import PendingArray, attachment
from hoplite_ray.plugin.seams import Ref
from hoplite_ray.refs import Layout, short_name

# Ray keeps task results above 100 KB on the node that made them and re-executes the task when that
# copy is lost; smaller ones live with the task's caller, and their loss would go unnoticed.
PADDED_BYTES = 101 << 10
_PADDED_FROM_BYTES = 64 << 10  # smaller arrays cost less to keep twice than this padding costs


class Array:
    """An immutable array in the store; its bytes are fetched when they are asked for.

    Shape, dtype, size and repr fetch nothing. np.asarray(a) fetches, and so does anything in numpy
    that takes an array; each fetch is an array of its own, so writing into one changes nothing
    else. Inside Ray (arguments, results, ray.put) only this handle travels; plain pickle and
    copy.deepcopy take the bytes.
    """

    __slots__ = ("_anchor", "_incarnation", "_layout", "_made_by", "_members", "_object_id")

    def __init__(
        self,
        object_id: bytes,
        incarnation: int,
        layout: Layout,
        anchor: Ref | None,
        *,
        made_by: bytes | None = None,
        members: tuple[bytes, ...] | None = None,
    ) -> None:
        self._object_id = object_id
        self._incarnation = incarnation
        self._layout = layout
        self._anchor = anchor  # keeps the object alive
        self._made_by = made_by  # the task that made it, if that is this process
        self._members = members  # of a reduce's result: ids of the source refs that went in

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self._layout.dtype
        return dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self._layout.size_bytes

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        extents = ", ".join(map(str, self.shape))
        return f"<hoplite_ray.Array {self.dtype}[{extents}] {short_name(self._object_id)}>"

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = self.begin().result(None)
        if dtype is None or np.dtype(dtype) == array.dtype:
            return array  # nobody else has it: that is a copy
        if copy is False:
            raise ValueError(f"{self!r} can't become {np.dtype(dtype)} without a copy")
        return array.astype(dtype)

    def begin(self) -> PendingArray:
        """Start to fetch; the bytes are taken by the result's `result(timeout_s)`."""
        return PendingArray(self._object_id, self._incarnation)

    def __reduce__(self) -> tuple[Any, ...]:
        if not seams.is_ray_pickling():
            return np.asarray, (self.__array__(),)
        fields = (self._object_id, self._incarnation, self._layout.to_bytes(), self._anchor)
        return _unpickled, (*fields, self._members, self._padding())

    def _padding(self) -> bytes:
        """Makes a task's own large result large for Ray too."""
        if self._made_by is None or self.nbytes < _PADDED_FROM_BYTES:
            return b""
        return bytes(PADDED_BYTES) if self._made_by == seams.task_id() else b""


class PutHandle:
    """What put() stores under a ref whose id is not known yet: read, it is an Array of that id."""

    __slots__ = ("_incarnation", "_layout")

    def __init__(self, incarnation: int, layout: Layout) -> None:
        self._incarnation = incarnation
        self._layout = layout

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled_put, (self._incarnation, self._layout.to_bytes())


def make(value: npt.NDArray[Any], *, timeout_s: float | None = None) -> Array:
    """Put `value` as the running task's next array; an anchor of the steward keeps it alive."""
    encoded = encode(value)
    here = attachment()
    anchor = here.anchors.take()
    object_id = ids.next_array_id()
    incarnation = ids.incarnation(here.began_s)
    here.journal.anchored(object_id, anchor.binary(), incarnation)
    here.put(object_id, encoded, incarnation=incarnation, timeout_s=timeout_s)
    return Array(object_id, incarnation, encoded.layout, anchor, made_by=seams.task_id())


def _unpickled(
    object_id: bytes,
    incarnation: int,
    layout: bytes,
    anchor: Ref | None,
    members: tuple[bytes, ...] | None,
    padding: bytes,
) -> Array:
    return Array(object_id, incarnation, Layout.from_bytes(layout), anchor, members=members)


def _unpickled_put(incarnation: int, layout: bytes) -> Array:
    ref = seams.outer_ref()
    if ref is None:
        raise HopliteError(
            "an object of hoplite_ray.put was read without its ref, so its id is unknown; "
            "this Ray copies small ray.put objects into task calls, which 2.60 to 2.61 don't"
        )
    return Array(ref.binary(), incarnation, Layout.from_bytes(layout), ref)
