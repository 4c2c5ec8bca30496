"""The memory of a `hop.empty`, from its reservation until it is sealed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import TIMEOUT_MAX

from hoplite_ray.errors import GetTimeoutError, HopliteError, NodeLostError
from hoplite_ray.plugin.process.attachment import Attachment
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.unsealed import Unsealed
from hoplite_ray.values.codec import Template, encode, freeze_arrays, lay_out
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.layout import short_name


class Writable:
    """An object that its maker writes in place. Any thread may seal it; the first one does."""

    def __init__(
        self,
        here: Attachment,
        object_id: bytes,
        incarnation: int,
        template: Template,
        *,
        timeout_s: float | None,
    ) -> None:
        self._here = here
        self._name = (object_id, incarnation)
        self._seal_lock = threading.Lock()
        deadline = deadline_in(timeout_s)
        self.layout = template.layout
        begun = here.store_by(deadline).begin_empty(object_id, template, incarnation=incarnation)
        self._unsealed: Unsealed | None = (
            begun if isinstance(begun, Unsealed) else begun.result(left_s(deadline))
        )
        self.value = self._unsealed.value  # always this one: sealing makes its arrays read-only

    def seal(self, deadline: float | None = None) -> bytes | None:
        """End the writing, by `deadline`: numpy then refuses to write through `value`.

        Tensors, and views from before, can still be written, which changes pages of this process
        alone.
        Returns: None, because the object has the bytes.
        Raises: HopliteError if this process has left the Ray session in which it was made;
                GetTimeoutError at `deadline`, after which it may be sealed again.
        """
        object_id, incarnation = self._name
        with self._seal_exclusively(deadline):
            if self._unsealed is None:
                return None
            if seams.connection() != self._here.connection:
                raise HopliteError(
                    f"object {short_name(object_id)} can't be sealed: the Ray session that it was "
                    "made in was shut down; put a copy of it, array.copy(), after ray.init()"
                )
            try:
                self._unsealed.seal(left_s(deadline))
            except NodeLostError:  # the memory is still here: put it into the restarted node
                encoded = encode(self.value)
                self._here.put(
                    object_id, encoded, incarnation=incarnation, timeout_s=left_s(deadline)
                )
            self._unsealed = None
            return None

    @contextmanager
    def _seal_exclusively(self, deadline: float | None) -> Iterator[None]:
        """Keep other threads from sealing in the body.

        Raises: GetTimeoutError if another thread still seals at `deadline`.
        """
        limit_s = left_s(deadline)
        timeout_s = -1 if limit_s is None else min(limit_s, TIMEOUT_MAX)
        if not self._seal_lock.acquire(timeout=timeout_s):
            raise GetTimeoutError(
                f"object {short_name(self._name[0])} is being sealed by another thread, which its "
                "node has not answered; raise timeout_s"
            )
        try:
            yield
        finally:
            self._seal_lock.release()


class SmallWritable:
    """The memory of a small `hop.empty`, until its handle has the bytes. Any thread may seal it."""

    def __init__(self, template: Template) -> None:
        self.layout = template.layout
        self._memory = bytearray(self.layout.size_bytes)
        self.value = lay_out(template, self._memory)
        self._seal_lock = threading.Lock()
        self._sealed: bytes | None = None

    def seal(self, deadline: float | None = None) -> bytes:
        """End the writing like `Writable.seal`; return the bytes, the same at each call."""
        with self._seal_lock:
            if self._sealed is None:
                freeze_arrays(self.value)
                self._sealed = bytes(self._memory)
            return self._sealed
