"""The commands status, objects, drain, dashboard and alerts. Each returns its exit status."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from hoplite_ray.cli.cluster.places import Cluster
from hoplite_ray.cli.cluster.survey import RAY_SHARE, NodeReport, Survey, ask_each, find_and_survey
from hoplite_ray.cli.cluster.tables import columns, size
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.errors import ControlError, HopliteError
from hoplite_ray.metrics import dashboards
from hoplite_ray.metrics.alerts import rules


class NoServeError(HopliteError):
    """The dashboard of stages needs Ray Serve, which is not installed."""


def status(arguments: argparse.Namespace) -> int:
    """Print the nodes; returns 0 if all answer, and none is in a minority."""
    cluster, seen = find_and_survey(arguments)
    if arguments.json:
        _print(json.dumps(_status_json(cluster, seen)))
    else:
        _print(_status_text(cluster, seen))
    return 0 if seen.is_healthy else 1


def objects(arguments: argparse.Namespace) -> int:
    """Print the largest objects of all nodes; returns 0 if every node has answered."""
    cluster, seen = find_and_survey(arguments)
    nodes = [node for node in seen.nodes if node.answers]

    async def ask() -> list[list[pb.Object] | ControlError]:
        limit, timeout_s = arguments.limit, arguments.timeout_s * (1 - RAY_SHARE)
        return await ask_each(
            cluster,
            nodes,
            lambda calls, node: calls.objects(node.control, limit=limit, timeout_s=timeout_s),
        )

    found: dict[tuple[bytes, int], _Object] = {}
    missing = [f"{node}: {node.why}" for node in seen.nodes if not node.answers]
    for node, answer in zip(nodes, asyncio.run(ask()), strict=True):
        if isinstance(answer, ControlError):
            missing.append(f"{node}: {answer}")
            continue
        for each in answer:
            found.setdefault((each.object_id, each.incarnation), _Object()).add(node, each)
    largest = sorted(found.items(), key=lambda item: (-item[1].size_bytes, item[0]))[
        : arguments.limit
    ]
    rows = [
        {"object_id": object_id.hex(), "incarnation": incarnation, **each.row()}
        for (object_id, incarnation), each in largest
    ]
    if arguments.json:
        _print(json.dumps({"objects": rows, "missing": missing}))
    else:
        _print(_objects_text(rows))
        for line in missing:
            _print(f"not asked: {line}")
    return 1 if missing else 0


def drain(arguments: argparse.Namespace) -> int:
    """Drain one node; returns 0 if all its objects are elsewhere, else 1 and prints the rest."""
    cluster, seen = find_and_survey(arguments, timeout_s=10.0)
    node = _find_node(seen, arguments.node)

    async def ask() -> list[pb.DrainReply | ControlError]:
        return await ask_each(
            cluster,
            [node],
            lambda calls, node: calls.drain(node.control, node.key, timeout_s=arguments.timeout_s),
        )

    [reply] = asyncio.run(ask())
    if isinstance(reply, ControlError):
        raise reply
    left: list[dict[str, Any]] = [
        {"object_id": each.object_id.hex(), "size_bytes": each.size_bytes} for each in reply.left
    ]
    if arguments.json:
        fields = {"drained": reply.drained, "sole_copies": reply.sole_copies, "left": left}
        _print(json.dumps({"node_id": f"{node.node_id:x}", **fields}))
    elif reply.drained:
        _print(f"{node} is drained: it holds nothing that no other node has; it may be ended")
    else:
        what = "1 object" if reply.sole_copies == 1 else f"{reply.sole_copies} objects"
        _print(
            f"{node} still holds {what} that no other node has, "
            f"after {arguments.timeout_s:g} s; it goes on moving them. The largest:"
        )
        for each in left:
            _print(f"  {each['object_id']}  {size(each['size_bytes'])}")
        _print("next: give the other nodes room (hoplite-ray status), then ask again")
    return 0 if reply.drained else 1


def dashboard(arguments: argparse.Namespace) -> int:
    """Print the Grafana dashboard, which is the same for every cluster."""
    made = dashboards.dashboard()
    if arguments.serving:
        try:
            from hoplite_ray.serve.metrics import PANELS
        except ImportError:
            raise NoServeError(
                "stages need Ray Serve, and so does their dashboard: pip install "
                "'hoplite_ray[serve]'"
            ) from None
        made = dashboards.dashboard(PANELS, "hoplite_ray serving")
    _print(json.dumps(made, indent=1))
    return 0


def alerts(asked: argparse.Namespace) -> int:
    """Print the file of alert rules; it is the same for every cluster."""
    _print(rules())
    return 0


def _find_node(seen: Survey, name: str) -> NodeReport:
    begin = name.lower()
    exact = [node for node in seen.nodes if name == node.control or begin == f"{node.node_id:x}"]
    found = exact or [node for node in seen.nodes if f"{node.node_id:x}".startswith(begin)]
    if len(found) != 1:
        there = ", ".join(f"{node.node_id:x}" for node in seen.nodes)
        what = "names no node" if not found else f"names {len(found)} nodes"
        raise ControlError(f"{name!r} {what}; there are {there}")
    return found[0]


def _status_json(cluster: Cluster, seen: Survey) -> dict[str, Any]:
    return {
        "cluster": cluster.name,
        "healthy": seen.is_healthy,
        "view_epoch": seen.view.epoch,
        "nodes": [
            {
                "node_id": f"{node.node_id:x}",
                "incarnation": node.incarnation,
                "control": node.control,
                "rails": list(node.rails),
                "ray_node_id": node.ray_node_id,
                "directory": str(node.directory) if node.directory else None,
                "pid": node.pid,
                "healthy": node.is_healthy,
                "state": node.state,
                "why": node.why,
                **dict(sorted(node.counters.items())),
            }
            for node in seen.nodes
        ],
        "ray_nodes": [
            {**asdict(each), "node_id": f"{each.node_id:x}" if each.node_id else None}
            for each in seen.ray_nodes
        ],
    }


_STATUS = ("NODE", "LIFE", "CONTROL", "STATE", "ARENA", "USED", "PINNED", "ORPHANED", "OBJECTS")
_STATUS_RIGHT = frozenset({"LIFE", "ARENA", "USED", "PINNED", "ORPHANED", "OBJECTS", "WAITERS"})
_SIZES = ("arena_bytes", "arena_bytes_used", "arena_bytes_pinned", "arena_bytes_orphaned")


# The heading and the counter of each column about a node's own memory.
_OWN = {
    "MEMORY": "memory_bytes",
    "PARKED": "parked_bytes",
    "LAYOUTS": "link_layout_bytes",
    "TO NODES": "link_bytes_queued",
    "TO CLIENTS": "client_bytes_queued",
    "DELETIONS": "deletions_remembered",
    "OPEN": "deletions_open",
    "RECENT": "objects_recent",
    "QUESTIONS": "questions",
    "REDUCES": "reduces",
    "CHANNELS": "channels",
    "ACTIONS": "actions",
}


def _own_memory(seen: Survey) -> str:
    """Return the table of each node's memory beside the arena: bytes, then counts."""
    rows = []
    for node in seen.nodes:
        counters = node.counters
        cells = [
            "-"
            if name not in counters
            else size(counters[name])
            if "bytes" in name
            else str(counters[name])
            for name in _OWN.values()
        ]
        rows.append([f"{node.node_id:x}" if node.node_id else "?", *cells])
    return columns(("NODE", *_OWN), rows, right=frozenset(_OWN))


