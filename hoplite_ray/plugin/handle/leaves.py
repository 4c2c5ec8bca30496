"""The arrays in a value, each turned into another: numpy's into torch's, and read-only views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hoplite_ray.dtypes import imported, numpy_dtype
from hoplite_ray.errors import WrongTypeError


def converted(value: Any, convert: Callable[[Any], Any]) -> Any:
    """`value` with each of its arrays converted; its containers are new ones of the same kind."""
    if isinstance(value, dict):
        return type(value)((key, converted(each, convert)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return type(value)(converted(each, convert) for each in value)
    return convert(value)


def read_only(leaf: Any) -> Any:
    """A view that numpy refuses to write into; torch has nothing like it."""
    if isinstance(leaf, np.ndarray):
        leaf = leaf.view()
        leaf.flags.writeable = False
    return leaf


def copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf.clone()


def to_numpy(leaf: Any) -> Any:
    """The same memory as a numpy array.

    Raises: WrongTypeError for a tensor whose dtype numpy lacks; HopliteError without ml_dtypes,
            which has bfloat16.
    """
    if isinstance(leaf, np.ndarray):
        return leaf
    torch = imported("torch")
    if leaf.dtype is torch.bfloat16:
        return leaf.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    try:
        return leaf.numpy()
    except TypeError:
        raise WrongTypeError(f"numpy has no {leaf.dtype}; take tensors, by .torch()") from None


def to_tensor(leaf: Any) -> Any:
    """The same memory as a tensor.

    Raises: WrongTypeError for an array whose dtype torch lacks; HopliteError without torch.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    torch = imported("torch")
    if leaf.dtype.name == "bfloat16":
        return torch.from_numpy(leaf.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(leaf)
    except (TypeError, ValueError):  # a dtype, or a byte order
        raise WrongTypeError(f"torch has no {leaf.dtype}; take arrays, by .numpy()") from None
