"""The operations of a table, each once, for a verb of `Table` and for its awaitable twin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from hoplite_ray.errors import (
    InvalidArgumentError,
    ObjectLostError,
    StoreFullError,
    VersionDroppedError,
    WrongTypeError,
)
from hoplite_ray.plugin.surface.api import encode_value
from hoplite_ray.plugin.tables.followers import OpenTable, open_table, refuse_other
from hoplite_ray.plugin.tables.steps import Blocking, Fetch, Steps, fill, run, run_async
from hoplite_ray.tables.calls import NumbersGiven, PutDone
from hoplite_ray.tables.log import NUMBERS_AHEAD, Entry, Options, checked_key
from hoplite_ray.tables.replica import Replica, WriterForgottenError
from hoplite_ray.tables.state import State
from hoplite_ray.tables.versions import INDEX_BITS, Version
from hoplite_ray.values.codec import Encoded

T = TypeVar("T")

_FORGOTTEN_TRIES = 3  # of a put whose writer the table forgets before its record comes
_LOST_TRIES = 3  # of a get of the latest version, which may be dropped while it is fetched


class Operations:
    """The operations of one table, as generators of steps (steps.py). Any thread may use it."""

    def __init__(self, name: str, options: Options, copies: int) -> None:
        """Open the table `name`. Raises: as `Table`."""
        self.name = name
        self.options = options
        self.copies = copies
        self.open()

    def open(self) -> OpenTable:
        """Return this process's part of the table, in its present Ray session."""
        return open_table(self.name, self.options)

    def run(self, steps: Steps[T], verb: str, timeout_s: float | None) -> T:
        """Wait through an operation."""
        return run(steps, self.open().values, f"{verb} of table {self.name!r}", timeout_s)

    async def run_async(self, steps: Steps[T], verb: str, timeout_s: float | None) -> T:
        """Like `run`, but awaitable."""
        what = f"{verb} of table {self.name!r}"
        return await run_async(steps, self.open().values, what, timeout_s)

    # ---- puts ----

    def put_all(self, values: Mapping[str, Any]) -> Steps[dict[str, Version]]:
        """Put several keys in one record.

        A put whose caller has left goes on up to the end of its step. Its values are then deleted,
        except when the log has them, or may have them.
        """
        here = self.open()
        encoded: dict[str, Encoded] = yield Blocking(lambda deadline: _encode_all(values))
        yield from self._know_options(here)
        for tries_left in reversed(range(_FORGOTTEN_TRIES)):
            try:
                return (yield from self._put_once(here, encoded))
            except WriterForgottenError:  # this process has stood still for long
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    def _put_once(
        self, here: OpenTable, encoded: Mapping[str, Encoded]
    ) -> Steps[dict[str, Version]]:
        given: NumbersGiven = yield from ask(
            here.follower.numbers(len(encoded)), here.forget_numbers
        )
        contents = list(encoded.values())
        try:
            nodes = yield from store_values(here, given, contents, self.copies)
        except StoreFullError as error:
            raise StoreFullError(
                f"{error}. Table {self.name!r} keeps versions that were superseded for "
                f"{self.options.keep_us / 1e6:g} s: put less often, or take a smaller keep_s"
            ) from error
        entries = [
            Entry(key, number, value.layout.size_bytes, nodes)
            for (key, value), number in zip(encoded.items(), given.numbers, strict=True)
        ]
        done = here.follower.put(
            lambda replica, ticket: replica.handle_put(ticket, given.writer, entries)
        )
        done.add_done_callback(partial(here.discard_refused, given))
        return dict(zip(encoded, self._versions((yield done)), strict=True))

    def remove(self, key: str) -> Steps[Version]:
        """Append a version that removes the key."""
        here = self.open()
        entry = Entry(checked_key(key), 0)

        def begin(replica: Replica, ticket: int) -> None:
            replica.handle_put(ticket, replica.writer, [entry])

        yield from self._know_options(here)
        (version,) = self._versions((yield here.follower.put(begin)))
        return version

    def _versions(self, done: PutDone) -> list[Version]:
        versions = [each for each in done.versions if each is not None]
        if len(versions) < len(done.versions):
            raise VersionDroppedError(
                f"the put into table {self.name!r} took effect, but its version was dropped before "
                "this process learned of it: the process stood still for long"
            )
        return versions

    # ---- reads ----

    def get(self, key: str, version: int | None, at_s: float | None) -> Steps[Any]:
        """Fetch the value of the version that `find` finds."""
        for tries_left in reversed(range(_LOST_TRIES)):
            found = yield from self.find(key, version, at_s)
            try:
                return (yield Fetch(found))
            except ObjectLostError:  # the version may have been dropped meanwhile
                yield self.open().follower.read()
                if not tries_left or (yield from self.find(key, version, at_s)) == found:
                    raise
        raise AssertionError("unreachable")

    def find(self, key: str, version: int | None, at_s: float | None) -> Steps[Version]:
        """Return the latest version, that of a number, or the latest one at a time."""
        here = self.open()
        checked_key(key)
        if version is not None and at_s is not None:
            raise InvalidArgumentError("a get takes a version or a time, not both")
        if version is not None:
            number = checked_number(version, "version")
            if not here.follower.has_read(number >> INDEX_BITS):
                yield here.follower.read()
            self._check_options(here)
            return here.follower.look_up(lambda state: state.versions.find(key, number))
        if at_s is None:
            return (yield from self.read(lambda state: state.versions.latest(key)))
        at_us = to_us(at_s, "at")
        if not here.follower.has_time(at_us):
            yield here.follower.read(at_us)
        self._check_options(here)
        return here.follower.look_up(lambda state: state.versions.at(key, at_us))

    def keys(self, prefix: str) -> Steps[list[str]]:
        """Return the keys that have a value now."""
        checked_prefix(prefix)
        return (yield from self.read(lambda state: state.versions.keys(prefix)))

    def read(self, find: Callable[[State], T]) -> Steps[T]:
        """Read the log to its end, and look something up in the state."""
        here = self.open()
        yield here.follower.read()
        self._check_options(here)
        return here.follower.look_up(find)

    def _know_options(self, here: OpenTable) -> Steps[None]:
        if not here.follower.has_read(0):
            yield here.follower.read()
        self._check_options(here)

    def _check_options(self, here: OpenTable) -> None:
        """Refuse a table that another process has made with other options."""
        agreed = here.follower.look_up(lambda state: state.options)
        refuse_other(self.name, agreed, self.options)


