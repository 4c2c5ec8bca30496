"""The functions users call; `hoplite_ray` exports them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias, get_args, overload

import numpy.typing as npt
import ray

from hoplite_ray.codec import encode
from hoplite_ray.errors import GetTimeoutError, HopliteError, InvalidArgumentError
from hoplite_ray.plugin import array as arrays
from hoplite_ray.plugin import ids, seams
from hoplite_ray.plugin.array import Array, PutHandle
from hoplite_ray.plugin.attachment import PendingArray, attachment, left_s
from hoplite_ray.plugin.flag import runtime_env
from hoplite_ray.plugin.seams import Ref
from hoplite_ray.refs import ReduceOp

__all__ = ["Array", "array", "delete", "get", "put", "reduce", "runtime_env", "sources", "wait"]

_Gettable: TypeAlias = "Ref | Array"


def put(value: npt.NDArray[Any], *, timeout_s: float | None = None) -> Ref:
    """Put an array into the store once, for any number of readers.

    Returns: an ordinary ref; as a task's argument it becomes an `Array`. The object goes when the
             last ref and the last Array of it do, or with this process.
    Raises:  InvalidArgumentError for what is no array of plain bytes; StoreFullError;
             GetTimeoutError if the store had no room within `timeout_s`.
    """
    encoded = encode(value)
    here = attachment()
    incarnation = ids.incarnation(here.began_s)
    ref = ray.put(PutHandle(incarnation, encoded.layout))
    here.journal.owned(ref.binary(), incarnation)
    try:
        here.put(ref.binary(), encoded, incarnation=incarnation, timeout_s=timeout_s)
    except BaseException:
        here.journal.released(ref.binary())
        raise
    here.reaper.watch(ref)
    return ref


def array(value: npt.NDArray[Any], *, timeout_s: float | None = None) -> Array:
    """Put an array into the store and return its handle, as a task's result or part of it.

    The object goes when the last handle does; it outlives the process that made it. A task that Ray
    executes again makes the same objects again.
    Raises: as `put`.
    """
    return arrays.make(value, timeout_s=timeout_s)


@overload
def get(refs: _Gettable, *, timeout_s: float | None = None) -> Any: ...
@overload
def get(refs: Sequence[_Gettable], *, timeout_s: float | None = None) -> list[Any]: ...
def get(refs: _Gettable | Sequence[_Gettable], *, timeout_s: float | None = None) -> Any:
    """Wait for results and return their arrays; what is no array comes as ray.get returns it.

    Each array is the caller's own: writing into it changes nothing else. Inside a task the wait
    gives the task's CPU back until the result exists. Ctrl-C and ray.cancel end it.
    Raises: GetTimeoutError naming the object and its state; what the task raised; ObjectLostError.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    if isinstance(refs, (ray.ObjectRef, Array)):
        return _arrays([refs], deadline, timeout_s)[0]
    for each in refs:
        if not isinstance(each, (ray.ObjectRef, Array)):
            raise TypeError(f"get takes refs and Arrays, not {type(each).__name__}")
    return _arrays(list(refs), deadline, timeout_s)


def _arrays(items: list[_Gettable], deadline: float | None, timeout_s: float | None) -> list[Any]:
    refs = [each for each in items if isinstance(each, ray.ObjectRef)]
    values = iter(_values(refs, deadline, timeout_s))
    handles = [next(values) if isinstance(each, ray.ObjectRef) else each for each in items]
    pending = [each.begin() if isinstance(each, Array) else each for each in handles]  # all at once
    return [
        each.result(left_s(deadline)) if isinstance(each, PendingArray) else each
        for each in pending
    ]


