"""A Python value as one layout and one contiguous buffer, and back. Only numpy arrays so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.refs import Layout

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

# The numbers of native/plan/types.h: what the kernels can add. All else travels as opaque bytes.
_OPAQUE = 0
_NATIVE_DTYPES = {np.dtype("<f4"): 1, np.dtype("<f8"): 2, np.dtype("<i8"): 3}


class Encoded(NamedTuple):
    """What a put needs: layout bytes, native dtype, and the elements as contiguous bytes."""

    layout: bytes
    dtype: int
    data: memoryview


def encode(array: npt.NDArray[Any] | np.generic) -> Encoded:
    """Take an array apart without copying it, unless it is not in C order: then it is copied once.

    Raises:  InvalidArgumentError for anything that is not an array of plain bytes.
    """
    if not isinstance(array, (np.ndarray, np.generic)) or isinstance(array, np.ma.MaskedArray):
        kind = type(array).__name__
        raise InvalidArgumentError(f"a {kind} is no plain numpy array; pass np.asarray(value)")
    if array.dtype.hasobject:
        raise InvalidArgumentError(
            f"an array of dtype {array.dtype} holds Python objects, not bytes; "
            "convert it with .astype(), or use ray.put"
        )
    layout = Layout(array.dtype, array.shape)
    if layout.size_bytes == 0:
        data = np.empty(0, np.uint8)
    else:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    exporter: Any = data  # numpy's types say so from Python 3.12 on
    return Encoded(
        layout.to_bytes(), _NATIVE_DTYPES.get(array.dtype, _OPAQUE), memoryview(exporter)
    )


def decode(layout: bytes, buffer: Buffer) -> npt.NDArray[Any]:
    """Put an array together over `buffer`, which it keeps alive; nothing is copied.

    Raises:  InvalidArgumentError if the layout does not describe the buffer.
    """
    decoded = Layout.from_bytes(layout)
    size_bytes = memoryview(buffer).nbytes
    if size_bytes != decoded.size_bytes:
        raise InvalidArgumentError(
            f"layout {layout!r} describes {decoded.size_bytes} bytes, the object has {size_bytes}; "
            "put it again"
        )
    if size_bytes == 0:
        return np.empty(decoded.shape, decoded.dtype)
    exporter: Any = buffer  # numpy's types name the buffers they know; it takes every one
    return np.ndarray(decoded.shape, decoded.dtype, buffer=exporter)
