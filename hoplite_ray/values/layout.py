"""The layout of an object: a tree of leaves, the place of each leaf, and the number of bytes.

In the object's bytes the leaves stand in order of dtype, so that the native core sees a few parts
of one dtype each. An ordered value keeps the order in which its arrays were given. The object's
description has the layout's text, if that is short. A longer text is the first part of the object's
bytes, the head, and the description has a short form of it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.caches import BoundedCache
from hoplite_ray.values.dtypes import (
    NATIVE,
    OPAQUE,
    SAME,
    Kind,
    native_number,
    numpy_dtype,
    torch_dtype,
)
from hoplite_ray.values.specs import describe_array
from hoplite_ray.values.trees.columns import (
    RUNS_MAX,
    TEXT_BYTES_MAX,
    Columns,
    Part,
    align,
    read_text,
    spell,
)
from hoplite_ray.values.trees.tree import Branch, Leaf, Node, Parts, list_leaves

ReduceOp = Literal["sum", "prod", "min", "max", "mean"]
# The numbers of native/plan/messages/dtypes.h.
REDUCE_OPS: dict[str, int] = {"sum": 0, "max": 1, "min": 2, "prod": 3, "mean": 4}
_FLOATS = ("float32", "float64", "float16", "bfloat16", "float")

OBJECT_ID_BYTES = 28  # as Ray's, so that a reference's id is an object's id

LAYOUT_BYTES_MAX = 256 << 10  # kLayoutBytesMax of native/base/limits.h: of a description
SHORT_BYTES_MAX = 1024  # a longer text is a head: handles and frames stay small (decision 40)
_KIND_LETTERS_MAX = 80  # of the name of a class, in a short form
_DIGEST_BYTES = 16
_LEVEL = 1  # of zlib: 12 times fewer bytes than the text, in 5 ms for 40,000 leaves
_CACHE_BYTES_MAX = 64 << 20  # of texts: twenty layouts of 40,000 leaves


class Layout:
    """The tree of a value and its leaves, with their offsets in the object.

    Equal layouts have equal bytes, whichever process made them: a reduce compares them. A layout
    that `from_bytes` made of a short form knows its kind, its parts and the number of its leaves.
    The rest is in the object's bytes, and `read` takes it from there.
    """

    __slots__ = ("_columns", "_digest", "_encoded", "head", "kind", "leaf_count", "parts")

    kind: str  # "numpy", "torch", or the name of the container or of the type
    leaf_count: int
    parts: list[
        Part
    ]  # the runs of one dtype in the object's bytes: pairs of native dtype and bytes
    head: bytes  # the compressed text and zeros, the first bytes; empty if it is not known

    def __init__(self, columns: Columns) -> None:
        """Describe these leaves.

        Raises:  InvalidArgumentError if the text is longer than any may be.
        """
        text = spell(columns)
        self._columns: Columns | None = columns
        self._digest = b""
        self.head = b""
        self.kind = _name_kind(columns)
        self.leaf_count = len(columns.numbers)
        self.parts = columns.parts
        self._encoded = text
        is_array = self.is_array
        if is_array and len(text) > LAYOUT_BYTES_MAX:
            raise InvalidArgumentError(
                f"the dtype of an array takes {len(text)} bytes, at most {LAYOUT_BYTES_MAX} fit; "
                "put its fields as a dict of arrays"
            )
        if len(text) > SHORT_BYTES_MAX and not is_array:
            self._digest = blake2b(text, digest_size=_DIGEST_BYTES).digest()
            packed = zlib.compress(text, _LEVEL)
            self.head = packed.ljust(align(len(packed)), b"\0")
            self.parts = [(SAME, len(self.head)), *columns.parts]
            self._encoded = self._spell_short()
            _texts.add(self._digest, columns, len(text))

    @staticmethod
    def of(value: Any, *, ordered: bool = False, takes_specs: bool = False) -> Layout:
        """Describe a value; nothing is copied.

        Args:    ordered: True if its arrays keep the order in which they are given.
                 takes_specs: True if specs may stand for arrays.
        Raises:  InvalidArgumentError naming the part of the value that no object can hold.
        """
        return describe_parts(Parts(value, takes_specs=takes_specs), ordered=ordered)

    @staticmethod
    def of_array(shape: int | Sequence[int], dtype: Any, kind: Kind) -> Layout:
        """Describe an array that is not there yet; `dtype` is a name or what `kind` has for one.

        Raises:  InvalidArgumentError for no such shape, dtype or kind.
        """
        return _describe_leaf(describe_array(shape, dtype, kind))

    @property
    def size_bytes(self) -> int:
        """The bytes of the object: of the head, of the leaves, and of what aligns them."""
        return sum(size for _, size in self.parts)

    @property
    def head_bytes(self) -> int:
        """The bytes in front of the leaves. The offsets of the leaves count from behind them."""
        return self.parts[0][1] if self._digest else 0

    @property
    def is_array(self) -> bool:
        """True if the value is one array or tensor, and no container."""
        return not self._digest and self.columns.tree == 0 and self.columns.types[0][0] != "python"

    @property
    def tree(self) -> Node:
        """The containers; a leaf is its number.

        Raises:  InvalidArgumentError if the text is in bytes that this process has not read.
        """
        return self.columns.tree

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves by their numbers; it takes a microsecond for each.

        Raises:  InvalidArgumentError if the text is in bytes that this process has not read.
        """
        return tuple(map(self.columns.leaf, range(self.leaf_count)))

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

    def to_bytes(self) -> bytes:
        """Return the description for the wire: the text or its short form."""
        return self._encoded

    @classmethod
    def from_bytes(cls, encoded: bytes) -> Layout:
        """Read a description that `to_bytes` has made.

        Raises:  InvalidArgumentError if the bytes are no description.
        """
        return _decode_cached(encoded) if len(encoded) <= SHORT_BYTES_MAX else _decode(encoded)

    def read(self, memory: memoryview) -> Columns:
        """Return the tree and the leaves of an object with these bytes.

        A text that this process has read lately is neither decompressed nor read again.
        Raises:  InvalidArgumentError if the layout does not describe these bytes.
        """
        if memory.nbytes != self.size_bytes:
            raise InvalidArgumentError(
                f"layout {self._encoded[:60]!r} describes {self.size_bytes} bytes, the object has "
                f"{memory.nbytes}; put it again"
            )
        return self.read_head(memory)

    def read_head(self, memory: memoryview) -> Columns:
        """Like `read`, but only the first `head_bytes` need be there."""
        columns = self._columns or _texts.find(self._digest)
        if columns is None:
            columns = _read_text_in(self._digest, memory[: self.head_bytes])
        if self._digest and not self._is_short_form_of(columns):
            raise _unreadable("its text describes another value", self._encoded)
        return columns

    @property
    def columns(self) -> Columns:
        """The tree and the leaves.

        Raises:  InvalidArgumentError if the text is in bytes that this process has not read.
        """
        columns = self._columns or _texts.find(self._digest)
        if columns is None:
            raise InvalidArgumentError(
                f"the parts of a {self} are known when its bytes are here; get the value"
            )
        return columns

    @property
    def known_columns(self) -> Columns | None:
        """The tree and the leaves; None if this process has not read the text."""
        return self._columns or _texts.find(self._digest)

    @property
    def _only(self) -> Leaf:
        if not self.is_array:
            raise InvalidArgumentError(
                f"a {self} has no one shape and dtype; look at the arrays in it"
            )
        return self.columns.leaf(0)

    def difference(self, other: Layout) -> str:
        """Return where the layouts first differ, in words; "" if they are equal."""
        if self == other:
            return ""
        try:
            one, two = self.columns, other.columns
        except InvalidArgumentError:
            return (
                f"one is a {self} and the other a {other}, whose paths, shapes or dtypes differ; "
                "get both values to compare them"
            )
        pairs = zip(list_leaves(one.tree), list_leaves(two.tree), strict=False)
        for (name, number), (other_name, other_number) in pairs:
            if name != other_name:
                return f"one has {name} where the other has {other_name}"
            leaf = None if number is None else one.leaf(number)
            other_leaf = None if other_number is None else two.leaf(other_number)
            if str(leaf) != str(other_leaf):
                return f"{name} is {leaf} in one and {other_leaf} in the other"
            if number != other_number:
                return f"{name} shares its memory with an earlier array in one of them only"
        if self._digest and self._digest == other._digest:
            return "their processes compress the layout's text with different versions of zlib"
        return f"one is a {self} and the other a {other}, of other containers"

    def __str__(self) -> str:
        if self._digest:
            return f"{self.kind} of {self.leaf_count} leaves"
        columns = self.columns
        if not isinstance(columns.tree, Branch):
            return "None" if columns.tree is None else str(columns.leaf(0))
        has_arrays_only = all(kind != "python" for kind, _ in columns.types)
        return f"{self.kind} of {self.leaf_count} {'arrays' if has_arrays_only else 'leaves'}"

    def __repr__(self) -> str:
        return f"<Layout {self}>"

    def __eq__(self, other: object) -> bool:
        return self._encoded == other._encoded if isinstance(other, Layout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._encoded)

    def _is_short_form_of(self, columns: Columns) -> bool:
        facts = _name_kind(columns), len(columns.numbers), [self.parts[0], *columns.parts]
        return facts == (self.kind, self.leaf_count, self.parts)

    def _spell_short(self) -> bytes:
        form = {
            "kind": self.kind,
            "leaves": self.leaf_count,
            "parts": self.parts,
            "hash": self._digest.hex(),
        }
        return json.dumps(form, separators=(",", ":")).encode()


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
        leaf = replace(source.leaves[0], shape=(mine, *inner), offset=0)
        return Share(
            source, reader, _describe_leaf(leaf), source.size_bytes // max(rows, 1) * first
        )


