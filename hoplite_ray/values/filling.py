"""Fill arrays that exist already from a value: `into` of a get."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.trees.tree import write_step

_Pair = tuple[Any, Any]  # the array to fill, and the one with the bytes


def fill(target: Any, value: Any) -> None:
    """Copy a value's arrays into those of `target`, which has the same structure.

    All is checked first: after an error nothing has been written.

    Args:    target: a numpy array, a torch tensor on any device, a module of torch, or a dict, list
             or tuple of these. A module stands for its state dict.
             value: of equal keys and lengths, shapes and dtypes. A tensor may come from an array.
    Raises:  InvalidArgumentError naming the part that does not fit.
    Cost:    one copy of the bytes.
    """
    pairs = list(_match(target, value, "value"))
    torch = sys.modules.get("torch")
    for array, given in pairs:
        if isinstance(array, np.ndarray):
            array[...] = given
        else:
            with torch.no_grad():  # type: ignore[union-attr]
                array.copy_(given)


def _match(target: Any, value: Any, name: str) -> Iterator[_Pair]:
    """Yield the arrays to fill, each with its bytes, in the order of the value."""
    target = _unwrap(target)
    if isinstance(value, Mapping):
        yield from _match_keys(target, value, name)
    elif isinstance(value, (list, tuple)):
        if not isinstance(target, (list, tuple)) or len(target) != len(value):
            raise _error(name, f"a {type(value).__name__} of {len(value)}", target)
        for number, each in enumerate(value):
            yield from _match(target[number], each, name + write_step(number))
    else:
        yield target, _fit(target, value, name)


def _match_keys(target: Any, value: Mapping[Any, Any], name: str) -> Iterator[_Pair]:
    if not isinstance(target, Mapping):
        raise _error(name, f"a {type(value).__name__}", target)
    for key in value:
        if key not in target:
            raise InvalidArgumentError(
                f"{name}{write_step(key)} has no place in `into`; its keys are to be those of the "
                "value that was put"
            )
    for key in target:
        if key not in value:
            raise InvalidArgumentError(
                f"{name} has no {write_step(key)}, but `into` has; its keys are to be those of the "
                "value that was put"
            )
    for key, each in value.items():
        yield from _match(target[key], each, name + write_step(key))


def _unwrap(target: Any) -> Any:
    """Return a module's parameters and buffers by their names; others as they are."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        return target.state_dict(keep_vars=True)
    return target


def _fit(target: Any, value: Any, name: str) -> Any:
    """Return a leaf's bytes as an array of the target's library."""
    torch = sys.modules.get("torch")
    tensors: Any = () if torch is None else torch.Tensor
    if isinstance(target, np.ndarray):
        if not isinstance(value, (np.ndarray, np.generic)):
            raise _error(name, _describe(value), target)
        if not target.flags.writeable:
            raise InvalidArgumentError(
                f"{name} can't be written: its array in `into` is read-only; give a copy of it"
            )
    elif isinstance(target, tensors):
        if target.is_meta:
            raise InvalidArgumentError(
                f"{name} can't be written: its tensor in `into` is on meta and has no bytes; give "
                "its module memory by .to_empty(device='cpu') before"
            )
        if isinstance(value, np.ndarray) and value.dtype.isbuiltin == 1:
            value = torch.from_numpy(value)  # type: ignore[union-attr]
        if not isinstance(value, tensors):
            raise _error(name, _describe(value), target)
    else:
        raise _error(name, _describe(value), target)
    if value.dtype != target.dtype or tuple(value.shape) != tuple(target.shape):
        raise _error(name, _describe(value), target)
    return value


def _error(name: str, given: str, target: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{name} is {given}, and `into` has {_describe(target)} there; give memory of the same "
        "kind, dtype and shape"
    )


def _describe(value: Any) -> str:
    if isinstance(value, (list, tuple, Mapping)):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        kind = "a tensor" if type(value).__module__.startswith("torch") else "an array"
        return f"{kind} of {value.dtype} and shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
