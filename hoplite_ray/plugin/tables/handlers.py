"""Handlers: actors that take the values which are sent to keys with a prefix, and stored nowhere.

The handlers of table NAME are the keys of a table of their own, NAME:handlers. So all processes see
one list of them, which survives what a table survives, and a dead handler is a key to remove.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Container
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle

from hoplite_ray.errors import (
    GetTimeoutError,
    HopliteError,
    InvalidArgumentError,
    ObjectLostError,
    WrongTypeError,
)
from hoplite_ray.plugin.tables.operations import Operations, checked_prefix
from hoplite_ray.plugin.tables.steps import Blocking, Steps
from hoplite_ray.tables.log import Options, checked_key, reserve_name
from hoplite_ray.tables.routes import Route, rank_by_key, rank_by_load
from hoplite_ray.tables.versions import Version
from hoplite_ray.values.deadlines import left_s

_ROUTES = ("key", "balanced")


@dataclass(frozen=True, slots=True)
class _Handler:
    """A handler as this process has read it: a method to call with a key and a value."""

    number: int  # of the version of its entry
    method: Any


class Handlers:
    """The handlers of one table, and the values under way to them from here. Any thread may use it.

    An entry is a key "ACTOR/PREFIX" of the table of handlers; its value is the pickled actor.
    """

    def __init__(self, table: str, copies: int) -> None:
        self._table = table
        self._entries = Operations(reserve_name(table, "handlers"), Options(keep=1), copies)
        self._lock = threading.Lock()  # guards all below
        self._known: dict[str, _Handler] = {}
        self._under_way: Counter[str] = Counter()
        self._last_turn: dict[str, int] = {}
        self._turns = count(1)

    def add(self, prefix: str, actor: Any, method: str) -> Steps[None]:
        """Have `actor` handle what is sent to keys with this prefix."""
        entry = _name_entry(prefix, actor)
        if not callable(getattr(actor, method, None)):
            raise InvalidArgumentError(
                f"{actor!r} has no method {method!r}: pass the name of one as method="
            )
        pickled = ray.cloudpickle.dumps((actor, method))  # type: ignore[no-untyped-call]
        data = np.frombuffer(pickled, np.uint8)
        yield from self._entries.put_all({entry: data})

    def remove(self, prefix: str, actor: Any) -> Steps[None]:
        """Have `actor` handle it no longer."""
        yield from self._entries.remove(_name_entry(prefix, actor))

    def send(self, key: str, value: Any, route: Route) -> Steps[Any]:
        """Send a value to one handler, and return what that returns."""
        checked_key(key)
        if route not in _ROUTES:
            raise InvalidArgumentError(f"route is {route!r}; it takes 'key' or 'balanced'")
        newest = yield from self._entries.read(lambda state: state.versions.newest(""))
        entries = {entry: version for entry, version in newest if not version.is_removal}
        self._forget_others(entries)
        fit = [each for each in entries if key.startswith(each.partition("/")[2])]
        failure: Exception | None = None
        for entry in self._rank(key, route, fit):
            try:
                handler = yield from self._know(entry, entries[entry])
                return (yield from self._call(entry, handler, key, value))
            except ray.exceptions.RayTaskError:
                raise  # the method's own error, which may be of a dead actor that it has called
            except ray.exceptions.ActorDiedError as error:
                failure = error
                yield from self._entries.remove(entry)
            except (ray.exceptions.ActorUnavailableError, ObjectLostError) as error:
                failure = error
        raise HopliteError(
            f"table {self._table!r} has no handler for key {key!r} that runs: add one with "
            "table.add_handler(prefix, actor)"
        ) from failure

    def _rank(self, key: str, route: Route, entries: list[str]) -> list[str]:
        if route == "key":
            return rank_by_key(key, entries)
        with self._lock:
            return rank_by_load(entries, self._under_way, self._last_turn)

    def _know(self, entry: str, version: Version) -> Steps[_Handler]:
        """Return the handler of an entry, whose value is read once."""
        with self._lock:
            known = self._known.get(entry)
        if known is not None and known.number == version.number:
            return known
        data = yield Blocking(lambda deadline: self._fetch(entry, version, deadline))
        actor, method = ray.cloudpickle.loads(data)
        handler = _Handler(version.number, getattr(actor, method))
        with self._lock:
            self._known[entry] = handler
        return handler

    def _fetch(self, entry: str, version: Version, deadline: float | None) -> bytes:
        steps = self._entries.get(entry, version.number, None)
        return bytes(self._entries.run(steps, "handler", left_s(deadline)))

    def _call(self, entry: str, handler: _Handler, key: str, value: Any) -> Steps[Any]:
        answer: Future[Any] = handler.method.remote(key, value).future()
        with self._lock:
            self._under_way[entry] += 1
            self._last_turn[entry] = next(self._turns)
        answer.add_done_callback(lambda _: self._note_end(entry))
        try:
            return (yield answer)
        except GetTimeoutError as error:
            if answer.done() and not answer.cancelled():
                raise  # the handler's own
            raise GetTimeoutError(
                f"the handler of key {key!r} of table {self._table!r} has not answered in time, "
                "and may still do so: raise timeout_s"
            ) from error

    def _note_end(self, entry: str) -> None:
        with self._lock:
            self._under_way[entry] -= 1
            if not self._under_way[entry]:
                del self._under_way[entry]

    def _forget_others(self, entries: Container[str]) -> None:
        """Forget handlers that have gone."""
        with self._lock:
            for entry in [each for each in self._last_turn if each not in entries]:
                del self._last_turn[entry]
                self._known.pop(entry, None)


def _name_entry(prefix: str, actor: Any) -> str:
    if not isinstance(actor, ActorHandle):
        raise WrongTypeError(f"a handler is an actor, not a {type(actor).__name__}")
    return checked_key(f"{actor._actor_id.hex()}/{checked_prefix(prefix)}")
