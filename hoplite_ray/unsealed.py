"""Values in the store's memory, which the calling process fills in place and then seals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from hoplite_ray import _native
from hoplite_ray.listener import Listener
from hoplite_ray.pending import SEAL_HINT, Pending
from hoplite_ray.values.codec import Template, freeze_arrays, lay_out
from hoplite_ray.values.layout import short_name

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on


class Unsealed:
    """Memory of the store as an array, or as a value of arrays. Sealing makes it the object.

    It is a context manager: leaving the body seals the array, except when an exception leaves it.
    An array that is dropped unsealed, with all its views, gives its memory back.
    """

    __slots__ = ("__weakref__", "_begin_seal", "_value", "layout")

    def __init__(
        self, template: Template, memory: Buffer, begin_seal: Callable[[], Pending[None]]
    ) -> None:
        self.layout = template.layout
        self._value = lay_out(template, memory)
        self._begin_seal: Callable[[], Pending[None]] | None = begin_seal

    @property
    def value(self) -> Any:
        """The array or tensor, or the container of them.

        Its first bytes are undefined until the caller writes them. A sealed numpy array can't be
        written to. A tensor, and a view that was made before the seal, still can; then only this
        process sees the new bytes.
        """
        return self._value

    @property
    def is_sealed(self) -> bool:
        """True if the object has the bytes of the array, for every reader and for good."""
        return self._begin_seal is None

    def seal(self, timeout_s: float | None = None) -> None:
        """Seal the array, so that every node can get the object. Idempotent.

        A seal that failed or was cancelled may be repeated.

        Raises:  ObjectLostError if the object was deleted; DuplicateObjectError; GetTimeoutError.
        """
        with self._sealing() as pending:
            if pending is not None:
                pending.result(timeout_s)

    async def seal_async(self, timeout_s: float | None = None) -> None:
        """Like `seal`, but awaitable; a cancelled one may be repeated."""
        with self._sealing() as pending:
            if pending is not None:
                await pending.result_async(timeout_s)

    @contextmanager
    def _sealing(self) -> Iterator[Pending[None] | None]:
        """Give the body the seal to wait for; None if the array is sealed or is being sealed."""
        begin_seal, self._begin_seal = self._begin_seal, None
        if begin_seal is None:
            yield None
            return
        freeze_arrays(self._value)
        try:
            yield begin_seal()
        except BaseException:  # Ctrl-C too: the object may be missing
            self._begin_seal = begin_seal
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.seal()
        else:
            self._begin_seal = None


class Range:
    """The range of the arena that an array is written into, from its reservation to its seal."""

    def __init__(
        self,
        usable: Callable[[], _native.Client],
        listener: Listener,
        object_id: bytes,
        template: Template,
    ) -> None:
        """`usable` returns the store's client, or raises if this process may not use it."""
        self._usable = usable
        self._listener = listener
        self._object_id = object_id
        self._template = template
        self._sealing: _native.Request | None = None  # asked for once, and awaited again

    def lay_out(self, reserved: _native.Unsealed) -> Unsealed:
        """Return the array over the range that was reserved."""
        self._range = reserved
        memory: Any = reserved  # a buffer, which its stub can't say
        return Unsealed(self._template, memory, self._begin_seal)

    def _begin_seal(self) -> Pending[None]:
        self._usable()
        if self._sealing is None:
            self._sealing = self._range.seal()
        return pend_seal(self._listener, self._object_id, self._sealing)


class Filling:
    """The memory of an object that other processes read while it is written, from its start on.

    Dropped unsealed, it gives its memory back.
    """

    def __init__(self, written: _native.Unsealed, listener: Listener, object_id: bytes) -> None:
        """Take the range that was reserved."""
        self._range = written
        self._listener = listener
        self._object_id = object_id
        memory: Any = written  # a buffer, which its stub can't say
        self.memory = memoryview(memory)

    def report(self, upto_bytes: int) -> None:
        """Let readers have the first bytes, which stay as they are from now on.

        Raises:  NodeLostError; InvalidArgumentError for more bytes than there are.
        """
        self._range.report(upto_bytes)

    def seal(self, timeout_s: float | None = None) -> None:
        """Seal the object, all of whose bytes are written.

        Raises:  ObjectLostError if it was deleted; NodeLostError; GetTimeoutError.
        """
        pend_seal(self._listener, self._object_id, self._range.seal()).result(timeout_s)


def pend_seal(listener: Listener, object_id: bytes, sealing: _native.Request) -> Pending[None]:
    """Return a seal that was asked for, to be waited for."""
    return Pending(
        listener,
        sealing,
        what=f"seal of object {short_name(object_id)}",
        hint=SEAL_HINT,
        decode=lambda nothing: None,
    )
