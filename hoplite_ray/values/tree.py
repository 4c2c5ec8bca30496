"""The values that can be put, taken apart into a tree and its leaves.

A value is a numpy array, a torch tensor on the CPU, or a dict, OrderedDict, list or tuple of
values. This module never imports torch, because a tensor exists only where the caller has done so.
"""

from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import Kind, element_bytes, memory_step, numpy_name, torch_name

Container = Literal["dict", "OrderedDict", "list", "tuple"]
CONTAINERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "list": list,
    "tuple": tuple,
}

DEPTH_MAX = 64  # nested containers: deeper than programs nest, and the stack takes it
_NODES_MAX = 128 << 10  # each takes two bytes of a layout or more, so that more of them never fit


@dataclass(frozen=True, slots=True)
class Branch:
    """A container: its kind, its keys if it is a dict, and its branches and leaves.

    A leaf is its number, in the order in which the value first names the leaves. A number that
    comes again is the same array under another name, for example tied weights.
    """

    kind: Container
    keys: tuple[Any, ...]
    children: tuple[int | Branch, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array: its library, the name of its dtype, its shape, and the offset of its bytes."""

    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def size_bytes(self) -> int:
        """The bytes of the array's elements."""
        return math.prod(self.shape) * element_bytes(self.kind, self.dtype)

    def __str__(self) -> str:
        whose = "torch " if self.kind == "torch" else ""
        return f"{whose}{self.dtype}[{', '.join(map(str, self.shape))}]"


class Parts:
    """A value taken apart: its tree, and for each leaf its description and its array."""

    __slots__ = ("_enclosing", "_nodes", "_numbers", "_steps", "arrays", "leaves", "tree")

    def __init__(self, value: Any) -> None:
        """Take `value` apart.

        Raises:  InvalidArgumentError naming the part of the value that no object can hold.
        """
        self.arrays: list[Any] = []
        self.leaves: list[Leaf] = []
        self._enclosing: set[int] = set()  # ids of the containers around the present part
        self._numbers: dict[Hashable, int] = {}  # the leaf of each piece of memory
        self._steps: list[Any] = []  # the indices and keys from the value to the present part
        self._nodes = 0
        self.tree = self._take_apart(value)

    def _take_apart(self, value: Any) -> int | Branch:
        self._nodes += 1
        if self._nodes > _NODES_MAX:
            raise self._error("part of a value that is too large; put it as several objects")
        kind = type(value).__name__
        if type(value) is not CONTAINERS.get(kind):
            return self._number(self._leaf(value), value)
        if id(value) in self._enclosing:
            raise self._error("a container that holds itself; break the cycle")
        if len(self._enclosing) == DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX} containers; flatten it")
        self._enclosing.add(id(value))
        keys = tuple(value) if isinstance(value, dict) else ()
        children = []
        for key in keys or range(len(value)):
            if keys and not _is_key(key):
                raise self._error(
                    f"a {kind} with a key of type {_type_name(key)}; keys are str, int of 64 bits, "
                    "float, bool, None and tuples of these"
                )
            self._steps.append(key)
            children.append(self._take_apart(value[key]))
            self._steps.pop()
        self._enclosing.remove(id(value))
        return Branch(kind, keys, tuple(children))

    def _number(self, leaf: Leaf, array: Any) -> int:
        """Return the number of a leaf; an array that came before has its first name's number."""
        number = len(self.leaves)
        if self._enclosing and (memory := _memory(leaf, array)) is not None:
            known = self._numbers.setdefault(memory, number)
            if known != number:
                return known
        self.leaves.append(leaf)
        self.arrays.append(array)
        return number

    def _leaf(self, value: Any) -> Leaf:
        if isinstance(value, (np.ndarray, np.generic)):
            return self._numpy_leaf(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._torch_leaf(value, torch)
        step = "np.asarray(it)" if isinstance(value, (bool, int, float, complex)) else "an array"
        for plain in (dict, list, tuple):
            step = f"{plain.__name__}(it)" if isinstance(value, plain) else step
        raise self._error(
            f"{_type_name(value)}; an object holds numpy arrays, torch tensors on the CPU, and "
            f"dicts, lists and tuples of these: put {step} there"
        )

    def _numpy_leaf(self, value: Any) -> Leaf:
        if isinstance(value, np.ma.MaskedArray):
            raise self._error("a masked array; put its .data and .mask as two arrays")
        try:
            return Leaf("numpy", numpy_name(value.dtype), value.shape)
        except ValueError as error:
            raise self._error(f"an array whose dtype {value.dtype} {error}") from error

    def _torch_leaf(self, value: Any, torch: Any) -> Leaf:
        if torch.nn.parameter.is_lazy(value):
            raise self._error("a parameter without bytes yet; call its module once before")
        if value.is_nested:
            raise self._error("a nested tensor; put its .unbind()")
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise self._error(f"{_type_name(value)}, not a plain tensor; convert it to one")
        if value.device.type != "cpu":
            raise self._error(f"a tensor on {value.device}; {memory_step(value, 'put')}")
        if value.requires_grad:
            raise self._error("a tensor that requires grad; put its .detach()")
        if value.is_quantized:
            raise self._error("a quantised tensor; put its .dequantize(), or its .int_repr()")
        if value.layout is not torch.strided:
            raise self._error(f"a tensor of layout {value.layout}; put its .to_dense()")
        try:
            return Leaf("torch", torch_name(value.dtype), tuple(value.shape))
        except ValueError as error:
            raise self._error(f"a tensor whose dtype {value.dtype} {error}") from error

    def _error(self, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"value{''.join(map(step_text, self._steps))} is {what}")


def assemble(node: int | Branch, arrays: list[Any]) -> Any:
    """Return the value that `Parts` took apart, with these arrays as its leaves."""
    if not isinstance(node, Branch):
        return arrays[node]
    children = [assemble(child, arrays) for child in node.children]
    if node.kind in ("dict", "OrderedDict"):
        children = list(zip(node.keys, children, strict=True))
    return CONTAINERS[node.kind](children)


def leaf_paths(node: int | Branch, name: str = "value") -> list[tuple[str, int]]:
    """Return the path of every leaf, for example `value["layers"][3]`, with the leaf's number."""
    if not isinstance(node, Branch):
        return [(name, node)]
    steps = map(step_text, node.keys or range(len(node.children)))
    return [
        each
        for step, child in zip(steps, node.children, strict=True)
        for each in leaf_paths(child, name + step)
    ]


def _memory(leaf: Leaf, array: Any) -> Hashable:
    """Return a key that is equal for two names of one array; None if an array has no such key."""
    if not leaf.size_bytes or isinstance(array, np.generic):
        return None
    if leaf.kind == "torch":
        return leaf, array.data_ptr(), array.stride(), array.is_conj(), array.is_neg()
    return leaf, array.__array_interface__["data"][0], array.strides


def step_text(key: Any) -> str:
    """Return how an index or a key is written behind the name of a container."""
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


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
