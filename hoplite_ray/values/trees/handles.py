"""Handles in a value: objects that stand for values whose bytes are elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias


class Handle:
    """A class of objects that stand for values, for example `hoplite_ray.Array`."""

    __slots__ = ()


# Returns the values of handles, in this order.
ReadHandles: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
