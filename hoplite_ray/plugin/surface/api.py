"""array, empty, get, wait and delete, as users call them; `hoplite_ray` exports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, overload

import ray

from hoplite_ray.errors import (
    GetTimeoutError,
    HopliteError,
    InvalidArgumentError,
    WrongTypeError,
)
from hoplite_ray.parts.composed import Composed, name_ref
from hoplite_ray.plugin.handle import making
from hoplite_ray.plugin.handle.array import Array, PutHandle
from hoplite_ray.plugin.handle.fetching import (
    PendingValue,
    PendingValues,
    ToFetch,
    flatten_values,
    results,
    start_fetches,
)
from hoplite_ray.plugin.handle.messages import Gathered
from hoplite_ray.plugin.handle.part_reading import (
    Begin,
    begin_composed,
    begin_part,
    read_part,
)
from hoplite_ray.plugin.handle.recipes import HandleRecipe
from hoplite_ray.plugin.process import ids
from hoplite_ray.plugin.process.attachment import (
    Attachment,
    RayObjectLostError,
    attachment,
    is_attached,
    need_ray,
)
from hoplite_ray.plugin.process.known_puts import KnownPut
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.surface.arguments import Gettable, gettables, listed
from hoplite_ray.values.codec import Encoded, decode_copy, describe_empty, encode
from hoplite_ray.values.deadlines import deadline_in, left_s, refuse_late
from hoplite_ray.values.dtypes import Kind
from hoplite_ray.values.filling import fill
from hoplite_ray.values.layout import Layout, short_name

# Between two looks for a failed fetch while Ray's refs are pending: doubles up to the maximum.
_LOOK_S = 0.02
_LOOK_MAX_S = 1.0


@contextmanager
def own_object(
    here: Attachment, layout: Layout, deadline: float | None, recipe: HandleRecipe | None = None
) -> Iterator[tuple[Ref, int]]:
    """Make a ref for an object that this process puts in the body; yield it and the incarnation.

    At its end the call waits for a steward, at most until `deadline`.
    """
    incarnation = ids.incarnation()
    ref = ray.put(PutHandle(incarnation, layout, recipe=recipe))
    here.journal.record_owned(ref.binary(), incarnation)
    try:
        yield ref, incarnation
        here.known_puts.add(ref.binary(), KnownPut(incarnation))
    finally:
        here.reap(ref, deadline)  # also after a failure: the object may be sealed all the same


def encode_value(value: Any, *, ordered: bool = False) -> Encoded:
    """Return the layout and bytes of a value. Raises: WrongTypeError for a ref."""
    if isinstance(value, ray.ObjectRef):
        raise WrongTypeError(
            "a ref is no value: pass the ref itself on, or put hoplite_ray.get(it)"
        )
    return encode(value, ordered=ordered)


def read_and_encode(value: Any, deadline: float | None, *, ordered: bool = False) -> Encoded:
    """Like `encode_value`, with the bytes of the Arrays in `value`, which come here by `deadline`.

    Raises: as a get of them.
    """
    if isinstance(value, ray.ObjectRef):
        return encode_value(value)
    return encode(value, partial(read_arrays, deadline), ordered=ordered)


def read_arrays(deadline: float | None, arrays: Sequence[Array]) -> list[Any]:
    """Return the values of Arrays, which are fetched at once."""
    values = start_fetches([each._find_bytes(deadline) for each in arrays], deadline)
    fetches = [each for each in values if isinstance(each, PendingValue)]
    fetched = dict(zip(fetches, results(fetches, deadline), strict=True))
    return [fetched[each] if isinstance(each, PendingValue) else each for each in values]


def array(value: Any, *, ordered: bool = False, timeout_s: float | None = None) -> Array:
    """Put a value into the store and return its handle, as a task's result or part of it.

    The object goes when the last handle does; it outlives the process that made it. A task that Ray
    executes again makes the same objects again.

    Args:    value, ordered, timeout_s: as for `put`.
    Returns: the handle; its bytes stay on this node until a reader fetches them. Up to 64 KiB they
             are in the handle.
    Raises:  as `put`.
    Cost:    one copy of the bytes, on this node.
    Example:

        @ray.remote
        def double(array):
            return hop.array(2 * np.asarray(array))

        assert hop.get(double.remote(hop.put(np.ones(3)))).sum() == 6
    """
    deadline = deadline_in(timeout_s)
    if isinstance(value, Array):
        value._seal(deadline)
        return value
    encoded = read_and_encode(value, deadline, ordered=ordered)
    return making.make(encoded, timeout_s=left_s(deadline))


def empty(
    shape: int | Sequence[int] | None = None,
    dtype: Any = "float32",
    kind: Kind = "numpy",
    *,
    like: Any = None,
    timeout_s: float | None = None,
) -> Array:
    """Make an object in the store's own memory, to be written in place.

    Write by a[...] = x, or into np.asarray(a), or with kind="torch" into a.torch(); and into an
    array of a container by a["w"] = x. The first pickling, `put`, `array` or `get` seals the Array.
    It is like any other Array then, and writing raises. Tensors and views from before can still be
    written, which no other process sees.
    An object that is never sealed goes with its handle.

    Args:    shape: the extents, or one extent.
             dtype: a name, or the library's own object for a dtype.
             kind: "numpy" for an array, "torch" for a tensor.
             like: in place of `shape`, a value that the object is laid out like. Its arrays are
             there to be written, also those that `spec` describes, and torch's tensors on `meta`.
             Its numbers, str and bytes are taken as they are.
             timeout_s: as for `put`.
    Returns: the Array, whose bytes are undefined at first.
    Raises:  InvalidArgumentError for a wrong shape, dtype, kind or `like`; otherwise as `put`.
    Cost:    no copy above 64 KiB, where `put` copies all bytes; up to it one, at the seal.
    Example:

        filled = hop.empty((2, 3), "float64")
        filled[...] = 1
        assert hop.get(hop.put(filled)).sum() == 6
        weights = hop.empty(like={"w": hop.spec((2, 3)), "step": 4})
        weights["w"] = np.ones((2, 3))
        assert hop.get(hop.put(weights))["step"] == 4
    """
    deadline_in(timeout_s)
    return making.make_empty(describe_empty(shape, dtype, kind, like), timeout_s)


@overload
def get(
    refs: Gettable | Composed, *, part: Any = ..., into: Any = ..., timeout_s: float | None = None
) -> Any: ...
@overload
def get(refs: Sequence[Gettable], *, timeout_s: float | None = None) -> list[Any]: ...
def get(
    refs: Gettable | Composed | Sequence[Gettable],
    *,
    part: Any = None,
    into: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Wait for results and return their values; what is no Array comes as ray.get returns it.

    Inside a task the wait gives the task's CPU back until the result exists. Ctrl-C and ray.cancel
    end it. After a second a terminal or a notebook shows how far it is.

    Args:    refs: one ref or Array, or several; or what `compose` has returned.
             part: what to take of the value of one ref: a path, as "layers.3.weight" or a tuple of
             keys; an index, if the value is one array; a dict of indices by path; or a list of
             paths. An index has ints, slices and `...`, and steps of at least 1. None takes all.
             into: memory for the value of one ref: an array, a tensor on any device, a module of
             torch, or a dict, list or tuple of these, with the value's keys, shapes and dtypes. It
             is written when all bytes are here; after an error it holds what it held before.
             timeout_s: seconds to wait for all of them; None waits without a limit. With 0 it
             returns what is whole on this node and already known to this process.
    Returns: the value, or the list of values; of a part by a dict or list of paths a dict by them;
             `into` if it is given. Each value is the caller's own: writing into it changes nothing
             else. A gather's result is the list of its values.
    Raises:  GetTimeoutError naming the object and its state; what the task raised; ObjectLostError;
             InvalidArgumentError naming the part that is not there, or does not fit `into`.
    Cost:    nothing is copied above 64 KiB; memory is this node's arena until the value dies. With
             `into` one copy, and the arena keeps nothing for the caller. The node is asked for all
             objects at once. With `part` only the part's bytes move: a node that has the object
             copies them together, at most 4,096 ranges.
    Example:

        refs = [hop.put(np.full(2, number)) for number in range(3)]
        assert [value.sum() for value in hop.get(refs, timeout_s=60)] == [0, 2, 4]
        mine = np.zeros(2, int)
        assert hop.get(refs[1], into=mine, timeout_s=60) is mine and mine.sum() == 2
        assert hop.get(refs[2], part=np.s_[1:], timeout_s=60).tolist() == [2]
    """
    check_one(refs, part, into)
    deadline = deadline_in(timeout_s)
    if part is not None or isinstance(refs, Composed):
        value = read_part(find_part(refs, part, deadline, timeout_s), deadline)
        return value if into is None else fill_into(into, value)
    pending = _begin_all(begin_fetches(gettables(refs, "get"), deadline), deadline, timeout_s)
    fetched = dict(zip(flat := fetches_in(pending), results(flat, deadline), strict=True))
    values = [_value_of(each, fetched) for each in pending]
    if into is not None:
        return fill_into(into, values[0])
    return values[0] if isinstance(refs, (ray.ObjectRef, Array)) else values


