"""Python values as one array of bytes, and back: a pickle, and the buffers that it leaves out.

    u64 number of messages
    for each of them u64 kind, u64 number of parts, u64 number
    for each part u64 length: of the pickle, then of its buffers
    all parts, each at a multiple of 64

Arrays come out as views of the received frame, which may be read-only. Arrays on GPUs follow the
frame (gpu_arrays.py); a bit of their message's kind says that its last part describes them. Handles
of Ray travel beside the frame (handles.py); another bit says that the part before has their lender.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import pickle
import struct
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray import cloudpickle

from hoplite_ray.serve.edge import gpu_arrays, handles

_ALIGNED = 64  # bytes, of each part: a cache line, and the widest vector load
_WORD = 8
_HEAD = 3  # words of each message
_SMALL = 16 << 10  # bytes; numpy takes longer to begin a smaller copy than to make it

_ON_GPU, _LENT = 1 << 31, 1 << 30

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Part = memoryview | bytes
_Add = Callable[[Any], Any]


@dataclass(slots=True)
class Message:
    """A message: its kind and number, and its value as it travels.

    arrays:       those on GPUs, which travel beside the parts.
    description:  of these arrays, as it travels.
    size_bytes:   of its parts in a frame; 0 for a message that came.
    handles:      of Ray's objects in the value, which travel beside the frame.
    lender:       the actor that lends the handles, as it travels.
    """

    kind: int
    number: int
    parts: Sequence[Part]
    arrays: Sequence[Any] = ()
    description: Part | None = None
    size_bytes: int = 0
    handles: Sequence[Any] = ()
    lender: Part | None = None

    @classmethod
    def pack(cls, kind: int, number: int, value: Any, device: int | None = None) -> Message:
        """Pickle a value. Cost: no copy of the arrays in it.

        device:  the GPU whose arrays travel beside the parts; None: no GPU's.
        """
        body, buffers, arrays, kept = _pickle(value, device)
        parts: list[Part] = [body, *(buffer.raw() for buffer in buffers)]
        description = gpu_arrays.describe(arrays) if arrays else None
        size_bytes = sum(map(_round_up, map(len, parts)))
        if description is not None:
            size_bytes += _round_up(len(description))
        return cls(kind, number, parts, arrays, description, size_bytes, kept)

    def value(self) -> Any:
        """Return the value. Raises what its class raises when it is unpickled."""
        return _unpacked(self.parts, self.arrays, self.handles)

    def set_lender(self, lender: bytes) -> None:
        """Write into the message which actor lends its handles."""
        self.lender = lender
        self.size_bytes += _round_up(len(lender))

    @property
    def gpu_bytes(self) -> int:
        """The size of its arrays on GPUs."""
        return sum(int(array.nbytes) for array in self.arrays) if self.arrays else 0

    @property
    def total_bytes(self) -> int:
        """The size of all that goes over the edge for it."""
        return self.size_bytes + self.gpu_bytes


class Packed:
    """A value as it was when it was packed. It is unpickled as that value.

    Later writes into its arrays don't change it, except for arrays on GPUs.
    Cost: one copy of its arrays. Pickling it again costs no walk through the value.
    """

    __slots__ = ("_arrays", "_handles", "_parts")

    def __init__(self, value: Any) -> None:
        device = gpu_arrays.ANY if gpu_arrays.is_in_use() else None
        body, buffers, self._arrays, self._handles = _pickle(value, device)
        self._parts = [body, *(_copy(buffer.raw()) for buffer in buffers)]

    @property
    def handles(self) -> Sequence[Any]:
        """The handles of Ray's objects in the value."""
        return self._handles

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        parts = [pickle.PickleBuffer(each) for each in self._parts]
        return _unpacked, (parts, self._arrays, self._handles)


def find_handles(value: Any) -> Sequence[Any]:
    """Return the handles of Ray's objects in a value, as its message will have them.

    Raises:  what pickle raises for the value.
    Cost:    a pickle, without a copy of the arrays; nothing for a `Packed`.
    """
    if isinstance(value, Packed):
        return value.handles
    return _pickle(value, gpu_arrays.ANY if gpu_arrays.is_in_use() else None)[3]


def _copy(buffer: memoryview) -> Any:
    return bytes(buffer) if len(buffer) < _SMALL else np.frombuffer(buffer, np.uint8).copy()


def _unpacked(parts: Sequence[Any], arrays: Sequence[Any], kept: Sequence[Any]) -> Any:
    with handles.supply(kept) if kept else contextlib.nullcontext():
        if arrays:
            return gpu_arrays.unpickle(parts[0], parts[1:], arrays)
        return pickle.loads(parts[0], buffers=parts[1:])


