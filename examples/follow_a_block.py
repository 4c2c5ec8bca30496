"""Follow the block: the files that an object walks through, from put() to another node's get().

Starts three nodes that trace what they do, puts an array on the first, gets it on the second, and
prints the stations that the nodes' own logs show. The third is there to be the object's home.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hoplite_ray.launch import NodeProcess
from hoplite_ray.node.trace import STATIONS, Station, events, stations
from hoplite_ray.store import Store, new_id

ATTEMPTS = 60  # the home of an id is any of the three; we want one where it is the third


def walk(nodes: list[NodeProcess], stores: list[Store]) -> tuple[list[Station], list[list[str]]]:
    """One object from the first node to the second: the stations seen, and each node's events."""
    array = np.arange(1 << 20, dtype=np.float32)
    for _ in range(ATTEMPTS):
        object_id = new_id()
        stores[0].put(object_id, array)
        received = stores[1].get(object_id, timeout_s=20)
        assert np.array_equal(received, array)
        logs = [log_of(node) for node in nodes]
        if "in:Claim" in events(logs[2], object_id):
            return stations(logs, object_id), [events(log, object_id) for log in logs]
        stores[0].delete(object_id)  # an arena has room for some fifteen
    raise SystemExit(f"no object of {ATTEMPTS} had its home on the third node; run it again")


def start(beside: NodeProcess | None = None) -> NodeProcess:
    return NodeProcess.start(beside=beside, arena_bytes=64 << 20, options={"trace": 1})


def log_of(node: NodeProcess) -> list[str]:
    return Path(node.directory, "node.log").read_text().splitlines()


def main() -> int:
    first = start()
    nodes = [first]
    try:
        nodes += [start(beside=first) for _ in range(2)]
        stores = [Store.attach(node.socket) for node in nodes]
        seen, by_node = walk(nodes, stores)
        for store in stores:
            store.close()
    finally:
        for node in nodes:
            node.stop()
    table = Table("", "file", "process", "what happens there", title="From put() to get()")
    for number, station in enumerate(seen, 1):
        table.add_row(str(number), station.file, station.process, station.what)
    console = Console()
    console.print(table)
    for name, kinds in zip(("sending", "receiving", "home"), by_node, strict=True):
        console.print(f"{name} node: {' '.join(dict.fromkeys(kinds))}")
    return 0 if len(seen) == len(STATIONS) else 1


if __name__ == "__main__":
    sys.exit(main())