def fill_into(into: Any, value: Any) -> Any:
    """Fill memory of the caller's, and return it."""
    fill(into, value)
    return into


def check_one(refs: Any, part: Any, into: Any) -> None:
    """Raise InvalidArgumentError if `part` or `into` is given with several refs."""
    if (into is None and part is None) or isinstance(refs, (ray.ObjectRef, Array, Composed)):
        return
    name = "part" if into is None else "into"
    raise InvalidArgumentError(
        f"`{name}` takes the value of one ref; call get for each of several, or put them as one "
        "value"
    )


def find_part(refs: Any, part: Any, deadline: float | None, timeout_s: float | None) -> Begin:
    """Wait for Ray's value of the ref, or the refs of a composed value; return how to read a part.

    Raises: like `ray_values`.
    """
    if not isinstance(refs, Composed):
        (found,) = _find_sources([refs], deadline, timeout_s)
        if not isinstance(found, Composed):
            return begin_part(found, part)
        refs = found
    shards = gettables(refs.refs, "compose")
    found = _find_sources(shards, deadline, timeout_s)
    keys = [name_ref(each) for each in shards]
    return begin_composed(refs, part, dict(zip(keys, found, strict=True)))


def _find_sources(
    items: list[Gettable], deadline: float | None, timeout_s: float | None
) -> list[Any]:
    """Return what each item stands for: an object to fetch, or a value that is here."""
    here = attachment(deadline)
    found: dict[int, Any] = {}
    asked: dict[int, Ref] = {}
    for number, each in enumerate(items):
        if isinstance(each, Array):
            found[number] = each._find_bytes(deadline)
        elif (put := here.known_puts.find(each.binary())) is None:
            asked[number] = each
        else:
            found[number] = put.small or ToFetch(each.binary(), put.incarnation)
    values = ray_values(list(asked.values()), deadline, timeout_s)
    for (number, ref), value in zip(asked.items(), values, strict=True):
        found[number] = _find_bytes_of(ref, value, deadline)
    return [found[number] for number in range(len(items))]


