"""Values whose shards are several objects: described once, and read in any other sharding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.parts.fetching import Source, Steps, fetch_plans, in_rounds
from hoplite_ray.parts.indexing import Axis, read_index
from hoplite_ray.parts.paths import PathFinder
from hoplite_ray.parts.planning import find_leaf, is_index, plan_arrays
from hoplite_ray.values.dtypes import import_optional, numpy_dtype, torch_dtype
from hoplite_ray.values.trees.columns import LeafType

R = TypeVar("R")  # what names an object: a ref, or an id

_SHARDS_MAX = 4096  # of one array


class Box(NamedTuple):
    """Where a shard lies in its array: its bounds along each axis."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shards(Generic[R]):
    """One array, whose shards are arrays in other objects; `shards` makes it.

    It has either the axis along which the shards follow one another, or the place of each.
    """

    refs: tuple[R, ...]
    path: Any  # of the array in each object
    axis: int | None
    places: tuple[Any, ...] = ()


def shards(refs: Sequence[Any], *, axis: int = 0, path: Any = "") -> Shards[Any]:
    """Say that arrays of several objects follow one another along an axis.

    Args:    refs: one for each shard, in their order; what `get` takes.
             axis: along which they follow one another; other extents are equal.
             path: of the array in each object; "" if the object is the array.
    Returns: what `compose` takes.
    Raises:  InvalidArgumentError for no shard, or more than 4,096.
    Example:

        from hoplite_ray import parts

        halves = [hop.put(np.zeros((2, 8))), hop.put(np.ones((2, 8)))]
        whole = hop.compose({"w": parts.shards(halves)})
        assert hop.get(whole, part={"w": np.s_[1:3, :2]})["w"].tolist() == [[0, 0], [1, 1]]
    """
    if isinstance(refs, (str, bytes)) or not 1 <= len(refs) <= _SHARDS_MAX:
        raise InvalidArgumentError(
            f"an array has 1 to {_SHARDS_MAX} shards, as a list; got {refs!r:.60}"
        )
    return Shards(tuple(refs), path, axis)


class Composed:
    """A value that is read from the shards of several objects; `hop.compose` makes it.

    It has no bytes of its own. Its objects live as long as it does, and as long as any copy of it.
    It can be an argument or a result of a task, and `hop.get` takes it in place of a ref.
    """

    __slots__ = ("_arrays",)

    def __init__(self, arrays: tuple[tuple[Any, Shards[Any]], ...]) -> None:
        self._arrays = arrays  # by path; one of the path None is the value itself

    def __repr__(self) -> str:
        count = sum(len(each.refs) for _, each in self._arrays)
        names = ", ".join(repr(path) for path, _ in self._arrays[:3])
        more = ", ..." if len(self._arrays) > 3 else ""
        return f"<hoplite_ray composed value of {count} shards: {names}{more}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Composed, (self._arrays,)

    @property
    def refs(self) -> list[Any]:
        """The refs of all shards, each once."""
        return _distinct([ref for _, each in self._arrays for ref in each.refs])

    def fetch(
        self, part: Any, client: StoreClient, read: Callable[[Any], Steps[Source]]
    ) -> Steps[Any]:
        """Get the value or a part of it.

        Args:    part: a path, an index if the value is one array, a mapping of paths to indices, a
                 list of paths, or None for all of it.
                 read: learns what the object of a ref is.
        """
        wanted = self._select(part)
        refs = _distinct([ref for _, each, _ in wanted for ref in each.refs])
        found = yield from in_rounds([read(ref) for ref in refs])
        known = {name_ref(ref): source for ref, source in zip(refs, found, strict=True)}
        arrays = [_Reading(name, each, known) for name, each, _ in wanted]
        for reading, (_, _, index) in zip(arrays, wanted, strict=True):
            reading.choose(index)
        pieces: dict[Any, list[tuple[Any, Sequence[Axis]]]] = {}
        for reading in arrays:
            for ref, piece in reading.pieces:
                pieces.setdefault(name_ref(ref), []).append(piece)
        plans = [
            (known[key], plan_arrays(known[key].columns, each)) for key, each in pieces.items()
        ]
        came = yield from fetch_plans(client, plans)
        values = {key: iter(value) for key, value in zip(pieces, came, strict=True)}
        built = [
            reading.assemble([next(values[name_ref(ref)]) for ref, _ in reading.pieces])
            for reading in arrays
        ]
        if self._is_array or _is_one(part):
            return built[0]
        return {path: each for (path, _, _), each in zip(wanted, built, strict=True)}

    @property
    def _is_array(self) -> bool:
        return self._arrays[0][0] is None

    def _select(self, part: Any) -> list[tuple[Any, Shards[Any], Any]]:
        """Return the arrays that a part names, each with its index."""
        if self._is_array:
            if part is not None and part != "" and not is_index(part):
                raise InvalidArgumentError(
                    f"part {part!r} of a composed array is no index; give ints and slices"
                )
            index = Ellipsis if part is None or part == "" else part
            return [(None, self._arrays[0][1], index)]
        if part is None:
            return [(path, each, Ellipsis) for path, each in self._arrays]
        if isinstance(part, Mapping):
            return [(path, self._find(path), index) for path, index in part.items()]
        paths = part if isinstance(part, list) else [part]
        return [(path, self._find(path), Ellipsis) for path in paths]

    def _find(self, path: Any) -> Shards[Any]:
        for known, each in self._arrays:
            if known == path:
                return each
        names = ", ".join(repr(known) for known, _ in self._arrays[:5])
        more = f" and {len(self._arrays) - 5} more" if len(self._arrays) > 5 else ""
        raise InvalidArgumentError(f"the value has no part {path!r}; there is {names}{more}")


