"""One value of each kind that can be put, and how to compare two."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from tests.ray.raycluster import LARGE

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


def value_of(kind: str, scale: int = 1) -> Any:
    """A value of small whole numbers, which every dtype has and every sum of some keeps exact."""
    count = np.arange(LARGE) % 5 * scale
    if kind == "numpy":
        return count.astype(np.float32).reshape(-1, 8)
    if kind == "small":
        return count[:10].astype(np.int16)
    if kind == "dict":
        return {
            "w": count.astype(np.float16),
            "layers": [count[:7].astype(np.uint8), (count[:3].astype(np.float64),)],
        }
    import torch

    if kind == "torch":
        return torch.from_numpy(count.astype(np.float32))
    assert kind == "state"
    return {
        "weight": torch.from_numpy(count.astype(np.float32)).to(torch.bfloat16),
        "steps": torch.tensor(scale),
        "mean": count[:5].astype(np.float64),
    }


KINDS = [
    *("numpy", "small", "dict"),
    pytest.param("torch", marks=needs_torch),
    pytest.param("state", marks=needs_torch),
]


def flat(value: Any, where: str = "") -> dict[str, Any]:
    """The arrays in a value by where they are, with their kinds and dtypes; bytes as numbers."""
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        found = {f"{where}{type(value).__name__}": len(value)}
        for key, each in pairs:
            found |= flat(each, f"{where}[{key!r}]")
        return found
    kind = (type(value).__name__, str(value.dtype), tuple(value.shape))
    if not isinstance(value, np.ndarray):
        value = value.float() if value.dtype.is_floating_point else value
    return {where: (kind, np.asarray(value).tolist())}


def assert_same(first: Any, second: Any) -> None:
    assert flat(first) == flat(second)
