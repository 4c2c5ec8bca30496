"""An array of the store that is filled in place, by the process that asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hoplite_ray.pending import Pending
from hoplite_ray.values import codec
from hoplite_ray.values.layout import Layout

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on


class Unsealed:
    """Memory of the store as an array; sealed, it is the object, and was never copied.

    A context manager: leaving it seals, unless by an exception. Dropped unsealed, with all that
    refers to its array, it gives its memory back.
    """

    __slots__ = ("__weakref__", "_begin_seal", "_value", "layout")

    def __init__(
        self, layout: Layout, memory: Buffer, begin_seal: Callable[[], Pending[None]]
    ) -> None:
        self.layout = layout
        self._value = codec.decode(layout.to_bytes(), memory)
        self._begin_seal: Callable[[], Pending[None]] | None = begin_seal

    @property
    def value(self) -> Any:
        """The array or tensor. What it holds before it is written is anything.

        Once sealed, a numpy array can't be written to. Other views that were made of it before, and
        a tensor, can: that is then seen by this process only.
        """
        return self._value

    @property
    def is_sealed(self) -> bool:
        """Whether the object is what the array was at that moment, for everybody, for good."""
        return self._begin_seal is None

    def seal(self, timeout_s: float | None = None) -> None:
        """Let everybody get the object. Idempotent; what failed or was given up may be repeated.

        Raises:  ObjectLostError if it was deleted; DuplicateObjectError; GetTimeoutError.
        """
        with self._sealing() as pending:
            if pending is not None:
                pending.result(timeout_s)

    async def seal_async(self, timeout_s: float | None = None) -> None:
        """Await what `seal` does."""
        with self._sealing() as pending:
            if pending is not None:
                await pending.result_async(timeout_s)

    @contextmanager
    def _sealing(self) -> Iterator[Pending[None] | None]:
        """What the body is to wait for; nothing once it is sealed, or another thread does it."""
        begin_seal, self._begin_seal = self._begin_seal, None
        if begin_seal is None:
            yield None
            return
        if isinstance(self._value, np.ndarray):
            self._value.flags.writeable = False
        try:
            yield begin_seal()
        except BaseException:  # also Ctrl-C: the object may not be there
            self._begin_seal = begin_seal
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.seal()
        else:
            self._begin_seal = None