def _begin_all(pending: list[Any], deadline: float | None, timeout_s: float | None) -> list[Any]:
    """Wait for Ray's values of the refs in `pending`, and return the fetches that follow from them.

    Raises: like `ray_values`; the error of a fetch that fails meanwhile.
    """
    need_ray()
    look_s = _LOOK_S
    while refs := [each for each in pending if isinstance(each, ray.ObjectRef)]:
        if len(pending) > 1:
            limit_s = look_s if deadline is None else min(look_s, left_s(deadline) or 0.0)
            missing = set(find_unfinished(refs, limit_s))
            if missing and left_s(deadline) == 0.0:
                raise late_error(refs, timeout_s)
            refs = [each for each in refs if each not in missing]
            look_s = min(2 * look_s, _LOOK_MAX_S)
            results([each for each in fetches_in(pending) if each.pending.has_failed], deadline)
        values = ray_values(refs, deadline, timeout_s)
        pending = fill_in(pending, dict(zip(refs, values, strict=True)), deadline)
    return pending


def fetches_in(pending: list[Any]) -> list[PendingValue]:
    """Return the fetches that are under way, including those of gathers."""
    return [each for each in flatten_values(pending) if isinstance(each, PendingValue)]


def _value_of(item: Any, fetched: dict[PendingValue, Any]) -> Any:
    if isinstance(item, PendingValues):
        return [_value_of(each, fetched) for each in item]
    return fetched[item] if isinstance(item, PendingValue) else item


