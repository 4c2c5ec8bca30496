"""hop.Array: the small handle that travels inside Ray's objects instead of a value's bytes."""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Generator
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import ray

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.handle.borrowing import register_borrow
from hoplite_ray.plugin.handle.fetching import PendingValue, ToFetch, start_fetches
from hoplite_ray.plugin.handle.leaves import (
    copy_leaf,
    to_numpy,
    to_read_only,
    to_tensor,
)
from hoplite_ray.plugin.handle.operators import Operators
from hoplite_ray.plugin.handle.recipes import HandleRecipe
from hoplite_ray.plugin.handle.writable import SmallWritable, Writable
from hoplite_ray.plugin.process.attachment import attachment, is_attached
from hoplite_ray.plugin.process.known_puts import KnownPut
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.values.codec import Encoded, decode_copy
from hoplite_ray.values.layout import Layout, short_name
from hoplite_ray.values.recipe import Recipe
from hoplite_ray.values.trees.handles import Handle
from hoplite_ray.values.trees.tree import map_leaves

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

# A value up to this size travels in its handle and needs no node (design decision 27). Ray keeps
# results of up to 100 KB with the task's caller, so such a handle is not lost with its node.
SMALL_BYTES_MAX = 64 << 10

# Ray writes a buffer without a copy of its own; fewer bytes cost less in the pickle itself.
_BUFFER_BYTES_MIN = 8 << 10

# Ray keeps larger results on the node that made them, and re-executes the task when that copy is
# lost: a task's own large value makes its handle one of these.
PADDED_BYTES = 101 << 10
_PADDING = bytes(PADDED_BYTES)  # one object, which pickle writes once in a result of many Arrays

_naming = threading.Lock()  # held while an Array keeps its first ref, which a thread may race for

_DLPACK_CPU = (1, 0)  # kDLCPU of dlpack.h, and its only device


class Array(Operators, Handle):
    """An immutable value in the store; its bytes are fetched when they are asked for.

    The handle of a value of at most 64 KiB has the bytes, and needs no node.

    Shape, dtype, size and repr fetch nothing. Operators, indexing, iteration and numpy's ufuncs
    fetch one read-only view and keep it; it occupies arena as long as this handle lives.
    torch's functions fetch a private mapping at each call, because torch has no read-only tensors.
    np.asarray(a), a.copy(), a.numpy(), a.torch(), DLPack and `await a` give the caller its own
    value: writing into it changes nothing else.

    A value that is a dict, list or tuple has no shape and dtype: take what is in it by a["w"], or
    all with hop.get(a). Two Arrays are compared element by element, so they have no hash.
    Inside Ray (arguments, results, ray.put) only this handle travels, also in a container of
    Arrays. hop.put and hop.array of such a container make one object with the bytes of all. Plain
    pickle, copy.copy and copy.deepcopy take the bytes. Any thread may use it.
    """

    __slots__ = (
        "__weakref__",
        "_anchor",
        "_data",
        "_fetched",
        "_incarnation",
        "_layout",
        "_made_by",
        "_members",
        "_object_id",
        "_prefetch",
        "_recipe",
        "_ref",
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
        writing: Writable | SmallWritable | None = None,
        data: bytes | None = None,
        recipe: HandleRecipe | None = None,
    ) -> None:
        self._object_id = object_id
        self._incarnation = incarnation
        self._layout = layout
        self._anchor = anchor  # keeps the object alive; a small value has none
        self._data = data  # of a small value: its bytes, which are then no object of a node
        self._recipe = recipe  # of a put with a base
        self._made_by = made_by  # the task of this process that made it, if one did
        self._members = members  # of a reduce's result: ids of the source refs that went in
        self._writing = writing  # of `empty`, until it is sealed
        self._fetched: Any = None  # the value that operators work on
        self._prefetch: weakref.finalize[Any, Any] | None = None
        self._ref: tuple[bytes | None, Ref] | None = None  # of this handle, and Ray's session

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
        is_here = self._data is not None or self._fetched is not None or self._writing is not None
        if is_under_way or is_here:
            return
        recipe, store = self._find_recipe(), attachment().store
        if recipe is None:
            pending = store.begin_get(self._object_id, exists=True)
        else:
            pending = store.begin_rebuild(self._object_id, recipe)
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
        small = self._small
        if small is not None:
            return decode_copy(small)
        value = await asyncio.to_thread(self._begin)  # which may have to seal an `empty`
        return await value.result_async(None) if isinstance(value, PendingValue) else value

    @property
    def _origin(self) -> str | None:
        """The Ray node where the value was made; None if that is not known, or for a small value.

        The steward of that node owns the anchor. While Ray drains the node, another one does.
        """
        return None if self._anchor is None else seams.owner_node_id(self._anchor)

    @property
    def _small(self) -> Encoded | None:
        """The value, if this handle has its bytes; None if an object of a node has them."""
        data = self._data
        return None if data is None else small_of(self._layout, data)

    def _with_data(self, data: bytes | None) -> Array:
        """Return another handle of a small value, which has these bytes."""
        return Array(self._object_id, self._incarnation, self._layout, None, data=data)

    def _find_bytes(self, deadline: float | None = None) -> Any:
        """Return what a get fetches, or the caller's own small value.

        An `empty` is sealed for it, by `deadline`.
        """
        self._seal(deadline)
        small = self._small
        if small is not None:
            return decode_copy(small)
        return ToFetch(self._object_id, self._incarnation, recipe=self._find_recipe())

    def _find_recipe(self) -> Recipe | None:
        """Return how this node may make the value of the base of its put, if that had one."""
        made = self._recipe
        return None if made is None else made.complete(self._layout, self._incarnation)

    def _begin(self, deadline: float | None = None) -> Any:
        """Start to fetch the value: return a PendingValue, or the caller's own small value."""
        begun: list[Any] = start_fetches([self._find_bytes(deadline)], deadline)
        return begun[0]

    def _as_ref(self, deadline: float | None = None) -> Ref:
        """Return a ref of this object, the same in all of a session. REQUIRES: Ray runs here.

        An `empty` is sealed for it, by `deadline`: Ray's pickling seals without a limit.
        """
        self._seal(deadline)
        session = seams.connection()
        if self._ref is None or self._ref[0] != session:  # a small value outlives a session
            made = ray.put(self)
            with _naming:
                if self._ref is None or self._ref[0] != session:
                    self._ref = session, made
        return self._ref[1]

    def _own_value(self) -> Any:
        """Return the caller's own value; of an unsealed `empty` the memory itself."""
        writing = self._writing
        if writing is not None:
            return writing.value
        value = self._begin()
        return value.result(None) if isinstance(value, PendingValue) else value

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
            self._data = writing.seal(deadline)
            self._writing = None

    def __reduce__(self) -> tuple[Any, ...]:
        if not seams.is_ray_pickling():
            return _taken, (self.copy(),)
        self._seal()
        fields = (self._object_id, self._incarnation, self._layout.to_bytes(), self._anchor)
        more = (self._members, _buffer_of(self._data), self._padding())
        recipe = () if self._recipe is None else (self._recipe.to_fields(),)
        return _unpickled, (*fields, *more, *recipe)

    def _padding(self) -> bytes:
        """Return bytes that make a task's own large result large for Ray, too."""
        is_own = self._made_by is not None and self._made_by == seams.task_id()
        return _PADDING if is_own else b""


