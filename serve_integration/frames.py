"""Python values as one array of bytes, and back: a pickle, and the buffers that it leaves out.

    u32 number of messages
    for each of them u32 kind, u32 number of parts, u64 number
    for each part u64 length: of the pickle, then of its buffers
    all parts, each at a multiple of 64

Arrays come out as views of what was received, which may be read-only. Those on GPUs follow a frame
by themselves (gpu_arrays.py); a bit of their message's kind says that its last part describes them.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ray import cloudpickle

from hoplite_ray.serve import gpu_arrays

_ALIGNED = 64  # of each part: what vector instructions and caches want
_COUNT, _MESSAGE, _LENGTH = struct.Struct("<I"), struct.Struct("<IIQ"), struct.Struct("<Q")

_ON_GPU = 1 << 31

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Part = memoryview | bytes


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its kind and number, and its value as it travels.

    arrays:       on GPUs, which go or came beside the parts.
    description:  of those that are still to come.
    """

    kind: int
    number: int
    parts: tuple[Part, ...]
    arrays: Sequence[Any] = ()
    description: Part | None = None

    @classmethod
    def packed(cls, kind: int, number: int, value: Any, device: int | None = None) -> Message:
        """Pickle a value. Cost: no copy of the arrays in it.

        device:  the GPU whose arrays are left out; None: all arrays are on the host.
        """
        body, buffers, arrays = _pickled(value, device)
        parts: tuple[Part, ...] = (body, *(buffer.raw() for buffer in buffers))
        return cls(kind, number, parts, arrays, gpu_arrays.described(arrays) if arrays else None)

    def with_arrays(self, arrays: Sequence[Any]) -> Message:
        """Return it with those that have come."""
        return replace(self, arrays=arrays)

    def value(self) -> Any:
        """Return the value. Raises whatever its class does."""
        if self.arrays:
            return gpu_arrays.unpickled(self.parts[0], self.parts[1:], self.arrays)
        return pickle.loads(self.parts[0], buffers=self.parts[1:])

    @property
    def gpu_bytes(self) -> int:
        """Of its arrays on GPUs."""
        return sum(int(array.nbytes) for array in self.arrays)

    @property
    def total_bytes(self) -> int:
        """Of all that goes over an edge."""
        return self.size_bytes + self.gpu_bytes

    @property
    def framed_parts(self) -> tuple[Part, ...]:
        """All that a frame has of it."""
        return self.parts if self.description is None else (*self.parts, self.description)

    @property
    def framed_kind(self) -> int:
        """Its kind, and whether there is a description."""
        return self.kind if self.description is None else self.kind | _ON_GPU

    @property
    def size_bytes(self) -> int:
        """Of its parts in a frame."""
        return sum(_rounded(len(part)) for part in self.framed_parts)


def framed(messages: Sequence[Message], empty: Callable[[int], Bytes]) -> Bytes:
    """Write messages into one array, which `empty` makes. Cost: one copy of all bytes."""
    parts = [part for message in messages for part in message.framed_parts]
    head = b"".join(
        (
            _COUNT.pack(len(messages)),
            *(
                _MESSAGE.pack(each.framed_kind, len(each.framed_parts), each.number)
                for each in messages
            ),
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
        description = views.pop() if kind & _ON_GPU else None
        message = Message(kind & ~_ON_GPU, number, tuple(views), description=description)
        messages.append(message)
    return messages


def _pickled(
    value: Any, device: int | None
) -> tuple[bytes, list[pickle.PickleBuffer], Sequence[Any]]:
    """Pickle by reference what the other process can import, else by value.

    cloudpickle does both, and takes twice as long over an array.
    """
    buffers: list[pickle.PickleBuffer] = []
    arrays: Sequence[Any] = ()
    with contextlib.suppress(Exception):
        if device is None:
            body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        else:
            body, arrays = gpu_arrays.pickled(value, device, buffers.append, by_value=False)
        if b"__main__" not in body:
            return body, buffers, arrays
    buffers = []
    if device is None:
        body = cloudpickle.dumps(  # type: ignore[no-untyped-call]
            value, protocol=5, buffer_callback=buffers.append
        )
    else:
        body, arrays = gpu_arrays.pickled(value, device, buffers.append, by_value=True)
    return body, buffers, arrays


def _rounded(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