def _on_ray(seen: Survey) -> str:
    """The table of the Ray nodes and their machines; a Ray node that has no node shows a dash."""
    rows = [
        [
            f"{each.node_id:x}" if each.node_id else "-",
            each.ray_node_id,
            each.address,
            each.hostname,
            "yes" if each.alive else "no",
        ]
        for each in seen.ray_nodes
    ]
    return columns(("NODE", "RAY NODE", "ADDRESS", "HOST", "ALIVE"), rows, right=frozenset())


def _status_text(cluster: Cluster, seen: Survey) -> str:
    rows = []
    for node in seen.nodes:
        counters = node.counters
        rows.append(
            [
                f"{node.node_id:x}" if node.node_id else "?",
                str(node.incarnation),
                node.control,
                node.state,
                *(size(counters[name]) if name in counters else "-" for name in _SIZES),
                *(str(counters.get(name, "-")) for name in ("objects", "waiters")),
            ]
        )
    answering = sum(node.answers for node in seen.nodes)
    lines = [
        f"{cluster.name}: view {seen.view.epoch}, {answering} of {len(seen.nodes)} nodes answer",
        columns((*_STATUS, "WAITERS"), rows, right=_STATUS_RIGHT),
        _own_memory(seen),
        *([_on_ray(seen)] if seen.ray_nodes else []),
    ]
    lines += [f"{node.state}: {node}: {node.why}" for node in seen.nodes if node.why]
    return "\n".join(lines)


@dataclass(slots=True)
class _Object:
    """One attempt's bytes, by the answers of all nodes."""

    size_bytes: int = 0
    mappings: int = 0
    waiters: int = 0
    orphaned: bool = False
    nodes: dict[str, list[str]] = field(default_factory=dict)  # by state, and those that pin it

    def add(self, node: NodeReport, row: pb.Object) -> None:
        self.size_bytes = max(self.size_bytes, row.size_bytes)
        self.mappings += row.mappings
        self.waiters += row.waiters
        self.orphaned |= row.orphaned
        for state in (row.state, *(["pinned"] if row.pinned else [])):
            self.nodes.setdefault(state, []).append(f"{node.node_id:x}")

    def row(self) -> dict[str, Any]:
        return {
            "size_bytes": self.size_bytes,
            **{state: self.nodes.get(state, []) for state in _STATES},
            "mappings": self.mappings,
            "waiters": self.waiters,
            "orphaned": self.orphaned,
        }


_STATES = ("whole", "partial", "writing", "wanted", "pinned")


def _objects_text(rows: list[dict[str, Any]]) -> str:
    numbers = ("WHOLE", "PARTIAL", "WRITING", "WANTED", "PINNED", "MAPPINGS", "WAITERS")
    head = ("OBJECT", "LIFE", "SIZE", *numbers, "ORPHANED")
    cells = []
    for row in rows:
        counts = [len(row[state]) for state in _STATES] + [row["mappings"], row["waiters"]]
        cells.append(
            [
                row["object_id"],
                str(row["incarnation"]),
                size(row["size_bytes"]),
                *map(str, counts),
                "yes" if row["orphaned"] else "no",
            ]
        )
    return columns(head, cells, right=frozenset({"LIFE", "SIZE", *numbers}))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
