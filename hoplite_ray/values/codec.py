"""Encode a Python value as a layout and the bytes of its leaves, and decode it again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import (
    NATIVE,
    TEXTS,
    Kind,
    element_bytes,
    import_optional,
    numpy_dtype,
    torch_dtype,
)
from hoplite_ray.values.layout import Layout, describe_parts
from hoplite_ray.values.pausing import pause_collector
from hoplite_ray.values.trees.columns import ALIGNMENT_BYTES, Columns, OfOneKind
from hoplite_ray.values.trees.handles import ReadHandles
from hoplite_ray.values.trees.tree import Parts, assemble, map_leaves

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

_PAUSED_FROM = 256  # leaves; fewer objects seldom start a collection

_PADDING = memoryview(bytes(ALIGNMENT_BYTES))
_PADDINGS = [_PADDING[:size] for size in range(ALIGNMENT_BYTES)]

# Memory of tensors as a buffer, where numpy may lack their dtype: ten times faster than by views.
_view_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_memory.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view_memory.restype = ctypes.py_object
_READ_ONLY = 0x100  # PyBUF_READ

# Numpy's dtypes that Python's buffers have, so that a view of bytes takes a quarter of the time.
_CASTABLE = NATIVE.keys() - {"bfloat16"}

# Torch's own dtypes that numpy has: an array of such is a tensor's memory as it is.
_DIRECT = {
    *("float32", "float64", "float16", "complex64", "complex128", "bool", "uint8"),
    *("int8", "int16", "int32", "int64"),
}
_CARRIERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # of its other dtypes, by their bytes


class Buffers(list[memoryview]):
    """The bytes of an object as consecutive buffers; it keeps the arrays whose memory they are."""

    __slots__ = ("arrays",)

    def __init__(self, buffers: Iterable[memoryview], arrays: Any) -> None:
        super().__init__(buffers)
        self.arrays = arrays


class Encoded(NamedTuple):
    """An encoded value: its layout, and the object's bytes as consecutive buffers."""

    layout: Layout
    data: list[memoryview]


def encode(
    value: Any, read_handles: ReadHandles | None = None, *, ordered: bool = False
) -> Encoded:
    """Encode a value without a copy, except that an array which is not in C order is copied once.

    read_handles:  returns the values of handles in `value`, which are then in their places. It is
                   called once, with all of them; None refuses handles.
    ordered:       True if its arrays keep the order in which they are given.
    Raises:        InvalidArgumentError naming the part of the value that no object can hold; the
                   errors of `read_handles`.
    """
    if isinstance(value, np.ndarray):
        return _encode(Parts(value), ordered)
    with pause_collector():
        parts = Parts(value, read=None if read_handles is None else {})
        if read_handles is None or not parts.handles:
            return _encode(parts, ordered)
    values = read_handles(parts.handles)
    read = dict(zip(map(id, parts.handles), values, strict=True))
    with pause_collector():
        return _encode(Parts(value, read=read), ordered)


def _encode(parts: Parts, ordered: bool) -> Encoded:
    layout = describe_parts(parts, ordered=ordered)
    head = [memoryview(layout.head)] if layout.head else []
    return Encoded(layout, Buffers([*head, *_view_leaves(parts, layout.columns)], parts.arrays))


def _view_leaves(parts: Parts, columns: Columns) -> list[memoryview]:
    """Return the bytes of the leaves in their order, with what aligns them between."""
    arrays, addresses = parts.arrays, parts.addresses
    offsets, sizes, numbers = columns.offsets, columns.sizes, columns.numbers
    kinds = [kind for kind, _ in columns.types]
    is_direct = [kind == "numpy" and name in _CASTABLE for kind, name in columns.types]
    low, memory = _span_tensors(addresses, sizes)
    data: list[memoryview] = []
    end = 0
    for index in columns.order:
        offset, size = offsets[index], sizes[index]
        if offset > end:
            data.append(_PADDINGS[offset - end])
        end = offset + size
        if addresses[index]:
            begin = addresses[index] - low
            data.append(memory[begin : begin + size])
        elif is_direct[numbers[index]] and (view := arrays[index].data).c_contiguous:
            data.append(view.cast("B"))
        elif kinds[numbers[index]] == "numpy":
            data.append(np.ascontiguousarray(arrays[index]).reshape(-1).view(np.uint8).data)
        elif kinds[numbers[index]] == "torch":
            data.append(_copy_tensor(arrays[index]))
        else:
            data.append(_view_plain(arrays[index]))
    return data


def _span_tensors(addresses: Sequence[int], sizes: Sequence[int]) -> tuple[int, memoryview]:
    """Return a buffer from the first tensor's begin to the last one's end, and its address.

    Only its slices may be read: what lies between the tensors need not be memory.
    """
    ends = [where + size for where, size in zip(addresses, sizes, strict=True) if where]
    if not ends:
        return 0, _PADDING
    low = min(filter(None, addresses))
    return low, _view_memory(low, max(ends) - low, _READ_ONLY)


