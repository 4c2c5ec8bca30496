"""stream and open_safetensors, as users call them; `hoplite_ray` exports them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import suppress

import ray

from hoplite_ray.errors import NodeLostError, ObjectLostError, WrongTypeError
from hoplite_ray.plugin.handle import making
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.fetching import ToFetch, in_thread
from hoplite_ray.plugin.process.attachment import (
    TRIES,
    Attachment,
    RayObjectLostError,
    attachment,
    is_attached,
    need_ray,
)
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.surface.api import own_object, ray_values
from hoplite_ray.plugin.surface.arguments import Gettable
from hoplite_ray.streams.filling import read_into, read_small
from hoplite_ray.streams.safetensors import SafetensorsFile
from hoplite_ray.streams.stream import Found, LeafStream, Source
from hoplite_ray.unsealed import Filling
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.dtypes import Kind

_logger = logging.getLogger("hoplite_ray.safetensors")

_ANSWER_S = 60.0  # of a node that reserves memory again, or seals: beyond it the reading has failed


def stream(ref: Gettable, *, timeout_s: float | None = None) -> LeafStream:
    """Return the leaves of a value, each as soon as its bytes are on this node.

    `for path, leaf in hop.stream(ref)`, or `async for`. The leaves come in the order of their
    bytes: by dtype, and in the given order within each; or all arrays in the given order, after the
    numbers and texts, if the value was put with `ordered=True`. A model can load its first layers
    while the others still arrive.

    Args:    ref: a ref or an Array of one object; its task may not have ended.
             timeout_s: seconds to wait for the next leaf; None waits without a limit.
    Returns: a `LeafStream` of pairs. A path is a tuple of keys, indices and names of fields. A leaf
             is an array, or a number, str or bytes; numpy's arrays are read-only. A tensor may be
             written, which no other process sees. An array of several names comes once for each.
    Raises:  in the loop GetTimeoutError, after which it may go on; what the task raised;
             ObjectLostError, also if the object is lost, deleted or put again between two leaves;
             StoreFullError; WrongTypeError if the ref is of no object. Leaves that were given stay
             valid.
    Cost:    no copy above 64 KiB. A message to the node and its answer for each wait.
    Source:  the paper's partial copies, which serve readers while they grow; decision 49.
    Example:

        ref = hop.put({"first": np.ones(20_000), "last": np.zeros(20_000)})
        assert [path for path, leaf in hop.stream(ref, timeout_s=60)] == [("first",), ("last",)]
    """
    if not isinstance(ref, (ray.ObjectRef, Array)):
        raise WrongTypeError(
            f"stream takes one ref or Array, not {type(ref).__name__}; stream each of several"
        )
    return LeafStream(_RefFinder(ref), timeout_s)


class _RefFinder:
    """The object of a ref or of an Array, which it keeps alive."""

    def __init__(self, ref: Gettable) -> None:
        self._ref = ref
        self._object_id = b""
        self._why = ""

    def find(self, deadline: float | None) -> Found:
        ref = self._ref
        if isinstance(ref, Array):
            return self._find_array(ref, deadline)
        known = attachment(deadline).known_puts.find(ref.binary()) if is_attached() else None
        if known is not None and known.small is not None:
            return known.small
        if known is not None:
            return self._find_object(ToFetch(ref.binary(), known.incarnation), deadline)
        (value,) = ray_values([ref], deadline, left_s(deadline))
        if isinstance(value, ToFetch):
            return self._find_object(value, deadline)
        if not isinstance(value, Array):
            raise WrongTypeError(
                "stream takes a ref of one object of the store, and this one is of type "
                f"{type(value).__name__}; take it with hoplite_ray.get"
            )
        self._ref = value  # keeps the object as the ref did, and is found at once another time
        return self._find_array(value, deadline)

    async def find_async(self, deadline: float | None) -> Found:
        need_ray()
        if isinstance(self._ref, ray.ObjectRef):
            await in_thread(deadline, attachment, deadline)
            if attachment(deadline).known_puts.find(self._ref.binary()) is None:
                await self._wait_ready(self._ref, deadline)
        return await in_thread(deadline, self.find, deadline)

    def explain(self, error: ObjectLostError) -> ObjectLostError:
        if isinstance(error, RayObjectLostError):
            return error
        text = f"{error}; {self._why}" if self._why else str(error)
        return RayObjectLostError(text, self._object_id.hex())

    async def _wait_ready(self, ref: Ref, deadline: float | None) -> None:
        """Wait for the end of the ref's task, for which a thread would have to be kept."""
        with suppress(TimeoutError):  # `find` says what is missing
            async with asyncio.timeout(left_s(deadline)):
                await seams.wait_ready(ref)

    def _find_array(self, array: Array, deadline: float | None) -> Found:
        array._seal(deadline)
        small = array._small
        if small is not None:
            return small
        return self._find_object(ToFetch(array._object_id, array._incarnation), deadline)

    def _find_object(self, wanted: ToFetch, deadline: float | None) -> Found:
        self._object_id, self._why = wanted.object_id, wanted.why
        store = attachment(deadline).store_by(deadline)
        return Source(store, wanted.object_id, exists=True, incarnation=wanted.incarnation)


