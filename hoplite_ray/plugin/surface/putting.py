"""put, as users call it; with a base it makes the delta that leads from there to the new value."""

from __future__ import annotations

from typing import Any

import numpy as np

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError, ObjectLostError
from hoplite_ray.plugin.handle import making
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.recipes import HandleRecipe
from hoplite_ray.plugin.process.attachment import Attachment, attachment
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.surface.api import own_object, ray_values, read_and_encode
from hoplite_ray.plugin.surface.arguments import Gettable, gettables, ref_of
from hoplite_ray.values.codec import Encoded, encode
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.deltas import choose_limit_bytes, find_delta
from hoplite_ray.values.recipe import Attempt


def put(
    value: Any,
    *,
    base: Gettable | None = None,
    ordered: bool = False,
    timeout_s: float | None = None,
) -> Ref:
    """Put a value into the store once, for any number of readers.

    Args:    value: a numpy array, a torch tensor on the CPU, a number, str, bytes or None, or a
             dict, list, tuple, named tuple or dataclass of values, which is one object. An array
             that has several names in it, as tied weights do, is stored once and is one array at
             the reader. An Array, sealed if it is an `empty`, becomes a ref of the same object; the
             new object has the bytes of the Arrays in a container.
             base: a ref or an Array of an older value with the same layout. A node that has the
             older value then fetches only what has changed since, if that is at most half of the
             bytes, and makes the value itself. Other nodes fetch it whole, and also use the delta
             of one put only: a reader needs the direct base.
             ordered: True if a `stream` gives the arrays in the order of the value. Otherwise those
             of one dtype come together. A value whose dtype changes more than 15 times can't be
             reduced then.
             timeout_s: seconds to wait for memory; None waits without a limit.
    Returns: an ordinary ref; as a task's argument it becomes an `Array`. The object goes when the
             last ref and the last Array of it do; after this process, when memory is needed. A
             value of at most 64 KiB is no object: each Array has its bytes, and after this process
             only these are left.
    Raises:  InvalidArgumentError naming the part of `value` that is no array of plain bytes, or
             where the layout of `base` differs; StoreFullError; GetTimeoutError if the store had no
             room, or the node no life, within `timeout_s`.
    Cost:    one copy of the bytes, on this node, which fetches those of Arrays in a container. Up
             to 64 KiB a `ray.put`, and no node is asked.
             With a base, which this node fetches unless it has it, another read of both values.
    Example:

        ref = hop.put({"w": np.ones(3), "b": np.zeros(1)})
        assert hop.get(ref)["w"].sum() == 3
        newer = hop.put({"w": np.full(3, 2.0), "b": np.zeros(1)}, base=ref)
        assert hop.get(newer)["w"].sum() == 6
    """
    deadline = deadline_in(timeout_s)
    if isinstance(value, Array):
        refuse_base(base)
        return ref_of(value, deadline)
    encoded = read_and_encode(value, deadline, ordered=ordered)
    here = attachment(deadline)
    recipe = put_delta(here, encoded, base, deadline, timeout_s)
    if making.is_small(encoded.layout):
        return making.put_small(here, encoded)
    with own_object(here, encoded.layout, deadline, recipe) as (ref, incarnation):
        here.put(ref.binary(), encoded, incarnation=incarnation, timeout_s=left_s(deadline))
    return ref


def refuse_base(base: Any) -> None:
    """Raise InvalidArgumentError if a base is given for a value that is an object already."""
    if base is not None:
        raise InvalidArgumentError(
            "base is given, but the value is an Array, whose object is there already; leave base "
            "out, or put hoplite_ray.get(the Array)"
        )


def put_delta(
    here: Attachment,
    encoded: Encoded,
    base: Gettable | None,
    deadline: float | None,
    timeout_s: float | None,
) -> HandleRecipe | None:
    """Put the delta that leads from a base to a value.

    Returns: what the value's handle says of it; None without a base, or if no delta is worth it.
    Raises:  InvalidArgumentError for a base of another layout; as `get` of the base's handle.
    """
    if base is None:
        return None
    older = _find_base(base, deadline, timeout_s)
    layout = encoded.layout
    if older._layout != layout:
        raise InvalidArgumentError(
            f"base {older!r} has another layout than the value, a {layout}: "
            f"{older._layout.difference(layout)}; put the value without base"
        )
    if choose_limit_bytes(layout.size_bytes) == 0:
        return None
    try:
        view = here.store_by(deadline).begin_view(older._object_id).result(left_s(deadline))
    except ObjectLostError:
        return None
    memory: Any = view  # a buffer, which its stub can't say
    delta = find_delta(layout, memory, encoded.data)
    if delta is None:
        return None
    bytes_of_delta = encode(np.asarray(delta))
    with own_object(here, bytes_of_delta.layout, deadline) as (ref, incarnation):
        here.put(ref.binary(), bytes_of_delta, incarnation=incarnation, timeout_s=left_s(deadline))
    return HandleRecipe(
        base=Attempt(older._object_id, view.incarnation),
        delta=ref,
        delta_incarnation=incarnation,
        block_bytes=view.block_bytes,  # equal sizes are cut alike on all nodes of a cluster
        crc32c=_native.describe_delta(memoryview(delta))["new_crc"],
    )


def _find_base(base: Any, deadline: float | None, timeout_s: float | None) -> Array:
    """Return the sealed handle of a base. Raises: WrongTypeError; as `get` of the handle."""
    (item,) = gettables(base, "put(base=...)")
    value: Any = item
    if not isinstance(item, Array):
        (value,) = ray_values([item], deadline, timeout_s)
    if not isinstance(value, Array):
        raise InvalidArgumentError(
            f"base {base!r} holds no array of the store; give the ref of an older put"
        )
    value._seal(deadline)
    return value
