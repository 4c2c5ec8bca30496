"""The store as tensor transports of Ray: `hoplite` for torch's tensors, `hoplite_numpy` for arrays.

The arrays of a result, or of a ray.put, are one object of the store. An anchor keeps it alive, like
the object of an `array`. Its Route is in the value that Ray keeps, so the object lives as long as
that value. A process that has the value can fetch the arrays, and waits for no push of its owner.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ray.experimental import CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata
from ray.experimental.rdt.tensor_transport_manager import FetchRequest

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.handle.fetching import PendingValue
from hoplite_ray.plugin.process import ids, job_options
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.seams import direct as direct_seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.store import new_id
from hoplite_ray.values.codec import encode


class Route:
    """The object that has the arrays of a value. It travels in the value, with its anchor."""

    __slots__ = ("_anchor", "_arrays", "incarnation", "object_id")

    def __init__(self, object_id: bytes, incarnation: int, anchor: Ref) -> None:
        self.object_id = object_id
        self.incarnation = incarnation
        self._anchor = anchor
        self._arrays: list[Any] | None = None

    @classmethod
    def new(cls) -> Route:
        """Return a new route; the object that is put there goes with it."""
        here = attachment()
        route = cls(new_id(), ids.incarnation(), here.anchors.take())
        here.journal.record_anchored(route.object_id, route._anchor.binary(), route.incarnation)
        return route

    def arrays(self) -> list[Any]:
        """Return the arrays, which are fetched once."""
        if self._arrays is None:
            with direct_seams.let_others_unpickle():
                self._arrays = PendingValue(self.object_id, self.incarnation).result(None)
        return self._arrays

    def __reduce__(self) -> tuple[Any, ...]:
        return Route, (self.object_id, self.incarnation, self._anchor)


class _Pickling(threading.local):
    """The value that this thread pickles for a transport."""

    route: Route


_pickling = _Pickling()


def begin_pickling() -> None:
    """Note that this thread begins to pickle a value for a transport."""
    need_flag()
    _pickling.route = Route.new()


def stand_in(index: int) -> tuple[Any, ...]:
    """Return the function and arguments as which an array is pickled."""
    return _array, (index, _pickling.route)


def _array(index: int, route: Route) -> Any:
    return (direct_seams.arrays_at_hand() or route.arrays())[index]


@dataclass
class Carried(TensorTransportMetadata):
    """Ray's record of an object for processes that have its ref: its id, shapes and dtypes."""

    object_id: bytes = b""
    incarnation: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _told, (self.tensor_meta, self.tensor_device, self.object_id, self.incarnation)


def _told(*fields: Any) -> Carried:
    need_flag()  # a process that has a ref may pass it on
    return Carried(*fields)


NOTHING = Carried([], "cpu")  # for an object that is not there yet, or that has no arrays


@dataclass(eq=False)
class Fetch(FetchRequest):
    """A fetch under way; it is cancelled when no reference to this is left."""

    pending: PendingValue | None
    targets: Sequence[Any] | None

    __hash__ = object.__hash__

    def cancel(self) -> None:
        if self.pending is not None:
            self.pending.cancel()

    __del__ = cancel


class StoreTransport(TensorTransportManager):
    """A transport in one process. Ray calls it, on any thread."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self._fetches: weakref.WeakSet[Fetch] = weakref.WeakSet()

    def tensor_transport_backend(self) -> str:
        return self.name

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Return True: every actor of a job with the flag can produce. Its caller asks."""
        need_flag()
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Carried:
        """Put the arrays of the value that this thread has pickled.

        Raises: as `hoplite_ray.put`.
        Cost:   one copy of the bytes, on this node; Ray keeps the arrays themselves as well.
        """
        route = _pickling.route
        del _pickling.route  # its anchor is the value's, if that has arrays
        if len(rdt_object) == 0:
            return NOTHING
        arrays = [each.detach() if hasattr(each, "detach") else each for each in rdt_object]
        attachment().put(
            route.object_id, encode(arrays), incarnation=route.incarnation, timeout_s=None
        )
        shapes = [(each.shape, each.dtype) for each in arrays]
        return Carried(shapes, "cpu", route.object_id, route.incarnation)

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        between: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Fetch an object's arrays."""
        return self.wait_fetch_complete(
            self.fetch_multiple_tensors(obj_id, tensor_transport_metadata, between, target_buffers)
        )

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        between: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        """Start to fetch an object's arrays, if it is known, and return at once."""
        known: Carried = tensor_transport_metadata
        pending = PendingValue(known.object_id, known.incarnation) if known.object_id else None
        fetch = Fetch(obj_id, [], pending, target_buffers)
        self._fetches.add(fetch)
        return fetch

    def wait_fetch_complete(self, fetch_request: Any, timeout: float = -1) -> list[Any]:
        """Return the caller's own arrays, or the filled targets; no array if the object is unknown.

        Raises: GetTimeoutError, RequestCancelledError after `abort_transport`, ObjectLostError.
        """
        if fetch_request.pending is None:
            return []
        arrays: list[Any] = fetch_request.pending.result(None if timeout < 0 else timeout)
        if fetch_request.targets is None:
            return arrays
        for target, array in zip(fetch_request.targets, arrays, strict=True):
            target[...] = array
        return list(fetch_request.targets)

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        between: CommunicatorMetadata,
    ) -> None:
        raise AssertionError("of a one-sided transport readers fetch; nobody sends")

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Any]
    ) -> None:
        """Do nothing: the object goes with its anchor, whether its producer lives or not."""

    def abort_transport(self, obj_id: str, between: CommunicatorMetadata) -> None:
        """Cancel all fetches of the object that are under way in this process."""
        for each in list(self._fetches):
            if each.obj_id == obj_id:
                each.cancel()


class TorchTransport(StoreTransport):
    name = "HOPLITE"


class NumpyTransport(StoreTransport):
    name = "HOPLITE_NUMPY"


def need_flag() -> None:
    """Raise HopliteError without the flag, because workers without it would wait for ever."""
    if not job_options.is_given():
        raise HopliteError(
            "the tensor transports need this package in every worker: call hoplite_ray.init() "
            "instead of ray.init()"
        )
