"""Every error of Serve applications, as one tree; all are exceptions of `hoplite_ray`.

::

    HopliteError
    ├── BusyError                                     a stage has no room for another query
    ├── LateError            (also TimeoutError)      a stage did not run it: its deadline
    ├── NoReplicaError                                a stage has no replica now
    ├── PipelineGoneError                             an update has removed its pipeline
    ├── PoisonousQueryError                           replicas died while they held the query
    ├── QuorumError                                   too few members voted; has `.partial`
    ├── UnattainableError    (also ValueError)        no plan keeps the objective
    └── EdgeBrokenError                               the peer of an edge is gone

Four more stay inside of an application: JoinLostError, UnknownPipelineError, StoredLostError and
OtherVersionError. Their catchers ask again, send the value, or open no edge. All survive pickling,
with their attributes, because edges carry them between processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hoplite_ray.errors import HopliteError


class BusyError(HopliteError):
    """A stage has as many queries waiting as it may. Ask again later."""


class LateError(HopliteError, TimeoutError):
    """A stage did not run a query, because its deadline has passed or can't be met."""


class NoReplicaError(HopliteError):
    """A stage has no replica that can answer now."""


class PipelineGoneError(HopliteError):
    """An update has removed the pipeline of a query, or renamed it, while the query was asked."""


class PoisonousQueryError(HopliteError):
    """Several replicas, one after the other, died while they held this query."""


class QuorumError(HopliteError):
    """Too few members voted. `partial` has the votes that came, by member."""

    def __init__(self, why: str, partial: Mapping[str, Any]) -> None:
        super().__init__(why, partial)
        self.partial = partial

    def __str__(self) -> str:
        return str(self.args[0])


class UnattainableError(HopliteError, ValueError):
    """No plan keeps a service-level objective. The text names the stage and the numbers."""


class EdgeBrokenError(HopliteError):
    """An edge has ended: its peer is dead, out of reach, or has left.

    was_sent:   True if the call was sent, or its frame was being made.
    has_begun:  True if the peer had said that it works on the call.
    """

    def __init__(self, why: str, *, was_sent: bool = True, has_begun: bool = False) -> None:
        super().__init__(why)
        self.was_sent = was_sent
        self.has_begun = has_begun


class JoinLostError(HopliteError):
    """A query's inputs can't meet, or a replica does not know its pipeline. The ingress asks again.

    deaths:  of replicas that held this query, in all attempts.
    """

    def __init__(self, why: str, deaths: int) -> None:
        super().__init__(why, deaths)
        self.deaths = deaths


class UnknownPipelineError(JoinLostError):
    """A replica does not know a query's pipeline: it is older than the ingress, or newer.

    began_s:  when the replica has started, in seconds since 1970.
    """

    def __init__(self, why: str, deaths: int, began_s: float) -> None:
        HopliteError.__init__(self, why, deaths, began_s)
        self.deaths = deaths
        self.began_s = began_s


class StoredLostError(HopliteError):
    """A receiver can't read a value by its id from the store. The sender sends the value."""


class OtherVersionError(HopliteError):
    """The peer's `hoplite_ray` uses another version of edges."""
