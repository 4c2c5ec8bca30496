"""Parked replicas: prepared for Serve, and chosen only when they are released.

A parked replica runs: its model is loaded, and its senders have edges to it. They choose it only if
no replica of its stage is active. `Parking` is pure and decides when it becomes active, for good:

    POLICY   an autoscaling policy names it in its notice
    QUERY    a query comes, because no other replica is active
    SILENCE  the notice has not changed for SILENT_S: without a policy no capacity is held back

The policy writes its notice into Ray's key-value store. `ReplicaParking` reads it ten times a
second, and tells the door. Source: Vortex 5.3 (replicas are loaded on an early sign of a surge, and
activated when they are needed). Design decision 36.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hoplite_ray.serve import metrics, seams

logger = logging.getLogger("hoplite_ray.serve")
_serve_logger = logging.getLogger("ray.serve")  # which goes into the replica's log

POLL_S = 0.1  # between two looks at the notice; a release waits for half of it on average
SILENT_S = 10.0  # without another notice, after which a replica releases itself; decision 36
PARKED_KEY = "hoplite_parked"  # of a replica's statistics: 1 while it is parked, then 0
_AHEAD = "hoplite_ray.serve.slo.policy.Ahead"  # the policy of `scale_ahead`, as Serve names it
_READ_S = 2.0  # for Ray's key-value store to answer; beyond it the policy counts as silent


class Cause(Enum):
    """The cause for which a parked replica has become active."""

    POLICY = "policy"
    """The policy has released it."""
    QUERY = "query"
    """It got a query, because no replica of its stage was active."""
    SILENCE = "silence"
    """The policy has not written for SILENT_S, or has never written."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The last word of an autoscaling policy about one deployment.

    at:        a number that is another one after each write.
    replicas:  the ids of the replicas that are released.
    """

    at: int
    replicas: frozenset[str]


def parse_notice(raw: bytes | None) -> Notice | None:
    """Return a notice; None if there is none, or the bytes are no notice."""
    try:
        fields = json.loads(raw or b"")
        at, replicas = fields["at"], fields["replicas"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if type(at) is not int or not isinstance(replicas, list):
        return None
    return Notice(at, frozenset(each for each in replicas if isinstance(each, str)))


def notice_key(application: str, deployment: str) -> str:
    """Return the key under which a deployment's notice is in Ray's key-value store."""
    return f"hoplite_released/{application}#{deployment}"


def count_prepared(scaling: Any) -> float:
    """Return the `prepared` of `scale_ahead` in a stage's `autoscaling_config`; 0 for others."""

    def read(settings: Any, name: str) -> Any:
        is_plain = isinstance(settings, Mapping)
        return settings.get(name) if is_plain else getattr(settings, name, None)

    policy = read(scaling, "policy")
    if str(read(policy, "policy_function")).replace(":", ".") != _AHEAD:
        return 0
    return (read(policy, "policy_kwargs") or {}).get("prepared") or 0


class Parking:
    """Whether one replica is parked. It begins parked, and never parks again. Pure.

    cause:  for which it has become active; None while it is parked.
    """

    def __init__(self, replica: str, now_s: float) -> None:
        """Begin parked; `replica` is the id in notices."""
        self.cause: Cause | None = None
        self._replica = replica
        self._last_at: int | None = None
        self._heard_s = now_s

    def handle_notice(self, notice: Notice | None, now_s: float) -> None:
        """Take in the notice as it is at this time; None: there is none, or it can't be read."""
        if notice is not None and notice.at != self._last_at:
            self._last_at, self._heard_s = notice.at, now_s
        if self.cause is not None:
            return
        if notice is not None and self._replica in notice.replicas:
            self.cause = Cause.POLICY
        elif now_s - self._heard_s >= SILENT_S:
            self.cause = Cause.SILENCE

    def handle_query(self) -> None:
        """Take in that a sender has chosen this replica."""
        self.cause = self.cause or Cause.QUERY


class ReplicaParking:
    """The parking of one replica, which belongs to one event loop."""

    def __init__(
        self, application: str, deployment: str, replica: str, activate: Callable[[], None]
    ) -> None:
        """Begin parked, and look at the notice from the next turn on.

        activate:  is called once, when the replica becomes active.
        """
        self._key = notice_key(application, deployment)
        self._name = f"replica {replica} of stage {deployment}"
        self._activate = activate
        self._parking = Parking(replica, time.monotonic())
        self._task = asyncio.create_task(self._watch_notice())

    @property
    def is_parked(self) -> bool:
        """True until the replica becomes active."""
        return self._parking.cause is None

    def handle_query(self) -> None:
        """Make the replica active, because a sender has chosen it."""
        if self.is_parked:
            self._parking.handle_query()
            self._task.cancel()
            self._become_active()

    def close(self) -> None:
        """Look at the notice no longer."""
        self._task.cancel()

    async def _watch_notice(self) -> None:
        while self.is_parked:
            notice = await self._read_notice()
            if self.is_parked:
                self._parking.handle_notice(notice, time.monotonic())
                if not self.is_parked:
                    self._become_active()
                    return
            await asyncio.sleep(POLL_S)

    async def _read_notice(self) -> Notice | None:
        try:
            return parse_notice(await asyncio.to_thread(seams.read_value, self._key, _READ_S))
        except Exception as error:  # Ray's GCS is away; then the policy counts as silent
            logger.debug("%s can't read its notice: %s", self._name, error)
            return None

    def _become_active(self) -> None:
        cause = self._parking.cause
        assert cause is not None  # `Parking` has decided
        if cause is Cause.SILENCE:
            _serve_logger.warning(
                "%s was parked and is active, because no autoscaling policy has written %s for "
                "%g s; give the "
                "stage a policy that releases replicas, or leave starts_parked out",
                *(self._name, self._key, SILENT_S),
            )
        metrics.count("serve_releases", cause=cause.value)
        self._activate()
