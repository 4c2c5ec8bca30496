"""Arrays on GPUs inside of values: a pickle leaves them out, and they go from GPU to GPU beside it.

They are dense tensors of torch and arrays of cupy, on the GPU that the edge's world uses. Others
(of a subclass, sparse, on another GPU) are pickled by their library, through the host.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from hoplite_ray.values.dtypes import torch_name

ANY = -1  # instead of a GPU's number: every GPU of this process


def is_in_use() -> bool:
    """Return True if this process uses a GPU by torch or cupy."""
    torch = sys.modules.get("torch")
    return "cupy" in sys.modules or (torch is not None and torch.cuda.is_initialized())


class OutOfBandArrays:
    """The arrays that a pickler has left out, in order, ready to be sent."""

    def __init__(self, device: int) -> None:
        self.arrays: list[Any] = []
        self._device = device
        self._places: dict[int, tuple[int, Any]] = {}  # by the id of the array beside it

    def extract(self, value: Any) -> int | None:
        """Return the place of an array among them; None for a value that is to be pickled."""
        library = type(value).__module__.partition(".")[0]
        if library not in ("torch", "cupy"):
            return None
        if (known := self._places.get(id(value))) is not None:
            return known[0]
        ready = self._prepare_torch(value) if library == "torch" else self._prepare_cupy(value)
        if ready is None:
            return None
        place = len(self.arrays)
        self.arrays.append(ready)
        self._places[id(value)] = place, value
        return place

    def _prepare_torch(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        if type(value) is not torch.Tensor or not value.is_cuda or value.requires_grad:
            return None
        if value.layout is not torch.strided or value.is_nested:
            return None
        try:
            torch_name(value.dtype)
        except ValueError:
            return None
        if not self._is_ours(value.device.index):
            return None
        return value.resolve_conj().resolve_neg().contiguous()

    def _prepare_cupy(self, value: Any) -> Any:
        cupy = sys.modules["cupy"]
        if type(value) is not cupy.ndarray or value.dtype.kind not in "biufc":
            return None
        if not self._is_ours(value.device.id):
            return None
        with cupy.cuda.Device(value.device.id):
            return cupy.ascontiguousarray(value).reshape(value.shape)  # it makes one axis of none

    def _is_ours(self, device: int) -> bool:
        return self._device in (ANY, device)


class _Unpickler(pickle.Unpickler):
    def __init__(self, body: Any, buffers: Sequence[Any], arrays: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(body), buffers=buffers)
        self._arrays = arrays

    def persistent_load(self, place: int) -> Any:
        return self._arrays[place]


def unpickle(body: Any, buffers: Sequence[Any], arrays: Sequence[Any]) -> Any:
    """Return the value, with the received arrays in their places."""
    return _Unpickler(body, buffers, arrays).load()


def describe(arrays: Sequence[Any]) -> bytes:
    """Describe arrays, so that the receiver can make arrays for them."""
    return json.dumps([_description(each) for each in arrays]).encode()


def _description(array: Any) -> tuple[str, str, list[int]]:
    library = type(array).__module__.partition(".")[0]
    name = torch_name(array.dtype) if library == "torch" else array.dtype.str
    return library, name, list(array.shape)


def make_arrays(descriptions: Any, device: int) -> list[Any]:
    """Make arrays of these descriptions on a GPU. Their elements are not set."""
    each: list[tuple[str, str, list[int]]] = json.loads(bytes(descriptions))
    return [_make_array(library, dtype, shape, device) for library, dtype, shape in each]


def _make_array(library: str, dtype: str, shape: list[int], device: int) -> Any:
    if library not in ("torch", "cupy"):
        raise ValueError(f"arrays of {library} are not known")
    arrays = importlib.import_module(library)
    if library == "torch":
        return arrays.empty(shape, dtype=getattr(arrays, dtype), device=f"cuda:{device}")
    with arrays.cuda.Device(device):
        return arrays.empty(shape, dtype)
