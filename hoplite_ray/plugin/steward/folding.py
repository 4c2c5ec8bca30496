"""The fold of small values, whose handles have the bytes: the steward does it, and no node.

The kernels are those of the nodes, so dtypes, operations and rounding are the same. A deterministic
fold goes along the same tree as on nodes, so its bits are the same, too (design decision 5i).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hoplite_ray import _native
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.values.dtypes import NATIVE
from hoplite_ray.values.layout import REDUCE_OPS, Layout, ReduceOp, Share

_HALVES = (NATIVE["float16"], NATIVE["bfloat16"])  # whose accumulators are of float32
_FLOAT32 = NATIVE["float32"]

Partial = list[bytearray]  # the accumulators of each part


class SmallFold:
    """The partial results of one reduce so far.

    There is one of them. If it is deterministic, a partial result waits for its neighbour in the
    tree: there are as many as half of the sources at most, and one more.

    Its methods are those of NodeFold. It is over when all sources that it needs were added.
    """

    def __init__(
        self,
        target: bytes,
        layout: Layout,
        op: ReduceOp,
        *,
        share: Share | None,
        deterministic: bool,
    ) -> None:
        self._target = target
        self._layout = layout if share is None else share.layout
        self._op = REDUCE_OPS[op]
        self._parts = list(_places(self._layout.parts, 0 if share is None else share.offset))
        self._is_deterministic = deterministic
        self._members: list[int] = []
        self._kept: dict[tuple[int, int], Partial] = {}  # by level of the tree, and place there
        self._folded: Partial | None = None

    def add(self, index: int, handle: Array) -> None:
        """Fold a source. REQUIRES: its handle has the bytes."""
        data = handle._data
        assert data is not None
        self._members.append(index)
        if self._is_deterministic:
            self._keep(index, self._begin(data))
        elif self._folded is None:
            self._folded = self._begin(data)
        else:
            for into, (dtype, place) in zip(self._folded, self._parts, strict=True):
                _native.fold(self._op, dtype, False, into, memoryview(data)[place])

    def fail(self, index: int) -> None:
        """Do nothing: a source that will not come leaves nothing here."""

    def is_over(self) -> bool:
        return True

    def members(self) -> Sequence[int]:
        return self._members

    def make(self, members: tuple[bytes, ...]) -> Array:
        """Return the result, with its bytes. It is called once."""
        top = max(self._members).bit_length()
        folded = self._along_the_tree(top, 0) if self._is_deterministic else self._folded
        assert folded is not None
        data = b"".join(
            _native.finish(self._op, dtype, len(self._members), memory)
            for memory, (dtype, _) in zip(folded, self._parts, strict=True)
        )
        return Array(self._target, 0, self._layout, None, members=members, data=data)

    def cancel(self) -> None:
        """Do nothing: no node knows of it."""

    def _begin(self, data: bytes) -> Partial:
        """Return the partial result of one source."""
        partial = []
        for dtype, place in self._parts:
            into = bytearray((place.stop - place.start) * (2 if dtype in _HALVES else 1))
            _native.fold(self._op, dtype, True, into, memoryview(data)[place])
            partial.append(into)
        return partial

    def _keep(self, place: int, partial: Partial) -> None:
        """Combine a partial result with its neighbours that are there, level by level."""
        level = 0
        while (neighbour := self._kept.pop((level, place ^ 1), None)) is not None:
            left, right = (neighbour, partial) if place & 1 else (partial, neighbour)
            partial = self._combine(left, right)
            level, place = level + 1, place >> 1
        self._kept[level, place] = partial

    def _along_the_tree(self, level: int, place: int) -> Partial | None:
        """Combine what is kept below a place of the tree; None if there is nothing."""
        if level == 0 or (level, place) in self._kept:
            return self._kept.pop((level, place), None)
        left = self._along_the_tree(level - 1, 2 * place)
        right = self._along_the_tree(level - 1, 2 * place + 1)
        if left is None or right is None:
            return right if left is None else left
        return self._combine(left, right)

    def _combine(self, left: Partial, right: Partial) -> Partial:
        """Fold `right` into `left`, and return it."""
        for into, memory, (dtype, _) in zip(left, right, self._parts, strict=True):
            _native.fold(self._op, _FLOAT32 if dtype in _HALVES else dtype, False, into, memory)
        return left


def _places(parts: list[tuple[int, int]], start: int) -> Iterator[tuple[int, slice]]:
    """Yield the dtype of each part, and its place in the bytes of a source."""
    for dtype, size_bytes in parts:
        yield dtype, slice(start, start + size_bytes)
        start += size_bytes
