"""Lists of channels: what the nodes know of them, brought together. Pure but for `find_namespaces`.

Every node keeps the newest version of every channel, and knows the readers among its own processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hoplite_ray.channel.record import Record
from hoplite_ray.channel.steps import Steps
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import GetTimeoutError, HopliteError, InvalidArgumentError
from hoplite_ray.values.versions import NO_ID, ChannelState

T = TypeVar("T")

_NAMED_MAX = 8  # namespaces in an error's text


@dataclass(frozen=True, slots=True)
class ListedReader:
    """A process that watches a channel, or asks for versions newer than the one that it has.

    node_id:       of its node.
    process:       its process id there.
    version:       that it has read last.
    lag_versions:  how many versions were published after that one.
    lag_s:         how much older that one is than the newest, in seconds.
    """

    node_id: int
    process: int
    version: int
    lag_versions: int
    lag_s: float


@dataclass(frozen=True, slots=True)
class ListedChannel:
    """A channel, its newest version, and its readers.

    namespace:          of Ray; "" without Ray.
    name:               as given to `publish`.
    version:            the newest one.
    time_s:             when its bytes were whole, in seconds since 1970, by the publisher's clock.
    size_bytes:         of its value.
    kept:               versions that can be read, with the newest.
    publisher_node_id:  of the node that published it.
    home_node_id:       of the node that decides the channel's order; None if it has not answered.
    readers:            those that lag most first.
    """

    namespace: str
    name: str
    version: int
    time_s: float
    size_bytes: int
    kept: int
    publisher_node_id: int
    home_node_id: int | None
    readers: tuple[ListedReader, ...]

    @property
    def lag_versions(self) -> int:
        """The lag of the reader that lags most, in versions; 0 without readers."""
        return max((each.lag_versions for each in self.readers), default=0)


class ToldReader(Protocol):
    """`control_pb2.ChannelReader`, as a list uses it."""

    process: int
    version: int
    ordinal: int
    time_s: float


class ToldChannel(Protocol):
    """`control_pb2.Channel`, as a list uses it."""

    channel_id: bytes
    epoch: int
    counter: int
    n: int
    record: bytes
    is_home: bool

    @property
    def readers(self) -> Iterable[ToldReader]:
        """The readers of the node that answers."""
        ...


def collect_channels(answers: Mapping[int, Sequence[ToldChannel]]) -> list[ListedChannel]:
    """Return every channel by the nodes' answers, in the order of namespaces and names.

    Nodes answer at different moments: the newest version that any of them knows counts.

    answers:  of each node, by its id. A channel whose record is of another release is left out.
    """
    told: dict[bytes, list[tuple[int, ToldChannel]]] = defaultdict(list)
    for node_id, rows in answers.items():
        for row in rows:
            told[row.channel_id].append((node_id, row))
    listed = filter(None, map(_collect_one, told.values()))
    return sorted(listed, key=lambda each: (each.namespace, each.name))


def _collect_one(rows: list[tuple[int, ToldChannel]]) -> ListedChannel | None:
    _, newest = max(rows, key=lambda each: (each[1].epoch, each[1].counter, each[1].n))
    record = _decode(newest.record)
    if record is None:
        return None
    readers = [_measure(record, node_id, reader) for node_id, row in rows for reader in row.readers]
    homes = [node_id for node_id, row in rows if row.is_home]
    return ListedChannel(
        record.origin.namespace,
        record.origin.name,
        record.version,
        record.time_s,
        record.size_bytes,
        len(record.kept) + 1,
        record.origin.node_id,
        homes[0] if homes else None,
        tuple(sorted(readers, key=lambda each: (-each.lag_versions, each.node_id, each.process))),
    )


def _measure(record: Record, node_id: int, reader: ToldReader) -> ListedReader:
    lag = max(record.origin.ordinal - reader.ordinal, 0)
    lag_s = max(record.time_s - reader.time_s, 0.0) if lag else 0.0
    return ListedReader(node_id, reader.process, reader.version, lag, lag_s)


def _decode(payload: bytes) -> Record | None:
    try:
        return Record.decode(payload)
    except InvalidArgumentError:
        return None


def explain_timeout(steps: Steps[T], store: StoreClient, namespace: str, name: str) -> Steps[T]:
    """Do the steps of a reader; a timeout names the channel, and other namespaces that have it."""
    try:
        return (yield from steps)
    except GetTimeoutError as error:
        others: list[str] = []
        with suppress(HopliteError):
            others = yield from find_namespaces(store, name)
        if not others or namespace in others:
            where = f" of namespace {namespace!r}" if namespace else ""
            raise GetTimeoutError(f"channel {name!r}{where}: {error}") from None
        raise GetTimeoutError(
            f"namespace {namespace!r} has no channel {name!r}, and a channel of that name is in "
            f"{_enumerate(others)}: give its namespace, or publish in this one"
        ) from error


def _enumerate(namespaces: list[str]) -> str:
    named = ", ".join(f"{each!r:.80}" for each in namespaces[:_NAMED_MAX])
    more = len(namespaces) - _NAMED_MAX
    return named + (f" and {more} more" if more > 0 else "")


def find_namespaces(store: StoreClient, name: str) -> Steps[list[str]]:
    """Find the namespaces with a channel of that name, by what this process's node knows."""
    found: list[str] = []
    after = NO_ID
    page: list[ChannelState]
    while page := (yield store.list_channels(after)):
        records = filter(None, (_decode(each.newest.payload) for each in page))
        found += (each.origin.namespace for each in records if each.origin.name == name)
        after = page[-1].channel
    return sorted(found)
