"""The counters of a node as one typed snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, fields

from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import ControlError


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The numbers of one node.

    Counts from the node's start: spill_bytes_written, spill_bytes_read, spill_errors, rebuilds,
    rebuilds_failed, blocks_*, bytes_sent, evictions, reduces_* and reduce_branches.
    Values of the moment: arena_bytes and its parts, spill_bytes, objects, waiters,
    directory_entries, members, view_epoch and has_quorum.
    Value of the last reduce with more than one level: reduce_degree.
    """

    arena_bytes: int
    arena_bytes_used: int
    arena_bytes_pinned: int
    arena_bytes_orphaned: int
    spill_bytes: int  # in the spill file
    spill_bytes_written: int
    spill_bytes_read: int
    spill_errors: int  # writes and reads that failed
    rebuilds: int  # objects made here of a base and deltas
    rebuilds_failed: int  # begun here, and fetched whole in the end
    objects: int
    waiters: int
    directory_entries: int
    members: int
    view_epoch: int
    has_quorum: int  # 0 if no view can be committed as seen from there, else 1
    blocks_sent: int
    blocks_received: int
    blocks_folded: int
    blocks_combined: int  # of several sources of a reduce, sent as one
    bytes_sent: int
    evictions: int
    reduces_committed: int
    reduces_branched: int  # committed reduces whose tree had more than one level
    reduce_branches: int  # branches of those trees, below their roots
    reduce_degree: int  # members per node of the last such tree; 0 before the first one

    @classmethod
    def from_counters(cls, counters: Mapping[str, int]) -> NodeStats:
        """Return a snapshot from the counters that a node publishes.

        Raises:  ControlError if a counter is missing, because the node runs another release.
        """
        missing = [field.name for field in fields(cls) if field.name not in counters]
        if missing:
            raise ControlError(
                f"the node publishes no {', '.join(missing)}; run the same release on all nodes"
            )
        return cls(**{field.name: counters[field.name] for field in fields(cls)})

    @classmethod
    def read(cls, control: str, secret: bytes) -> NodeStats:
        """Return the counters of the node with the control service at `control`.

        Raises:  ControlError if the node does not answer in time or refuses the secret.
        """
        return cls.from_counters(asyncio.run(_counters(control, secret)))


async def _counters(control: str, secret: bytes) -> dict[str, int]:
    calls = ControlClient(secret)
    try:
        return await calls.stats(control)
    finally:
        await calls.close()