def _fetch_orphan(ref: Ref) -> Any:
    """Fetch a dead owner's put: the handle is lost, but the object's id is the ref's own."""
    return ToFetch(ref.binary(), 0, why="the process that owned its ref has died")


def ray_values(
    refs: list[Ref],
    deadline: float | None,
    timeout_s: float | None,
    of_orphan: Callable[[Ref], Any] = _fetch_orphan,
) -> list[Any]:
    """Return Ray's values of `refs`: a handle for an object of the store, a fetch for an orphan.

    Raises: GetTimeoutError at `deadline`; ObjectLostError; the error of a ref's task.
    """
    need_ray()
    try:
        return list(ray.get(refs, timeout=left_s(deadline))) if refs else []
    except ray.exceptions.ObjectLostError as error:
        if len(refs) > 1:
            return [ray_values([ref], deadline, timeout_s, of_orphan)[0] for ref in refs]
        refuse_lost(refs[0], error)
        return [of_orphan(refs[0])]
    except ray.exceptions.GetTimeoutError:
        raise late_error(refs, timeout_s) from None
    except ray.exceptions.RayTaskError as error:
        raise_ours(error)
        raise


def refuse_lost(ref: Ref, error: ray.exceptions.ObjectLostError) -> None:
    """Return for an object that a dead owner has put.

    Raises: ObjectLostError, with the reason, for any other object that Ray has lost.
    """
    if isinstance(error, ray.exceptions.OwnerDiedError):
        return
    why = str(error).strip().splitlines()[0].partition(". To see")[0]
    raise RayObjectLostError(f"object {short_name(ref.binary())} is lost: {why}", ref.hex())


def late_error(refs: list[Ref], timeout_s: float | None) -> GetTimeoutError:
    """Return the error of a get whose `refs` are not there in time."""
    pending = find_unfinished(refs)
    many = len(pending) > 1
    names = ", ".join(f"{ref.hex()[:12]}.." for ref in (pending or refs)[:3])
    more = f" and {len(pending) - 3} more" if len(pending) > 3 else ""
    state = "its handle is still on its way"
    if pending:
        state = "their tasks have not ended" if many else "its task has not ended"
    return GetTimeoutError(
        f"object{'s' if many else ''} {names}{more} {'are' if many else 'is'} not there after "
        f"{timeout_s} s: {state}; wait longer, or see the task's log"
    )


def find_unfinished(refs: list[Ref], timeout_s: float = 0.0) -> list[Ref]:
    """Return those of `refs` whose tasks have not ended within `timeout_s`.

    Raises: Ray's ValueError for a ref of another session, because an await of it would never end.
    """
    unique = list(dict.fromkeys(refs))
    return unique and list(
        ray.wait(unique, num_returns=len(unique), timeout=timeout_s, fetch_local=False)[1]
    )


def raise_ours(error: ray.exceptions.RayTaskError) -> None:
    """Raise the cause of a task's error, or of the steward's, if it is an error of this package."""
    if isinstance(error.cause, HopliteError):
        raise error.cause from getattr(error.cause, "first_failure", error)


def begin_fetches(items: list[Gettable], deadline: float | None) -> list[Ref | PendingValue]:
    """Start to fetch Arrays, and refs of known puts, because they need no answer of Ray's.

    Raises: GetTimeoutError if the node is not there by `deadline`.
    """
    known = attachment(deadline).known_puts if is_attached() else None
    pending: list[Any] = []
    for each in items:
        if isinstance(each, Array):
            pending.append(each._find_bytes(deadline))
        elif known is None or (put := known.find(each.binary())) is None:
            pending.append(each)
        elif put.small is None:
            pending.append(ToFetch(each.binary(), put.incarnation, recipe=put.recipe))
        else:
            pending.append(decode_copy(put.small))
    return start_fetches(pending, deadline)


