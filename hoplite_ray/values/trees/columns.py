"""The leaves of a value as columns: their places in the object's bytes, and their text.

A value may have 100,000 leaves, so that an object for each would cost more than its bytes do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import (
    OPAQUE,
    PLAIN,
    TEXTS,
    LeafKind,
    element_bytes,
    native_number,
)
from hoplite_ray.values.trees.named import NAMED
from hoplite_ray.values.trees.tree import (
    CONTAINERS,
    DEPTH_MAX,
    DICTS,
    NODES_MAX,
    Branch,
    Leaf,
    Node,
)

ALIGNMENT_BYTES = 64  # of every array: a cache line, and the widest vector register
SIZE_BYTES_MAX = 1 << 40  # kObjectBytesMax of native/base/limits.h
TEXT_BYTES_MAX = 128 << 20  # a million leaves with names of a hundred letters
# Runs of one dtype in an ordered value that is to be reduced; the head is one more (kPartsMax of
# native/base/limits.h is 16). With more of them all of its bytes are opaque (decision 49).
RUNS_MAX = 15

LeafType: TypeAlias = tuple[LeafKind, str]  # the library, and the name of the dtype there
Part: TypeAlias = tuple[int, int]  # a native dtype, and bytes


def align(offset: int) -> int:
    """Return the next multiple of 64 bytes."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class OfOneKind(NamedTuple):
    """The leaves of one type: their numbers, shapes and offsets."""

    indices: list[int]
    shapes: list[tuple[int, ...]]
    offsets: list[int]


class Columns:
    """A tree and its leaves: for each leaf the number of its type, its shape, size and offset.

    Arrays stand in order of native dtype, each at a multiple of 64 bytes. Numbers, str and bytes of
    one type stand one behind the other, behind the arrays of their dtype. If the value is ordered,
    its arrays stand in the order in which it names them, behind its numbers, str and bytes.
    """

    __slots__ = (
        "_kinds",
        "is_one_run",
        "is_ordered",
        "numbers",
        "offsets",
        "order",
        "parts",
        "shapes",
        "sizes",
        "tree",
        "types",
    )

    def __init__(
        self,
        tree: Node,
        types: Sequence[LeafType],
        numbers: Sequence[int],
        shapes: Iterable[Sequence[int]],
        *,
        is_ordered: bool = False,
    ) -> None:
        """Place the leaves.

        Raises:  InvalidArgumentError for a type that does not exist, and for more bytes than an
                 object may have.
        """
        self.tree = tree
        self.types = tuple(types)
        self.numbers = tuple(numbers)
        self.shapes = tuple(map(tuple, shapes))
        each_bytes = [element_bytes(kind, name) for kind, name in types]
        self.sizes = tuple(
            each_bytes[number] * math.prod(shape)
            for number, shape in zip(self.numbers, self.shapes, strict=True)
        )
        self._kinds: list[OfOneKind] | None = None
        self.is_ordered = is_ordered and len(self.types) > 1  # of one dtype it is so anyway
        self._place([_rank(each) for each in types])

    def _place(self, ranks: list[int]) -> None:
        sizes, numbers = self.sizes, self.numbers
        sized = [index for index, size in enumerate(sizes) if size]
        if self.is_ordered:
            sized.sort(key=lambda index: _rank_in_order(ranks[numbers[index]]))
        elif len(self.types) > 1:
            sized.sort(key=lambda index: ranks[numbers[index]])
        offsets = [0] * len(sizes)
        starts: list[tuple[int, int]] = []  # of each part: native dtype and offset
        end, before, native = 0, -1, -1
        for index in sized:
            rank = ranks[numbers[index]]
            if rank != before or rank % _RANKS == 0:  # an array, or the first of its type
                end = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                before = rank
                if rank // _RANKS != native:
                    native = rank // _RANKS
                    starts.append((native, end))
            offsets[index] = end
            end += sizes[index]
        if end > SIZE_BYTES_MAX:
            raise InvalidArgumentError(
                f"a value of {end} bytes is larger than any object may be, {SIZE_BYTES_MAX}; "
                "put it as several objects"
            )
        self.order = tuple(sized)
        self.offsets = tuple(offsets)
        ends = [*(start for _, start in starts[1:]), end]
        self.parts = [
            (dtype, stop - start) for (dtype, start), stop in zip(starts, ends, strict=False)
        ]
        # True if a reduce can't tell the dtypes of the bytes apart.
        self.is_one_run = self.is_ordered and len(self.parts) > RUNS_MAX
        if self.is_one_run:
            self.parts = [(OPAQUE, end)]

    @property
    def size_bytes(self) -> int:
        """The bytes of the leaves, and of what aligns them."""
        return sum(size for _, size in self.parts)

    @property
    def kinds(self) -> list[OfOneKind]:
        """The leaves of each type, in the order of `types`; made at the first use."""
        if self._kinds is None:
            kinds = [OfOneKind([], [], []) for _ in self.types]
            for index, number in enumerate(self.numbers):
                one = kinds[number]
                one.indices.append(index)
                one.shapes.append(self.shapes[index])
                one.offsets.append(self.offsets[index])
            self._kinds = kinds
        return self._kinds

    def leaf(self, number: int) -> Leaf:
        """Return one leaf."""
        kind, dtype = self.types[self.numbers[number]]
        return Leaf(kind, dtype, self.shapes[number], self.offsets[number])


_RANKS = 8  # of one native dtype: its arrays, and each type of Python's


def _rank(leaf_type: LeafType) -> int:
    """Return the place of a type's leaves among all leaves, by native dtype."""
    kind, name = leaf_type
    within = 1 + list(PLAIN).index(name) if kind == "python" else 0
    return native_number(kind, name) * _RANKS + within