_texts: BoundedCache[bytes, Columns] = BoundedCache(_CACHE_BYTES_MAX)  # by the hash of the text
_layouts: BoundedCache[Any, Layout] = BoundedCache(_CACHE_BYTES_MAX)  # by the value's signature
_LEAF_BYTES = 200  # of a short layout in a cache


def forget_texts() -> None:
    """Forget the texts that this process has read, as if it had read none."""
    _texts.clear()


def describe_parts(parts: Parts, *, ordered: bool = False) -> Layout:
    """Return the layout of a value that was taken apart.

    The second value of one signature has the first one's layout.
    Raises:  InvalidArgumentError if the value is too large.
    """
    signature = (parts.signature, ordered)
    known = _layouts.find(signature)
    if known is None:
        known = Layout(
            Columns(parts.tree, parts.types, parts.numbers, parts.shapes, is_ordered=ordered)
        )
        _layouts.add(signature, known, _LEAF_BYTES * (1 + known.leaf_count))
    return known


@lru_cache(maxsize=1024)
def _describe_leaf(leaf: Leaf) -> Layout:
    return Layout(Columns(0, [(leaf.kind, leaf.dtype)], [0], [leaf.shape]))


def _name_kind(columns: Columns) -> str:
    """Return what the value is: a library, a container, or a type of Python's."""
    tree = columns.tree
    if isinstance(tree, Branch):
        name = tree.name.rpartition(".")[2].rpartition(":")[2] or tree.kind
        return name[:_KIND_LETTERS_MAX]
    if tree is None:
        return "None"
    kind, dtype = columns.types[0]
    return dtype if kind == "python" else kind


