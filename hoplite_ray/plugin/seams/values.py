"""Private names of Ray for values and errors that stay pickled.

Written against Ray 2.60 and 2.61; tests/ray/test_apart.py tests each function.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from google.protobuf.message import DecodeError
from ray._private import ray_constants
from ray._private.serialization import _object_ref_deserializer
from ray._raylet import (  # type: ignore[attr-defined]
    MessagePackSerializer,
    split_buffer,
    unpack_pickle5_buffers,
)
from ray.core.generated.common_pb2 import (  # type: ignore[attr-defined]
    ErrorType,
    RayErrorInfo,
    RayException,
)

from hoplite_ray.plugin.seams.core import Ref

_PYTHON = ray_constants.OBJECT_METADATA_TYPE_PYTHON
_VALUES = (
    _PYTHON,
    ray_constants.OBJECT_METADATA_TYPE_CROSS_LANGUAGE,
    ray_constants.OBJECT_METADATA_TYPE_RAW,
    ray_constants.OBJECT_METADATA_TYPE_ACTOR_HANDLE,
)
_REF = (_object_ref_deserializer.__module__, _object_ref_deserializer.__name__)


def _worker() -> Any:
    return ray._private.worker.global_worker


@dataclass(frozen=True, slots=True)
class Unread:
    """An object in Ray's own form; nothing in it has been unpickled."""

    ref: Ref
    data: Any
    metadata: bytes

    @property
    def kind(self) -> bytes:
        return self.metadata.partition(b",")[0]


def fetch_unread(ref: Ref, timeout_s: float) -> Unread | None:
    """Return the object of `ref`, which is ready; None if it has not come within `timeout_s`."""
    try:
        ((data, metadata, _),) = _worker().core_worker.get_objects([ref], int(timeout_s * 1000))
    except ray.exceptions.GetTimeoutError:
        return None
    return Unread(ref, data, metadata)


def fetch_all_unread(refs: Sequence[Ref], timeout_s: float) -> list[Unread | None]:
    """Return the objects of `refs`, which are ready; None for each that has not come.

    Ray brings only some if one is a task's error, and none if one does not come in time.
    """
    if not refs:
        return []
    try:
        found = _worker().core_worker.get_objects(list(refs), int(timeout_s * 1000))
    except ray.exceptions.GetTimeoutError:
        return [None] * len(refs)
    return [
        None if metadata is None else Unread(ref, data, metadata)
        for ref, (data, metadata, _) in zip(refs, found, strict=True)
    ]


def read_value(unread: Unread, names: Mapping[tuple[str, str], Any]) -> Any:
    """Return the value, if its pickle refers to `names` (module, name) and refs only; else None.

    Nothing else is imported or called.
    """
    if unread.kind != _PYTHON:
        return None
    context = _worker().get_serialization_context()
    local = context._thread_local
    if not hasattr(local, "object_ref_stack"):
        local.object_ref_stack = []
    packed, pickled = split_buffer(unread.data)
    in_band, buffers = unpack_pickle5_buffers(pickled)
    local.object_ref_stack.append(unread.ref)  # refs in the value are known as of this object
    try:
        objects = _Unpickler(in_band, buffers, names).load()
        return MessagePackSerializer.loads(packed, lambda index: objects[index])
    except pickle.UnpicklingError:
        return None
    finally:
        local.object_ref_stack.pop()


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: Any, buffers: Any, names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._names = {**names, _REF: _object_ref_deserializer}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self._names[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is not read") from None


def failure_in(unread: Unread) -> bytes | Exception | None:
    """Return the error with which the task of an object has failed; None if it is a value.

    Bytes are the message of an error that may have a user's class. `error_of` reads it, in a
    process that has the class.
    """
    if unread.kind in _VALUES:
        return None
    context = _worker().get_serialization_context()
    fields = unread.metadata.split(b",")
    kind = int(unread.kind)
    if kind == ErrorType.Value("TASK_EXECUTION_EXCEPTION"):
        return bytes(context._deserialize_msgpack_data(unread.data, fields))
    if kind == ErrorType.Value("ACTOR_DIED") and unread.data:
        error = RayErrorInfo.FromString(context._deserialize_msgpack_data(unread.data, fields))
        if error.actor_died_error.HasField("creation_task_failure_context"):
            failure = error.actor_died_error.creation_task_failure_context
            return bytes(failure.SerializeToString())
    (error,) = context.deserialize_objects([(unread.data, unread.metadata, None)], [unread.ref], {})
    assert isinstance(error, Exception)
    return error


def error_of(message: bytes) -> BaseException:
    """Return the error of a message; Ray's UnserializableException if its class is missing."""
    error = ray.exceptions.RayError.from_bytes(message)  # type: ignore[no-untyped-call]
    assert isinstance(error, BaseException)
    return error


def text_of(message: bytes) -> str:
    """Return Ray's text of the error of a message, with the traceback."""
    try:
        return str(RayException.FromString(message).formatted_exception_string)
    except DecodeError:
        return "an error of which Ray knows no text"
