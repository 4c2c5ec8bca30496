"""Memory that a node keeps after puts and deletes, and how long a newcomer stops the node.

    python benchmarks/deletions.py

One process puts objects of 1 KiB on a node and deletes them, 64 at once, as fast as it goes, for a
minute; a second node has joined before. Then a third node joins. Printed are the first node's own
memory over time, and how many of its turns took over 10 ms while the newcomer joined. Limits are
design goals for a machine of two cores that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from death import counters
from figures import Figure, print_figures
from meters import machine
from small import AT_ONCE, MIB, SMALL_BYTES, anonymous_mib

from hoplite_ray.pending import results
from hoplite_ray.store import Store, new_id

ANONYMOUS_MIB_MAX = 150.0
LOOKS = 6  # at the memory


def churn(store: Store, seconds: float) -> int:
    """Put and delete at full speed; returns how many objects that were."""
    array = np.zeros(SMALL_BYTES, np.uint8)
    done = 0
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        ids = [new_id() for _ in range(AT_ONCE)]
        results([store.begin_put(each, array) for each in ids])
        for each in ids:
            store.delete(each)
        done += len(ids)
    return done


def figures(rate_per_s: float, most_mib: float, long_turns: int) -> list[Figure]:
    rate, memory = "put and deleted, 64 at once", "most memory of the node meanwhile"
    turns = "turns over 10 ms while a node joins"
    return [
        Figure(case=rate, unit="1/s", samples=(rate_per_s,), is_more_better=True),
        Figure(case=memory, unit="MiB", samples=(most_mib,), goal=ANONYMOUS_MIB_MAX),
        Figure(case=turns, unit="turns", samples=(long_turns,), goal=0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    seconds = 0.6 if asked.toy else asked.seconds
    where = machine()
    with (
        Store.start(arena_bytes=256 * MIB) as near,
        Store.start(join=near, arena_bytes=256 * MIB),
    ):
        pid = near.node.process.pid
        memory_mib = [anonymous_mib(pid)]
        deleted = 0
        for _ in range(LOOKS):
            deleted += churn(near, seconds / LOOKS)
            memory_mib.append(anonymous_mib(pid))
        before = counters(near.node)
        with Store.start(join=near, arena_bytes=256 * MIB):
            after = counters(near.node)
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    most_mib = max(memory_mib)
    long_turns = after["turns_over_10ms"] - before["turns_over_10ms"]
    print(f"{deleted:,} objects put and deleted, {deleted / seconds:,.0f}/s")
    print(
        "anonymous memory, MiB: "
        + " ".join(f"{each:.1f}" for each in memory_mib)
        + f"; at most {ANONYMOUS_MIB_MAX:.0f}: {'ok' if most_mib <= ANONYMOUS_MIB_MAX else 'OVER'}"
    )
    print(
        f"turns over 10 ms while a node joined: {long_turns}; "
        f"none: {'OVER' if long_turns else 'ok'} "
        f"(longest since the start {after['longest_turn_us'] / 1e3:.1f} ms)"
    )
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        print_figures("deletions", figures(deleted / seconds, most_mib, long_turns), where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
