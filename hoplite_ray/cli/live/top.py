"""`hoplite-ray top`: nodes, transfers and their trees, and version channels, again and again."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hoplite_ray.cli.cluster.places import Cluster, find_cluster
from hoplite_ray.cli.cluster.tables import columns, size
from hoplite_ray.cli.live.channels import channel_table, channels_of, reader_table
from hoplite_ray.cli.live.flows import Snapshot, follow_view, nodes_of, transfers_of, trees_of
from hoplite_ray.errors import HopliteError

_TREES_MAX = 8  # a screen has no room for more


class NoRichError(HopliteError):
    """The live picture needs a package that is not installed."""


def top(arguments: argparse.Namespace) -> int:
    """Show the transfers until Ctrl-C; once with --once or --json, or outside of a terminal."""
    cluster = find_cluster(arguments, timeout_s=arguments.timeout_s / 2)
    before = Snapshot.take(cluster, timeout_s=arguments.timeout_s / 2)
    if arguments.once or arguments.json or not sys.stdout.isatty():
        time.sleep(arguments.interval_s)
        now = Snapshot.take(cluster, timeout_s=arguments.timeout_s / 2)
        text = (
            _document(before, now)
            if arguments.json
            else _page(cluster, before, now, arguments.limit)
        )
        sys.stdout.write(text + "\n")
        return 0 if now.seen.is_healthy else 1
    with suppress(KeyboardInterrupt):
        _watch(cluster, before, arguments)
    return 0


def _watch(cluster: Cluster, before: Snapshot, arguments: argparse.Namespace) -> None:
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        raise NoRichError(
            "the live picture needs the package rich: pip install 'hoplite_ray[top]'; "
            "--once does without it"
        ) from None
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(arguments.interval_s)
            now = Snapshot.take(cluster, timeout_s=arguments.timeout_s / 2)
            page = _page(cluster, before, now, arguments.limit)
            live.update(Text(page, no_wrap=True, overflow="crop"), refresh=True)
            before, cluster = now, follow_view(cluster, now)


def _document(before: Snapshot, now: Snapshot) -> str:
    document = {
        "view_epoch": now.seen.view.epoch,
        "nodes": nodes_of(before, now),
        "transfers": transfers_of(before, now),
        "channels": channels_of(now),
    }
    return json.dumps(document)


def _page(cluster: Cluster, before: Snapshot, now: Snapshot, rows_max: int) -> str:
    transfers = transfers_of(before, now)
    nodes = nodes_of(before, now)
    answering = sum(node.answers for node in now.seen.nodes)
    parts = [
        f"{cluster.name}: view {now.seen.view.epoch}, "
        f"{answering} of {len(nodes)} nodes answer, {len(transfers)} transfers",
        _nodes(nodes),
    ]
    if transfers:
        parts.append(_transfers(transfers[:rows_max]))
    if len(transfers) > rows_max:
        parts.append(f"and {len(transfers) - rows_max} more (--limit)")
    parts += _channel_parts(channels_of(now), rows_max)
    trees = trees_of(transfers)
    parts += [_tree(tree) for tree in trees[:_TREES_MAX]]
    if len(trees) > _TREES_MAX:
        parts.append(f"and {len(trees) - _TREES_MAX} more trees (--json has all)")
    return "\n\n".join(parts)


def _channel_parts(channels: list[dict[str, Any]], rows_max: int) -> list[str]:
    if not channels:
        return []
    parts = [channel_table(channels[:rows_max])]
    if len(channels) > rows_max:
        parts.append(f"and {len(channels) - rows_max} more channels (--limit)")
    readers = reader_table(channels, rows_max)
    return [*parts, readers] if readers else parts


def _nodes(nodes: list[dict[str, Any]]) -> str:
    rows = [
        [
            node["node_id"],
            node["control"],
            node["state"],
            _size(node["arena_bytes"]),
            _size(node["arena_bytes_used"]),
            _rate(node["in_bytes_per_s"]),
            _rate(node["out_bytes_per_s"]),
        ]
        for node in nodes
    ]
    head = ("NODE", "CONTROL", "STATE", "ARENA", "USED", "IN", "OUT")
    return columns(head, rows, right=frozenset(head[3:]))


def _transfers(transfers: list[dict[str, Any]]) -> str:
    rows = [
        [
            _short(row["object_id"]),
            row["kind"],
            f"{row['stripe'] + 1}/{row['stripe_count']}",
            row["sender"],
            row["receiver"],
            size(row["size_bytes"]),
            _share(row),
            _rate(row["bytes_per_s"]),
        ]
        for row in transfers
    ]
    head = ("OBJECT", "KIND", "STRIPE", "FROM", "TO", "SIZE", "DONE", "RATE")
    return columns(head, rows, right=frozenset({"STRIPE", "SIZE", "DONE", "RATE"}))


def _tree(tree: dict[str, Any]) -> str:
    head = f"{_short(tree['target_id'])} stripe {tree['stripe'] + 1}"
    return "\n".join([head, *tree_lines(tree)])


def tree_lines(tree: dict[str, Any], names: Mapping[str, str] | None = None) -> list[str]:
    """Draw a tree of `trees_of`, a line for each node; `names` are of nodes, by their ids."""
    lines = []
    for depth, node, edge in tree["lines"]:
        fed = "" if edge is None else f"  {_share(edge)}  {_rate(edge['bytes_per_s'])}"
        name = node if names is None else names.get(node, node)
        lines.append("  " * depth + ("" if depth == 0 else "└─ ") + name + fed)
    return lines


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['landed_bytes'] // max(row['size_bytes'], 1)} %"


def _short(object_id: str) -> str:
    return object_id[:12]


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else size(size_bytes)


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{size(int(bytes_per_s))}/s"