def store_values(
    here: OpenTable, given: NumbersGiven, values: list[Encoded], copies: int
) -> Steps[tuple[int, ...]]:
    """Store values under their numbers, and return the nodes of the copies.

    If that fails, or the caller leaves, the values are deleted once the storing has ended.
    """
    stored: Future[tuple[int, ...]] = Future()
    store = partial(here.values.store, given.writer, given.numbers, values, copies)
    try:
        nodes = yield Blocking(lambda deadline: fill(stored, partial(store, deadline)))
    except BaseException:
        stored.cancel()  # does nothing if it has begun on another thread, and goes on
        stored.add_done_callback(lambda _: here.discard(given))
        raise
    return nodes  # type: ignore[no-any-return]


def ask(asked: Future[T], give_back: Callable[[T], None]) -> Steps[T]:
    """Wait for what is asked for. If the caller leaves, `give_back` takes it when it comes."""

    def take(ended: Future[T]) -> None:
        if ended.exception() is None:
            give_back(ended.result())

    try:
        return (yield asked)  # type: ignore[no-any-return]
    except BaseException:
        asked.add_done_callback(take)
        raise


def _encode_all(values: Mapping[str, Any]) -> dict[str, Encoded]:
    if not 1 <= len(values) <= NUMBERS_AHEAD:
        raise InvalidArgumentError(
            f"a put takes 1 to {NUMBERS_AHEAD} keys at once, not {len(values)}: make several puts"
        )
    return {checked_key(key): encode_value(value) for key, value in values.items()}


def checked_number(number: Any, name: str) -> int:
    """Return a version's number. Raises: WrongTypeError if it is none."""
    if type(number) is not int or number < 0:
        raise WrongTypeError(
            f"{name} is {number!r:.80}; it takes a version's number, for example that of a put: "
            "table.put(...).number"
        )
    return number


def checked_prefix(prefix: Any) -> str:
    """Return a prefix of keys. Raises: WrongTypeError if it is none."""
    if not isinstance(prefix, str):
        raise WrongTypeError(
            f"prefix is a {type(prefix).__name__}; it takes a text, '' for all keys"
        )
    return prefix


def to_us(seconds: Any, name: str) -> int:
    """Return microseconds. Raises: WrongTypeError; InvalidArgumentError if they are negative."""
    if not isinstance(seconds, Real) or isinstance(seconds, bool):
        kind = type(seconds).__name__
        raise WrongTypeError(f"{name} is a {kind}; it takes a number of seconds")
    value = float(seconds)
    if not 0 <= value < math.inf:  # not so for a NaN
        raise InvalidArgumentError(f"{name} is {seconds}; it takes 0 or more seconds")
    return round(value * 1e6)
