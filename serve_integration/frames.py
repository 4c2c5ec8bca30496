"""Python values as one array of bytes, and back: a pickle, and the buffers that it leaves out.

    u32 number of messages; for each u32 number of its buffers and u64 lengths: the pickle's, theirs
    then all bytes, each buffer at a multiple of 64

Arrays come out as views of what was received, which may be read-only.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray import cloudpickle

_ALIGNED = 64  # of each buffer: what vector instructions and caches want

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Packed:
    """A value, pickled; its buffers are still the value's own."""

    parts: tuple[memoryview | bytes, ...]
    size_bytes: int


def packed(value: Any) -> Packed:
    """Pickle a value. Cost: no copy of the arrays in it."""
    buffers: list[pickle.PickleBuffer] = []
    body: bytes = cloudpickle.dumps(  # type: ignore[no-untyped-call]
        value, protocol=5, buffer_callback=buffers.append
    )
    parts: tuple[memoryview | bytes, ...] = (body, *(buffer.raw() for buffer in buffers))
    return Packed(parts, sum(_rounded(len(part)) for part in parts))


def framed(messages: Sequence[Packed], empty: Callable[[int], Bytes]) -> Bytes:
    """Write messages into one array, which `empty` makes. Cost: one copy of all bytes."""
    lengths = [[len(part) for part in message.parts] for message in messages]
    head = struct.pack(f"<I{len(messages)}I", len(messages), *map(len, lengths))
    flat = [length for each in lengths for length in each]
    head += struct.pack(f"<{len(flat)}Q", *flat)
    frame = empty(_rounded(len(head)) + sum(message.size_bytes for message in messages))
    at = 0
    for part in (head, *(part for message in messages for part in message.parts)):
        frame[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += _rounded(len(part))
    return frame


def unframed(frame: Bytes) -> list[Any]:
    """Return the messages of a frame."""
    view = frame.data
    (count,) = struct.unpack_from("<I", view)
    counts = struct.unpack_from(f"<{count}I", view, 4)
    lengths = struct.unpack_from(f"<{sum(counts)}Q", view, 4 + 4 * count)
    at, number, messages = _rounded(4 + 4 * count + 8 * sum(counts)), 0, []
    for parts in counts:
        views = []
        for length in lengths[number : number + parts]:
            views.append(view[at : at + length])
            at += _rounded(length)
        number += parts
        messages.append(pickle.loads(views[0], buffers=views[1:]))
    return messages


def _rounded(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
