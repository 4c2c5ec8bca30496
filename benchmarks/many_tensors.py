"""One node: put and get of a dict of 40,000 arrays beside one array of as many bytes, and Ray's.

    python benchmarks/many_tensors.py

The values are dicts as a state_dict: numpy arrays, or tensors of torch, 1 GB in all. A process puts
one into a store whose memory is warm, and gets it as views. The first value of a layout and the
second one are timed apart; each round takes names of its own, so that its first layout is unknown.
One array of as many bytes is the bound. Ray's put and get of the same dict follow in the same
round. The limits above the bound are design goals.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from figures import OURS, Figure, print_figures
from meters import machine

import hoplite_ray as hop
from hoplite_ray.values.layout import forget_texts

MB = 1_000_000
FIRST_OVER_S = 0.3  # above one array, at most: the first value of a layout
SECOND_OVER_S = 0.1  # and the second one
STEPS = ("first put", "first get", "second put", "second get")

Times = dict[str, list[float]]


def main() -> None:
    options = parse_options()
    where = machine()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=2 * options.size_bytes + 256 * MB,
        runtime_env={"hoplite": {"arena_bytes": 3 * options.size_bytes + 256 * MB}},
        log_to_driver=False,
    )
    found: list[Figure] = []
    try:
        for kind in ("numpy", "torch"):
            times = measure(kind, options)
            report(kind, times, options)
            found += figures(kind, times, options)
    finally:
        ray.shutdown()
    if options.toy:
        print("toy sizes: they prove only that it runs")
    if options.json:
        print_figures("many_tensors", found, where)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--leaves", type=int, default=40_000)
    parser.add_argument("--size-mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="sizes that only prove that it runs")
    options = parser.parse_args()
    if options.toy:
        options.leaves, options.size_mb, options.rounds = 500, 4, 1
    options.size_bytes = options.size_mb * MB
    return options


def measure(kind: str, options: argparse.Namespace) -> Times:
    """Time each step of each contender, in rounds; the first round warms both stores."""
    elements = options.size_bytes // options.leaves // 4
    whole = make_array(kind, elements * options.leaves)
    leaves = [make_array(kind, elements) for _ in range(options.leaves)]
    times: Times = defaultdict(list)
    for number in range(options.rounds + 1):
        measured: dict[str, float] = {}
        value = {f"round.{number}.layers.{at}.weight": leaf for at, leaf in enumerate(leaves)}
        for step in ("first", "second"):
            put_and_get(f"one {step}", whole, hop, measured)
            put_and_get(f"hop {step}", value, hop, measured)
        put_and_get("ray first", value, ray, measured)
        if number > 0:
            for what, seconds in measured.items():
                times[what].append(seconds)
    return times


def make_array(kind: str, elements: int) -> Any:
    array = np.ones(elements, np.float32)
    if kind == "numpy":
        return array
    import torch  # here, because the numpy rounds are of a process without it

    return torch.from_numpy(array)


def put_and_get(name: str, value: Any, store: Any, measured: dict[str, float]) -> None:
    gc.collect()
    refs: list[Any] = []
    measured[f"{name} put"] = measure_time(lambda: refs.append(store.put(value)))
    if name == "hop first":
        forget_texts()  # as in a process that has not seen the layout
    back: list[Any] = []
    measured[f"{name} get"] = measure_time(lambda: back.append(store.get(refs[0])))
    if isinstance(value, dict):
        assert list(back[0]) == list(value)
        assert all(float(leaf[-1]) == 1 for leaf in list(back[0].values())[:: len(value) // 100])
    back.clear()
    if store is hop:
        hop.delete(refs[0])


def measure_time(deed: Callable[[], object]) -> float:
    started = time.perf_counter()
    deed()
    return time.perf_counter() - started


def over_s(times: Times, step: str) -> list[float]:
    """Return the seconds of each round above those of one array."""
    ours = times[f"hop {step}"]
    return [mine - one for mine, one in zip(ours, times[f"one {step}"], strict=True)]


def report(kind: str, times: Times, options: argparse.Namespace) -> None:
    print(f"{options.leaves} {kind} leaves, {options.size_mb} MB, median of {options.rounds}")
    for step in STEPS:
        limit_s = find_limit(step)
        over = statistics.median(over_s(times, step))
        one = statistics.median(times[f"one {step}"])
        theirs = times.get(f"ray {step}")
        beside = f"; Ray {statistics.median(theirs):.3f} s" if theirs else ""
        mark = "ok" if over <= limit_s else "OVER"
        print(
            f"  {step:<11} {over + one:.3f} s, {over:+.3f} s over one array ({one:.3f} s), at most "
            f"+{limit_s}: {mark}{beside}"
        )


def find_limit(step: str) -> float:
    return FIRST_OVER_S if step.startswith("first") else SECOND_OVER_S


def figures(kind: str, times: Times, options: argparse.Namespace) -> list[Figure]:
    found = []
    for step in STEPS:
        case = f"{step} of {options.leaves:,} {kind} leaves, {options.size_mb} MB"
        one = statistics.median(times[f"one {step}"])
        ours = tuple(times[f"hop {step}"])
        goal = one + find_limit(step)
        found.append(Figure(case=case, unit="s", samples=ours, bound=one, goal=goal, by=OURS))
        if theirs := times.get(f"ray {step}"):
            found.append(Figure(case=case, unit="s", samples=tuple(theirs), by="Ray"))
    return found


if __name__ == "__main__":
    main()
