"""What goes instead of an array that is lent: where it lies."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from hoplite_ray.errors import InvalidArgumentError

NOTICE = struct.Struct("<QQQQ")  # slab, where in it, bytes, loan


@dataclass(frozen=True, slots=True)
class Notice:
    """What came instead of an array: where it lies, at the process `lender`."""

    dtype: str
    shape: tuple[int, ...]
    lender: str
    slab: int
    begin: int
    size_bytes: int
    loan: int

    @classmethod
    def parsed(cls, said: Any, lender: str) -> Notice:
        """Raises InvalidArgumentError for what is none."""
        if memoryview(said).nbytes != NOTICE.size:
            raise InvalidArgumentError("what came is no notice of memory; the sender is at fault")
        return cls(said.dtype, said.shape, lender, *NOTICE.unpack(memoryview(said)))