def _copy_tensor(tensor: Any) -> memoryview:
    """Return the elements of a tensor in C order, whatever its memory order is."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    plain: Any = flat.view(import_optional("torch").uint8).numpy()
    return memoryview(plain)


def _view_plain(value: Any) -> memoryview:
    """Return the bytes of a number, or of what stands for a str or bytes."""
    if isinstance(value, bytes):
        return memoryview(value)
    return memoryview(np.array(value, _PLAIN_DTYPES[type(value).__name__]).tobytes())


_PLAIN_DTYPES = {"bool": "?", "int": "<i8", "float": "<f8", "complex": "<c16"}


class Template(NamedTuple):
    """An object before its arrays are written: its layout, and bytes at their offsets."""

    layout: Layout
    given: list[tuple[int, bytes]]


def describe_empty(
    shape: int | Sequence[int] | None, dtype: Any, kind: Kind, like: Any = None
) -> Template:
    """Describe an object that its maker will write: an array, or a value like another one.

    In `like` specs may stand for arrays. It gives numbers, str and bytes, but not those of arrays.
    Raises:  InvalidArgumentError for no such array; the part of `like` that no object can hold;
             both a shape and `like`, or neither.
    """
    if shape is not None and like is None:
        return Template(Layout.of_array(shape, dtype, kind), [])
    if shape is not None or like is None:
        raise InvalidArgumentError("empty takes a shape or like=, one of the two")
    parts = Parts(like, takes_specs=True)
    layout = describe_parts(parts)
    columns = layout.columns
    given = [
        (columns.offsets[index], bytes(_view_plain(parts.arrays[index])))
        for index in columns.order
        if columns.types[columns.numbers[index]][0] == "python"
    ]
    return Template(layout, given)


def decode(layout: bytes, buffer: Buffer) -> Any:
    """Decode a value over the memory of `buffer`, without a copy. Its arrays keep that memory.

    Raises:  InvalidArgumentError if the layout does not describe the buffer; HopliteError if the
             value needs torch, ml_dtypes or a class, and it is not installed here.
    """
    return _decode(Layout.from_bytes(layout), memoryview(buffer))


def decode_copy(encoded: Encoded) -> Any:
    """Return the value of `encoded` over a copy of its bytes, which is the caller's own."""
    return _decode(encoded.layout, memoryview(bytearray().join(encoded.data)))


def lay_out(template: Template, buffer: Buffer) -> Any:
    """Return the value whose arrays the caller will write into `buffer`.

    All other bytes of the object are written. REQUIRES: the buffer is as large as the object.
    """
    layout, memory = template.layout, memoryview(buffer)
    memory[: len(layout.head)] = layout.head
    for offset, data in template.given:
        start = layout.head_bytes + offset
        memory[start : start + len(data)] = data
    return _decode(layout, memory)


def freeze_arrays(value: Any) -> None:
    """Let numpy refuse to write into the arrays of a value; torch has no such tensors."""

    def freeze(leaf: Any) -> None:
        if isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False

    map_leaves(value, freeze)


def _decode(layout: Layout, memory: memoryview) -> Any:
    """Return the value over `memory`. The arrays keep the memory's owner, not `memory`."""
    if layout.leaf_count <= _PAUSED_FROM:
        return _build(layout.read(memory), memory[layout.head_bytes :])
    with pause_collector():
        return _build(layout.read(memory), memory[layout.head_bytes :])


def build(columns: Columns, memory: memoryview) -> Any:
    """Return the value whose leaves have these bytes, without a copy. It keeps the memory.

    Raises:  HopliteError if the value needs torch, ml_dtypes or a class that is not installed here.
    """
    with pause_collector():
        return _build(columns, memory)


def _build(columns: Columns, memory: memoryview) -> Any:
    """Return the value whose leaves have these bytes, which the head is no part of."""
    leaves: list[Any] = [None] * len(columns.numbers)
    for (kind, name), one in zip(columns.types, columns.kinds, strict=True):
        if kind == "numpy":
            made = _make_arrays(numpy_dtype(name), one, memory)
        elif kind == "torch":
            made = _make_tensors(name, one, memory)
        else:
            made = _make_plain(name, one, memory)
        if len(made) == len(leaves):
            leaves = made
        else:
            for index, leaf in zip(one.indices, made, strict=True):
                leaves[index] = leaf
    return assemble(columns.tree, leaves)


def make_leaf(columns: Columns, number: int, memory: memoryview) -> Any:
    """Return one leaf over `memory`, the object's bytes behind the head.

    Numpy refuses to write into an array of it; torch has no such tensors.
    """
    kind, name = columns.types[columns.numbers[number]]
    one = OfOneKind([number], [columns.shapes[number]], [columns.offsets[number]])
    if kind == "python":
        return _make_plain(name, one, memory)[0]
    if kind == "torch":
        return _make_tensors(name, one, memory)[0]
    (array,) = _make_arrays(numpy_dtype(name), one, memory)
    array.flags.writeable = False
    return array


def _make_arrays(dtype: Any, those: OfOneKind, memory: memoryview) -> list[Any]:
    buffer: Any = memory if memory.nbytes else None  # numpy's types name those they know
    make: Any = np.ndarray
    return list(map(make, those.shapes, repeat(dtype), repeat(buffer), those.offsets))


def _make_tensors(name: str, those: OfOneKind, memory: memoryview) -> list[Any]:
    """Return tensors over arrays, so that each has a storage and a version of its own."""
    torch, dtype = import_optional("torch"), torch_dtype(name)
    if name in _DIRECT:
        return list(map(torch.from_numpy, _make_arrays(np.dtype(name), those, memory)))
    carrier = np.dtype(_CARRIERS[element_bytes("torch", name)])
    arrays = _make_arrays(carrier, those, memory)
    return [each.view(dtype) for each in map(torch.from_numpy, arrays)]


def _make_plain(name: str, those: OfOneKind, memory: memoryview) -> list[Any]:
    """Return values of Python's own, which stand one behind the other."""
    if name not in TEXTS:
        count = len(those.indices)
        numbers: list[Any] = np.frombuffer(
            memory, _PLAIN_DTYPES[name], count, those.offsets[0]
        ).tolist()
        return numbers
    texts = [
        bytes(memory[offset : offset + size])
        for offset, (size,) in zip(those.offsets, those.shapes, strict=True)
    ]
    return [each.decode("utf-8", "surrogatepass") for each in texts] if name == "str" else texts
