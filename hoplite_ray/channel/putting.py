"""Puts a value beside an older one: the whole, and the delta between them as another object."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from hoplite_ray import _native
from hoplite_ray.channel.draft import Draft
from hoplite_ray.channel.steps import Steps, Within
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import GetTimeoutError, HopliteError, StoreFullError
from hoplite_ray.unsealed import Unsealed
from hoplite_ray.values.codec import Encoded, freeze_arrays, lay_out
from hoplite_ray.values.deltas import find_delta
from hoplite_ray.values.recipe import Delta

# A delta that finds no room in this time is not made: readers then take the whole.
_ROOM_S = 2.0


def put_draft(store: StoreClient, object_id: bytes, draft: Draft) -> Steps[None]:
    """Have a value written where it will lie."""
    memory = store.begin_empty(object_id, draft.template)
    unsealed = memory if isinstance(memory, Unsealed) else (yield memory)
    draft.write(unsealed.value)
    yield unsealed


def put_beside(
    store: StoreClient, object_id: bytes, value: Encoded | Draft, base: Any, delta_id: bytes
) -> Steps[Delta | None]:
    """Put a value, and before it its delta from an older one, if that is worth its bytes.

    Args:    value: larger than what travels inside of messages. A draft is written in place, and
             compared afterwards.
             base: the older value's memory, of the same layout. It is not needed after the compare.
             delta_id: of the object that the delta becomes.
    Returns: what a reader needs to know of the delta; None if there is none.
    Raises:  as `begin_put`. The delta may be left.
    Cost:    one pass over both values, which also copies; memory of the process for the delta.
    """
    layout = value.layout
    reserved = yield store.begin_reserve(object_id, layout)
    if isinstance(value, Draft):
        written = lay_out(value.template, reserved)
        value.write(written)
        freeze_arrays(written)
        delta = yield partial(find_delta, layout, base, [memoryview(reserved)])
    else:
        delta = yield partial(find_delta, layout, base, value.data, target=reserved)
    if delta is not None:
        try:
            yield Within(store.begin_put(delta_id, np.asarray(delta)), _ROOM_S)
        except (GetTimeoutError, StoreFullError):
            delta = None
            with suppress(HopliteError):  # it may be whole, and no record will name it
                yield store.begin_delete(delta_id)
    yield store.begin_seal(object_id, reserved)
    if delta is None:
        return None
    view = yield store.begin_view(object_id)
    crc32c = _native.describe_delta(delta)["new_crc"]
    return Delta(delta.nbytes, crc32c, view.block_bytes)