def fill_in(pending: list[Any], values: dict[Ref, Any], deadline: float | None) -> list[Any]:
    """Return `pending` with Ray's `values` in place of their refs, or the fetches of handles.

    Raises: like `begin_fetches`.
    """
    filled = [
        _find_bytes_of(each, values[each], deadline)
        if isinstance(each, ray.ObjectRef) and each in values
        else each
        for each in pending
    ]
    return start_fetches(filled, deadline)


def _find_bytes_of(ref: Ref, value: Any, deadline: float | None) -> Any:
    """Return what to fetch for Ray's `value` of `ref`; the value itself if it is no handle."""
    if isinstance(value, Gathered):
        return PendingValues(each._find_bytes(deadline) for each in value)
    if not isinstance(value, Array):
        return value
    if value._object_id == ref.binary() and value._members is None and value._anchor is not None:
        known = KnownPut(value._incarnation, recipe=value._find_recipe())
        attachment(deadline).known_puts.add(value._object_id, known)
    return value._find_bytes(deadline)


def wait(
    refs: Sequence[Ref], *, num_returns: int = 1, timeout_s: float | None = None
) -> tuple[list[Ref], list[Ref]]:
    """Return (ready, not_ready), when `num_returns` are ready or `timeout_s` has run out.

    A reduce's result is ready when it has committed.

    Args:    refs: a list of refs.
             num_returns: how many to wait for, of 1 to all.
             timeout_s: seconds to wait; 0 looks once, None waits without a limit.
    Returns: at most `num_returns` refs that are ready, and all other refs.
    Raises:  ValueError for a wrong `num_returns`.
    Cost:    fetches nothing.
    Example:

        total = hop.reduce([hop.put(np.ones(3)), hop.put(np.ones(3))])
        assert hop.wait([total], timeout_s=60) == ([total], [])
    """
    deadline = deadline_in(timeout_s)
    need_ray()
    limit_s = None if deadline is None else timeout_s
    ready, pending = ray.wait(
        listed(refs, "wait"), num_returns=num_returns, timeout=limit_s, fetch_local=False
    )
    return list(ready), list(pending)


def delete(refs: Gettable | Sequence[Gettable], *, timeout_s: float | None = None) -> None:
    """Free objects now, whatever still refers to them: a later get raises ObjectLostError.

    Values that were received stay valid. A value of at most 64 KiB is no object: it stays until its
    last handle goes, because each handle has the bytes.

    Args:    refs: one ref or Array, or several.
             timeout_s: seconds to wait for the node's answers; None waits without a limit.
    Returns: None, when this node has passed the deletions on.
    Raises:  InvalidArgumentError for a ref that is still pending, or that holds no Array;
             GetTimeoutError if the node has not passed it on within `timeout_s`.
    Cost:    one message and its answer for each object.
    Example:

        ref = hop.put(np.zeros(1 << 20))
        hop.delete(ref)
    """
    deadline = deadline_in(timeout_s)
    items = gettables(refs, "delete")
    here = attachment(deadline)
    for each in items:
        refuse_late(deadline, timeout_s, f"delete of {len(items)} objects")
        object_id = find_deletable(each, deadline, timeout_s)
        if object_id is not None:
            here.delete(object_id, timeout_s=left_s(deadline))


def find_deletable(each: Gettable, deadline: float | None, timeout_s: float | None) -> bytes | None:
    """Return the id of the object that a ref or an Array stands for, also of an orphan.

    Returns: None for a small value, which is no object of a node.
    Raises:  like `delete`.
    """
    value: Any = each
    if isinstance(each, ray.ObjectRef):
        if find_unfinished([each]):
            raise InvalidArgumentError(
                f"object {each.hex()[:12]}.. is still pending: wait for it, or ray.cancel it"
            )
        (value,) = ray_values([each], deadline, timeout_s, of_orphan=lambda ref: ref)
        if value is each:
            return bytes(each.binary())  # a put's
    if not isinstance(value, Array):
        raise InvalidArgumentError(f"{each!r} holds no array of the store")
    return None if value._anchor is None else value._object_id
