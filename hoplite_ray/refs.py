"""What an object is, as Python sees it: its dtype, shape and size, and their bytes on the wire."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hoplite_ray.errors import InvalidArgumentError

ReduceOp = Literal["sum", "max"]
REDUCE_OPS: dict[str, int] = {"sum": 0, "max": 1}  # the numbers of native/plan/types.h

OBJECT_ID_BYTES = 28  # as Ray's, so that a reference's id is an object's id


@dataclass(frozen=True, slots=True)
class Layout:
    """Dtype and shape of one array in C order.

    Its bytes are the same for equal layouts, whichever process made them: a reduce compares them.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the array's elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def to_bytes(self) -> bytes:
        """Encode for the wire; see `from_bytes`."""
        descr = np.lib.format.dtype_to_descr(self.dtype)
        return json.dumps([descr, self.shape], separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, encoded: bytes) -> Layout:
        """Decode what `to_bytes` made.

        Raises:  InvalidArgumentError if the bytes are no layout.
        """
        try:
            descr, shape = json.loads(encoded)
            dtype = np.lib.format.descr_to_dtype(_with_tuples(descr))
            dims = tuple(int(extent) for extent in shape)
            if dtype.hasobject or any(extent < 0 for extent in dims):
                raise ValueError("it names Python objects or a negative extent")
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise InvalidArgumentError(
                f"layout {encoded[:60]!r} is not one that codec.encode made ({error}); "
                "put the object with this version of hoplite_ray"
            ) from error
        return cls(dtype, dims)


def _with_tuples(descr: Any) -> Any:
    """Give a dtype description back the tuples that JSON has turned into lists."""
    if not isinstance(descr, list):
        return descr
    return [
        (tuple(name) if isinstance(name, list) else name, _with_tuples(kind), *map(tuple, shape))
        for name, kind, *shape in descr
    ]


def short_name(object_id: bytes) -> str:
    """Name an object as the native error texts do: first and last four bytes, in hex."""
    return f"{object_id[:4].hex()}..{object_id[-4:].hex()}"


def checked_id(object_id: bytes) -> bytes:
    """Return `object_id` as it is.

    Raises:  InvalidArgumentError unless it is 28 bytes.
    """
    if isinstance(object_id, bytes) and len(object_id) == OBJECT_ID_BYTES:
        return object_id
    raise InvalidArgumentError(
        f"an object id is {OBJECT_ID_BYTES} bytes, not {object_id!r}; "
        "make one with hoplite_ray.store.new_id()"
    )
