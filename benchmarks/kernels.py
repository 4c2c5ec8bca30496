"""How fast one core folds a block that stays in its cache: every kernel beside numpy's own ufunc.

    python benchmarks/kernels.py

GB/s count every byte that is read or written: accumulator in, source in, accumulator out. numpy
works in place on the same sizes (np.add(a, b, out=a)). 16-bit floats are folded into accumulators
of float32; "finish" divides a mean and rounds them. The goal for a float32 sum is 15 GB/s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from typing import Any

import numpy as np
from figures import OURS, Figure, print_figures
from meters import find_built, machine

UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
FLOAT32_SUM_GB_PER_S = 15.0


def numpy_gb_per_s(op: str, dtype: str, block_bytes: int, seconds: float) -> float | None:
    """Return the speed of numpy's own operation; None where it has none."""
    if op not in UFUNCS or dtype == "bfloat16":
        return None
    into = np.zeros(block_bytes // np.dtype(dtype).itemsize, dtype)
    source = into.copy()
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(16):
            UFUNCS[op](into, source, out=into)
        best = min(best, (time.perf_counter() - begin) / 16)
    return 3 * block_bytes / best / 1e9


def measure(block_bytes: int, seconds: float) -> list[dict[str, Any]]:
    """Take every kernel and numpy's counterpart, on blocks of one size."""
    answer = subprocess.run(
        [find_built("kernels_bench"), str(block_bytes), str(seconds)],
        check=True,
        capture_output=True,
        text=True,
    )
    rows: list[dict[str, Any]] = [json.loads(line) for line in answer.stdout.splitlines()]
    for row in rows:
        row["block_bytes"] = block_bytes
        row["numpy_gb_per_s"] = numpy_gb_per_s(row["op"], row["dtype"], block_bytes, seconds)
    return rows


def figures(row: dict[str, Any]) -> list[Figure]:
    """One kernel on blocks of one size, and numpy's operation where it has one."""
    case = f"{row['op']} of {row['dtype']}, blocks of {row['block_bytes'] >> 10} KiB"
    is_goal = (row["op"], row["dtype"]) == ("sum", "float32")
    goal = FLOAT32_SUM_GB_PER_S * 1e9 if is_goal else None
    taken = {OURS: row["gb_per_s"], "numpy": row["numpy_gb_per_s"]}
    return [
        Figure(
            case=case,
            by=by,
            unit="bytes/s",
            samples=(gb_per_s * 1e9,),
            goal=goal if by == OURS else None,
            is_more_better=True,
        )
        for by, gb_per_s in taken.items()
        if gb_per_s
    ]


def main() -> None:
    """Print a table, and JSON lines if asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument(
        "--toy", action="store_true", help="be quick, for CI: the figures mean nothing"
    )
    args = parser.parse_args()
    seconds = 0.0005 if args.toy else 0.05
    rows = [row for kib in (256, 1024) for row in measure(kib * 1024, seconds)]
    print(f"{'dtype':>9} {'op':>6} {'block':>9} {'GB/s':>7} {'numpy':>7}")
    for row in rows:
        numpy = row["numpy_gb_per_s"]
        print(
            f"{row['dtype']:>9} {row['op']:>6} {row['block_bytes'] >> 10:>5} KiB"
            f" {row['gb_per_s']:7.1f} {f'{numpy:7.1f}' if numpy else '      -'}"
        )
    sums = [row["gb_per_s"] for row in rows if (row["op"], row["dtype"]) == ("sum", "float32")]
    print(f"float32 sum: {min(sums):.1f} GB/s per core; the goal is {FLOAT32_SUM_GB_PER_S:.0f}")
    if args.json:
        print_figures("kernels", [each for row in rows for each in figures(row)], machine())


if __name__ == "__main__":
    main()