def pack_frame(messages: Sequence[Message], empty: Callable[[int], Bytes]) -> Bytes:
    """Write messages into one array, which `empty` makes. Cost: one copy of all bytes."""
    words: list[int] = [len(messages)]
    parts: list[Part] = []
    size_bytes = 0
    for each in messages:
        own, kind = each.parts, each.kind
        if each.lender is not None:
            own, kind = [*own, each.lender], kind | _LENT
        if each.description is not None:
            own, kind = [*own, each.description], kind | _ON_GPU
        words += (kind, len(own), each.number)
        parts += own
        size_bytes += each.size_bytes
    words += map(len, parts)
    at = _round_up(_WORD * len(words))
    frame = empty(at + size_bytes)
    view = frame.data
    struct.pack_into(f"<{len(words)}Q", view, 0, *words)
    for part in parts:
        size = len(part)
        if size < _SMALL:
            view[at : at + size] = part
        else:
            frame[at : at + size] = np.frombuffer(part, np.uint8)
        at += _round_up(size)
    return frame


def unpack_frame(frame: Bytes) -> list[Message]:
    """Return the messages of a frame."""
    view = frame.data
    (count,) = struct.unpack_from("<Q", view)
    heads = struct.unpack_from(f"<{_HEAD * count}Q", view, _WORD)
    lengths_at = _WORD * (1 + _HEAD * count)
    lengths = iter(struct.unpack_from(f"<{sum(heads[1::_HEAD])}Q", view, lengths_at))
    at = _round_up(lengths_at + _WORD * sum(heads[1::_HEAD]))
    messages = []
    for first in range(0, _HEAD * count, _HEAD):
        kind, parts, number = heads[first : first + _HEAD]
        views: list[Part] = []
        for _ in range(parts):
            length = next(lengths)
            views.append(view[at : at + length])
            at += _round_up(length)
        description = views.pop() if kind & _ON_GPU else None
        lender = views.pop() if kind & _LENT else None
        kind &= ~(_ON_GPU | _LENT)
        messages.append(Message(kind, number, views, (), description, lender=lender))
    return messages


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    dtype = array.dtype
    if dtype.kind in "biufc" and dtype.isbuiltin == 1 and array.flags.c_contiguous:
        buffer = pickle.PickleBuffer(array)  # type: ignore[arg-type]
        return np.ndarray, (array.shape, dtype.char, buffer)
    return array.__reduce_ex__(5)


class _Table(dict[type, Callable[[Any], Any]]):
    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        return copyreg.dispatch_table[kind]


class _Pickler(pickle.Pickler):
    """Pickles by reference. An array takes half the time of numpy's own way, without its dtype."""

    def __init__(self, into: io.BytesIO, buffers: _Add, extract_handle: handles.Reducer) -> None:
        self.dispatch_table = _Table(
            {np.ndarray: _reduce_array, **dict.fromkeys(handles.KINDS, extract_handle)}
        )
        super().__init__(into, protocol=5, buffer_callback=buffers)


class _ByValue(cloudpickle.Pickler):
    """Pickles by value what the other process can't import. An array takes twice the time."""

    def __init__(self, into: io.BytesIO, buffers: _Add, extract_handle: handles.Reducer) -> None:
        self.dispatch_table = ChainMap(
            dict.fromkeys(handles.KINDS, extract_handle), cloudpickle.Pickler.dispatch_table
        )
        super().__init__(  # type: ignore[no-untyped-call]
            into, protocol=5, buffer_callback=buffers
        )


_PickleParts = tuple[bytes, list[pickle.PickleBuffer], Sequence[Any], Sequence[Any]]


def _pickle(value: Any, device: int | None) -> _PickleParts:
    """Pickle a value by reference; by value if a class or function of the program is in it.

    Returns: the pickle, and what it leaves out: buffers, arrays on that GPU, and handles.
    """
    with contextlib.suppress(Exception):
        pickled = _pickle_with(_Pickler, value, device)
        if b"__main__" not in pickled[0]:
            return pickled
    return _pickle_with(_ByValue, value, device)


def _pickle_with(kind: type[_Pickler | _ByValue], value: Any, device: int | None) -> _PickleParts:
    into, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    kept = handles.OutOfBandHandles()
    pickler = kind(into, buffers.append, kept.extract)
    arrays: Sequence[Any] = ()
    if device is not None:
        out_of_band = gpu_arrays.OutOfBandArrays(device)
        pickler.persistent_id = out_of_band.extract  # type: ignore[method-assign]
        arrays = out_of_band.arrays
    pickler.dump(value)
    return into.getvalue(), buffers, arrays, kept.handles


def _round_up(length: int) -> int:
    return (length + _ALIGNED - 1) & -_ALIGNED
