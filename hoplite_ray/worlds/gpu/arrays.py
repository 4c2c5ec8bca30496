"""Arrays on GPUs that worlds take: torch's tensors, and all with `__cuda_array_interface__`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import numpy_name, torch_name


class OnGpu:
    """A contiguous array on a GPU.

    stream:  the CUDA stream that last used it; None: it may be used at once.
    """

    __slots__ = ("address", "count", "dtype", "owner", "shape", "size_bytes", "stream")

    def __init__(
        self,
        owner: Any,
        dtype: str,
        shape: tuple[int, ...],
        item_bytes: int,
        address: int,
        stream: int | None,
    ) -> None:
        self.owner = owner
        self.dtype = dtype
        self.shape = shape
        self.count = math.prod(shape)
        self.size_bytes = self.count * item_bytes
        self.address = address
        self.stream = stream

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def part(self, first: int, last: int) -> OnGpu:
        """Return the elements from `first` up to `last`, in one dimension, on the same memory."""
        item_bytes = self.size_bytes // self.count if self.count else 1
        address = self.address + first * item_bytes
        shape = (last - first,)
        return OnGpu(self.owner, self.dtype, shape, item_bytes, address, self.stream)


def is_on_gpu(value: Any) -> bool:
    """Return True if an array's memory is a GPU's."""
    if isinstance(value, np.ndarray):
        return False
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return bool(value.is_cuda)
    return hasattr(value, "__cuda_array_interface__")


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def lend_torch(value: Any) -> OnGpu:
    torch: Any = sys.modules["torch"]
    if value.layout is not torch.strided or not value.is_contiguous() or value.is_conj():
        raise InvalidArgumentError(
            "a tensor on a GPU must be dense and contiguous; give its .contiguous()"
        )
    try:
        name = torch_name(value.dtype)
    except ValueError as error:
        raise InvalidArgumentError(f"a tensor whose dtype {value.dtype} {error}") from error
    stream = torch.cuda.current_stream(value.device).cuda_stream
    shape = tuple(value.shape)
    return OnGpu(value, name, shape, value.element_size(), value.data_ptr(), stream)


def lend_interface(value: Any, is_filled: bool) -> OnGpu:
    """Take an array with `__cuda_array_interface__`, of version 2 or 3.

    Raises:  InvalidArgumentError if it is read-only and to be filled, masked, or not contiguous.
    """
    said = value.__cuda_array_interface__
    kind = np.dtype(said["typestr"])
    shape = tuple(int(each) for each in said["shape"])
    address, is_read_only = said["data"]
    if is_filled and is_read_only:
        raise InvalidArgumentError("an array that is received into must be writable; copy it first")
    if said.get("mask") is not None:
        raise InvalidArgumentError("the mask of a masked array is not carried; give its data")
    if not _is_dense(shape, said.get("strides"), kind.itemsize):
        raise InvalidArgumentError(
            "an array on a GPU must be contiguous in C order; give cupy.ascontiguousarray(it)"
        )
    try:
        name = numpy_name(kind)
    except ValueError as error:
        raise InvalidArgumentError(f"an array whose dtype {kind} {error}") from error
    return OnGpu(value, name, shape, kind.itemsize, int(address or 0), said.get("stream"))


def _is_dense(shape: tuple[int, ...], strides: Any, item_bytes: int) -> bool:
    if strides is None or 0 in shape:
        return True
    step = item_bytes
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def empty_like(value: Any, count: int) -> list[Any]:
    """Make `count` arrays like one on a GPU, side by side in memory, by the array's own library.

    Raises:  InvalidArgumentError if the library is neither torch nor cupy.
    """
    shape = getattr(value, "shape", ())  # arrays of other libraries may have none
    return list(empty(value, (count, *shape), "out"))


def empty(value: Any, shape: tuple[int, ...], instead: str = "into") -> Any:
    """Make an array of this shape, of the dtype and library of an array on a GPU.

    instead:  the argument by which a caller gives an array of another library.

    Raises:  InvalidArgumentError if the library is neither torch nor cupy.
    """
    if is_torch(value):
        return value.new_empty(shape)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return cupy.empty(shape, value.dtype)
    raise InvalidArgumentError(f"no {type(value).__name__} can be made here; give {instead}=")


def stream_of(arrays: Sequence[OnGpu]) -> int | None:
    """Return the stream after whose work the arrays may be used; None: at once.

    Raises:  InvalidArgumentError if there is more than one.
    """
    streams = {each.stream for each in arrays} - {None}
    if len(streams) > 1:
        raise InvalidArgumentError(
            "the arrays of one call were last used on different streams; synchronize them, and "
            "give arrays of one stream"
        )
    return next(iter(streams), None)
