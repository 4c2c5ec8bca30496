"""Shares of ranks: of an array along an axis, and of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.parts.indexing import Split

T = TypeVar("T")


def split(rank: int, count: int, *, axis: int = 0) -> Split:
    """Return an index for the share of one rank along an axis: tensor parallelism.

    Args:    rank: from 0 to `count` - 1.
             count: of the shares, as in numpy.array_split: the first are one longer if need be.
             axis: along which the array is split.
    Returns: an index, for an array of any shape that has this axis.
    Raises:  InvalidArgumentError for a rank or count that there is not.
    Example:

        from hoplite_ray import parts

        ref = hop.put({"up": np.zeros((8, 4)), "down": np.ones((4, 8))})
        part = {"up": parts.split(0, 2), "down": parts.split(0, 2, axis=1)}
        assert [each.shape for each in hop.get(ref, part=part).values()] == [(4, 4), (4, 4)]
    """
    _check_rank(rank, count)
    return Split(rank, count, axis)


def take_share(items: Sequence[T], rank: int, count: int) -> list[T]:
    """Return the share of one rank of a list: layers of a pipeline's stage, or experts.

    Args:    items: for example paths of layers, in their order.
             rank: from 0 to `count` - 1.
             count: of the shares; the first are one longer if need be.
    Returns: items that follow one another; a list of paths is a part that `get` takes.
    Raises:  InvalidArgumentError for a rank or count that there is not.
    Example:

        from hoplite_ray import parts

        assert parts.take_share(["h.0", "h.1", "h.2"], 1, 2) == ["h.2"]
    """
    _check_rank(rank, count)
    first, end = Split(rank, count).bounds(len(items))
    return list(items[first:end])


def _check_rank(rank: Any, count: Any) -> None:
    if type(rank) is not int or type(count) is not int or not 0 <= rank < count:
        raise InvalidArgumentError(
            f"rank {rank!r} of {count!r} shares; ranks are ints from 0 to one less than the count"
        )
