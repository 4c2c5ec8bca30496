"""The values that can be put, taken apart into a tree and its leaves.

A leaf is a numpy array, a torch tensor on the CPU, or a bool, int, float, complex, str or bytes of
Python. A container is a dict, OrderedDict, list, tuple, named tuple or dataclass of these and of
None. This module never imports torch, because a tensor exists only where the caller has done so.
"""

from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import (
    LeafKind,
    element_bytes,
    memory_step,
    numpy_name,
    torch_name,
)
from hoplite_ray.values.trees.alike import ALIKE_MIN, number_dtypes, read_alike
from hoplite_ray.values.trees.handles import Handle
from hoplite_ray.values.trees.named import NAMED, Described, describe_class, make_named, take_fields
from hoplite_ray.values.trees.ties import Ties

CONTAINERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "list": list,
    "tuple": tuple,
}
DICTS = ("dict", "OrderedDict")

DEPTH_MAX = 64  # nested containers: deeper than programs nest, and the stack takes it
NODES_MAX = 1 << 20  # containers, leaves and None; taking so many apart takes a second


class Branch(NamedTuple):
    """A container: its kind, its keys or fields, its children, and the name of its class, if any.

    A child is a branch, None, or the number of a leaf, in the order in which the value first names
    the leaves. A number that comes again is the same array under another name, for example tied
    weights.
    """

    kind: str
    keys: tuple[Any, ...]
    children: tuple[Any, ...]  # of Node, which is recursive
    name: str = ""


Node: TypeAlias = int | Branch | None


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf: its library, the name of its dtype, its shape, and the offset of its bytes.

    The library of a value of Python's own is "python". The shape of str and bytes is their length.
    """

    kind: LeafKind
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def size_bytes(self) -> int:
        """The bytes of the leaf's elements."""
        return math.prod(self.shape) * element_bytes(self.kind, self.dtype)

    def __str__(self) -> str:
        if self.kind == "python":
            return f"{self.dtype} of {self.shape[0]} bytes" if self.shape else self.dtype
        whose = "torch " if self.kind == "torch" else ""
        return f"{whose}{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array that is not there yet, in the `like` of `empty`; `hop.spec` makes it."""

    leaf: Leaf


