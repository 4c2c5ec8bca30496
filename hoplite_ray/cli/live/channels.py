"""The version channels of all nodes, as `top` and `web` show them."""

from __future__ import annotations

from typing import Any

from hoplite_ray.channel.listing import ListedChannel, ListedReader, collect_channels
from hoplite_ray.cli.cluster.tables import columns, size
from hoplite_ray.cli.live.flows import Snapshot

_NAME_MAX = 32  # characters of a name in a table; --json has all


def channels_of(now: Snapshot) -> list[dict[str, Any]]:
    """Return every channel with its readers; the one whose reader lags most comes first."""
    listed = sorted(collect_channels(now.channels), key=lambda each: -each.lag_versions)
    return [_row(each, now.time_s) for each in listed]


def _row(channel: ListedChannel, now_s: float) -> dict[str, Any]:
    home = channel.home_node_id
    return {
        "namespace": channel.namespace,
        "name": channel.name,
        "version": channel.version,
        "age_s": round(max(now_s - channel.time_s, 0.0), 3),
        "size_bytes": channel.size_bytes,
        "kept": channel.kept,
        "publisher": f"{channel.publisher_node_id:x}",
        "home": None if home is None else f"{home:x}",
        "lag_versions": channel.lag_versions,
        "readers": [_reader_row(each) for each in channel.readers],
    }


def _reader_row(reader: ListedReader) -> dict[str, Any]:
    return {
        "node_id": f"{reader.node_id:x}",
        "process": reader.process,
        "version": reader.version,
        "lag_versions": reader.lag_versions,
        "lag_s": round(reader.lag_s, 3),
    }


def channel_table(rows: list[dict[str, Any]]) -> str:
    """Draw the channels, a line for each."""
    cells = [
        [
            _show(row["namespace"]),
            _show(row["name"]),
            str(row["version"]),
            f"{row['age_s']:.1f} s",
            size(row["size_bytes"]),
            str(row["kept"]),
            row["publisher"],
            str(len(row["readers"])),
            str(row["lag_versions"]) if row["readers"] else "-",
        ]
        for row in rows
    ]
    head = ("NAMESPACE", "CHANNEL", "VERSION", "AGE", "SIZE", "KEPT", "PUBLISHER", "READERS", "LAG")
    right = frozenset({"VERSION", "AGE", "SIZE", "KEPT", "READERS", "LAG"})
    return columns(head, cells, right=right)


def reader_table(rows: list[dict[str, Any]], rows_max: int) -> str:
    """Draw the readers of channels, those that lag most first; "" if there are none."""
    readers = [(row["name"], reader) for row in rows for reader in row["readers"]]
    readers.sort(key=lambda each: -each[1]["lag_versions"])
    cells = [
        [
            _show(name),
            reader["node_id"],
            str(reader["process"]),
            str(reader["version"]),
            str(reader["lag_versions"]),
            f"{reader['lag_s']:.1f} s",
        ]
        for name, reader in readers[:rows_max]
    ]
    head = ("CHANNEL", "READER'S NODE", "PROCESS", "HAS", "LAG", "OLDER BY")
    right = frozenset({"PROCESS", "HAS", "LAG", "OLDER BY"})
    return columns(head, cells, right=right) if cells else ""


def _show(name: str) -> str:
    """Return a name for a terminal: no control characters, and not too long."""
    safe = "".join(each if each.isprintable() else "?" for each in name) or "-"
    return safe if len(safe) <= _NAME_MAX else safe[: _NAME_MAX - 1] + "…"
