"""The leaves of one object whose bytes still come, in the order of the bytes; pure."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, TypeAlias

from hoplite_ray.values.codec import make_leaf
from hoplite_ray.values.layout import Layout
from hoplite_ray.values.trees.columns import Columns
from hoplite_ray.values.trees.tree import Branch, Node

Path: TypeAlias = tuple[Any, ...]  # keys of dicts, indices, and names of fields

_PAGE_BYTES = mmap.PAGESIZE


class LeafCursor:
    """The place in an object up to which its leaves were taken. One caller uses it at a time.

    A leaf is taken when all pages that it touches are there. A reader that writes to it then
    changes copies of these pages, and hides no byte that comes later.
    """

    def __init__(self, layout: Layout) -> None:
        """Begin in front of the first leaf."""
        self.taken_count = 0
        self._layout = layout
        self._columns: Columns | None = None
        self._order: list[int] = []  # numbers of the leaves
        self._paths: dict[int, list[Path]] = {}

    @property
    def leaf_count(self) -> int:
        """The number of leaves; an array that has several names counts once."""
        return self._layout.leaf_count

    @property
    def upto_bytes(self) -> int | None:
        """The leading bytes that the next leaf needs; None after the last one."""
        if self._columns is None:
            return self._layout.head_bytes
        if self.taken_count == len(self._order):
            return None
        return self._end_of(self._columns, self._order[self.taken_count])

    def take(self, memory: memoryview, ready_bytes: int) -> list[tuple[Path, Any]]:
        """Return the leaves that have become whole, with their paths.

        An array that has several names comes once for each. A None has no bytes, and does not come.
        Args:    memory: of the whole object.
                 ready_bytes: the leading bytes of it that are there.
        Raises:  InvalidArgumentError if the layout does not describe these bytes; HopliteError if
                 a leaf needs torch or ml_dtypes, and it is not installed here.
        """
        if self._columns is None:
            if ready_bytes < self._layout.head_bytes:
                return []
            self._read_columns(memory)
        columns = self._columns
        assert columns is not None
        body = memory[self._layout.head_bytes :]
        taken: list[tuple[Path, Any]] = []
        while self.taken_count < len(self._order):
            number = self._order[self.taken_count]
            if self._end_of(columns, number) > ready_bytes:
                break
            leaf = make_leaf(columns, number, body)
            taken.extend((path, leaf) for path in self._paths[number])
            self.taken_count += 1
        return taken

    def _read_columns(self, memory: memoryview) -> None:
        columns = self._columns = self._layout.read_head(memory)
        empty = [number for number, size in enumerate(columns.sizes) if not size]
        self._order = [*empty, *columns.order]
        for path, number in _walk(columns.tree, ()):
            self._paths.setdefault(number, []).append(path)

    def _end_of(self, columns: Columns, number: int) -> int:
        head_bytes, size_bytes = self._layout.head_bytes, columns.sizes[number]
        if not size_bytes:
            return head_bytes
        end = head_bytes + columns.offsets[number] + size_bytes
        return min(-(-end // _PAGE_BYTES) * _PAGE_BYTES, self._layout.size_bytes)


def _walk(node: Node, path: Path) -> Iterator[tuple[Path, int]]:
    """Yield the path of every name of a leaf, with the leaf's number."""
    if isinstance(node, Branch):
        keys = node.keys or range(len(node.children))
        for key, child in zip(keys, node.children, strict=True):
            yield from _walk(child, (*path, key))
    elif node is not None:
        yield path, node
