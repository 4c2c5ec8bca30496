"""Makes puts and Arrays: a small value with its bytes, a larger one as an object of this node."""

from __future__ import annotations

from functools import partial

import ray

from hoplite_ray.plugin.handle.array import SMALL_BYTES_MAX, Array, PutHandle, small_of
from hoplite_ray.plugin.handle.fetching import in_thread, put_async_of
from hoplite_ray.plugin.handle.writable import SmallWritable, Writable
from hoplite_ray.plugin.process import ids
from hoplite_ray.plugin.process.attachment import Attachment, attachment
from hoplite_ray.plugin.process.known_puts import KnownPut
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.values.codec import Encoded, Template
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.layout import Layout


def is_small(layout: Layout) -> bool:
    """Return True if a value travels in its handle."""
    return layout.size_bytes <= SMALL_BYTES_MAX


def put_small(here: Attachment, encoded: Encoded) -> Ref:
    """Put a value that travels in its handle, and return the ref."""
    incarnation = ids.incarnation()
    data = b"".join(encoded.data)
    ref: Ref = ray.put(PutHandle(incarnation, encoded.layout, data))
    here.known_puts.add(ref.binary(), KnownPut(incarnation, small_of(encoded.layout, data)))
    return ref


def make_small(encoded: Encoded) -> Array:
    """Return the running task's next array, with its bytes. REQUIRES: this process is attached."""
    data = b"".join(encoded.data)
    return Array(ids.next_array_id(), ids.incarnation(), encoded.layout, None, data=data)


def make(encoded: Encoded, *, timeout_s: float | None = None) -> Array:
    """Return the running task's next array; an anchor of a steward keeps a large one alive."""
    if is_small(encoded.layout):
        attachment(deadline_in(timeout_s))
        return make_small(encoded)
    here, anchor, timeout_s = _take_anchor(timeout_s)
    object_id, incarnation = _name_next(here, anchor)
    here.put(object_id, encoded, incarnation=incarnation, timeout_s=timeout_s)
    return Array(object_id, incarnation, encoded.layout, anchor, made_by=seams.task_id())


async def make_async(
    here: Attachment, anchor: Ref, encoded: Encoded, *, timeout_s: float | None
) -> Array:
    """Like `make` of a large value, but awaitable, and with an anchor that the caller has taken."""
    object_id, incarnation = _name_next(here, anchor)
    await put_async_of(object_id, encoded, incarnation, timeout_s)
    return Array(object_id, incarnation, encoded.layout, anchor, made_by=seams.task_id())


def make_empty(template: Template, timeout_s: float | None) -> Array:
    """Reserve the running task's next array, which the caller writes until it is sealed."""
    if is_small(template.layout):
        attachment(deadline_in(timeout_s))
        return make_small_empty(template)
    here, anchor, timeout_s = _take_anchor(timeout_s)
    object_id, incarnation = _name_next(here, anchor)
    writing = Writable(here, object_id, incarnation, template, timeout_s=timeout_s)
    made_by = seams.task_id()
    return Array(object_id, incarnation, writing.layout, anchor, made_by=made_by, writing=writing)


def make_small_empty(template: Template) -> Array:
    """Like `make_empty`, for a small layout. REQUIRES: this process is attached."""
    writing = SmallWritable(template)
    return Array(ids.next_array_id(), ids.incarnation(), writing.layout, None, writing=writing)


async def make_empty_async(
    here: Attachment,
    anchor: Ref,
    template: Template,
    *,
    timeout_s: float | None,
) -> Array:
    """Like `make_empty`, but awaitable, and with an anchor that the caller has taken."""
    object_id, incarnation = _name_next(here, anchor)
    reserve = partial(Writable, here, object_id, incarnation, template)
    writing = await in_thread(deadline_in(timeout_s), reserve, timeout_s=timeout_s)
    made_by = seams.task_id()
    return Array(object_id, incarnation, writing.layout, anchor, made_by=made_by, writing=writing)


def _take_anchor(timeout_s: float | None) -> tuple[Attachment, Ref, float | None]:
    """Return the attachment, an anchor, and the rest of `timeout_s`."""
    deadline = deadline_in(timeout_s)
    here = attachment(deadline)
    return here, here.anchors.take(left_s(deadline)), left_s(deadline)


def _name_next(here: Attachment, anchor: Ref) -> tuple[bytes, int]:
    """Return the next array's id and incarnation, which the journal has before it exists."""
    object_id = ids.next_array_id()
    incarnation = ids.incarnation()
    here.journal.record_anchored(object_id, anchor.binary(), incarnation)
    return object_id, incarnation