def compose(arrays: Any) -> Composed:
    """Describe one value whose shards are arrays in several objects. No bytes move.

    `get` reads it, or a part of it, in any other sharding: it fetches from each object only what is
    needed, and builds one array of that.

    Args:    arrays: a dict of an array for each path, or one array. An array is
             `hoplite_ray.parts.shards(refs, axis=...)`, a list of pairs of a place (a tuple of
             slices) and a ref, or one ref. Shards have one kind and dtype, and no gaps.
    Returns: a description, which keeps the objects alive, and may be a task's argument or result.
             The paths are its keys: its parts are named by them as they are.
    Raises:  InvalidArgumentError for what describes no array. A shard that is wrong shows at `get`.
    Cost:    a hundred bytes for each shard.
    Example:

        from hoplite_ray import parts

        rows = [hop.put(np.full((2, 4), rank)) for rank in range(2)]
        whole = hop.compose({"w": parts.shards(rows, axis=0)})
        columns = hop.get(whole, part={"w": np.s_[:, :2]})
        assert columns["w"].tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
    """
    if isinstance(arrays, Mapping):
        if not arrays:
            raise InvalidArgumentError("compose takes at least one array")
        return Composed(tuple((path, _read_shards(path, each)) for path, each in arrays.items()))
    return Composed(((None, _read_shards("value", arrays)),))


def _read_shards(path: Any, given: Any) -> Shards[Any]:
    if isinstance(given, Shards):
        return given
    if isinstance(given, list):
        if all(isinstance(each, tuple) and len(each) == 2 for each in given) and given:
            refs = shards([ref for _, ref in given]).refs
            return Shards(refs, "", None, tuple(index for index, _ in given))
        raise InvalidArgumentError(
            f"the shards of {path!r} are {given!r:.60}; give parts.shards(refs, axis=), or a list "
            "of pairs of an index and a ref"
        )
    return shards([given])


