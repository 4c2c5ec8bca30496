"""Encode a Python value as a layout and the bytes of its arrays, and decode it again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import import_optional, numpy_dtype, torch_dtype
from hoplite_ray.values.layout import ALIGNMENT_BYTES, Layout, layout_of
from hoplite_ray.values.tree import Leaf, Parts, assemble

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

_PADDING = memoryview(bytes(ALIGNMENT_BYTES))


class Encoded(NamedTuple):
    """An encoded value: its layout, and the object's bytes as consecutive buffers."""

    layout: Layout
    data: list[memoryview]


def encode(value: Any) -> Encoded:
    """Encode a value without a copy, except that an array which is not in C order is copied once.

    Raises:  InvalidArgumentError naming the part of the value that no object can hold.
    """
    parts = Parts(value)
    layout = layout_of(parts)
    data: list[memoryview] = []
    end = 0
    for index, leaf in layout.leaves_by_offset():
        if leaf.offset > end:
            data.append(_PADDING[: leaf.offset - end])
        data.append(_bytes_of(parts.arrays[index], leaf))
        end = leaf.offset + leaf.size_bytes
    return Encoded(layout, data)


def decode(layout: bytes, buffer: Buffer) -> Any:
    """Decode a value over the memory of `buffer`, without a copy. Its arrays keep that memory.

    Raises:  InvalidArgumentError if the layout does not describe the buffer; HopliteError if the
             value needs torch or ml_dtypes and it is not installed here.
    """
    decoded = Layout.from_bytes(layout)
    memory = memoryview(buffer)  # the arrays keep the memory's owner, not `buffer`
    if memory.nbytes != decoded.size_bytes:
        raise InvalidArgumentError(
            f"layout {layout[:60]!r} describes {decoded.size_bytes} bytes, the object has "
            f"{memory.nbytes}; put it again"
        )
    return _decode_with(decoded, memory)


def decode_copy(encoded: Encoded) -> Any:
    """Return the value of `encoded` over a copy of its bytes, which is the caller's own."""
    return _decode_with(encoded.layout, memoryview(bytearray().join(encoded.data)))


def _decode_with(layout: Layout, memory: memoryview) -> Any:
    return assemble(layout.tree, [_array(leaf, memory) for leaf in layout.leaves])


def _bytes_of(array: Any, leaf: Leaf) -> memoryview:
    """Return the elements of an array in C order."""
    if leaf.kind == "torch":
        flat = array.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        plain = flat.view(import_optional("torch").uint8).numpy()
    else:
        plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    exporter: Any = plain  # numpy's types say so from Python 3.12 on
    return memoryview(exporter)


def _array(leaf: Leaf, memory: memoryview) -> Any:
    """Return the array that `leaf` describes, over its part of the memory."""
    if leaf.kind == "torch":
        torch, dtype = import_optional("torch"), torch_dtype(leaf.dtype)
        if not leaf.size_bytes:
            return torch.empty(0, dtype=torch.uint8).view(dtype).reshape(leaf.shape)
        count = math.prod(leaf.shape)
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=leaf.offset)
        return flat.reshape(leaf.shape)
    exporter: Any = memory if leaf.size_bytes else None  # numpy's types name those they know
    array: npt.NDArray[Any] = np.ndarray(
        leaf.shape, numpy_dtype(leaf.dtype), buffer=exporter, offset=leaf.offset
    )
    return array
