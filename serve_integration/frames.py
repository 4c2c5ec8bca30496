"""Python values as one array of bytes, and back: a pickle, and the buffers that it leaves out.

    u64 number of messages
    for each of them u64 kind, u64 number of parts, u64 number
    for each part u64 length: of the pickle, then of its buffers
    all parts, each at a multiple of 64

Arrays come out as views of what was received, which may be read-only. Those on GPUs follow a frame
by themselves (gpu_arrays.py); a bit of their message's kind says that its last part describes them.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray import cloudpickle

from hoplite_ray.serve import gpu_arrays

_ALIGNED = 64  # of each part: what vector instructions and caches want
_WORD = 8
_HEAD = 3  # words of each message
_SMALL = 16 << 10  # below it numpy takes longer to begin a copy than to make it

_ON_GPU = 1 << 31

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Part = memoryview | bytes


@dataclass(slots=True)
class Message:
    """A message: its kind and number, and its value as it travels.

    arrays:       on GPUs, which go or came beside the parts.
    description:  of those.
    size_bytes:   of its parts in a frame, of one that was packed here.
    """

    kind: int
    number: int
    parts: Sequence[Part]
    arrays: Sequence[Any] = ()
    description: Part | None = None
    size_bytes: int = 0

    @classmethod
    def packed(cls, kind: int, number: int, value: Any, device: int | None = None) -> Message:
        """Pickle a value. Cost: no copy of the arrays in it.

        device:  the GPU whose arrays are left out; None: all arrays are on the host.
        """
        body, buffers, arrays = _pickled(value, device)
        parts: list[Part] = [body, *(buffer.raw() for buffer in buffers)]
        description = gpu_arrays.described(arrays) if arrays else None
        size_bytes = sum(map(_rounded, map(len, parts)))
        if description is not None:
            size_bytes += _rounded(len(description))
        return cls(kind, number, parts, arrays, description, size_bytes)

    def value(self) -> Any:
        """Return the value. Raises whatever its class does."""
        if self.arrays:
            return gpu_arrays.unpickled(self.parts[0], self.parts[1:], self.arrays)
        return pickle.loads(self.parts[0], buffers=self.parts[1:])

    @property
    def gpu_bytes(self) -> int:
        """Of its arrays on GPUs."""
        return sum(int(array.nbytes) for array in self.arrays) if self.arrays else 0

    @property
    def total_bytes(self) -> int:
        """Of all that goes over an edge."""
        return self.size_bytes + self.gpu_bytes


class Packed:
    """A value as it is when it is packed; it is unpickled as that value.

    What its maker writes into its arrays later is not in it, except for arrays on GPUs.
    Cost: one copy of its arrays; pickling it again costs no walk through the value.
    """

    __slots__ = ("_arrays", "_body", "_buffers")

    def __init__(self, value: Any) -> None:
        body, buffers, arrays = _pickled(value, gpu_arrays.ANY if gpu_arrays.in_use() else None)
        self._body = body
        self._buffers = [_copied(buffer.raw()) for buffer in buffers]
        self._arrays = arrays

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        buffers = [pickle.PickleBuffer(each) for each in (self._body, *self._buffers)]
        return _unpacked, (buffers, self._arrays)


def _copied(buffer: memoryview) -> Any:
    return bytes(buffer) if len(buffer) < _SMALL else np.frombuffer(buffer, np.uint8).copy()


def _unpacked(buffers: Sequence[Any], arrays: Sequence[Any]) -> Any:
    if arrays:
        return gpu_arrays.unpickled(buffers[0], buffers[1:], arrays)
    return pickle.loads(buffers[0], buffers=buffers[1:])


def framed(messages: Sequence[Message], empty: Callable[[int], Bytes]) -> Bytes:
    """Write messages into one array, which `empty` makes. Cost: one copy of all bytes."""
    words: list[int] = [len(messages)]
    parts: list[Part] = []
    size_bytes = 0
    for each in messages:
        own = each.parts if each.description is None else [*each.parts, each.description]
        kind = each.kind if each.description is None else each.kind | _ON_GPU
        words += (kind, len(own), each.number)
        parts += own
        size_bytes += each.size_bytes
    words += map(len, parts)
    at = _rounded(_WORD * len(words))
    frame = empty(at + size_bytes)
    view = frame.data
    struct.pack_into(f"<{len(words)}Q", view, 0, *words)
    for part in parts:
        size = len(part)
        if size < _SMALL:
            view[at : at + size] = part
        else:
            frame[at : at + size] = np.frombuffer(part, np.uint8)
        at += _rounded(size)
    return frame


def unframed(frame: Bytes) -> list[Message]:
    """Return the messages of a frame."""
    view = frame.data
    (count,) = struct.unpack_from("<Q", view)
    heads = struct.unpack_from(f"<{_HEAD * count}Q", view, _WORD)
    lengths_at = _WORD * (1 + _HEAD * count)
    lengths = iter(struct.unpack_from(f"<{sum(heads[1::_HEAD])}Q", view, lengths_at))
    at = _rounded(lengths_at + _WORD * sum(heads[1::_HEAD]))
    messages = []
    for first in range(0, _HEAD * count, _HEAD):
        kind, parts, number = heads[first : first + _HEAD]
        views: list[Part] = []
        for _ in range(parts):
            length = next(lengths)
            views.append(view[at : at + length])
            at += _rounded(length)
        description = views.pop() if kind & _ON_GPU else None
        messages.append(Message(kind & ~_ON_GPU, number, views, (), description))
    return messages


def _reduced(array: np.ndarray[Any, Any]) -> Any:
    dtype = array.dtype
    if dtype.kind in "biufc" and dtype.isbuiltin == 1 and array.flags.c_contiguous:
        buffer = pickle.PickleBuffer(array)  # type: ignore[arg-type]
        return np.ndarray, (array.shape, dtype.char, buffer)
    return array.__reduce_ex__(5)


class _Table(dict[type, Callable[[Any], Any]]):
    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        return copyreg.dispatch_table[kind]


class _Pickler(pickle.Pickler):
    """Takes half as long over an array as numpy's own way, whose dtype is an object of its own."""

    dispatch_table = _Table({np.ndarray: _reduced})


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
            into = io.BytesIO()
            _Pickler(into, 5, buffer_callback=buffers.append).dump(value)
            body = into.getvalue()
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
    return (length + _ALIGNED - 1) & -_ALIGNED
