"""The choice of a replica. Pure: callers give what the sender knows, and how long it has waited.

`find_candidates` says which replicas may get a query, and `least_loaded` chooses among them.
`decide` is about one of a join's preferred replicas, of which all senders of a query must take the
same one: the first that is not dead.
A sender that started after Serve had removed a replica can't tell whether that replica is dead, or
drains and has another input of this query.

    its door refuses                              NEXT
    it has an edge, open or leaving               TAKE
    Serve lists it                                WAIT, after REACH_S UNREACHABLE
    Serve does not list it, but once has          WAIT, after MEET_S NEXT
    Serve has never listed it to this sender      WAIT, after MEET_S GONE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

Key = TypeVar("Key")

REACH_S = 5.0  # for an edge to a replica that Serve knows and that has not ended
MEET_S = 1.0  # for Serve to tell of a replica that others know already
OPEN_S = 1.0  # for first edges to open, before a parked replica gets a query; decision 36


class Decision(Enum):
    """The decision of a sender about one preferred replica."""

    TAKE = "take"
    """Send the query to it."""
    WAIT = "wait"
    """Look again when something has changed, or a little later."""
    NEXT = "next"
    """The replica is dead: all senders take the next one."""
    GONE = "gone"
    """Give the join up: Serve had removed the replica before this sender started."""
    UNREACHABLE = "unreachable"
    """Give the join up: the replica lives, and no edge to it can be opened."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The knowledge of a sender about a replica.

    is_dead:    True if its door refuses connections.
    has_edge:   True if an edge to it is open, also if Serve is taking it away.
    is_listed:  True if Serve says that it runs.
    was_listed: True if Serve has ever said so to this sender.
    """

    is_dead: bool
    has_edge: bool
    is_listed: bool
    was_listed: bool


def decide(status: ReplicaStatus, waited_s: float) -> Decision:
    """Decide about a preferred replica for which the sender has waited `waited_s`."""
    if status.is_dead:
        return Decision.NEXT
    if status.has_edge:
        return Decision.TAKE
    if not status.is_listed and waited_s > MEET_S:
        return Decision.NEXT if status.was_listed else Decision.GONE
    return Decision.UNREACHABLE if waited_s > REACH_S else Decision.WAIT


def find_candidates(parked: Mapping[str, bool], *, is_opening: bool) -> Sequence[str]:
    """Return the replicas that may get a query: the active ones, or the parked ones if none is.

    parked:      for each replica with an edge, True if it is parked.
    is_opening:  True if the first edge to another replica, which may be active, is being opened.

    Returns: parked ones in order, so that all senders begin with the same one. Nothing while only
             parked replicas have an edge and another edge is being opened: the sender waits.
    """
    active = [each for each, is_parked in parked.items() if not is_parked]
    return active if active or is_opening else sorted(parked)


def least_loaded(loads: Mapping[Key, int], draw: Callable[[], float]) -> Key | None:
    """Return the key with the fewest calls; None without keys. `draw` decides among equals."""
    return min(loads, key=lambda each: (loads[each], draw()), default=None)
