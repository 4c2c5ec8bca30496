"""The cost of 64, 256 and 1,024 nodes: their engines in the simulator, on virtual time.

    python benchmarks/scale.py [--nodes 64,256,1024] [--sizes 1024,1048576,33554432] [--json]

Links of 10 Gbit/s and 30 us, and 5 us of a core for each frame at both its ends, in turns like the
reactor's. Per case: time over the bound (benchmarks/bounds.py), links that a byte has crossed,
messages of control in all, at the object's home and at the busiest node, their bytes, turns of the
busiest engine, entries of the largest shard. No figure depends on the machine, and each run prints
the same. 1,024 nodes take some 3 GB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Figure, print_figures
from meters import machine

ROOT = Path(__file__).resolve().parent.parent


def program() -> Path:
    """Find the newest build of native/sim/main.cc."""
    built = sorted(ROOT.glob("build/*/hoplite_sim"), key=lambda path: path.stat().st_mtime)
    if not built:
        sys.exit("hoplite_sim is not built; run `make fast` first")
    return built[-1]


def measure(nodes: str, sizes: str, objects: int) -> Iterator[dict[str, Any]]:
    """Run all cases and yield each as it is done. Raises: CalledProcessError if one failed."""
    command = [str(program()), "--scale", "--nodes", nodes, "--sizes", sizes]
    command += ["--objects", str(objects)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            yield json.loads(line)
    if running.returncode != 0:
        raise subprocess.CalledProcessError(running.returncode, command)


def text_of(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    over = f"{row['seconds'] / row['bound_s']:9.2f}" if row["bound_s"] > 0 else "        -"
    return (
        f"{row['case']:<24} {row['nodes']:>5} {row['size_bytes'] >> 10:>6} {row['objects']:>6}"
        f" {row['seconds'] * 1e3:10.3f} {over} {row['depth']:>5} {row['messages']:>9}"
        f" {row['messages_home'] or '-':>7} {row['messages_busiest']:>7}"
        f" {row['message_bytes'] >> 10:>8} {row['turns_busiest']:>7} {row['shard_max']:>6}"
    )


def figures(row: dict[str, Any]) -> list[Figure]:
    """The time of a case in virtual seconds, and its messages of control."""
    size = f", {row['size_bytes'] >> 10:,} KiB" if row["size_bytes"] else ""
    case = f"{row['case']}{size}, {row['nodes']:,} nodes"
    taken = (row["seconds"],) if row["seconds"] > 0 else ()
    bound_s = row["bound_s"] if row["bound_s"] > 0 else None
    messages = (row["messages"],)
    found = [Figure(case=f"{case}: messages", unit="messages", samples=messages)]
    if taken:
        found.insert(0, Figure(case=case, unit="s", samples=taken, bound=bound_s))
    return found


def main() -> None:
    """Print a table, and JSON lines if asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", default="64,256,1024")
    parser.add_argument("--sizes", default=f"{1 << 10},{1 << 20},{32 << 20}", help="in bytes")
    parser.add_argument("--objects", type=int, default=10_000, help="in the directory")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="be quick: the figures mean nothing")
    options = parser.parse_args()
    if options.toy:
        options.nodes, options.sizes, options.objects = "4", f"{1 << 10},{1 << 20}", 100
    print(
        f"{'case':<24} {'nodes':>5} {'KiB':>6} {'objs':>6} {'ms':>10} {'x bound':>9}"
        f" {'depth':>5} {'messages':>9} {'home':>7} {'busiest':>7} {'KiB sent':>8}"
        f" {'turns':>7} {'shard':>6}"
    )
    where, found = machine(), []
    for row in measure(options.nodes, options.sizes, options.objects):
        print(text_of(row), flush=True)
        found += figures(row)
    if options.json:
        print_figures("scale", found, where)


if __name__ == "__main__":
    main()
