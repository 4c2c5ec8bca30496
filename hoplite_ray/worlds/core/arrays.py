"""Arrays in the CPU's memory, as worlds carry them: the dtype's name, the shape, the bytes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from hoplite_ray.values.dtypes import (
    import_optional,
    memory_step,
    numpy_dtype,
    numpy_name,
    torch_name,
)

# The dtypes that numpy exports as a buffer; other arrays are viewed as bytes.
_PLAIN = frozenset("?bhilqBHILQefdFD")


class Lent:
    """An array whose memory an operation uses: `flat` has its elements in one dimension."""

    __slots__ = ("buffer", "dtype", "flat", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], flat: np.ndarray[Any, Any]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.flat = flat
        self.buffer: Any = flat if flat.dtype.char in _PLAIN else flat.view(np.uint8)


def to_send(value: Any) -> Lent:
    """Lend an array that an operation reads. An array that is not contiguous is copied.

    Raises:  WrongTypeError or InvalidArgumentError for a value that no world carries.
    """
    name, array = _view_numpy(value)
    return Lent(name, array.shape, np.ascontiguousarray(array).reshape(-1))


def to_fill(value: Any) -> Lent:
    """Lend an array that an operation writes to.

    Raises:  WrongTypeError or InvalidArgumentError, also if it is read-only or not contiguous.
    """
    name, array = _view_numpy(value)
    if not array.flags.c_contiguous:
        raise InvalidArgumentError(
            "an array that is received into must be contiguous in C order; receive into a new one "
            "and copy it"
        )
    if not array.flags.writeable:
        raise InvalidArgumentError("an array that is received into must be writable; copy it first")
    return Lent(name, array.shape, array.reshape(-1))


def view_message(buffer: Any, dtype: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return a message as a numpy array, on the memory in which it came.

    Raises:  InvalidArgumentError if its dtype and shape don't fit its bytes.
    """
    raw = np.frombuffer(memoryview(buffer), np.uint8)  # keeps only the memory's owner alive
    if dtype == "uint8" and shape == raw.shape:  # the fast path of frames, which calls wait for
        return raw
    kind = numpy_dtype(dtype)
    if kind.hasobject or kind.itemsize * math.prod(shape) != raw.nbytes:
        raise InvalidArgumentError(
            f"{raw.nbytes} B can't be {dtype}{list(shape)}; the sender is at fault"
        )
    return raw.view(kind).reshape(shape)


def _view_numpy(value: Any) -> tuple[str, np.ndarray[Any, Any]]:
    if type(value) is np.ndarray:  # the usual case
        return _name_dtype(value), value
    if isinstance(value, np.ma.MaskedArray):
        raise WrongTypeError("a masked array's mask is not carried; send its .filled(), or .data")
    if isinstance(value, np.ndarray):
        return _name_dtype(value), np.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _view_torch(value, torch)
    if hasattr(value, "__cuda_array_interface__"):
        raise WrongTypeError(
            f"{type(value).__name__} is on a device, and others of this call are memory of the "
            "CPU; give its .get() or .cpu()"
        )
    if isinstance(value, np.generic | int | float | complex | list | tuple | str):
        raise WrongTypeError(
            f"{type(value).__name__} is no array whose memory can be used; send np.asarray(it)"
        )
    try:
        array = (
            np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(memoryview(value))
        )
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise WrongTypeError(
            f"{type(value).__name__} is no array on the CPU ({error}); send np.asarray(it)"
        ) from error
    return _name_dtype(array), array


def _name_dtype(array: np.ndarray[Any, Any]) -> str:
    try:
        return numpy_name(array.dtype)
    except ValueError as error:
        raise InvalidArgumentError(f"an array whose dtype {array.dtype} {error}") from error


def _view_torch(value: Any, torch: Any) -> tuple[str, np.ndarray[Any, Any]]:
    if value.device.type != "cpu":
        raise WrongTypeError(
            f"a tensor on {value.device}; worlds carry memory of the CPU: "
            f"{memory_step(value, 'send')}"
        )
    if value.layout is not torch.strided:
        raise WrongTypeError(
            f"a tensor of layout {value.layout}; worlds carry dense memory: send its .to_dense()"
        )
    try:
        name = torch_name(value.dtype)
    except ValueError as error:
        raise InvalidArgumentError(f"a tensor whose dtype {value.dtype} {error}") from error
    plain = value.detach()
    if value.dtype is torch.bfloat16:
        kind = import_optional("ml_dtypes").bfloat16
        return name, plain.view(torch.int16).numpy().view(kind)
    try:
        return name, plain.numpy()
    except (TypeError, RuntimeError) as error:  # RuntimeError: a conjugate or negative view
        raise InvalidArgumentError(f"{error}; send its .clone(), or a view of bytes") from error
