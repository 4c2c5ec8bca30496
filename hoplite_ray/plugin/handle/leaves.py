"""Conversions of the arrays in a value: between numpy and torch, and to read-only views."""

from __future__ import annotations

from typing import Any

import numpy as np

from hoplite_ray.errors import WrongTypeError
from hoplite_ray.values.dtypes import import_optional, numpy_dtype


def to_read_only(leaf: Any) -> Any:
    """Return a view that numpy refuses to write into; a tensor stays, because torch has none."""
    if isinstance(leaf, np.ndarray):
        leaf = leaf.view()
        leaf.flags.writeable = False
    return leaf


def copy_leaf(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf.clone()


def to_numpy(leaf: Any) -> Any:
    """Return the same memory as a numpy array.

    Raises: WrongTypeError for a tensor whose dtype numpy lacks; HopliteError without ml_dtypes,
            which has bfloat16.
    """
    if isinstance(leaf, np.ndarray):
        return leaf
    torch = import_optional("torch")
    if leaf.dtype is torch.bfloat16:
        return leaf.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    try:
        return leaf.numpy()
    except TypeError:
        raise WrongTypeError(f"numpy has no {leaf.dtype}; take tensors, by .torch()") from None


def to_tensor(leaf: Any) -> Any:
    """Return the same memory as a tensor.

    Raises: WrongTypeError for an array whose dtype torch lacks; HopliteError without torch.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    torch = import_optional("torch")
    if leaf.dtype.name == "bfloat16":
        return torch.from_numpy(leaf.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(leaf)
    except (TypeError, ValueError):  # a dtype, or a byte order
        raise WrongTypeError(f"torch has no {leaf.dtype}; take arrays, by .numpy()") from None
