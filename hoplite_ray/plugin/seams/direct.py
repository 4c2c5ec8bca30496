"""Private names of Ray Direct Transport, each behind one function that test_direct_seams.py names.

Written against Ray 2.60 and 2.61. Each function replaces a method of Ray's for the objects of some
transports, and calls Ray's own method for all other objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import contextmanager
from typing import Any

import ray
import ray.experimental.rdt.rdt_store
from ray import cloudpickle

from hoplite_ray.plugin.seams.core import Ref, is_ray_pickling

_Worker: Any = ray._private.worker.Worker
_Manager: Any = ray.experimental.RDTManager
_Store: Any = ray.experimental.rdt.rdt_store.RDTStore
_Context: Any = ray._private.serialization.SerializationContext


def make_readers_fetch(names: Collection[str]) -> None:
    """Have readers unpickle objects of these transports at once, and owners push no arrays.

    Ray's readers wait until the ref's owner has pushed the arrays. The owner pushes them to actors
    with enable_tensor_transport, for positional arguments. Any other reader would wait for ever.
    """
    deserialize = _Worker.deserialize_objects
    push = _Manager.queue_or_trigger_out_of_band_tensor_transfer

    def deserialize_objects(
        worker: Any, serialized: list[Any], refs: list[Any], rdt_objects: Any = None
    ) -> Any:
        if rdt_objects is None and any(each[2] in names for each in serialized):
            pairs = zip(refs, serialized, strict=True)
            ours = {ref.hex() for ref, each in pairs if each[2] in names}
            manager = worker.rdt_manager
            wanted = worker._get_rdt_ids(serialized, refs)
            rdt_objects = manager.get_rdt_objects(
                [
                    name
                    for name in wanted
                    if name not in ours or manager.rdt_store.is_primary_copy(name)
                ]
            )
        return deserialize(worker, serialized, refs, rdt_objects)

    def queue_or_trigger(manager: Any, actor: Any, arguments: Any) -> None:
        push(manager, actor, [each for each in arguments if transport_of(each) not in names])

    _Worker.deserialize_objects = deserialize_objects
    _Manager.queue_or_trigger_out_of_band_tensor_transfer = queue_or_trigger


def transport_of(argument: Any) -> str | None:
    """Return the tensor transport of a ref that this process knows; None for all else."""
    if not isinstance(argument, ray.ObjectRef):
        return None
    known = ray._private.worker.global_worker.rdt_manager.get_rdt_metadata(argument.hex())
    return None if known is None else str(known.tensor_transport_backend)


def arrays_at_hand() -> list[Any]:
    """Return the arrays of the object that Ray unpickles, if Ray has them."""
    worker: Any = ray._private.worker.global_worker
    context = worker.get_serialization_context()
    at_hand: list[Any] = getattr(context._thread_local, "rdt_tensors", [])
    return at_hand


@contextmanager
def let_others_unpickle() -> Any:
    """Let other threads unpickle in the body, while this thread unpickles an object for Ray."""
    unpickling: Any = ray._private.worker.global_worker.function_actor_manager.lock
    is_ours = unpickling._is_owned()
    if is_ours:
        unpickling.release()
    try:
        yield
    finally:
        if is_ours:
            unpickling.acquire()


def replace_pickling(
    names: Collection[str], begin: Callable[[], None], stand_in: Callable[[int], Any]
) -> None:
    """Call `begin` before a value is pickled, and pickle the n-th array in it as `stand_in(n)`.

    Arrays of other values are pickled out of band, as without a transport. Ray itself would copy
    each into the stream after the first use of a transport for its type.
    """
    serialize = _Context.serialize_rdt_objects

    def serialize_rdt_objects(context: Any, value: Any, transport: str) -> Any:
        context._thread_local.hoplite = transport if transport in names else None
        if transport in names:
            replaced = context.__dict__.setdefault("_hoplite", set())
            if transport not in replaced:
                serialize(context, None, transport)  # registers Ray's reducer, if nothing has yet
                _replace_reducer(context, transport, stand_in)
                replaced.add(transport)
            begin()
        pickled, arrays = serialize(context, value, transport)
        return pickled, _Arrays(arrays) if transport in names else arrays

    _Context.serialize_rdt_objects = serialize_rdt_objects


def _replace_reducer(context: Any, transport: str, stand_in: Callable[[int], Any]) -> None:
    kind = ray.experimental.rdt.util.get_transport_data_type(transport)
    rays_own = cloudpickle.CloudPickler.dispatch[kind]
    local = context._thread_local

    def reduce_array(array: Any) -> Any:
        is_carried = getattr(local, "use_external_transport", False)
        if is_carried and local.hoplite is None:
            return rays_own(array)
        if not is_carried or local.hoplite != transport:
            return array.__reduce_ex__(5)
        local.rdt_tensors.append(array)
        return stand_in(len(local.rdt_tensors) - 1)

    cloudpickle.CloudPickler.dispatch[kind] = reduce_array


class _Arrays(list[Any]):
    """The arrays of a value; true even if there are none, because ray.put drops a false list."""

    def __bool__(self) -> bool:
        return True


def refuse_empty_puts(names: Collection[str], refuse: Callable[[str], None]) -> None:
    """Call `refuse` for a ray.put whose value has nothing for its transport to carry.

    Ray then stores the value itself, and no process can read it by its ref.
    """
    put = _Manager.put_object

    def put_object(manager: Any, ref: Ref, transport: str, arrays: list[Any]) -> None:
        if transport in names and len(arrays) == 0:
            refuse(transport)
        put(manager, ref, transport, arrays)

    _Manager.put_object = put_object


def nest_pending(names: Collection[str], unknown: Any) -> None:
    """Let a process pass a ref on before its owner knows the object, with `unknown` in its place.

    Ray itself refuses it then, and for a moment after the object is there.
    """
    known = _Manager.get_rdt_metadata

    def get_rdt_metadata(manager: Any, name: str) -> Any:
        found = known(manager, name)
        is_known = found is None or found.tensor_transport_meta is not None
        if is_known or found.tensor_transport_backend not in names or not is_ray_pickling():
            return found
        return found._replace(tensor_transport_meta=unknown)

    _Manager.get_rdt_metadata = get_rdt_metadata


def forget_failures(names: Collection[str]) -> None:
    """Have Ray keep no arrays for an object whose transport has refused them."""
    add = _Store.add_object_primary

    def add_object_primary(store: Any, name: str, arrays: list[Any], transport: str) -> Any:
        try:
            return add(store, name, arrays, transport)
        except BaseException:
            if transport in names:
                store.pop_object(name)
            raise

    _Store.add_object_primary = add_object_primary