class _RefusalError(Exception):
    """A part that no object can hold; the containers around it add the steps to it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.steps: list[str] = []


class Parts:
    """A value taken apart: its tree, and its leaves as columns.

    `arrays` has the leaves; of str its UTF-8 bytes. `addresses` has the memory of each tensor whose
    elements lie in C order, and 0 for every other leaf. `handles` has those whose values were not
    given; the tree is without them.
    """

    __slots__ = (
        "_enclosing",
        "_known_types",
        "_nodes",
        "_read",
        "_strange_keys",
        "_takers",
        "_takes_specs",
        "_ties",
        "addresses",
        "arrays",
        "handles",
        "numbers",
        "shapes",
        "tree",
        "types",
    )

    def __init__(
        self, value: Any, *, takes_specs: bool = False, read: Mapping[int, Any] | None = None
    ) -> None:
        """Take `value` apart.

        takes_specs:  True if specs, and tensors without bytes, may stand for arrays in it.
        read:         the values of handles, by the handle's id; None refuses handles.
        Raises:  InvalidArgumentError naming the part of the value that no object can hold.
        """
        self.arrays: list[Any] = []
        self.addresses: list[int] = []
        self.types: list[tuple[LeafKind, str]] = []
        self.numbers: list[int] = []  # of the leaves' types
        self.shapes: list[Sequence[int]] = []
        self._known_types: dict[Any, int] = {}  # by dtype of numpy or torch, or type of Python
        self._enclosing: set[int] = set()  # ids of the containers around the present part
        self._ties = Ties()
        self._strange_keys: list[str] = []  # of dicts with keys that are not all str
        self._nodes = 1
        self._takes_specs = takes_specs
        self._read = read
        self.handles: list[Handle] = []
        self._takers = self._find_takers()
        if takes_specs:
            self._takers[ArraySpec] = self._take_spec
        try:
            self.tree: Node = self._take(value)
        except _RefusalError as refusal:
            path = "".join(reversed(refusal.steps))
            raise InvalidArgumentError(f"value{path} is {refusal}") from refusal.__cause__
        finally:
            self._takers.clear()  # its methods refer to `self`: a cycle, which keeps the arrays

    @property
    def signature(self) -> Hashable:
        """A key for the layout: equal for two values if and only if they have one layout."""
        return (
            *(self.tree, tuple(self.types), tuple(self.numbers), tuple(self.shapes)),
            "".join(self._strange_keys),
        )

    def _find_takers(self) -> dict[type, Callable[[Any], Node]]:
        """Return the method for each type of a leaf or container; all others take longer."""
        takers: dict[type, Callable[[Any], Node]] = {
            np.ndarray: self._take_array,
            dict: self._take_dict,
            OrderedDict: self._take_dict,
            list: self._take_sequence,
            tuple: self._take_sequence,
            type(None): lambda nothing: None,
            bool: self._take_number,
            int: self._take_int,
            float: self._take_number,
            complex: self._take_number,
            str: self._take_str,
            bytes: self._take_bytes,
        }
        torch = sys.modules.get("torch")
        if torch is not None:
            takers[torch.Tensor] = takers[torch.nn.Parameter] = self._take_tensor
        return takers

    def _take(self, value: Any) -> Node:
        return self._takers.get(type(value), self._take_other)(value)

    # ---- containers ----

    def _take_dict(self, value: dict[Any, Any]) -> Branch:
        keys = tuple(value)
        kind = type(value).__name__
        if not {*map(type, keys)} <= {str}:
            for key in keys:
                if not _is_key(key):
                    raise _RefusalError(
                        f"a {kind} with a key of type {_name_type(key)}; keys are str, int of 64 "
                        "bits, float, bool, None and tuples of these"
                    )
            self._strange_keys.append(repr(keys))  # 1, 1.0 and True are equal, but not one key
        return self._take_children(value, Branch(kind, keys, tuple(value.values())))

    def _take_sequence(self, value: Sequence[Any]) -> Branch:
        return self._take_children(value, Branch(type(value).__name__, (), tuple(value)))

    def _take_children(self, value: Any, given: Branch) -> Branch:
        """Take the children of a branch apart, which are values still."""
        self._nodes += len(given.children)
        if self._nodes > NODES_MAX:
            raise _RefusalError(
                f"part of a value that is too large, of more than {NODES_MAX} containers and "
                "leaves; put it as several objects"
            )
        if id(value) in self._enclosing:
            raise _RefusalError("a container that holds itself; break the cycle")
        if len(self._enclosing) == DEPTH_MAX:
            raise _RefusalError(f"nested deeper than {DEPTH_MAX} containers; flatten it")
        self._enclosing.add(id(value))
        nodes: list[Node] = []
        find, other = self._takers.get, self._take_other
        try:
            if len(given.children) < ALIKE_MIN or not self._take_alike(given.children, nodes):
                nodes.extend(find(type(child), other)(child) for child in given.children)
        except _RefusalError as refusal:
            refusal.steps.append(find_steps(given)[len(nodes)])
            raise
        self._enclosing.remove(id(value))
        return given._replace(children=tuple(nodes))

    def _take_alike(self, children: tuple[Any, ...], nodes: list[Node]) -> bool:
        """Take many arrays or tensors at once; returns False if that is not possible."""
        alike = read_alike(children)
        if alike is None or not self._ties.has_no_tie(alike.owners):
            return False
        find = self._number_array if type(children[0]) is np.ndarray else self._number_tensor
        try:
            numbers = number_dtypes(alike.dtypes, find)
        except ValueError:  # one by one, so that the error names it
            return False
        first = len(self.arrays)
        self._ties.add_distinct(alike, children, numbers, first)
        self.numbers += numbers
        self.shapes += alike.shapes
        self.addresses += alike.addresses
        self.arrays += children
        nodes += range(first, len(self.arrays))
        return True

    # ---- leaves ----

    def _number_array(self, dtype: Any) -> int:
        """Return the number of numpy's dtype. Raises: ValueError if no object can hold it."""
        number = self._known_types.get(dtype)
        return self._add_type(dtype, "numpy", numpy_name(dtype)) if number is None else number

    def _number_tensor(self, dtype: Any) -> int:
        """Like `_number_array`, for torch's dtype."""
        number = self._known_types.get(dtype)
        return self._add_type(dtype, "torch", torch_name(dtype)) if number is None else number

    def _add(self, number: int, shape: Sequence[int], array: Any, address: int = 0) -> int:
        self.numbers.append(number)
        self.shapes.append(shape)
        self.addresses.append(address)
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _add_type(self, dtype: Any, kind: LeafKind, name: str) -> int:
        # Two dtypes may have one name, for example those of two spellings of one structure.
        if (kind, name) in self.types:
            number = self.types.index((kind, name))
        else:
            number = len(self.types)
            self.types.append((kind, name))
        self._known_types[dtype] = number
        return number

    def _take_number(self, value: Any) -> int:
        kind = type(value)
        number = self._known_types.get(kind)
        if number is None:
            number = self._add_type(kind, "python", kind.__name__)
        return self._add(number, (), value)

    def _take_int(self, value: int) -> int:
        if not -(1 << 63) <= value < 1 << 63:
            raise _RefusalError("an int of more than 64 bits; put its str(), or an array")
        return self._take_number(value)

    def _take_str(self, value: str) -> int:
        return self._take_text(str, value.encode("utf-8", "surrogatepass"))

    def _take_bytes(self, value: bytes) -> int:
        return self._take_text(bytes, value)

    def _take_text(self, kind: type, data: bytes) -> int:
        number = self._known_types.get(kind)
        if number is None:
            number = self._add_type(kind, "python", kind.__name__)
        return self._add(number, (len(data),), data)

    def _take_array(self, value: Any) -> int:
        try:
            number = self._number_array(value.dtype)
        except ValueError as error:
            raise _RefusalError(f"an array whose dtype {value.dtype} {error}") from error
        known = self._ties.find_array(value, number, len(self.arrays))
        return self._add(number, value.shape, value) if known is None else known

    def _take_tensor(self, value: Any) -> int:
        torch = sys.modules["torch"]
        if (
            value.requires_grad
            or not value.is_cpu
            or value.is_nested
            or value.layout is not torch.strided
        ):
            if self._takes_specs and value.is_meta:
                return self._take_meta(value, torch)
            raise _refuse_tensor(value, torch)
        dtype = value.dtype
        number = self._known_types.get(dtype)
        if number is None:
            if value.is_quantized:
                raise _refuse_tensor(value, torch)
            try:
                number = self._number_tensor(dtype)
            except ValueError as error:
                raise _RefusalError(f"a tensor whose dtype {dtype} {error}") from error
        address = value.data_ptr()
        known = self._ties.find_tensor(value, address, number, len(self.arrays))
        if known is not None:
            return known
        is_plain = value.is_contiguous() and not value.is_neg() and not value.is_conj()
        return self._add(number, value.shape, value, address if is_plain else 0)

    def _take_meta(self, value: Any, torch: Any) -> int:
        """Take a tensor without bytes as a spec of one."""
        if value.is_quantized or value.is_nested or value.layout is not torch.strided:
            raise _refuse_tensor(value, torch)
        try:
            leaf = Leaf("torch", torch_name(value.dtype), tuple(value.shape))
        except ValueError as error:
            raise _RefusalError(f"a tensor whose dtype {value.dtype} {error}") from error
        return self._take_spec(ArraySpec(leaf))

    def _take_handle(self, value: Handle) -> Node:
        if self._read is None:
            raise _RefusalError("a handle of a value; give the value, hoplite_ray.get(it), there")
        if id(value) in self._read:
            return self._take(self._read[id(value)])
        self.handles.append(value)
        return None

    def _take_spec(self, value: ArraySpec) -> int:
        leaf = value.leaf
        number = self._known_types.get((leaf.kind, leaf.dtype))
        if number is None:
            number = self._add_type((leaf.kind, leaf.dtype), leaf.kind, leaf.dtype)
        return self._add(number, leaf.shape, None)

    def _take_other(self, value: Any) -> Node:
        """Take a value of another type apart: a class of numpy's, a named tuple, a dataclass."""
        if isinstance(value, np.ma.MaskedArray):
            raise _RefusalError("a masked array; put its .data and .mask as two arrays")
        if isinstance(value, (np.ndarray, np.generic)):
            return self._take_array(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            raise _refuse_tensor(value, torch)
        if isinstance(value, Handle):
            return self._take_handle(value)
        if isinstance(value, ArraySpec):
            raise _RefusalError("a spec of an array; fill what empty(like=...) makes of it")
        try:
            cls: Any = type(value)
            described = describe_class(cls)
            if described is not None:
                children = take_fields(value, described)
                kind, name, fields = described
                return self._take_children(value, Branch(kind, fields, children, name))
        except ValueError as error:
            raise _RefusalError(str(error)) from error
        step = "an array"
        for plain in (dict, list, tuple, int, float, complex, str, bytes):
            step = f"{plain.__name__}(it)" if isinstance(value, plain) else step
        raise _RefusalError(
            f"{_name_type(value)}; an object holds numpy arrays, torch tensors on the CPU, "
            "numbers, str, bytes and None, and dicts, lists, tuples, named tuples and dataclasses "
            f"of these: put {step} there"
        )


def _refuse_tensor(value: Any, torch: Any) -> _RefusalError:
    """Return the reason why no object can hold a tensor. REQUIRES: there is one."""
    if torch.nn.parameter.is_lazy(value):
        return _RefusalError("a parameter without bytes yet; call its module once before")
    if value.is_nested:
        return _RefusalError("a nested tensor; put its .unbind()")
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return _RefusalError(f"{_name_type(value)}, not a plain tensor; convert it to one")
    if value.device.type != "cpu":
        return _RefusalError(f"a tensor on {value.device}; {memory_step(value, 'put')}")
    if value.requires_grad:
        return _RefusalError("a tensor that requires grad; put its .detach()")
    if value.is_quantized:
        return _RefusalError("a quantised tensor; put its .dequantize(), or its .int_repr()")
    return _RefusalError(f"a tensor of layout {value.layout}; put its .to_dense()")


def assemble(node: Node, leaves: list[Any]) -> Any:
    """Return the value that `Parts` took apart, with these leaves.

    Raises:  HopliteError naming a class that can't be imported here.
    """
    if node is None:
        return None
    if not isinstance(node, Branch):
        return leaves[node]
    children = [
        leaves[child] if type(child) is int else assemble(child, leaves) for child in node.children
    ]
    if node.kind in DICTS:
        return CONTAINERS[node.kind](zip(node.keys, children, strict=True))
    if node.kind in NAMED:
        kind: Any = node.kind
        return make_named(Described(kind, node.name, node.keys), children)
    return CONTAINERS[node.kind](children)


def map_leaves(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return `value` with each of its arrays converted, in new containers of the same kinds."""
    if isinstance(value, dict):
        return type(value)((key, map_leaves(each, convert)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(map_leaves(each, convert) for each in value)
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    cls: Any = type(value)
    described = describe_class(cls)
    if described is None:
        return convert(value)
    children = take_fields(value, described)
    return make_named(described, [map_leaves(each, convert) for each in children])


def list_leaves(node: Node, name: str = "value") -> list[tuple[str, int | None]]:
    """Return the path of every leaf, for example `value["layers"][3]`, with the leaf's number.

    A None has no number.
    """
    if not isinstance(node, Branch):
        return [(name, node)]
    return [
        each
        for step, child in zip(find_steps(node), node.children, strict=True)
        for each in list_leaves(child, name + step)
    ]


def find_steps(branch: Branch) -> list[str]:
    """Return how each child is reached from its container: `["w"]`, `[3]` or `.field`."""
    if branch.kind in NAMED:
        return [f".{field}" for field in branch.keys]
    keys = branch.keys or range(len(branch.children))
    return list(map(write_step, keys))


def write_step(key: Any) -> str:
    """Return how an index or a key is written behind the name of its container."""
    return f"[{json.dumps(key) if isinstance(key, str) else repr(key)}]"


def _is_key(key: Any) -> bool:
    """Return whether a key of a dict comes back from its encoding as it was."""
    if type(key) is tuple:
        return all(map(_is_key, key))
    if type(key) is float:
        return not math.isnan(key)  # because it does not equal itself
    if type(key) is int:
        return key.bit_length() <= 64
    return key is None or type(key) in (str, bool)


def _name_type(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
