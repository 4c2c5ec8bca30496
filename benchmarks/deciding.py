"""The time that an engine decides for each block that leaves or arrives, without the bytes.

    python benchmarks/deciding.py

Engines of 2 to 16 nodes are wired to each other by queues, and only their own time counts: no
sockets, no checksums, no sums. A turn takes one event of its queue, which is what a node with an
idle core does, or 16, which is what a busy one does. "8 nodes" have 14 edges in an allreduce: a
stripe from and to each of the 7 others. The goal is 4 us with blocks of 32 KiB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import Any

from figures import Figure, print_figures
from meters import find_built, machine

GOAL_US = 4.0
BLOCK_BYTES = 32 * 1024
NODES = (2, 8, 16)
EVENTS_PER_TURN = (1, 16)


def measure(nodes: int, size_bytes: int, events_per_turn: int, rounds: int) -> list[dict[str, Any]]:
    """Run the collectives of one case; returns a row for each."""
    numbers = (nodes, size_bytes, BLOCK_BYTES, events_per_turn, rounds)
    answer = subprocess.run(
        [find_built("deciding_bench"), *map(str, numbers)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [json.loads(line) for line in answer.stdout.splitlines()]


def figure(row: dict[str, Any]) -> Figure:
    """One collective in one case; the goal is for 8 nodes."""
    each = "an event" if row["events_per_turn"] == 1 else f"{row['events_per_turn']} events"
    return Figure(
        case=f"{row['collective']} of {row['nodes']} nodes, {each} a turn",
        unit="s",
        samples=tuple(us * 1e-6 for us in row["us_per_block"]),
        goal=GOAL_US * 1e-6 if row["nodes"] == 8 else None,
    )


def main() -> None:
    """Print a table, and JSON lines if asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument(
        "--toy", action="store_true", help="be quick, for CI: the figures mean nothing"
    )
    args = parser.parse_args()
    size_bytes, rounds = (1 << 20, 1) if args.toy else (32 << 20, 9)
    names = ("collective", "nodes", "events", "us/block", "least", "blocks")
    print(" ".join(f"{name:>10}" for name in names))
    figures = []
    for nodes in NODES:
        for events in EVENTS_PER_TURN:
            for row in measure(nodes, size_bytes, events, rounds):
                figures.append(figure(row))
                median = figures[-1].median
                assert median is not None
                print(
                    f"{row['collective']:>10} {row['nodes']:>10} {row['events_per_turn']:>10}"
                    f" {median * 1e6:10.2f} {min(row['us_per_block']):10.2f} {row['blocks']:>10}"
                )
    if args.json:
        print_figures("deciding", figures, machine())


if __name__ == "__main__":
    main()