def _unreadable(why: object, encoded: bytes) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"layout {encoded[:60]!r} is not one that this version of hoplite_ray makes ({why}); "
        "put the object with this version"
    )


_FAULTS = (ValueError, TypeError, KeyError, IndexError, RecursionError, zlib.error)


def _decode(encoded: bytes) -> Layout:
    try:
        if encoded.startswith(b"{"):
            layout = _read_short(encoded)
        else:
            layout = Layout(read_text(encoded))
        if layout.to_bytes() != encoded:
            raise ValueError("it is not how to_bytes spells it")
    except _FAULTS as error:
        raise _unreadable(error, encoded) from error
    return layout


_decode_cached = lru_cache(maxsize=1024)(_decode)


def _read_short(encoded: bytes) -> Layout:
    form = json.loads(encoded)
    layout = Layout.__new__(Layout)
    layout._columns = None
    layout.head = b""
    layout.kind, layout.leaf_count = form["kind"], form["leaves"]
    layout._digest = bytes.fromhex(form["hash"])
    layout.parts = [(dtype, size_bytes) for dtype, size_bytes in form["parts"]]
    layout._encoded = layout._spell_short()
    numbers = [layout.leaf_count, *(each for part in layout.parts for each in part)]
    if not isinstance(layout.kind, str) or any(type(each) is not int for each in numbers):
        raise ValueError("it has other fields")
    if len(layout._digest) != _DIGEST_BYTES or layout.parts[0][0] != SAME or min(numbers) < 0:
        raise ValueError("it has no head")
    return layout


