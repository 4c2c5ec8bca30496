"""hop.Table: keys with versions, which every process of a cluster reads, writes and watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.plugin.tables.handlers import Handlers
from hoplite_ray.plugin.tables.operations import Operations, checked_number, checked_prefix, to_us
from hoplite_ray.plugin.tables.snapshot import Snapshot
from hoplite_ray.plugin.tables.watching import OnGap, Watch
from hoplite_ray.tables.log import COPIES_MAX, Options, checked_name
from hoplite_ray.tables.routes import Route
from hoplite_ray.tables.state import State
from hoplite_ray.tables.versions import Version


class Table:
    """A table of versions: each put of a key adds one, and readers choose by version or by time.

    All processes of the cluster that make a Table of one name share it, and it lives as long as the
    cluster. Puts of all processes have one order. No process but Ray's GCS is needed for the
    table to go on: any process puts, and any other takes over what a dead one has left.

    The values are in the store; a value has `copies` copies on several Ray nodes before its version
    can be read. The list of versions is in the key-value store of Ray's GCS. It is lost with the
    GCS, except with Ray's GCS fault tolerance.

    Source: the versioned store of Cascade, as "Vortex" (2025) uses it, appendix A.

    Example:

        table = hop.Table("models")
        first = table.put("actor", np.zeros(3))
        table.put("actor", np.ones(3))
        assert table.get("actor").sum() == 3
        assert table.get("actor", version=first.number).sum() == 0
        assert table.get("actor", at=first.time_s).sum() == 0
    """

    def __init__(self, name: str, *, keep: int = 2, keep_s: float = 60.0, copies: int = 2) -> None:
        """Open the table, or make it.

        Args:    name: 1 to 200 letters, digits, "_", "." and "-".
                 keep: newest versions of a key that are never dropped, at least 1.
                 keep_s: seconds for which every other version stays after the next one has come,
                 at least 0. A removed key goes whole after them.
                 copies: of each value that this process puts, 1 to 3, on as many Ray nodes. With
                 fewer Ray nodes there is a copy on each.
        Raises:  InvalidArgumentError; at the first operation also if the table was made with other
                 `keep` or `keep_s`. HopliteError if Ray is not running here.
        """
        if type(keep) is not int or keep < 1:
            raise InvalidArgumentError(f"keep is {keep!r}; it takes 1 or more versions")
        if type(copies) is not int or not 1 <= copies <= COPIES_MAX:
            raise InvalidArgumentError(f"copies is {copies!r}; it takes 1 to {COPIES_MAX}")
        self.name = checked_name(name)
        options = Options(keep=keep, keep_us=to_us(keep_s, "keep_s"))
        self._ops = Operations(self.name, options, copies)

    # ---- puts ----

    def put(self, key: str, value: Any, *, timeout_s: float | None = None) -> Version:
        """Put a value as the key's next version.

        Args:    key: a text of at most 1,024 bytes.
                 value: as for `hoplite_ray.put`.
                 timeout_s: seconds to wait; None waits without a limit.
        Returns: the version, when every process can read it: `number`, `time_s`, `size_bytes`.
        Raises:  InvalidArgumentError; StoreFullError; GetTimeoutError, after which the put may
                 still take effect; ControlError if Ray's GCS does not answer.
        Cost:    a copy of the bytes here and on `copies` - 1 other nodes; two calls to Ray's GCS,
                 which all puts share that this process does at the same time.
        Example:

            version = hop.Table("puts").put("a", np.arange(3))
            assert version.size_bytes == 24
        """
        return self.put_all({key: value}, timeout_s=timeout_s)[key]

    async def put_async(self, key: str, value: Any, *, timeout_s: float | None = None) -> Version:
        """Like `put`, but awaitable; a put that is cancelled may still take effect."""
        return (await self.put_all_async({key: value}, timeout_s=timeout_s))[key]

    def put_all(
        self, values: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Version]:
        """Put several keys at once: a reader of one time sees all of these versions or none.

        Args:    values: 1 to 64 keys with their values.
                 timeout_s: as for `put`.
        Returns: the version of each key; all have one time.
        Raises:  as `put`.
        Cost:    as a put of all the bytes.
        Example:

            table = hop.Table("pairs")
            table.put_all({"weights": np.ones(3), "step": np.array(7)})
            with table.snapshot() as cut:
                assert cut.get("step") == 7
        """
        return self._ops.run(self._ops.put_all(values), "put", timeout_s)

    async def put_all_async(
        self, values: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Version]:
        """Like `put_all`, but awaitable; a put that is cancelled may still take effect."""
        return await self._ops.run_async(self._ops.put_all(values), "put", timeout_s)

    def remove(self, key: str, *, timeout_s: float | None = None) -> Version:
        """Remove a key: its next version says that it has no value.

        Args:    key, timeout_s: as for `put`.
        Returns: that version, whose `is_removal` is True. Removing a key that is not there is no
                 error.
        Raises:  as `put`.
        Cost:    two calls to Ray's GCS.
        Example:

            table = hop.Table("removals")
            table.put("a", np.zeros(1))
            table.remove("a")
            assert table.keys() == []
        """
        return self._ops.run(self._ops.remove(key), "removal", timeout_s)

    async def remove_async(self, key: str, *, timeout_s: float | None = None) -> Version:
        """Like `remove`, but awaitable; a removal that is cancelled may still take effect."""
        return await self._ops.run_async(self._ops.remove(key), "removal", timeout_s)

    # ---- reads ----

    def get(
        self,
        key: str,
        *,
        version: int | None = None,
        at: float | Snapshot | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Return a value: the latest one, that of a version, or the latest one at a time.

        Args:    key: as for `put`.
                 version: a version's number.
                 at: seconds since 1970, not in the future of this process's clock; or a snapshot.
                 The value at a time never changes.
                 timeout_s: seconds to wait; None waits without a limit.
        Returns: the value, the caller's own, as `hoplite_ray.get` returns it.
        Raises:  VersionMissingError, which is a KeyError; VersionDroppedError; ObjectLostError if
                 all nodes with a copy are gone; GetTimeoutError; ControlError.
        Cost:    one call to Ray's GCS for the latest version; none for a version or time that this
                 process has read about. A time later than the last put costs one put without bytes.
                 The bytes come from this node if it has a copy.
        Example:

            table = hop.Table("gets")
            table.put("a", np.arange(4))
            assert table.get("a", at=time.time()).tolist() == [0, 1, 2, 3]
        """
        steps = self._ops.get(key, version, _read_time(at))
        return self._ops.run(steps, "get", timeout_s)

    async def get_async(
        self,
        key: str,
        *,
        version: int | None = None,
        at: float | Snapshot | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Like `get`, but awaitable; cancelling it cancels the transfer."""
        steps = self._ops.get(key, version, _read_time(at))
        return await self._ops.run_async(steps, "get", timeout_s)

    def find(
        self,
        key: str,
        *,
        version: int | None = None,
        at: float | Snapshot | None = None,
        timeout_s: float | None = None,
    ) -> Version:
        """Return the version that `get` would return the value of, without fetching that.

        Args:    key, version, at, timeout_s: as for `get`.
        Returns: the version.
        Raises:  as `get`, except ObjectLostError.
        Cost:    as `get`, without the bytes.
        Example:

            table = hop.Table("finds")
            put = table.put("a", np.arange(4))
            assert table.find("a") == put
        """
        steps = self._ops.find(key, version, _read_time(at))
        return self._ops.run(steps, "find", timeout_s)

    async def find_async(
        self,
        key: str,
        *,
        version: int | None = None,
        at: float | Snapshot | None = None,
        timeout_s: float | None = None,
    ) -> Version:
        """Like `find`, but awaitable."""
        steps = self._ops.find(key, version, _read_time(at))
        return await self._ops.run_async(steps, "find", timeout_s)

    def keys(self, prefix: str = "", *, timeout_s: float | None = None) -> list[str]:
        """Return the keys that have a value now, sorted.

        Args:    prefix: the keys begin with it.
                 timeout_s: as for `get`.
        Returns: the keys.
        Raises:  GetTimeoutError; ControlError.
        Cost:    one call to Ray's GCS, and O(keys of the table).
        Example:

            table = hop.Table("keys")
            table.put("a/1", np.zeros(1))
            assert table.keys("a/") == ["a/1"]
        """
        steps = self._ops.keys(prefix)
        return self._ops.run(steps, "keys", timeout_s)

    async def keys_async(self, prefix: str = "", *, timeout_s: float | None = None) -> list[str]:
        """Like `keys`, but awaitable."""
        steps = self._ops.keys(prefix)
        return await self._ops.run_async(steps, "keys", timeout_s)

    def snapshot(self, *, timeout_s: float | None = None) -> Snapshot:
        """Return the present state of all keys: a cut, in which each put is whole or missing.

        Args:    timeout_s: as for `get`.
        Returns: the cut. Its reads fail with VersionDroppedError when the table has dropped what
                 they need: a version that was superseded `keep_s` ago.
        Raises:  GetTimeoutError; ControlError.
        Cost:    one call to Ray's GCS; the reads cost none.
        Example:

            table = hop.Table("cuts")
            table.put_all({"a": np.zeros(1), "b": np.zeros(1)})
            with table.snapshot() as cut:
                table.put_all({"a": np.ones(1), "b": np.ones(1)})
                assert cut.get("a") == cut.get("b") == 0
        """
        time_s = self._ops.run(self._ops.read(_take_time), "snapshot", timeout_s)
        return Snapshot(self, time_s)

    async def snapshot_async(self, *, timeout_s: float | None = None) -> Snapshot:
        """Like `snapshot`, but awaitable."""
        time_s = await self._ops.run_async(self._ops.read(_take_time), "snapshot", timeout_s)
        return Snapshot(self, time_s)

    def watch(
        self, prefix: str = "", *, since: int | None = None, on_gap: OnGap = "raise"
    ) -> Watch:
        """Watch keys: iterate over the new versions, each once and in order.

        Args:    prefix: the keys begin with it.
                 since: a version's number; the watch begins with the version after it. A watch
                 that was interrupted goes on after the last version that it has handed on.
                 on_gap: "raise" raises VersionDroppedError if versions have gone before they were
                 read; "latest" goes on with the newest version of each key.
        Returns: the watch, from now on unless `since` is given. It begins at once.
        Raises:  InvalidArgumentError; HopliteError if Ray is not running here.
        Cost:    while this process watches the table, a call to Ray's GCS every 5 to 50 ms,
                 whatever the number of watches.
        Example:

            table = hop.Table("watches")
            with table.watch("a/") as changes:
                table.put("a/1", np.zeros(1))
                change = next(changes)
            assert change.key == "a/1"
        """
        checked_prefix(prefix)
        if since is not None:
            checked_number(since, "since")
        return Watch(self._ops.open().follower, prefix, since, on_gap)

    # ---- values that are sent, and stored nowhere ----

    def trigger(
        self, key: str, value: Any, *, route: Route = "key", timeout_s: float | None = None
    ) -> Any:
        """Send a value to a handler of the key, and return what that returns; store nothing.

        A handler that dies is removed, and the next one takes the value. So each value is handled
        at least once, and a second time only if its handler has died meanwhile.

        Args:    key: as for `put`; the handlers of all prefixes of it can take the value.
                 value: an argument of an actor call.
                 route: "key" sends all values of a key to one handler, as long as that lives, and
                 spreads keys over the handlers. "balanced" takes the handler with the fewest
                 values under way from this table object, in turn if several have as few.
                 timeout_s: as for `get`; the handler may still run after it.
        Returns: what the handler's method returns.
        Raises:  HopliteError if no handler of the key runs; the error of the method;
                 InvalidArgumentError; GetTimeoutError; ControlError.
        Cost:    one call to Ray's GCS and one call of an actor.
        Source:  the trigger put of Cascade, routed or balanced, as "Vortex" (2025) uses it.
        Example:

            @ray.remote(num_cpus=0)
            class Doubler:
                def handle(self, key, value):
                    return key, 2 * value

            table, doubler = hop.Table("triggers"), Doubler.remote()
            table.add_handler("numbers/", doubler)
            assert table.trigger("numbers/a", 21) == ("numbers/a", 42)
        """
        return self._ops.run(self._handlers.send(key, value, route), "trigger", timeout_s)

    async def trigger_async(
        self, key: str, value: Any, *, route: Route = "key", timeout_s: float | None = None
    ) -> Any:
        """Like `trigger`, but awaitable; the handler runs on if it is cancelled."""
        steps = self._handlers.send(key, value, route)
        return await self._ops.run_async(steps, "trigger", timeout_s)

    def add_handler(
        self, prefix: str, actor: Any, *, method: str = "handle", timeout_s: float | None = None
    ) -> None:
        """Have an actor handle the values that `trigger` sends to keys with a prefix.

        Args:    prefix: the keys begin with it.
                 actor: an actor's handle. The table does not keep the actor alive.
                 method: the name of its method, which takes the key and the value.
                 timeout_s: as for `put`.
        Returns: None, when every process can send to it. Adding it again changes its method.
        Raises:  as `put`; WrongTypeError for what is no actor.
        Cost:    as a put.
        Example:

            @ray.remote(num_cpus=0)
            class Counter:
                def count(self, key, value):
                    return len(value)

            counter = Counter.remote()
            hop.Table("handlers").add_handler("texts/", counter, method="count")
            assert hop.Table("handlers").trigger("texts/a", "four") == 4
        """
        self._ops.run(self._handlers.add(prefix, actor, method), "add_handler", timeout_s)

    async def add_handler_async(
        self, prefix: str, actor: Any, *, method: str = "handle", timeout_s: float | None = None
    ) -> None:
        """Like `add_handler`, but awaitable; if it is cancelled, it may still take effect."""
        steps = self._handlers.add(prefix, actor, method)
        await self._ops.run_async(steps, "add_handler", timeout_s)

    def remove_handler(self, prefix: str, actor: Any, *, timeout_s: float | None = None) -> None:
        """Have an actor handle the values of a prefix no longer.

        Args:    prefix, actor, timeout_s: as for `add_handler`.
        Returns: None; `trigger` calls that begin later don't find it. Removing an actor that was
                 not added is no error.
        Raises:  as `add_handler`.
        Cost:    two calls to Ray's GCS.
        Example:

            @ray.remote(num_cpus=0)
            class Echo:
                def handle(self, key, value):
                    return value

            table, echo = hop.Table("removed"), Echo.remote()
            table.add_handler("", echo)
            table.remove_handler("", echo)
        """
        self._ops.run(self._handlers.remove(prefix, actor), "remove_handler", timeout_s)

    async def remove_handler_async(
        self, prefix: str, actor: Any, *, timeout_s: float | None = None
    ) -> None:
        """Like `remove_handler`, but awaitable; if it is cancelled, it may still take effect."""
        steps = self._handlers.remove(prefix, actor)
        await self._ops.run_async(steps, "remove_handler", timeout_s)

    def __repr__(self) -> str:
        return f"hop.Table({self.name!r})"

    def __reduce__(self) -> tuple[Callable[[], Table], tuple[()]]:
        keep, keep_s = self._ops.options.keep, self._ops.options.keep_us / 1e6
        return partial(Table, self.name, keep=keep, keep_s=keep_s, copies=self._ops.copies), ()

    @cached_property
    def _handlers(self) -> Handlers:
        return Handlers(self.name, self._ops.copies)


def _read_time(at: float | Snapshot | None) -> float | None:
    return at.time_s if isinstance(at, Snapshot) else at


def _take_time(state: State) -> float:
    return state.time_us / 1e6
