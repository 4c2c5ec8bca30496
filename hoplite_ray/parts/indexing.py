"""An index into an array, and where the bytes of what it takes lie. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hoplite_ray.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Axis:
    """The places that an index takes along one axis, each `step` behind the one before it."""

    start: int
    count: int
    step: int = 1
    is_kept: bool = True  # False for an int, which takes the axis away


class Runs(NamedTuple):
    """Ranges of a source's bytes, evenly spaced, that stand one behind the other in a part."""

    into: int  # offset in the part
    start: int  # offset of the first one in the source
    run_bytes: int
    stride_bytes: int
    many: int  # how many ranges there are


@dataclass(frozen=True, slots=True)
class Split:
    """The share of one rank along an axis, as an index for an array of any length."""

    rank: int
    count: int
    axis: int = 0

    def bounds(self, length: int) -> tuple[int, int]:
        """Return where the share begins and ends; the first shares are one longer if need be."""
        each, longer = divmod(length, self.count)
        first = self.rank * each + min(self.rank, longer)
        return first, first + each + (self.rank < longer)


def read_index(index: Any, shape: Sequence[int], name: str) -> list[Axis]:
    """Return what an index takes of an array of this shape.

    Args:    index: an int, a slice, `...`, a `Split`, or a tuple of them, as numpy's basic indices.
             name: of the array, for errors.
    Raises:  InvalidArgumentError for another kind of index, and for one that is out of bounds.
    """
    if isinstance(index, Split):
        return _split(index, shape, name)
    given = list(index) if isinstance(index, tuple) else [index]
    if given.count(Ellipsis) > 1:
        raise _error(index, shape, name, "it has `...` twice")
    if Ellipsis in given:
        at = given.index(Ellipsis)
        given[at : at + 1] = [slice(None)] * (len(shape) - len(given) + 1)
    if len(given) > len(shape):
        raise _error(index, shape, name, f"it has {len(given)} indices")
    given += [slice(None)] * (len(shape) - len(given))
    axes = []
    for each, length in zip(given, shape, strict=True):
        if isinstance(each, slice):
            axes.append(_read_slice(each, length, (index, shape, name)))
            continue
        try:
            place = operator.index(each)
        except TypeError:
            raise _error(
                index, shape, name, "it takes ints, slices and `...`; take a larger part"
            ) from None
        if isinstance(each, bool) or not -length <= place < length:
            raise _error(index, shape, name, f"{each!r} is out of bounds")
        axes.append(Axis(place % length, 1, 1, False))
    return axes


def list_runs(
    axes: Sequence[Axis], shape: Sequence[int], element_bytes: int, offset: int, into: int
) -> list[Runs]:
    """Return the ranges of bytes that an index takes, in the order of the part's bytes.

    Args:    offset: of the array in the source. into: of what is taken, in the part.
    Cost:    O(ranges): axes that lie together are one, and the innermost others one `Runs`.
    """
    spaced: list[tuple[int, int]] = []  # count and stride in bytes, from outside to inside
    stride = element_bytes
    start = offset
    for axis, length in zip(reversed(axes), reversed(shape), strict=True):
        if axis.count == 0:
            return []
        start += axis.start * stride
        if axis.count > 1:
            spaced.insert(0, (axis.count, axis.step * stride))
        stride *= length
    run_bytes = element_bytes
    while spaced and spaced[-1][1] == run_bytes:
        run_bytes *= spaced.pop()[0]
    merged: list[tuple[int, int]] = []
    for count, step in spaced:
        if merged and merged[-1][1] == count * step:
            merged[-1] = (merged[-1][0] * count, step)
        else:
            merged.append((count, step))
    count, step = merged.pop() if merged else (1, 0)
    starts = [start]
    for outer_count, outer_step in merged:
        starts = [each + n * outer_step for each in starts for n in range(outer_count)]
    size = run_bytes * count
    return [Runs(into + n * size, each, run_bytes, step, count) for n, each in enumerate(starts)]


def join_runs(runs: Sequence[Runs]) -> list[Runs]:
    """Return the same ranges, with those that follow one another in both places as one.

    The bytes that align two leaves are copied with them, because they are alike in the source.
    """
    joined: list[Runs] = []
    for each in runs:
        last = joined[-1] if joined else None
        is_one = last is not None and last.many == each.many == 1
        if last is not None and is_one and each.into - last.into == each.start - last.start:
            gap = each.into - last.into - last.run_bytes
            if 0 <= gap < _ALIGNMENT_BYTES:
                joined[-1] = last._replace(run_bytes=last.run_bytes + gap + each.run_bytes)
                continue
        joined.append(each)
    return joined


_ALIGNMENT_BYTES = 64


def _split(split: Split, shape: Sequence[int], name: str) -> list[Axis]:
    axes = [Axis(0, length) for length in shape]
    if not -len(shape) <= split.axis < len(shape):
        raise _error(split, shape, name, f"there is no axis {split.axis}")
    first, end = split.bounds(shape[split.axis])
    axes[split.axis] = Axis(first, end - first)
    return axes


def _read_slice(given: slice, length: int, where: tuple[Any, Sequence[int], str]) -> Axis:
    try:
        bounds = [
            None if each is None else operator.index(each)
            for each in (given.start, given.stop, given.step)
        ]
    except TypeError:
        raise _error(*where, f"{given} has other bounds than ints") from None
    start, stop, step = bounds
    if step is not None and step < 1:
        raise _error(*where, "a step is at least 1; turn the part around here")
    for bound in (start, stop):
        if bound is not None and not -length <= bound <= length:
            raise _error(*where, f"{bound} is out of bounds of an axis of {length}")
    places = range(*slice(start, stop, step).indices(length))
    return Axis(places.start if places else 0, len(places), places.step)


def _error(index: Any, shape: Sequence[int], name: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"part {index!r} of {name}, an array of shape {tuple(shape)}: {why}"
    )
