"""The notice that is sent instead of an array that is lent: it says where the array lies."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from hoplite_ray.errors import InvalidArgumentError

NOTICE = struct.Struct("<QQQQ")  # slab, offset in it, bytes, loan


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that has come: the array lies on a slab of the process `lender`."""

    dtype: str
    shape: tuple[int, ...]
    lender: str
    slab: int
    begin: int
    size_bytes: int
    loan: int

    @classmethod
    def parse(cls, said: Any, lender: str) -> Notice:
        """Read a notice. Raises InvalidArgumentError for bytes that are none."""
        if memoryview(said).nbytes != NOTICE.size:
            raise InvalidArgumentError("what came is no notice of memory; the sender is at fault")
        return cls(said.dtype, said.shape, lender, *NOTICE.unpack(memoryview(said)))
