"""Handles of Ray inside of values: they travel by a call of Ray, beside the edge's own message.

Ray counts the users of an object by its own calls only. A ref that comes by any other way has no
owner in this process, and its object may be freed. So a message has only the places of its handles
and their lender, which is the actor that sent the message. The receiver asks the lender for the
handles by a call of Ray, and borrows each of them as it would an argument. The lender keeps handles
until it is asked for them, and a caller keeps its query until the answer has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import ray
from ray.actor import ActorHandle

import hoplite_ray

if TYPE_CHECKING:
    from hoplite_ray.serve.edge.frames import Message

KINDS: tuple[type, ...] = (ray.ObjectRef, hoplite_ray.Array, ActorHandle)

Reducer = Callable[[Any], tuple[Any, ...]]

_supplied: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("supplied")


class OutOfBandHandles:
    """The handles that a pickle leaves out, in order."""

    def __init__(self) -> None:
        self.handles: list[Any] = []

    def extract(self, handle: Any) -> tuple[Any, ...]:
        """Keep a handle; returns what is pickled in its place."""
        if isinstance(handle, hoplite_ray.Array):
            handle = hoplite_ray.array(handle)  # seals an array that is being written
        self.handles.append(handle)
        return _handle, (len(self.handles) - 1,)


def _handle(place: int) -> Any:
    return _supplied.get()[place]


@contextlib.contextmanager
def supply(handles: Sequence[Any]) -> Iterator[None]:
    """In the body, give these handles to what is unpickled."""
    token = _supplied.set(handles)
    try:
        yield
    finally:
        _supplied.reset(token)


class Lender:
    """The handles that one end of an edge has sent, and that its peer has not asked for yet."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._kept: dict[int, Sequence[Any]] = {}
        self._numbers = itertools.count()
        _lenders[self._id] = self

    def lend(self, message: Message) -> Message:
        """Keep the handles of a message, and write into the message which actor lends them.

        Raises:  RuntimeError if the message has handles and this process is no actor.
        """
        if message.handles:
            number = next(self._numbers)
            actor = ray.get_runtime_context().current_actor
            message.set_lender(pickle.dumps((actor, self._id, number)))
            self._kept[number] = message.handles
        return message

    def release(self, message: Message) -> None:
        """Release a message's handles, because its call is over."""
        if message.lender is not None:
            _, _, number = pickle.loads(message.lender)
            self._kept.pop(number, None)

    def close(self) -> None:
        """Release all handles, because the edge is over."""
        self._kept.clear()

    def take(self, number: int) -> Sequence[Any]:
        """Return the handles of a message, once. Any thread may call it."""
        return self._kept.pop(number)


_lenders: WeakValueDictionary[str, Lender] = WeakValueDictionary()


def _lent(_: Any, lender: str, number: int) -> Sequence[Any]:
    """Return lent handles. The receiver has Ray call this in the lender's process."""
    return _lenders[lender].take(number)


async def borrow(message: Message) -> Sequence[Any]:
    """Ask a message's lender for its handles, and return them.

    Raises:  RayError if the lender has died, or has released them.
    """
    assert message.lender is not None
    actor, lender, number = pickle.loads(message.lender)
    call = actor.__ray_call__.remote(_lent, lender, number)
    handles: Sequence[Any] = await asyncio.wrap_future(call.future())
    return handles
