"""How fast one core finds and applies the delta of 256 MiB of bf16 of which 2 % change.

    python benchmarks/deltas.py

GB/s count the bytes of the whole. Finding reads the new version and its base, and makes the
checksums of both. Applying copies the base, changes it and makes the checksum of the result; "5"
applies five deltas in one pass. Pages are warm except where the line says fresh. Goals: finding 4
GB/s in plain code and 6 with AVX2, applying 4 GB/s, and a delta of at most 3.3 % of the bytes.
memcpy of the whole, and zstandard over the delta if it is installed, stand beside them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from figures import OURS, Figure, print_figures
from meters import find_built, machine

from hoplite_ray import _native

WHOLE_MIB, TOY_MIB = 256, 1
ROUNDS, TOY_ROUNDS = 15, 1
SHARE_GOAL = 0.033
FINDING_GOALS = {"plain": 4.0, "avx2": 6.0, "avx512": 6.0}  # GB/s
APPLYING_GOAL = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the program: speeds in GB/s of the whole, the share of the delta's bytes."""

    what: str
    kernels: str = ""
    changes: str = ""
    share: float = 0.0
    best_gb_per_s: float
    median_gb_per_s: float

    @property
    def goal_gb_per_s(self) -> float | None:
        """The speed that the row should have; None if it has no goal."""
        if self.what == "find":
            return FINDING_GOALS[self.kernels]
        return APPLYING_GOAL if self.what == "apply beside" else None


def measure(size_bytes: int, rounds: int) -> list[Row]:
    """Run the native program."""
    answer = subprocess.run(
        [find_built("delta_bench"), str(size_bytes), str(rounds)],
        check=True,
        capture_output=True,
        text=True,
    )
    return [Row(**json.loads(line)) for line in answer.stdout.splitlines()]


def measure_zstandard(size_bytes: int, rounds: int) -> Row | None:
    """Compress the delta of random changes by 1 ulp; None if zstandard is not installed."""
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ImportError:
        return None
    generator = np.random.default_rng(0)
    base = generator.normal(0, 0.02, size_bytes // 2).astype(np.float32).view(np.uint32) >> 16
    base = base.astype(np.uint16)
    new = base.copy()
    new[generator.random(new.size) < 0.02] += 1
    delta = _native.find_delta(base, [new], [(size_bytes, 2)], limit_bytes=size_bytes)
    assert delta is not None
    compressor = zstandard.ZstdCompressor(level=1)
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        compressed = compressor.compress(delta)
        seconds.append(time.perf_counter() - begin)
    speeds = sorted(size_bytes / each / 1e9 for each in seconds)
    return Row(
        what="zstandard over the delta",
        changes="random",
        share=len(compressed) / size_bytes,
        best_gb_per_s=speeds[-1],
        median_gb_per_s=speeds[len(speeds) // 2],
    )


def make_figures(row: Row, mib: int) -> list[Figure]:
    """The speed of a row, and for the first finding of each kind of changes its share of bytes."""
    words = [row.what, f"by {row.kernels}" if row.kernels else "", row.changes]
    case = f"{', '.join(word for word in words if word)}, {mib} MiB"
    by = row.what.split()[0] if row.what.startswith(("memcpy", "zstandard")) else OURS
    speed = Figure(
        case=case,
        by=by,
        unit="bytes/s",
        samples=(row.best_gb_per_s * 1e9, row.median_gb_per_s * 1e9),
        goal=row.goal_gb_per_s and row.goal_gb_per_s * 1e9,
        is_more_better=True,
    )
    if (row.what, row.kernels) != ("find", "plain"):
        return [speed]
    share = Figure(
        case=f"delta, {row.changes}, {mib} MiB",
        unit="share",
        samples=(row.share,),
        goal=SHARE_GOAL if mib == WHOLE_MIB else None,
    )
    return [speed, share]


def main() -> None:
    """Print a table, and JSON lines if asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument(
        "--toy", action="store_true", help="be quick, for CI: the figures mean nothing"
    )
    args = parser.parse_args()
    mib, rounds = (TOY_MIB, TOY_ROUNDS) if args.toy else (WHOLE_MIB, ROUNDS)
    rows = measure(mib << 20, rounds)
    if (compressed := measure_zstandard(mib << 20, rounds)) is not None:
        rows.append(compressed)
    print(
        f"{'what':>24} {'kernels':>7} {'changes':>10} {'delta':>7} {'best':>6} {'median':>6} GB/s"
    )
    for row in rows:
        share = f"{row.share:7.2%}" if row.share else "      -"
        goal = f"  goal {row.goal_gb_per_s:.0f}" if row.goal_gb_per_s else ""
        print(
            f"{row.what:>24} {row.kernels:>7} {row.changes:>10} {share}"
            f" {row.best_gb_per_s:6.1f} {row.median_gb_per_s:6.1f}{goal}"
        )
    if args.json:
        print_figures(
            "deltas", [each for row in rows for each in make_figures(row, mib)], machine()
        )


if __name__ == "__main__":
    main()
