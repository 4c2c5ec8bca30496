"""The values that travel between a caller and a steward, beside refs and Arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.refs import ReduceOp


@dataclass(frozen=True, slots=True)
class Combination:
    """What a reduce is asked to do with its sources; `count` None: all of them."""

    op: ReduceOp
    count: int | None
    everywhere: bool
    deterministic: bool
    reader: int | None = None  # of a reduce-scatter: whose share of it


class Gathered(list[Array]):
    """A gather's result: the Arrays of its sources, in their order. hop.get takes their values."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Gathered, (list(self),)


@dataclass(frozen=True, slots=True)
class Bare:
    """One source to be read, for the call that has `answer`: its ref, and a node that has it."""

    key: bytes
    answer: bytes
    index: int
    refs: list[Ref]
    node: str | None
    is_large: bool  # True if the value stays on that node


# What the caller has made of one: the handle, the ref of a task that makes it, or what is wrong.
Taken: TypeAlias = Array | list[Ref] | Exception
