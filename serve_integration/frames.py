"""Python values as one array of bytes, and back: a pickle, and the buffers that it leaves out.

    u32 number of messages
    for each of them u32 kind, u32 number of parts, u64 number
    for each part u64 length: of the pickle, then of its buffers
    all parts, each at a multiple of 64

Arrays come out as views of what was received, which may be read-only.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray import cloudpickle

_ALIGNED = 64  # of each part: what vector instructions and caches want
_COUNT, _MESSAGE, _LENGTH = struct.Struct("<I"), struct.Struct("<IIQ"), struct.Struct("<Q")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Part = memoryview | bytes


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its kind and number, and its value as it travels."""

    kind: int
    number: int
    parts: tuple[Part, ...]

    @classmethod
    def packed(cls, kind: int, number: int, value: Any) -> Message:
        """Pickle a value. Cost: no copy of the arrays in it."""
        body, buffers = _pickled(value)
        return cls(kind, number, (body, *(buffer.raw() for buffer in buffers)))

    def value(self) -> Any:
        """Return the value. Raises whatever its class does."""
        return pickle.loads(self.parts[0], buffers=self.parts[1:])

    @property
    def size_bytes(self) -> int:
        """Of its parts in a frame."""
        return sum(_rounded(len(part)) for part in self.parts)


def framed(messages: Sequence[Message], empty: Callable[[int], Bytes]) -> Bytes:
    """Write messages into one array, which `empty` makes. Cost: one copy of all bytes."""
    parts = [part for message in messages for part in message.parts]
    head = b"".join(
        (
            _COUNT.pack(len(messages)),
            *(_MESSAGE.pack(each.kind, len(each.parts), each.number) for each in messages),
            *(_LENGTH.pack(len(part)) for part in parts),
        )
    )
    frame = empty(_rounded(len(head)) + sum(message.size_bytes for message in messages))
    at = 0
    for part in (head, *parts):
        frame[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += _rounded(len(part))
    return frame


def unframed(frame: Bytes) -> list[Message]:
    """Return the messages of a frame."""
    view = frame.data
    (count,) = _COUNT.unpack_from(view)
    heads = [
        _MESSAGE.unpack_from(view, _COUNT.size + _MESSAGE.size * each) for each in range(count)
    ]
    length_at = _COUNT.size + _MESSAGE.size * count
    at = _rounded(length_at + _LENGTH.size * sum(parts for _, parts, _ in heads))
    messages = []
    for kind, parts, number in heads:
        views: list[Part] = []
        for _ in range(parts):
            (length,) = _LENGTH.unpack_from(view, length_at)
            views.append(view[at : at + length])
            length_at += _LENGTH.size
            at += _rounded(length)
        messages.append(Message(kind, number, tuple(views)))
    return messages


def _pickled(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle by reference what the other process can import, else by value.

    cloudpickle does both, and takes twice as long over an array.
    """
    buffers: list[pickle.PickleBuffer] = []
    with contextlib.suppress(Exception):
        body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        if b"__main__" not in body:
            return body, buffers
    buffers = []
    body = cloudpickle.dumps(  # type: ignore[no-untyped-call]
        value, protocol=5, buffer_callback=buffers.append
    )
    return body, buffers


def _rounded(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
