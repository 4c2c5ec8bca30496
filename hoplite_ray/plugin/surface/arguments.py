"""The checks of users' arguments, made once, here: each error says what to pass instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, get_args

import numpy as np
import ray

from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.process.attachment import need_ray
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.values.layout import ReduceOp

Gettable: TypeAlias = "Ref | Array"
T = TypeVar("T")


def gettables(refs: Gettable | Sequence[Gettable], taker: str) -> list[Gettable]:
    """Return one or several refs and Arrays as a list."""
    if isinstance(refs, (ray.ObjectRef, Array)):
        return [refs]
    if not isinstance(refs, Iterable) or isinstance(refs, str | bytes | Mapping):
        raise WrongTypeError(f"{taker} takes refs and Arrays, not {type(refs).__name__}")
    items = list(refs)
    for each in items:
        if not isinstance(each, (ray.ObjectRef, Array)):
            raise WrongTypeError(f"{taker} takes refs and Arrays, not {type(each).__name__}")
    return items


def listed(refs: Sequence[T], taker: str, taken: str = "object refs") -> list[T]:
    """Return several refs as a list; `taken` says in an error what `taker` takes."""
    if isinstance(refs, ray.ObjectRef | Array | str | bytes) or not isinstance(refs, Iterable):
        raise WrongTypeError(f"{taker} takes a list of {taken}, not one {type(refs).__name__}")
    return list(refs)


def source_refs(refs: Sequence[Gettable], taker: str) -> list[Ref]:
    """Return the refs of the sources of a reduce or gather; an unsealed Array is sealed.

    Raises: HopliteError if a source is an Array, and Ray is not running here.
    """
    items: list[Any] = listed(refs, taker, "refs and Arrays")
    for index, each in enumerate(items):
        if not isinstance(each, (ray.ObjectRef, Array)):
            raise WrongTypeError(
                f"source {index} is {type(each).__name__}; {taker} takes refs and Arrays: "
                "pass hoplite_ray.put(it)"
            )
    if not items:
        raise InvalidArgumentError(f"{taker} needs at least one source")
    return [ref_of(each) if isinstance(each, Array) else each for each in items]


def ref_of(array: Array, deadline: float | None = None) -> Ref:
    """Return the ref of an Array, which is sealed by `deadline`; see `Array._as_ref`."""
    need_ray()
    return array._as_ref(deadline)


def checked_op(op: Any) -> ReduceOp:
    """Return the operation of a reduce, if there is one of that name."""
    known = get_args(ReduceOp)
    if op not in known:
        raise InvalidArgumentError(f"op is {op!r}; reduce has {', '.join(known)}")
    return op  # type: ignore[no-any-return]


def checked_count(count: Any, sources: int) -> int | None:
    """Return how many of the sources go in; None for all."""
    if count is None:
        return None
    if not isinstance(count, int | np.integer) or isinstance(count, bool):
        raise WrongTypeError(f"count is a {type(count).__name__}; it takes an int, or None for all")
    if not 1 <= count <= sources:
        raise InvalidArgumentError(f"count={count} of {sources} sources; ask for 1 to {sources}")
    return int(count)


def checked_flag(name: str, flag: Any) -> bool:
    """Return an argument that is True or False."""
    if not isinstance(flag, bool | np.bool_):
        raise WrongTypeError(f"{name} is a {type(flag).__name__}; it takes True or False")
    return bool(flag)
