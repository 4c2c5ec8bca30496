"""The layout of an object: a tree of arrays, the place of each array, and the number of bytes.

The arrays of a value are the leaves of its layout; an array that has several names is one leaf. In
the object's bytes the leaves stand in order of dtype, each at a multiple of 64 bytes, so that the
native core sees a few parts of one dtype each.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from numbers import Integral
from typing import Any, Literal

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import NATIVE, OPAQUE, Kind, name_of, numpy_dtype, torch_dtype
from hoplite_ray.values.tree import (
    CONTAINERS,
    DEPTH_MAX,
    Branch,
    Container,
    Leaf,
    Parts,
    leaf_paths,
)

ReduceOp = Literal["sum", "prod", "min", "max", "mean"]
# The numbers of native/plan/messages/dtypes.h.
REDUCE_OPS: dict[str, int] = {"sum": 0, "max": 1, "min": 2, "prod": 3, "mean": 4}
_FLOATS = ("float32", "float64", "float16", "bfloat16")

OBJECT_ID_BYTES = 28  # as Ray's, so that a reference's id is an object's id

LAYOUT_BYTES_MAX = 256 << 10  # kLayoutBytesMax of native/base/limits.h: thousands of arrays
ALIGNMENT_BYTES = 64  # of every leaf: a cache line, and the widest vector register
_SIZE_BYTES_MAX = 1 << 40  # kObjectBytesMax of native/base/limits.h


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The tree of a value and its leaves, with their offsets in the object.

    Equal layouts have equal bytes, whichever process made them: a reduce compares them.
    """

    tree: int | Branch
    leaves: tuple[Leaf, ...]
    size_bytes: int = field(init=False)  # of the object: of the leaves, and of what aligns them
    _encoded: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leaves", _place(self.leaves))
        ends = (leaf.offset + leaf.size_bytes for leaf in self.leaves)
        object.__setattr__(self, "size_bytes", max(ends, default=0))
        object.__setattr__(self, "_encoded", _encode(self.tree, self.leaves))

    @staticmethod
    def of(value: Any) -> Layout:
        """Describe a value; nothing is copied.

        Raises:  InvalidArgumentError naming the part of the value that no object can hold.
        """
        return layout_of(Parts(value))

    @staticmethod
    def of_array(shape: int | Sequence[int], dtype: Any, kind: Kind) -> Layout:
        """Describe an array that is not there yet; `dtype` is a name or what `kind` has for one.

        Raises:  InvalidArgumentError for no such shape, dtype or kind.
        """
        try:
            given: Any = [shape] if isinstance(shape, Integral) else shape
            extents = tuple(map(operator.index, given))
            if any(extent < 0 for extent in extents):
                raise ValueError(f"shape {extents} has a negative extent")
            leaf = Leaf(kind, name_of(kind, dtype), extents)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"no array of kind {kind!r}, dtype {dtype!r} and shape {shape!r} can be put: "
                f'{error}; kinds are "numpy" and "torch", dtypes as "float32"'
            ) from error
        return _of_array(leaf)

    @property
    def kind(self) -> Kind | Container:
        """The kind of the value: "numpy", "torch", or the name of its container."""
        return self.tree.kind if isinstance(self.tree, Branch) else self.leaves[0].kind

    @property
    def is_array(self) -> bool:
        """True if the value is one array or tensor, and no container."""
        return not isinstance(self.tree, Branch)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array.

        Raises:  InvalidArgumentError for a container.
        """
        return self._only.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the array: a numpy.dtype or a torch.dtype.

        Raises:  InvalidArgumentError for a container; HopliteError without torch or ml_dtypes.
        """
        leaf = self._only
        return numpy_dtype(leaf.dtype) if leaf.kind == "numpy" else torch_dtype(leaf.dtype)

    @property
    def dtype_name(self) -> str:
        """The name of the array's dtype; needs neither torch nor ml_dtypes.

        Raises:  InvalidArgumentError for a container.
        """
        return self._only.dtype

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The runs of one dtype in the object's bytes: pairs of native dtype and bytes."""
        if len(self.leaves) == 1:
            size_bytes = self.size_bytes
            return [(_native(self.leaves[0].dtype), size_bytes)] if size_bytes else []
        starts = [
            (dtype, next(run).offset)
            for dtype, run in groupby(
                (leaf for _, leaf in self.leaves_by_offset()), key=lambda leaf: _native(leaf.dtype)
            )
        ]
        ends = [*(start for _, start in starts[1:]), self.size_bytes]
        return [(dtype, end - start) for (dtype, start), end in zip(starts, ends, strict=False)]

    def leaves_by_offset(self) -> list[tuple[int, Leaf]]:
        """Return the leaves that have bytes, each with its number, in the order of the bytes."""
        leaves = [each for each in enumerate(self.leaves) if each[1].size_bytes]
        return sorted(leaves, key=lambda each: each[1].offset)

    def to_bytes(self) -> bytes:
        """Return the layout as bytes for the wire; `from_bytes` decodes them."""
        return self._encoded

    @classmethod
    def from_bytes(cls, encoded: bytes) -> Layout:
        """Decode the bytes that `to_bytes` has made.

        Raises:  InvalidArgumentError if the bytes are no layout.
        """
        return _decode_cached(encoded) if len(encoded) <= _CACHED_BYTES_MAX else _decode(encoded)

    @property
    def _only(self) -> Leaf:
        if isinstance(self.tree, Branch):
            raise InvalidArgumentError(
                f"a {self.tree.kind} of {len(self.leaves)} arrays has no one shape and dtype; "
                "look at the arrays in it"
            )
        return self.leaves[0]

    def difference(self, other: Layout) -> str:
        """Return where the layouts first differ, in words; "" if they are equal."""
        if self == other:
            return ""
        pairs = zip(leaf_paths(self.tree), leaf_paths(other.tree), strict=False)
        for (name, number), (other_name, other_number) in pairs:
            if name != other_name:
                return f"one has {name} where the other has {other_name}"
            leaf, other_leaf = self.leaves[number], other.leaves[other_number]
            if str(leaf) != str(other_leaf):
                return f"{name} is {leaf} in one and {other_leaf} in the other"
            if number != other_number:
                return f"{name} shares its memory with an earlier array in one of them only"
        return f"one is a {self} and the other a {other}, of other containers"

    def __str__(self) -> str:
        if isinstance(self.tree, Branch):
            return f"{self.tree.kind} of {len(self.leaves)} arrays"
        return str(self.leaves[0])

    def __eq__(self, other: object) -> bool:
        return self._encoded == other._encoded if isinstance(other, Layout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._encoded)


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of a reduce-scatter's result that one reader gets."""

    source: Layout
    reader: int  # the index of the source on the reader's node
    layout: Layout
    offset: int  # in bytes, in each source

    @staticmethod
    def of(source: Layout, reader: int, count: int) -> Share:
        """Return the rows of numpy.array_split(array, count)[reader].

        Raises:  InvalidArgumentError for a container, or an array without dimensions.
        """
        if not source.is_array or not source.shape:
            raise InvalidArgumentError(
                f"reduce_scatter cuts an array along its first axis, not a {source}; "
                "all_reduce takes values of any kind"
            )
        rows, *inner = source.shape
        each, longer = divmod(rows, count)  # the first `longer` ones have a row more
        first = reader * each + min(reader, longer)
        mine = each + (reader < longer)
        leaf = replace(source.leaves[0], shape=(mine, *inner))
        return Share(source, reader, _of_array(leaf), source.size_bytes // max(rows, 1) * first)


def layout_of(parts: Parts) -> Layout:
    """Return the layout of a value that was taken apart."""
    if isinstance(parts.tree, Branch):
        return Layout(parts.tree, tuple(parts.leaves))
    return _of_array(parts.leaves[0])


@lru_cache(maxsize=1024)
def _of_array(leaf: Leaf) -> Layout:
    return Layout(0, (leaf,))


def _native(dtype: str) -> int:
    return NATIVE.get(dtype, OPAQUE)


def _place(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Give the leaves their offsets: by native dtype, then as the value names them."""
    placed = list(leaves)
    end = 0
    for index, leaf in sorted(enumerate(leaves), key=lambda each: _native(each[1].dtype)):
        size_bytes = leaf.size_bytes
        start = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES if size_bytes else 0
        if start != leaf.offset:
            placed[index] = replace(leaf, offset=start)
        end = max(end, start + size_bytes)
    if end > _SIZE_BYTES_MAX:
        raise InvalidArgumentError(
            f"a value of {end} bytes is larger than any object may be, {_SIZE_BYTES_MAX}; "
            "put it as several objects"
        )
    return tuple(placed)


# The bytes are compact JSON: [[[kind, dtype], ...], tree], where a leaf is [number of its dtype,
# *shape] and a container {kind: [child, ...]}, with the keys of a dict between: [key, child, ...].
# A further name of a leaf is a bare number: the leaf's, by order of first names, from 0 on.
# There is one spelling of each layout; any other is refused.


def _encode(tree: int | Branch, leaves: Sequence[Leaf]) -> bytes:
    numbers: dict[tuple[str, str], int] = {}
    spelt: set[int] = set()

    def spell(node: int | Branch) -> Any:
        if isinstance(node, Branch):
            children = [spell(child) for child in node.children]
            if node.kind in ("dict", "OrderedDict"):
                children = [each for pair in zip(node.keys, children, strict=True) for each in pair]
            return {node.kind: children}
        if node in spelt:
            return node
        spelt.add(node)
        leaf = leaves[node]
        number = numbers.setdefault((leaf.kind, leaf.dtype), len(numbers))
        return [number, *leaf.shape]

    spelling = spell(tree)
    text = json.dumps([list(numbers), spelling], separators=(",", ":"))
    if len(text) > LAYOUT_BYTES_MAX:
        raise InvalidArgumentError(
            f"the layout of {len(leaves)} arrays takes {len(text)} bytes, at most "
            f"{LAYOUT_BYTES_MAX} fit; put the value as several objects, or with shorter keys"
        )
    return text.encode()


_CACHED_BYTES_MAX = 512  # of a few arrays; larger ones cost little beside their arrays' bytes


def _decode(encoded: bytes) -> Layout:
    try:
        dtypes, spelling = json.loads(encoded)
        leaves: list[Leaf] = []
        tree = _read(spelling, dtypes, leaves, 0)
        layout = Layout(tree, tuple(leaves))
        if layout.to_bytes() != encoded:
            raise ValueError("it is not how to_bytes spells it")
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise InvalidArgumentError(
            f"layout {encoded[:60]!r} is not one that this version of hoplite_ray makes "
            f"({error}); put the object with this version"
        ) from error
    return layout


_decode_cached = lru_cache(maxsize=1024)(_decode)


def _read(node: Any, dtypes: Any, leaves: list[Leaf], depth: int) -> int | Branch:
    if depth > DEPTH_MAX:
        raise ValueError(f"it nests deeper than {DEPTH_MAX}")
    if type(node) is int:
        if not 0 <= node < len(leaves):
            raise ValueError(f"{node!r} is no leaf that came before")
        return node
    if isinstance(node, list):
        number, *shape = node
        if any(type(extent) is not int or extent < 0 for extent in node):
            raise ValueError(f"{node!r} is no leaf")
        kind, dtype = dtypes[number]
        if kind not in ("numpy", "torch") or not isinstance(dtype, str):
            raise ValueError(f"{dtypes[number]!r} is no dtype")
        leaves.append(Leaf(kind, dtype, tuple(shape)))
        return len(leaves) - 1
    if not isinstance(node, dict) or len(node) != 1:
        raise ValueError(f"{node!r} is no container")
    ((kind, items),) = node.items()
    keys: tuple[Any, ...] = ()
    if kind in ("dict", "OrderedDict"):
        keys = tuple(_with_tuples(key) for key in items[::2])
        items = items[1::2]
        if len(set(keys)) != len(keys):
            raise ValueError("it has a key twice")
    elif kind not in CONTAINERS:
        raise ValueError(f"{kind!r} is no container")
    return Branch(kind, keys, tuple(_read(each, dtypes, leaves, depth + 1) for each in items))


def _with_tuples(key: Any) -> Any:
    """Give a key back the tuples that JSON has turned into lists."""
    return tuple(map(_with_tuples, key)) if isinstance(key, list) else key


def check_reducible(layout: Layout, op: ReduceOp) -> None:
    """Return if the reduce kernels can combine every leaf.

    Raises:  InvalidArgumentError naming the operation, the leaf, its dtype, and the next step.
    """
    if op not in REDUCE_OPS:
        raise InvalidArgumentError(f"op is {op!r}; it takes {', '.join(REDUCE_OPS)}")
    for name, number in leaf_paths(layout.tree):
        leaf = layout.leaves[number]
        if leaf.dtype not in NATIVE:
            step = f"convert it to one of {', '.join(NATIVE)}"
        elif leaf.dtype == "bool" and op not in ("min", "max"):
            step = 'use "max" (any) or "min" (all), or convert it to int64'
        elif op == "mean" and leaf.dtype not in _FLOATS:
            step = 'use "sum" and divide, or convert it to float32'
        else:
            continue
        raise InvalidArgumentError(f"{op} does not take {name}, which is {leaf}; {step}")


def short_name(object_id: bytes) -> str:
    """Return the short name of an object in error texts: its first and last four bytes, in hex."""
    return f"{object_id[:4].hex()}..{object_id[-4:].hex()}"


def checked_id(object_id: bytes) -> bytes:
    """Return `object_id` as it is.

    Raises:  InvalidArgumentError unless it is 28 bytes.
    """
    if isinstance(object_id, bytes) and len(object_id) == OBJECT_ID_BYTES:
        return object_id
    raise InvalidArgumentError(
        f"an object id is {OBJECT_ID_BYTES} bytes, not {object_id!r}; "
        "make one with hoplite_ray.new_id()"
    )


def checked_incarnation(incarnation: int, *, least: int = 1) -> int:
    """Return `incarnation` as it is.

    Raises:  InvalidArgumentError unless it is an attempt's number.
    """
    if type(incarnation) is int and least <= incarnation < 1 << 32:
        return incarnation
    raise InvalidArgumentError(
        f"an incarnation is an int from {least} to {(1 << 32) - 1}, not {incarnation!r}; "
        "a later attempt's is higher"
    )
