"""Folds: how the arrays of several members become one, element by element.

A mean is added up and then divided once. Floats of fewer than 32 bits are added up in 32 bits for
it, and rounded once, as the store does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.worlds.core.arrays import Lent

Flat = np.ndarray[Any, Any]

OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "mean": np.add}


@dataclass(frozen=True, slots=True)
class Fold:
    """The fold of one collective.

    wide:      the dtype of its totals; None: that of the arrays, whose memory may hold them.
    divisor:   what a total is divided by at the end; None: it is not.
    """

    function: Any
    wide: np.dtype[Any] | None = None
    divisor: int | None = None

    def add(self, one: Flat, other: Flat, out: Flat) -> None:
        """Fold two parts into `out`, which may be either of them."""
        self.function(one, other, out=out)

    def start(self, part: Flat) -> Flat:
        """Return a part as the beginning of a total: itself, or a copy that is wider."""
        return part if self.wide is None else part.astype(self.wide)

    def empty(self, part: Flat) -> Flat:
        """Return memory for a total as large as a part. Its elements are undefined."""
        return np.empty(part.shape, self.wide or part.dtype)

    def finish(self, total: Flat, out: Flat) -> None:
        """Write the result of a total to `out`, which may be the total itself."""
        if self.divisor is not None:
            np.divide(total, self.divisor, out=total)
        if out is not total:
            out[...] = total


def plan_fold(op: str, dtype: np.dtype[Any], size: int) -> Fold:
    """Return the fold of `size` arrays.

    Raises:  InvalidArgumentError if there is no such op, or a mean of this dtype.
    """
    if op not in OPS:
        raise InvalidArgumentError(f"op={op!r} is unknown; use one of {', '.join(OPS)}")
    if op != "mean":
        return Fold(OPS[op])
    if dtype.kind not in "fc" and "float" not in dtype.name:  # other libraries' floats have kind V
        raise InvalidArgumentError(
            f"op='mean' can't fold {dtype}; use 'sum' and divide, or convert it to float32"
        )
    wide = np.dtype(np.float32) if dtype.itemsize < 4 else None
    return Fold(OPS[op], wide, size)


def check_fold(op: str, array: Lent) -> None:
    """Raise InvalidArgumentError if elements of this dtype can't be folded by this op."""
    fold = plan_fold(op, array.flat.dtype, 1)
    try:
        one = np.zeros(1, array.flat.dtype)
        total = fold.start(one)
        fold.add(total, one, out=total)
        fold.finish(total, one)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"op={op!r} can't fold {array.dtype}: {error}; gather the arrays instead"
        ) from error
