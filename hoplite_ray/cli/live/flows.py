"""The transfers between all nodes: two snapshots, and the rates between them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from hoplite_ray.cli.cluster.places import Cluster
from hoplite_ray.cli.cluster.survey import NodeReport, Survey, ask_each, survey
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import ControlError

_TRANSFERS_MAX = 1000  # of each node

_Answer = tuple[list[pb.Transfer], list[pb.Channel]]
Key = tuple[bytes, bytes, int, int, int]  # target, object, sender, receiver, stripe


@dataclass(slots=True)
class Snapshot:
    """The answers of all nodes at about one moment."""

    seen: Survey
    transfers: dict[Key, pb.Transfer] = field(default_factory=dict)
    at_s: dict[int, float] = field(default_factory=dict)  # when each node had answered
    channels: dict[int, list[pb.Channel]] = field(default_factory=dict)  # as each node knows them
    time_s: float = field(default_factory=time.time)  # of this machine's clock, when it was begun

    @classmethod
    def take(cls, cluster: Cluster, *, timeout_s: float) -> Snapshot:
        """Ask every node. The survey has the reason for each node that does not answer."""
        return asyncio.run(take_snapshot(cluster, timeout_s=timeout_s))


async def take_snapshot(
    cluster: Cluster, *, timeout_s: float, seen: Survey | None = None
) -> Snapshot:
    """Like `Snapshot.take`, but awaitable; without channels if a survey is given.

    Args:    seen: an earlier survey to use again, where no node comes or goes: one call to each
                   node instead of five.
    """
    snapshot = Snapshot(seen or await survey(cluster, timeout_s=timeout_s / 2))
    nodes = [node for node in snapshot.seen.nodes if node.answers]

    async def ask(calls: ControlClient, node: NodeReport) -> _Answer:
        transfers = calls.transfers(node.control, limit=_TRANSFERS_MAX, timeout_s=timeout_s / 2)
        if seen is not None:
            return await transfers, []
        channels = calls.channels(node.control, timeout_s=timeout_s / 2)
        both = await asyncio.gather(transfers, channels)
        return both[0], both[1]

    for node, answer in zip(nodes, await ask_each(cluster, nodes, ask), strict=True):
        if isinstance(answer, ControlError):
            node.state, node.why = "silent", str(answer)
            continue
        rows, snapshot.channels[node.node_id] = answer
        snapshot.at_s[node.node_id] = time.monotonic()
        for row in rows:
            key = (row.target_id, row.object_id, row.sender, node.node_id, row.stripe)
            snapshot.transfers[key] = row
    return snapshot


def follow_view(cluster: Cluster, now: Snapshot) -> Cluster:
    """Return the cluster with the members of the newest view, for the next snapshot."""
    members = now.seen.view.members
    if not members:
        return cluster
    controls = tuple(member.control for member in members)
    return replace(cluster, view=now.seen.view, controls=controls)


def nodes_of(before: Snapshot, now: Snapshot) -> list[dict[str, Any]]:
    """Return every node of `now` with its arena, and the bytes per second in and out of it."""
    earlier = {node.key: node.counters for node in before.seen.nodes}
    rows = []
    for node in now.seen.nodes:
        elapsed_s = now.at_s.get(node.node_id, 0.0) - before.at_s.get(node.node_id, 0.0)
        is_known = node.node_id in before.at_s and node.node_id in now.at_s
        counters_before = earlier.get(node.key, {})
        rates = {
            name: (node.counters[counter] - counters_before[counter]) / elapsed_s
            if is_known and elapsed_s > 0 and counter in counters_before
            else None
            for name, counter in (
                ("in_bytes_per_s", "link_bytes_received"),
                ("out_bytes_per_s", "link_bytes_sent"),
            )
        }
        rows.append(
            {
                "node_id": f"{node.node_id:x}",
                "control": node.control,
                "state": node.state,
                "why": node.why,
                "arena_bytes": node.counters.get("arena_bytes"),
                "arena_bytes_used": node.counters.get("arena_bytes_used"),
                **rates,
            }
        )
    return rows


def transfers_of(before: Snapshot, now: Snapshot) -> list[dict[str, Any]]:
    """Return every stripe under way, the largest first; the rate of a new one is None.

    A copy is part of a broadcast if other nodes receive the same object.
    """
    receivers: dict[bytes, set[int]] = defaultdict(set)
    for target, _, _, receiver, _ in now.transfers:
        receivers[target].add(receiver)
    rows = []
    for key, row in now.transfers.items():
        target, object_id, sender, receiver, stripe = key
        earlier = before.transfers.get(key)
        rate = None
        if earlier is not None and row.landed_bytes >= earlier.landed_bytes:
            elapsed_s = now.at_s[receiver] - before.at_s[receiver]
            rate = (row.landed_bytes - earlier.landed_bytes) / elapsed_s if elapsed_s > 0 else None
        is_broadcast = row.kind == "copy" and len(receivers[target]) > 1
        rows.append(
            {
                "target_id": target.hex(),
                "object_id": object_id.hex(),
                "kind": "broadcast" if is_broadcast else row.kind,
                "stripe": stripe,
                "stripe_count": row.stripe_count,
                "sender": f"{sender:x}",
                "receiver": f"{receiver:x}",
                "landed_bytes": row.landed_bytes,
                "size_bytes": row.size_bytes,
                "bytes_per_s": rate,
            }
        )
    return sorted(rows, key=_largest_first)


def _largest_first(row: dict[str, Any]) -> tuple[Any, ...]:
    return (-row["size_bytes"], *(row[name] for name in ("target_id", "stripe", "receiver")))


def trees_of(transfers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tree of each target and stripe: lines of (depth, node, the node's feeding edge).

    A node that only sends is a root. Nodes answer at different moments, so edges may form a ring
    for a while. The tree of a ring begins at its first node, and no node sends twice in it.
    """
    edges: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for row in transfers:
        feeds = edges.setdefault((row["target_id"], row["stripe"]), {})
        feeds.setdefault(row["sender"], []).append(row)
    return [
        {"target_id": target, "stripe": stripe, "lines": _lines(feeds)}
        for (target, stripe), feeds in edges.items()
    ]


def _lines(feeds: dict[str, list[dict[str, Any]]]) -> list[tuple[int, str, dict[str, Any] | None]]:
    fed = {row["receiver"] for rows in feeds.values() for row in rows}
    lines: list[tuple[int, str, dict[str, Any] | None]] = []
    drawn: set[str] = set()
    for root in [*sorted(feeds.keys() - fed), *sorted(feeds)]:
        if root in drawn:
            continue
        left: list[tuple[int, str, dict[str, Any] | None]] = [(0, root, None)]
        while left:
            depth, node, edge = left.pop()
            lines.append((depth, node, edge))
            if node in drawn:
                continue
            drawn.add(node)
            below = sorted(feeds.get(node, []), key=lambda row: str(row["receiver"]), reverse=True)
            left += [(depth + 1, row["receiver"], row) for row in below]
    return lines