def open_safetensors(
    path: str | os.PathLike[str], *, kind: Kind = "torch", timeout_s: float | None = None
) -> Ref:
    """Read a .safetensors file once for the whole cluster, straight into the store.

    Pass the ref to the readers: they get its first tensors, by `stream`, while a thread of this
    process still reads the last ones. A second call reads the file a second time.

    Args:    path: of a file that this process can read.
             kind: "torch" for tensors, "numpy" for arrays.
             timeout_s: seconds to wait for memory; None waits without a limit.
    Returns: at once, the ref of a dict by name, in file order. The object goes as that of `put`
             does. The process does not end before the file was read.
    Raises:  InvalidArgumentError naming the file and its fault: it is missing, damaged or cut off,
             or has a dtype that can't be stored; otherwise as `put`. If the reading itself fails, a
             get raises ObjectLostError, and the log of this process has the cause.
    Cost:    each byte is read once, and not copied. Readers take it from each other.
    Example:

        from tempfile import TemporaryDirectory
        from safetensors.numpy import save_file

        with TemporaryDirectory() as directory:
            save_file({"w": np.ones(20_000), "b": np.zeros(1)}, f"{directory}/model.safetensors")
            ref = hop.open_safetensors(f"{directory}/model.safetensors", kind="numpy")
            assert sorted(hop.get(ref, timeout_s=60)) == ["b", "w"]
    """
    deadline = deadline_in(timeout_s)
    source = SafetensorsFile.open(path, kind)
    try:
        here = attachment(deadline)
        if making.is_small(source.layout):
            with source:
                return making.put_small(here, read_small(source))
        with own_object(here, source.layout, deadline) as (ref, incarnation):
            reading = _Reading(here, source, ref.binary(), incarnation)
            reading.begin(deadline)
    except BaseException:
        source.close()
        raise
    return ref


async def open_safetensors_async(
    path: str | os.PathLike[str], *, kind: Kind = "torch", timeout_s: float | None = None
) -> Ref:
    """Like `open_safetensors`, but awaitable."""
    return await in_thread(
        deadline_in(timeout_s), open_safetensors, path, kind=kind, timeout_s=timeout_s
    )


class _Reading:
    """A file on its way into the store, by a thread of its own."""

    def __init__(
        self, here: Attachment, source: SafetensorsFile, object_id: bytes, incarnation: int
    ) -> None:
        self._here = here
        self._source = source
        self._name = (object_id, incarnation)

    def begin(self, deadline: float | None) -> None:
        """Reserve the memory, and start the thread."""
        filling = self._reserve(deadline)
        # No daemon: a program may open a file and end, and its readers still get the file.
        threading.Thread(target=self._run, args=[filling], name="hoplite-safetensors").start()

    def _reserve(self, deadline: float | None) -> Filling:
        object_id, incarnation = self._name
        store = self._here.store_by(deadline)
        begun = store.begin_fill(object_id, self._source.layout, incarnation=incarnation)
        return begun.result(left_s(deadline))

    def _run(self, filling: Filling | None) -> None:
        with self._source:
            for tries_left in reversed(range(TRIES)):
                try:
                    if filling is None:
                        filling = self._reserve(deadline_in(_ANSWER_S))
                    read_into(self._source, filling.memory, filling.report)
                    return filling.seal(_ANSWER_S)
                except NodeLostError as error:  # the next node reads it anew
                    filling = None
                    if not tries_left or seams.connection() != self._here.connection:
                        return self._log(str(error))
                except ObjectLostError:
                    return None  # no reader is left
                except Exception as error:
                    return self._log(str(error))

    def _log(self, why: str) -> None:
        """Log a failure. A handler may keep the record, but no memory with it."""
        _logger.error(
            "%s was not read to its end, and its readers get ObjectLostError: %s",
            self._source.path,
            why,
        )
