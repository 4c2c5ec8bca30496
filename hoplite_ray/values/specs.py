"""Arrays that are not there yet: what `empty` takes in place of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.dtypes import Kind, name_of
from hoplite_ray.values.trees.tree import ArraySpec, Leaf


def describe_array(shape: int | Sequence[int], dtype: Any, kind: Kind) -> Leaf:
    """Describe an array that is not there yet; `dtype` is a name or what `kind` has for one.

    Raises:  InvalidArgumentError for no such shape, dtype or kind.
    """
    try:
        given: Any = [shape] if isinstance(shape, Integral) else shape
        extents = tuple(map(operator.index, given))
        if any(extent < 0 for extent in extents):
            raise ValueError(f"shape {extents} has a negative extent")
        return Leaf(kind, name_of(kind, dtype), extents)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"no array of kind {kind!r}, dtype {dtype!r} and shape {shape!r} can be put: "
            f'{error}; kinds are "numpy" and "torch", dtypes as "float32"'
        ) from error


def spec(shape: int | Sequence[int], dtype: Any = "float32", kind: Kind = "numpy") -> ArraySpec:
    """Describe one array of a value that `empty` shall lay out.

    Args:    shape: the extents, or one extent.
             dtype: a name, or the library's own object for a dtype.
             kind: "numpy" for an array, "torch" for a tensor.
    Returns: what stands for the array in the `like` of `empty`.
    Raises:  InvalidArgumentError if there is no such shape, dtype or kind.
    Example:

        assert hop.spec((2, 3), "float64") == hop.spec([2, 3], np.float64)
    """
    return ArraySpec(describe_array(shape, dtype, kind))
