"""The cost of a large dict's layout, as a share of its bytes, in a broadcast.

    python benchmarks/layouts.py

Eight nodes of this machine, joined over loopback. One puts a dict of 2,000 arrays, 32 MiB in all,
and the seven others get it at once. Printed is what went over control connections, as a share of
the bytes that went over the others. The text of the dict's layout is a part of these bytes, and the
rest is what nodes say of the object. The limit is a design goal.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

import numpy as np
from death import counters
from figures import Figure, print_figures
from meters import machine
from small import MIB

from hoplite_ray.store import Store, new_id

NODES = 8
ARRAYS = 2000
VALUE_BYTES = 32 * MIB
BLOCK_FRAME_BYTES = 88
CONTROL_SHARE_MAX = 0.02
LIMIT_S = 60.0


def total(stores: list[Store], name: str) -> int:
    return sum(counters(store.node)[name] for store in stores)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    nodes, arrays, value_bytes = (2, 100, MIB) if asked.toy else (NODES, ARRAYS, VALUE_BYTES)
    where = machine()
    each = np.arange(value_bytes // arrays // 4, dtype=np.float32)
    value = {f"layer.{number}.weight": each + number for number in range(arrays)}
    with ExitStack() as stack:
        first = stack.enter_context(Store.start(arena_bytes=256 * MIB))
        stores = [first] + [
            stack.enter_context(Store.start(join=first, arena_bytes=256 * MIB))
            for _ in range(nodes - 1)
        ]
        names = ("link_bytes_sent", "bytes_sent", "blocks_sent")
        before = {name: total(stores, name) for name in names}
        object_id = new_id()
        first.put(object_id, value, timeout_s=LIMIT_S)
        gets = [store.begin_get(object_id) for store in stores[1:]]
        for get in gets:
            came = get.result(LIMIT_S).value
            assert all(np.array_equal(came[name], array) for name, array in value.items())
        sent = {name: total(stores, name) - before[name] for name in names}
    control = sent["link_bytes_sent"] - sent["bytes_sent"] - sent["blocks_sent"] * BLOCK_FRAME_BYTES
    share = control / sent["bytes_sent"]
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    print(
        f"{arrays} arrays of {value_bytes / MIB:.0f} MiB in all to {nodes - 1} nodes: "
        f"{sent['bytes_sent'] / MIB:.1f} MiB of blocks, {control / 1e6:.2f} MB of control, "
        f"{share:.2%}; at most {CONTROL_SHARE_MAX:.0%}: "
        + ("ok" if share <= CONTROL_SHARE_MAX else "OVER")
    )
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        case = f"control bytes beside {arrays:,} arrays of a dict, to {nodes - 1} nodes"
        figure = Figure(case=case, unit="share", samples=(share,), goal=CONTROL_SHARE_MAX)
        print_figures("layouts", [figure], where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