def _values(refs: list[Ref], deadline: float | None, timeout_s: float | None) -> list[Any]:
    """Ray's values of `refs`: handles, for objects of the store."""
    try:
        return list(ray.get(refs, timeout=left_s(deadline))) if refs else []
    except ray.exceptions.GetTimeoutError:
        _, pending = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        names = ", ".join(f"{ref.hex()[:12]}.." for ref in pending[:3])
        state = "its task has not ended" if pending else "its handle is still on its way"
        raise GetTimeoutError(
            f"object {names or refs[0].hex()[:12]} is not there after {timeout_s} s: {state}; "
            f"{len(pending)} of {len(refs)} are pending; wait longer, or see the task's log"
        ) from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HopliteError):
            raise error.cause from getattr(error.cause, "first_failure", error)
        raise


def reduce(refs: Sequence[Ref], *, op: ReduceOp = "sum", count: int | None = None) -> Ref:
    """Combine the arrays of `count` of `refs`, whichever are ready first, element by element.

    Sources are refs of `put`, of tasks that return an `array`, or of tasks that return a bare numpy
    array (it is put into the store where it is). float32, float64 and int64; "sum" and "max".
    Returns: at once, a pending ref: ready when the reduce has committed.
    Raises:  on get: ReduceError with the fate of every source when fewer than `count` can come;
             with `count=None` (all of them) what the first failing source raised.
    """
    refs = list(refs)
    for index, ref in enumerate(refs):
        if not isinstance(ref, ray.ObjectRef):
            raise TypeError(f"source {index} is {type(ref).__name__}; reduce takes object refs")
    if op not in get_args(ReduceOp):
        raise InvalidArgumentError(f"op={op!r}: reduce has {' and '.join(get_args(ReduceOp))}")
    if not refs:
        raise InvalidArgumentError("reduce needs at least one source")
    if count is not None and not 1 <= count <= len(refs):
        raise InvalidArgumentError(
            f"count={count} of {len(refs)} sources; ask for 1 to {len(refs)}"
        )
    here = attachment()
    result: Ref = here.steward.reduce.remote(refs, op, count, here.journal.process)
    here.abandoned.watch(result)
    return result


def sources(ref: Ref, *, timeout_s: float | None = None) -> list[Ref]:
    """The refs that went into a reduce's result, in source order; waits until it has committed.

    Raises: ValueError if `ref` is no reduce's result; ReduceError as `get`; HopliteError if this
            process no longer holds one of those refs.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    (handle,) = _values([ref], deadline, timeout_s)
    if not isinstance(handle, Array) or handle._members is None:
        raise InvalidArgumentError(f"object {ref.hex()[:12]}.. is not the result of a reduce")
    known = seams.known_refs()
    for member in handle._members:
        if member not in known:
            raise HopliteError(
                f"source {member.hex()[:12]}.. went in, but this process has dropped its ref; "
                "keep the source refs as long as sources() is to return them"
            )
    return [seams.ref_of(member) for member in handle._members]


def wait(
    refs: Sequence[Ref], *, num_returns: int = 1, timeout_s: float | None = None
) -> tuple[list[Ref], list[Ref]]:
    """(ready, not_ready), with `num_returns` ready ones or when `timeout_s` has run out.

    A reduce's result is ready when it has committed. Fetches nothing.
    """
    ready, pending = ray.wait(
        list(refs), num_returns=num_returns, timeout=timeout_s, fetch_local=False
    )
    return list(ready), list(pending)


def delete(refs: _Gettable | Sequence[_Gettable]) -> None:
    """Free objects now, whoever still refers to them: a later get raises ObjectLostError.

    Raises: InvalidArgumentError for a ref that is still pending, or that holds no array.
    """
    here = attachment()
    for each in [refs] if isinstance(refs, (ray.ObjectRef, Array)) else refs:
        handle = each if isinstance(each, Array) else _ready_value(each)
        if not isinstance(handle, Array):
            raise InvalidArgumentError(f"{each!r} holds no array of the store")
        here.delete(handle._object_id)


def _ready_value(ref: Ref) -> Any:
    ready, _ = ray.wait([ref], timeout=0, fetch_local=False)
    if not ready:
        raise InvalidArgumentError(
            f"object {ref.hex()[:12]}.. is still pending: wait for it, or ray.cancel it"
        )
    return ray.get(ref)
