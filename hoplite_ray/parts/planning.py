"""Plan a part of a value: which bytes of the source it takes, and what it is built of. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.parts.indexing import Axis, Runs, Split, join_runs, list_runs, read_index
from hoplite_ray.parts.paths import PathFinder
from hoplite_ray.values.dtypes import element_bytes
from hoplite_ray.values.layout import OBJECT_ID_BYTES
from hoplite_ray.values.recipe import Attempt
from hoplite_ray.values.trees.columns import Columns, LeafType
from hoplite_ray.values.trees.tree import Branch, Node

RUNS_MAX = 4096  # kExcerptRunsMax of native/base/limits.h


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A part: the leaves that it is built of, and the ranges of its source's bytes."""

    columns: Columns
    runs: tuple[Runs, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of the part, with what aligns its leaves."""
        return self.columns.size_bytes

    def behind(self, head_bytes: int) -> PartPlan:
        """Return the same part of a source with so many bytes in front of its leaves."""
        if not head_bytes:
            return self
        moved = (run._replace(start=run.start + head_bytes) for run in self.runs)
        return PartPlan(self.columns, tuple(moved))

    def name(self, source: Attempt) -> bytes:
        """Return the id of the part of this source: equal ids have equal bytes."""
        text = blake2b(digest_size=OBJECT_ID_BYTES, person=b"hoplite part")
        text.update(source.object_id + struct.pack("<I", source.incarnation))
        for dtype, size_bytes in self.columns.parts:
            text.update(struct.pack("<BQ", dtype, size_bytes))
        for run in self.runs:
            text.update(struct.pack("<5Q", *run))
        return text.digest()

    def gather(self, source: memoryview) -> memoryview:
        """Return the bytes of the part, copied from those of the source."""
        given = np.frombuffer(source, np.uint8)
        made = np.zeros(self.size_bytes, np.uint8)
        for run in self.runs:
            size = run.run_bytes * run.many
            rows = np.lib.stride_tricks.as_strided(
                given[run.start :], (run.many, run.run_bytes), (run.stride_bytes, 1)
            )
            made[run.into : run.into + size] = rows.reshape(-1)
        return made.data.cast("B")


def plan_part(columns: Columns, part: Any) -> PartPlan:
    """Plan what `part` of a get names.

    Args:    part: a path; an index, if the value is one array; a mapping of paths to indices; or a
             list of paths.
    Raises:  InvalidArgumentError naming the path, the shape and what there is.
    """
    builder = _Builder(columns)
    if is_array(columns) and is_index(part):
        return builder.plan(builder.take_index("", part))
    if isinstance(part, Mapping):
        return builder.plan(_branch(part, [builder.take_index(*each) for each in part.items()]))
    if isinstance(part, list):
        return builder.plan(_branch(part, [builder.take(each) for each in part]))
    return builder.plan(builder.take(part))


def plan_arrays(columns: Columns, wanted: Sequence[tuple[Any, Sequence[Axis]]]) -> PartPlan:
    """Plan a list of arrays, each given by its path and by what it takes along each axis."""
    builder = _Builder(columns)
    taken = tuple(builder.take_axes(path, axes) for path, axes in wanted)
    return builder.plan(Branch("list", (), taken))


def is_array(columns: Columns) -> bool:
    """Return whether the value is one array or tensor."""
    return columns.tree == 0 and columns.types[0][0] != "python"


def is_index(part: Any) -> bool:
    """Return whether `part` is an index into an array, and no path."""
    items = part if isinstance(part, tuple) and part else (part,)
    kinds = (int, np.integer, slice, type(Ellipsis), Split)
    return all(isinstance(each, kinds) and not isinstance(each, bool) for each in items)


def find_leaf(columns: Columns, finder: PathFinder, path: Any) -> tuple[int, str]:
    """Return the number of the array that a path leads to, and its name for errors.

    Raises:  InvalidArgumentError if it leads to a container, to None, or to no array.
    """
    node = finder.find(path)
    name = f"value{'' if path == '' else f'[{path!r}]'}"
    if isinstance(node, Branch) or node is None:
        what = "None" if node is None else f"a {node.kind}"
        raise InvalidArgumentError(
            f"{name} is {what}, and has no part by index; name an array in it"
        )
    kind, dtype = columns.types[columns.numbers[node]]
    if kind == "python":
        raise InvalidArgumentError(f"{name} is of type {dtype}, and has no part by index")
    return node, name


class _Builder:
    """The leaves of a part so far."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._finder = PathFinder(columns.tree)
        self._types: dict[LeafType, int] = {}
        self._numbers: list[int] = []  # of types, by leaf
        self._shapes: list[tuple[int, ...]] = []
        self._taken: list[tuple[int, Sequence[Axis] | None]] = []  # leaf of the source, and index
        self._wholes: dict[int, int] = {}  # leaf of the source -> of the part

    def take(self, path: Any) -> Node:
        """Take all that a path leads to."""
        return self._take_node(self._finder.find(path))

    def take_index(self, path: Any, index: Any) -> int:
        """Take what an index takes of an array."""
        number, name = find_leaf(self._columns, self._finder, path)
        return self._add(number, read_index(index, self._columns.shapes[number], name))

    def take_axes(self, path: Any, axes: Sequence[Axis]) -> int:
        """Take what was read of an index."""
        number, _ = find_leaf(self._columns, self._finder, path)
        return self._add(number, axes)

    def plan(self, tree: Node) -> PartPlan:
        """Return the plan of a part with this tree.

        Raises:  InvalidArgumentError if it has more ranges of bytes than a part may have.
        """
        made = Columns(tree, list(self._types), self._numbers, self._shapes)
        each_bytes = [element_bytes(*each) for each in self._types]
        runs: list[Runs] = []
        for index in made.order:
            number, axes = self._taken[index]
            offset, into = self._columns.offsets[number], made.offsets[index]
            if axes is None:
                runs.append(Runs(into, offset, made.sizes[index], 0, 1))
            else:
                shape = self._columns.shapes[number]
                size = each_bytes[self._numbers[index]]
                runs += list_runs(axes, shape, size, offset, into)
        runs = join_runs(runs)
        if len(runs) > RUNS_MAX:
            raise InvalidArgumentError(
                f"the part has {len(runs)} ranges of bytes, at most {RUNS_MAX} fit; take whole "
                "arrays or whole rows, and cut them here"
            )
        return PartPlan(made, tuple(runs))

    def _take_node(self, node: Node) -> Node:
        if isinstance(node, Branch):
            return node._replace(children=tuple(map(self._take_node, node.children)))
        if node is None:
            return None
        known = self._wholes.get(node)
        if known is None:
            known = self._wholes[node] = self._add(node, None)
        return known

    def _add(self, number: int, axes: Sequence[Axis] | None) -> int:
        leaf_type = self._columns.types[self._columns.numbers[number]]
        shape = self._columns.shapes[number]
        if axes is not None:
            shape = tuple(axis.count for axis in axes if axis.is_kept)
        self._numbers.append(self._types.setdefault(leaf_type, len(self._types)))
        self._shapes.append(shape)
        self._taken.append((number, axes))
        return len(self._taken) - 1


def _branch(paths: Iterable[Any], children: list[Any]) -> Branch:
    return Branch("dict", tuple(paths), tuple(children))
