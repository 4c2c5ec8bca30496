"""Operators of hop.Array: numpy or torch applies each to the value of the handle.

The first use fetches the value and keeps it, so that an expression of ten operators fetches once.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hoplite_ray.plugin.handle.leaves import to_tensor

_Unary = Callable[[Any], Any]
_Binary = Callable[[Any, Any], Any]


def unwrap(value: Any) -> Any:
    """Return the values in place of handles, also inside an index."""
    if isinstance(value, Operators):
        return value._view()
    return tuple(map(unwrap, value)) if type(value) is tuple else value


def _unary(operate: _Unary) -> _Unary:
    return lambda self: operate(self._view())


def _comparison(operate: _Binary) -> _Binary:
    return lambda self, other: operate(self._view(), unwrap(other))


def _binary(operate: _Binary, store: _Binary) -> tuple[_Binary, _Binary, _Binary]:
    """Return an operator forwards, reflected, and in place."""

    def in_place(self: Any, other: Any) -> Any:
        store(self._writable_value(), unwrap(other))
        return self

    return _comparison(operate), lambda self, other: operate(unwrap(other), self._view()), in_place


class Operators(ABC):
    """All that Python, numpy and torch let an operand do."""

    __slots__ = ()

    @abstractmethod
    def _view(self) -> Any:
        """Return the value, read-only if it is numpy's."""

    @abstractmethod
    def _writable_value(self) -> Any:
        """Return the value to write into. Raises: TypeError unless this is an unsealed `empty`."""

    @abstractmethod
    def torch(self) -> Any:
        """Return the value as tensors."""

    __add__, __radd__, __iadd__ = _binary(operator.add, operator.iadd)
    __sub__, __rsub__, __isub__ = _binary(operator.sub, operator.isub)
    __mul__, __rmul__, __imul__ = _binary(operator.mul, operator.imul)
    __matmul__, __rmatmul__, __imatmul__ = _binary(operator.matmul, operator.imatmul)
    __truediv__, __rtruediv__, __itruediv__ = _binary(operator.truediv, operator.itruediv)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary(operator.floordiv, operator.ifloordiv)
    __mod__, __rmod__, __imod__ = _binary(operator.mod, operator.imod)
    __pow__, __rpow__, __ipow__ = _binary(operator.pow, operator.ipow)
    __lshift__, __rlshift__, __ilshift__ = _binary(operator.lshift, operator.ilshift)
    __rshift__, __rrshift__, __irshift__ = _binary(operator.rshift, operator.irshift)
    __and__, __rand__, __iand__ = _binary(operator.and_, operator.iand)
    __or__, __ror__, __ior__ = _binary(operator.or_, operator.ior)
    __xor__, __rxor__, __ixor__ = _binary(operator.xor, operator.ixor)
    __divmod__, __rdivmod__, _ = _binary(divmod, divmod)
    del _

    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    __hash__ = None  # type: ignore[assignment]  # as numpy's: equal is element by element

    __neg__ = _unary(operator.neg)
    __pos__ = _unary(operator.pos)
    __abs__ = _unary(operator.abs)
    __invert__ = _unary(operator.invert)

    def __getitem__(self, key: Any) -> Any:
        return self._view()[unwrap(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        into, index = self._writable_value(), unwrap(key)
        if isinstance(into, dict | list | tuple):  # its arrays are written, and never replaced
            into, index = into[index], ...
        if isinstance(into, np.ndarray):
            into[index] = unwrap(value)
        elif hasattr(into, "copy_"):
            into[index] = to_tensor(unwrap(value))
        else:
            raise TypeError(f"{key!r} is no array, and was given when the object was made")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._view())

    def __contains__(self, value: Any) -> bool:
        return unwrap(value) in self._view()

    def __bool__(self) -> bool:
        value = self._view()
        return bool(value) if isinstance(value, dict | list | tuple) else bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        return operator.index(self._scalar("index"))

    def _scalar(self, wanted: str) -> Any:
        value = self._view()
        if isinstance(value, dict | list | tuple) or len(value.reshape(-1)) != 1:
            raise TypeError(f"{self!r} has no one element to become {wanted}; index it first")
        return value.item()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Apply numpy's arithmetic: np.add(a, 1), ndarray + a, np.add.reduce(a)."""
        outputs = (inputs[0],) if method == "at" else options.get("out", ())
        for each in outputs:
            if isinstance(each, Operators):
                each._writable_value()  # raises if it is sealed
        if "out" in options:
            options["out"] = tuple(map(_as_numpy, outputs))
        return getattr(ufunc, method)(*map(_as_numpy, inputs), **options)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Apply torch's functions: torch.stack([a, b]), tensor + a."""
        kwargs = kwargs or {}
        if isinstance(kwargs.get("out"), Operators):
            kwargs["out"]._writable_value()
        return function(*_as_torch(args), **_as_torch(kwargs))


def _as_numpy(value: Any) -> Any:
    if not isinstance(value, Operators):
        return value
    shown = value._view()
    return shown if isinstance(shown, np.ndarray) else np.asarray(value)


def _as_torch(value: Any) -> Any:
    if isinstance(value, Operators):
        return value.torch()
    if type(value) in (list, tuple):
        return type(value)(map(_as_torch, value))
    return {key: _as_torch(each) for key, each in value.items()} if type(value) is dict else value
