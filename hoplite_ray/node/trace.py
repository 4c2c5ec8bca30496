"""The life of one object as text: the files and processes that handled it, in order of time.

A node started with the option `trace=1` writes one line to its log for each command, event and
action that names an object. `stations` reads them back as the walk that
docs/internals/architecture.md lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MARK = "trace"


@dataclass(frozen=True, slots=True)
class Station:
    """One file on the way from `put` to another node's `get`, and its marks in a node's log."""

    file: str
    process: str
    kinds: frozenset[str]
    what: str


# From the put to the get. A station without kinds is in the caller's own process.
STATIONS: tuple[Station, ...] = (
    Station("hoplite_ray/client.py", "worker", frozenset(), "put asks for a range and waits"),
    Station("native/bindings/module.cc", "worker", frozenset(), "converts, releases the GIL"),
    Station("native/client/client.cc", "worker", frozenset(), "writes into the arena"),
    Station(
        "native/io/local_port.cc",
        "sending node",
        frozenset({"PutCommand"}),
        "the Unix socket's other end",
    ),
    Station(
        "native/plan/engine/commands.cc",
        "sending node",
        frozenset({"ReplyToClient"}),
        "the put becomes a range and a claim",
    ),
    Station(
        "native/plan/directory/directory.cc",
        "home node",
        frozenset({"in:Claim"}),
        "hears who has it and who wants it, and leases",
    ),
    Station(
        "native/plan/engine/transfers.cc",
        "receiving node",
        frozenset({"in:Grant"}),
        "the lease becomes a pull; blocks are counted",
    ),
    Station(
        "native/io/links/tcp_rail.cc",
        "receiving node",
        frozenset({"BlockLanded"}),
        "blocks from arena to arena",
    ),
)


def events(log: Iterable[str], object_id: bytes) -> list[str]:
    """Return the events of one object in a node's log, in order: `PutCommand`, `in:Claim`, ..."""
    name = object_id.hex()
    words = (line.split() for line in log)
    return [w[2] for w in words if len(w) == 3 and w[0] == _MARK and w[1] == name]


def stations(logs: Sequence[Iterable[str]], object_id: bytes) -> list[Station]:
    """Return the stations that the logs of all nodes show, and those of the caller's process."""
    seen = {kind for log in logs for kind in events(log, object_id)}
    return [station for station in STATIONS if not station.kinds or station.kinds & seen]