def _taken(value: Any) -> Any:
    """Return the value; a plain pickle of an Array calls it. Files of users have this name."""
    return value


class PutHandle:
    """The value that put() stores under a ref without knowing its id; read, it is an Array.

    `data` has the bytes of a small value, `recipe` is that of a put with a base.
    """

    __slots__ = ("_data", "_incarnation", "_layout", "_recipe")

    def __init__(
        self,
        incarnation: int,
        layout: Layout,
        data: bytes | None = None,
        recipe: HandleRecipe | None = None,
    ) -> None:
        self._incarnation = incarnation
        self._layout = layout
        self._data = data
        self._recipe = recipe

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self._incarnation, self._layout.to_bytes(), _buffer_of(self._data))
        recipe = () if self._recipe is None else (self._recipe.to_fields(),)
        return _unpickled_put, (*fields, *recipe)


def _buffer_of(data: bytes | None) -> bytes | PickleBuffer | None:
    """Return what stands for a small value's bytes in a pickle of Ray's."""
    return data if data is None or len(data) < _BUFFER_BYTES_MIN else PickleBuffer(data)


def small_of(layout: Layout, data: bytes) -> Encoded:
    return Encoded(layout, [memoryview(data)])


def _unpickled(
    object_id: bytes,
    incarnation: int,
    layout: bytes,
    anchor: Ref | None,
    members: tuple[bytes, ...] | None,
    pickled: Buffer | None,
    padding: bytes,
    recipe: tuple[Any, ...] | None = None,
) -> Array:
    decoded = Layout.from_bytes(layout)
    data = None if pickled is None else bytes(pickled)
    made = HandleRecipe.from_fields(recipe)
    array = Array(object_id, incarnation, decoded, anchor, members=members, data=data, recipe=made)
    if anchor is not None:
        register_borrow(array)
    return array


def _unpickled_put(
    incarnation: int,
    layout: bytes,
    pickled: Buffer | None,
    recipe: tuple[Any, ...] | None = None,
) -> Array:
    ref = seams.outer_ref()
    if ref is None:
        raise HopliteError(
            "an object of hoplite_ray.put was read without its ref, so its id is unknown; "
            "this Ray copies small ray.put objects into task calls, which 2.60 to 2.61 don't"
        )
    object_id, decoded = ref.binary(), Layout.from_bytes(layout)
    data = None if pickled is None else bytes(pickled)  # a copy, so that Ray's may be freed
    small = None if data is None else small_of(decoded, data)
    anchor, made = (ref if small is None else None), HandleRecipe.from_fields(recipe)
    array = Array(object_id, incarnation, decoded, anchor, data=data, recipe=made)
    if is_attached():
        known = KnownPut(incarnation, small, array._find_recipe())
        attachment().known_puts.add(object_id, known)
    return array