def _read_text_in(digest: bytes, head: memoryview) -> Columns:
    """Read the text of a layout, and keep it for the next object that has it.

    Raises:  InvalidArgumentError if the head is not the text of this hash.
    """
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(head, TEXT_BYTES_MAX)
        if not inflater.eof or inflater.unused_data.strip(b"\0"):
            raise ValueError("its head is no compressed text")
        if blake2b(text, digest_size=_DIGEST_BYTES).digest() != digest:
            raise ValueError("its head has another hash")
        columns = read_text(text)
    except _FAULTS as error:
        raise _unreadable(error, bytes(head[:60])) from error
    _texts.add(digest, columns, len(text))
    return columns


def check_reducible(layout: Layout, op: ReduceOp) -> None:
    """Return if the reduce kernels can combine every leaf.

    A float of Python is a float64, an int an int64, and a bool a bool.
    Raises:  InvalidArgumentError naming the operation, the leaf, its dtype, and the next step.
    """
    if op not in REDUCE_OPS:
        raise InvalidArgumentError(f"op is {op!r}; it takes {', '.join(REDUCE_OPS)}")
    try:
        columns = layout.columns
    except InvalidArgumentError:
        names = {number: name for name, number in NATIVE.items()}
        for dtype, _ in layout.parts[1:]:
            name = names.get(dtype, "opaque bytes")
            if (step := _find_step(op, dtype, name)) is not None:
                raise InvalidArgumentError(
                    f"{op} does not take a {layout} that has {name}; {step}"
                ) from None
        return
    steps = [_find_step(op, native_number(*each), each[1]) for each in columns.types]
    if columns.is_one_run and not any(steps):
        raise InvalidArgumentError(
            f"{op} does not take a {layout} in the given order, whose dtype changes more than "
            f"{RUNS_MAX} times; put it without ordered=True"
        )
    if not any(steps):
        return
    for name, number in list_leaves(columns.tree):
        if number is not None and (step := steps[columns.numbers[number]]) is not None:
            leaf = columns.leaf(number)
            raise InvalidArgumentError(f"{op} does not take {name}, which is {leaf}; {step}")


def _find_step(op: ReduceOp, native: int, name: str) -> str | None:
    """Return what to do about a dtype that `op` does not take; None if it takes it."""
    if native == OPAQUE:
        if name in ("str", "bytes"):
            return "take it out of the value"
        return f"convert it to one of {', '.join(NATIVE)}"
    if native == NATIVE["bool"] and op not in ("min", "max"):
        return 'use "max" (any) or "min" (all), or convert it to int64'
    if op == "mean" and name not in _FLOATS:
        return 'use "sum" and divide, or convert it to float32'
    return None


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