class _Reading:
    """One array of a composed value, of which a part is read."""

    def __init__(self, name: Any, given: Shards[Any], known: Mapping[Any, Source]) -> None:
        self._name = "the value" if name is None else f"value[{name!r}]"
        self._given = given
        self._boxes: list[Box] = []
        self.pieces: list[tuple[Any, tuple[Any, Sequence[Axis]]]] = []
        self._targets: list[tuple[slice, ...]] = []
        shapes = [self._learn(number, known) for number in range(len(given.refs))]
        self._shape = self._place(shapes)
        self._check_cover()

    def _learn(self, number: int, known: Mapping[Any, Source]) -> tuple[int, ...]:
        """Return the shape of a shard."""
        columns = known[name_ref(self._given.refs[number])].columns
        leaf, _ = find_leaf(columns, PathFinder(columns.tree), self._given.path)
        leaf_type = columns.types[columns.numbers[leaf]]
        if number == 0:
            self._type: LeafType = leaf_type
        elif leaf_type != self._type:
            raise InvalidArgumentError(
                f"shard {number} of {self._name} is of {' '.join(leaf_type)}, and the first is of "
                f"{' '.join(self._type)}; put all of one kind and dtype"
            )
        return columns.shapes[leaf]

    def _place(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Find the box of each shard; return the shape of the whole."""
        axis = self._given.axis
        if axis is None:
            return self._place_as_told(shapes)
        rank = len(shapes[0])
        if not -rank <= axis < rank:
            raise InvalidArgumentError(
                f"the shards of {self._name} have the shape {shapes[0]}, and no axis {axis}"
            )
        axis %= rank
        end = 0
        for number, shape in enumerate(shapes):
            alike = len(shape) == rank and all(
                extent == shapes[0][each] for each, extent in enumerate(shape) if each != axis
            )
            if not alike:
                raise InvalidArgumentError(
                    f"shard {number} of {self._name} has the shape {shape}, and the first has "
                    f"{shapes[0]}; along axis {axis} only may they differ"
                )
            starts = tuple(end if each == axis else 0 for each in range(rank))
            end += shape[axis]
            ends = tuple(end if each == axis else extent for each, extent in enumerate(shape))
            self._boxes.append(Box(starts, ends))
        return tuple(end if each == axis else extent for each, extent in enumerate(shapes[0]))

    def _place_as_told(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        for number, (place, shape) in enumerate(zip(self._given.places, shapes, strict=True)):
            slices = place if isinstance(place, tuple) else (place,)
            slices += (slice(None),) * (len(shape) - len(slices))
            bounds = [
                _read_bounds(each, extent) for each, extent in zip(slices, shape, strict=False)
            ]
            fits = len(slices) == len(shape) and all(
                each is not None and each[1] - each[0] == extent
                for each, extent in zip(bounds, shape, strict=True)
            )
            if not fits:
                raise InvalidArgumentError(
                    f"shard {number} of {self._name} has the shape {shape}, which does not fit its "
                    f"place {place!r}; a place is a tuple of slices with step 1"
                )
            known = [each for each in bounds if each is not None]
            self._boxes.append(Box(*(tuple(each) for each in zip(*known, strict=True))))
        ranks = {len(box.ends) for box in self._boxes}
        if len(ranks) > 1:
            raise InvalidArgumentError(f"the shards of {self._name} have unlike numbers of axes")
        return tuple(map(max, zip(*(box.ends for box in self._boxes), strict=True)))

    def _check_cover(self) -> None:
        """Raise InvalidArgumentError unless each place of the array is in one shard."""
        volume = sum(_volume(box) for box in self._boxes)
        ordered = sorted(box for box in self._boxes if _volume(box))
        for number, box in enumerate(ordered):
            for other in ordered[number + 1 :]:
                if other.starts[0] >= box.ends[0] if other.starts else False:
                    break  # sorted by the first axis
                if all(
                    max(a, b) < min(c, d)
                    for a, b, c, d in zip(
                        box.starts, other.starts, box.ends, other.ends, strict=True
                    )
                ):
                    raise InvalidArgumentError(
                        f"two shards of {self._name} overlap: {box} and {other}"
                    )
        if volume != prod(self._shape):
            raise InvalidArgumentError(
                f"the shards of {self._name} leave gaps: they have {volume} of the "
                f"{prod(self._shape)} elements of {self._shape}"
            )

    def choose(self, index: Any) -> None:
        """Find what a part needs of each shard."""
        self._axes = read_index(index, self._shape, self._name)
        for ref, box in zip(self._given.refs, self._boxes, strict=True):
            axes: list[Axis] = []
            target: list[slice] = []
            for axis, start, end in zip(self._axes, box.starts, box.ends, strict=True):
                first = max(0, -(-(start - axis.start) // axis.step))
                last = min(axis.count, -(-(end - axis.start) // axis.step))
                axes.append(
                    Axis(axis.start + first * axis.step - start, max(0, last - first), axis.step)
                )
                target.append(slice(first, last))
            if all(axis.count for axis in axes):
                self.pieces.append((ref, (self._given.path, axes)))
                self._targets.append(tuple(target))

    def assemble(self, arrays: Sequence[Any]) -> Any:
        """Return the part, of its pieces; a part that is one piece is not copied."""
        full = tuple(axis.count for axis in self._axes)
        shape = tuple(axis.count for axis in self._axes if axis.is_kept)
        if len(arrays) == 1:
            return arrays[0].reshape(shape)
        kind, name = self._type
        made: Any
        if kind == "torch":
            made = import_optional("torch").empty(full, dtype=torch_dtype(name))
        else:
            made = np.empty(full, numpy_dtype(name))
        for target, array in zip(self._targets, arrays, strict=True):
            made[target] = array
        return made.reshape(shape)


def _read_bounds(given: Any, extent: int) -> tuple[int, int] | None:
    """Return the bounds of a slice with a stop, or of one that begins at 0 and takes all."""
    if not isinstance(given, slice) or given.step not in (None, 1):
        return None
    start = given.start or 0
    stop = start + extent if given.stop is None else given.stop
    return (start, stop) if type(start) is int and type(stop) is int and start >= 0 else None


def _volume(box: Box) -> int:
    return prod(end - start for start, end in zip(box.starts, box.ends, strict=True))


def _is_one(part: Any) -> bool:
    return part is not None and not isinstance(part, (Mapping, list))


def name_ref(ref: Any) -> Any:
    """Return a key for a ref: an Array has no hash."""
    return ref if isinstance(ref, bytes) else id(ref) if ref.__hash__ is None else ref


def _distinct(refs: Sequence[Any]) -> list[Any]:
    return list({name_ref(ref): ref for ref in refs}.values())
