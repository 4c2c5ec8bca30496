"""Leaf by leaf, and from a file: the part of `Store` whose values are read while they come."""

from __future__ import annotations

import asyncio
import os

from hoplite_ray._native import INLINE_BYTES_MAX
from hoplite_ray.client import StoreClient
from hoplite_ray.streams.filling import read_into, read_small
from hoplite_ray.streams.safetensors import SafetensorsFile
from hoplite_ray.streams.stream import LeafStream, StoreFinder
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.dtypes import Kind
from hoplite_ray.values.layout import checked_id


class Streaming:
    """The part of `Store` that streams values and opens files."""

    _client: StoreClient

    def stream(self, object_id: bytes, *, timeout_s: float | None = None) -> LeafStream:
        """Return the leaves of an object, each as soon as its bytes are on this node.

        `for path, leaf in store.stream(object_id)`, or `async for`. The leaves come in the order of
        their bytes: by dtype, and in the given order within each; or all arrays in the given order,
        after the numbers and texts, if the object was put with `ordered=True`.

        Args:    object_id: the id under which the value was or will be put.
                 timeout_s: seconds to wait for the next leaf; None waits without a limit.
        Returns: a `LeafStream` of pairs. A path is a tuple of keys, indices and names of fields. A
                 leaf is an array, or a number, str or bytes; numpy's arrays are read-only. A
                 tensor may be written, which no other process sees.
        Raises:  in the loop GetTimeoutError, after which it may go on; ObjectLostError, also if the
                 object is lost, deleted or put again between two leaves; StoreFullError;
                 NodeLostError. Leaves that were given stay valid.
        Cost:    no copy above 64 KiB. A message and its answer for each wait.
        Source:  the paper's partial copies, which serve readers while they grow; decision 49.
        Example:

            object_id = new_id()
            store.put(object_id, {"first": np.ones(20_000), "last": np.zeros(20_000)})
            assert [path for path, leaf in store.stream(object_id)] == [("first",), ("last",)]
        """
        return LeafStream(StoreFinder(self._client, checked_id(object_id)), timeout_s)

    def open_safetensors(
        self,
        object_id: bytes,
        path: str | os.PathLike[str],
        *,
        kind: Kind = "torch",
        timeout_s: float | None = None,
    ) -> None:
        """Read a .safetensors file once, straight into the store, for readers on every node.

        They get its first tensors, by `stream`, while the last ones are still read.

        Args:    object_id: 28 bytes, from `new_id`.
                 path: of a file that this process can read.
                 kind: "torch" for tensors, "numpy" for arrays.
                 timeout_s: seconds to wait for memory, and for the seal; None has no limit.
        Returns: None, when the file was read. The value is a dict by name, in file order.
        Raises:  InvalidArgumentError naming the file and its fault: it is missing, damaged or cut
                 off, or has a dtype that can't be stored; HopliteError if it can't be read to its
                 end; as `put` otherwise.
        Cost:    each byte is read once, and not copied.
        Example:

            from tempfile import TemporaryDirectory
            from safetensors.numpy import save_file

            object_id = new_id()
            with TemporaryDirectory() as directory:
                save_file({"w": np.ones(3)}, f"{directory}/model.safetensors")
                store.open_safetensors(object_id, f"{directory}/model.safetensors", kind="numpy")
            assert store.get(object_id)["w"].sum() == 3
        """
        deadline = deadline_in(timeout_s)
        with SafetensorsFile.open(path, kind) as source:
            if source.layout.size_bytes <= INLINE_BYTES_MAX:
                small = read_small(source)
                return self._client.begin_put(object_id, small).result(left_s(deadline))
            filling = self._client.begin_fill(object_id, source.layout).result(left_s(deadline))
            read_into(source, filling.memory, filling.report)
            filling.seal(left_s(deadline))

    async def open_safetensors_async(
        self,
        object_id: bytes,
        path: str | os.PathLike[str],
        *,
        kind: Kind = "torch",
        timeout_s: float | None = None,
    ) -> None:
        """Like `open_safetensors`, but awaitable; cancelling it does not stop the reading."""
        await asyncio.to_thread(
            self.open_safetensors, object_id, path, kind=kind, timeout_s=timeout_s
        )
