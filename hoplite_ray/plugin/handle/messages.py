"""The values that travel between a caller and a steward, beside refs and Arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.values.layout import ReduceOp


@dataclass(frozen=True, slots=True)
class Combination:
    """The order to a reduce: how it combines its sources, and how many; `count` None: all."""

    op: ReduceOp
    count: int | None
    everywhere: bool
    deterministic: bool
    reader: int | None = None  # of a reduce-scatter: the number of the share


class Gathered(list[Array]):
    """A gather's result: the Arrays of its sources in their order. hop.get takes their values."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Gathered, (list(self),)


@dataclass(frozen=True, slots=True)
class Bare:
    """A bare source that the caller shall read, for the call with this `answer`."""

    key: bytes
    answer: bytes
    index: int
    refs: list[Ref]
    node: str | None
    is_large: bool  # True if the value stays on `node`


# The caller's result for a bare source: the handle, the ref of a task that makes it, or an error.
BareResult: TypeAlias = Array | list[Ref] | Exception