def _rank_in_order(rank: int) -> int:
    """Return the place of a leaf in an ordered value: all arrays have the last one."""
    return rank if rank % _RANKS else 1 << 20


# The text is compact JSON: [[[kind, dtype], ...], tree], and a 1 behind the tree if it is ordered.
# A leaf is [number of its type, *shape], where the shape of a number is empty, and that of str and
# bytes their length. A container is {kind: [child, ...]}, with the keys of a dict between:
# [key, child, ...], and with the name and the fields of a class in front. None is null. A further
# name of a leaf is a bare number: the leaf's, by order of first names, from 0 on. There is one
# spelling of each value.


def spell(columns: Columns) -> bytes:
    """Return the text of a layout.

    Raises:  InvalidArgumentError if it is longer than any may be.
    """
    spelt: set[int] = set()
    leaves: list[Any] = [
        [number, *shape] for number, shape in zip(columns.numbers, columns.shapes, strict=True)
    ]

    def spell_node(node: Node) -> Any:
        if node is None:
            return None
        if not isinstance(node, Branch):
            if node in spelt:
                return node
            spelt.add(node)
            return leaves[node]
        children = [spell_node(child) for child in node.children]
        if node.kind in DICTS:
            children = [each for pair in zip(node.keys, children, strict=True) for each in pair]
        elif node.kind in NAMED:
            children = [node.name, node.keys, *children]
        return {node.kind: children}

    ordered = [1] if columns.is_ordered else []
    text = json.dumps([columns.types, spell_node(columns.tree), *ordered], separators=(",", ":"))
    if len(text) > TEXT_BYTES_MAX:
        raise InvalidArgumentError(
            f"the layout of {len(leaves)} leaves takes {len(text)} bytes, at most "
            f"{TEXT_BYTES_MAX} fit; put the value as several objects, or with shorter keys"
        )
    return text.encode()


def read_text(text: bytes) -> Columns:
    """Return the columns of a text that `spell` has made.

    Raises:  ValueError, TypeError or another of Python's for what is no such text;
             InvalidArgumentError for a type that does not exist.
    """
    types, spelling, *ordered = json.loads(text)
    if len(ordered) > 1 or any(type(each) is not int or each != 1 for each in ordered):
        raise ValueError(f"{ordered!r} is no order")
    for leaf_type in types:
        kind, dtype = leaf_type
        known = ("numpy", "torch", "python")
        if not isinstance(leaf_type, list) or kind not in known or not isinstance(dtype, str):
            raise ValueError(f"{leaf_type!r} is no dtype")
    reader = _Reader([(kind, dtype) for kind, dtype in types])
    tree = reader.read(spelling, 0)
    if reader.used != len(set(reader.types)) or reader.used != len(reader.types):
        raise ValueError("it has a dtype twice, or one without a leaf")
    return Columns(tree, reader.types, reader.numbers, reader.shapes, is_ordered=bool(ordered))


class _Reader:
    """The leaves of a text so far."""

    def __init__(self, types: list[LeafType]) -> None:
        self.types = types
        self.numbers: list[int] = []
        self.shapes: list[Sequence[int]] = []
        self.used = 0  # types so far: their numbers are those of their first uses
        self._nodes = 0
        self._dimensions = [
            None if kind != "python" else 1 if name in TEXTS else 0 for kind, name in types
        ]

    def read(self, node: Any, depth: int) -> Node:
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            raise ValueError(f"it nests deeper than {DEPTH_MAX}, or has too many nodes")
        if isinstance(node, list):
            return self._read_leaf(node)
        if node is None:
            return None
        if type(node) is int:
            if not 0 <= node < len(self.numbers):
                raise ValueError(f"{node!r} is no leaf that came before")
            return node
        if not isinstance(node, dict) or len(node) != 1:
            raise ValueError(f"{node!r} is no container")
        ((kind, items),) = node.items()
        return self._read_branch(kind, items, depth)

    def _read_leaf(self, node: list[Any]) -> int:
        number, *shape = node
        for extent in node:
            if type(extent) is not int or extent < 0:
                raise ValueError(f"{node!r} is no leaf")
        self.used = max(self.used, number + 1 if number == self.used else 0)
        if number >= self.used:
            raise ValueError(f"{node!r} is a leaf of a type that comes later")
        if self._dimensions[number] not in (None, len(shape)):
            raise ValueError(f"{node!r} is no leaf of {self.types[number]}")
        self.numbers.append(number)
        self.shapes.append(shape)
        return len(self.numbers) - 1

    def _read_branch(self, kind: str, items: Any, depth: int) -> Branch:
        keys: tuple[Any, ...] = ()
        name = ""
        if kind in DICTS:
            keys = tuple(map(_restore_tuples, items[::2]))
            items = items[1::2]
        elif kind in NAMED:
            name, keys, items = items[0], tuple(items[1]), items[2:]
            if not isinstance(name, str) or not all(isinstance(key, str) for key in keys):
                raise ValueError(f"{name!r} is no class")
        elif kind not in CONTAINERS:
            raise ValueError(f"{kind!r} is no container")
        if not isinstance(items, list) or (keys and len(keys) != len(items)):
            raise ValueError(f"a {kind} has {len(keys)} keys for its items")
        if len(set(keys)) != len(keys):
            raise ValueError("it has a key twice")
        children = tuple([self.read(each, depth + 1) for each in items])
        return Branch(kind, keys, children, name)


def _restore_tuples(key: Any) -> Any:
    """Give a key back the tuples that JSON has turned into lists."""
    return tuple(map(_restore_tuples, key)) if isinstance(key, list) else key
