"""One Ray node: put and get beside Ray's own object store and a plain memcpy, in the same run.

    python benchmarks/local.py

A fresh process puts a large array into a store whose memory is warm, and gets it back as a view; a
process on a second node of this machine gets it as well, over loopback.
Small values are put, got on their own node and on a second one of this machine, and passed to a
call there, which answers with a value of the same size; eight of them are reduced, by Ray in a
task. Contenders take turns, twenty small values at a time, and the one that begins alternates.
Large puts are bounded by a warm memcpy; the limits of the rest are design goals.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import ray
from figures import OURS, Figure, print_figures
from meters import machine
from ray.cluster_utils import Cluster

import hoplite_ray as hop
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.store import Store, new_id

KIB, MIB = 1 << 10, 1 << 20
SMALL = {"1 KB": 1 * KIB, "64 KB": 64 * KIB}
COPY_SHARE_MIN = 0.4  # of a warm memcpy
BATCH = 20  # small objects of one kind in a row, while the contenders take turns
PUT_RATIO_MAX = 1.2  # of ray.put, for a large array
REMOTE_RATIO_MAX = 0.4  # of ray.get, for a large array
VIEW_S_MAX = 1e-3
# By ref, of the time that plain Ray takes for the same.
SMALL_RATIO_MAX = {"put": 1.05, "get local": 1.0, "get remote": 1.0, "call": 1.0, "reduce": 1.0}
REDUCED = 8  # small values in one reduce


@dataclass
class Times:
    """Seconds of each contender, by what was measured."""

    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, what: str, seconds: float | list[float]) -> None:
        self.taken[what] += seconds if isinstance(seconds, list) else [seconds]

    def median(self, what: str) -> float:
        return statistics.median(self.taken[what])


def main() -> None:
    options = parse_options()
    where = machine()
    times = Times()
    cluster = start_cluster(options.size_bytes)
    try:
        measure_large(times, options)
        measure_small(times, options)
    finally:
        ray.shutdown()
        cluster.shutdown()
    report(times, options)
    if options.json:
        print_figures("local", figures(times, options), where)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes per contender")
    parser.add_argument("--small", type=int, default=400, help="small objects of each kind")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="sizes that only prove that it runs")
    options = parser.parse_args()
    if options.toy:
        options.size_mib, options.rounds, options.small = 16, 1, 20
    options.size_bytes = options.size_mib * MIB
    return options


def start_cluster(size_bytes: int) -> Cluster:
    """Two Ray nodes, each with a store of its own for either contender."""
    room = size_bytes + size_bytes // 2 + 256 * MIB
    common = {"num_cpus": 2, "include_dashboard": False}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**common, "object_store_memory": room, "resources": {"near": 9}},
    )
    cluster.add_node(num_cpus=2, object_store_memory=room, resources={"far": 9})
    ray.init(
        address=cluster.address,
        runtime_env={"hoplite": {"arena_bytes": room}},
        log_to_driver=False,
    )
    return cluster


# ---- large ----


@ray.remote(num_cpus=0)
class Fresh:
    """A process that has put nothing large yet."""

    def __init__(self, size_bytes: int) -> None:
        self.data = np.ones(size_bytes, np.uint8)
        hop.get(hop.put(self.data[:1]))  # attached, as a worker is that has been handed anything
        ray.get(ray.put(self.data[:1]))

    def copy_s(self) -> list[float]:
        """A memcpy of it, both sides warm."""
        copy = np.ones_like(self.data)
        return [timed(lambda: np.copyto(copy, self.data)) for _ in range(3)]

    def put_and_get_s(self, contender: str) -> tuple[float, float, list[Any]]:
        """The first put, and a get of it; and a list of its ref."""
        store = {"hop": hop, "ray": ray}[contender]
        started = time.perf_counter()
        self.ref = store.put(self.data)
        put_s = time.perf_counter() - started
        started = time.perf_counter()
        view = store.get(self.ref)
        get_s = time.perf_counter() - started
        assert view[-1] == 1 and view.nbytes == self.data.nbytes
        return put_s, get_s, [self.ref]

    def delete(self) -> None:
        """Delete what was put with hoplite_ray; Ray does so when this process dies."""
        hop.delete(self.ref)


def measure_large(times: Times, options: argparse.Namespace) -> None:
    far = Far.options(resources={"far": 0.001}).remote()
    for number in range(options.rounds + 1):
        for contender in ("hop", "ray"):
            fresh = Fresh.options(resources={"near": 0.001}).remote(options.size_bytes)
            copy_s = ray.get(fresh.copy_s.remote())
            put_s, get_s, refs = ray.get(fresh.put_and_get_s.remote(contender))
            [remote_s] = ray.get(getattr(far, f"{contender}_s").remote(refs))
            if contender == "hop":
                ray.get(fresh.delete.remote())
            del refs
            ray.kill(fresh)
            if number == 0:
                continue  # it has warmed both stores
            times.add("memcpy", copy_s)
            times.add(f"{contender} large put", put_s)
            times.add(f"{contender} large get", get_s)
            times.add(f"{contender} large remote get", remote_s)


# ---- small ----


@ray.remote(num_cpus=0)
class Far:
    """A process on the other node, which has none of the objects yet."""

    def ids_s(self, ids: list[bytes]) -> list[float]:
        store = attachment().store
        gets = [lambda each=each: store.begin_get(each, exists=True).result() for each in ids]
        return [timed(get) for get in gets]

    def hop_s(self, refs: list[Any]) -> list[float]:
        return [timed(partial(hop.get, each)) for each in refs]

    def ray_s(self, refs: list[Any]) -> list[float]:
        return [timed(partial(ray.get, each)) for each in refs]

    def answer_hop(self, value: Any) -> hop.Array:
        return hop.array(np.asarray(value))

    def answer_ray(self, value: Any) -> Any:
        return value.copy()


def measure_small(times: Times, options: argparse.Namespace) -> None:
    far = Far.options(resources={"far": 0.001}).remote()
    for name, size_bytes in SMALL.items():
        array = np.zeros(size_bytes, np.uint8)
        for number in range(options.small // BATCH + 1):
            measured = small_batch(array, far, is_ray_first=bool(number % 2))
            if number == 0:
                continue  # attaching, importing
            for what, seconds in measured.items():
                times.add(f"{what.format(name)}", seconds)


def small_batch(array: np.ndarray, far: Any, *, is_ray_first: bool) -> dict[str, list[float]]:
    """Times of a few puts, of the first gets of them here and there, of calls and of reduces."""
    store = Store(attachment().store)
    ids = [new_id() for _ in range(BATCH)]
    refs: list[Any] = []
    theirs: list[Any] = []
    # Each in a row: what a put leaves its store to do would delay the next contender's.
    deeds: dict[str, dict[str, Callable[[], list[float]]]] = {
        "put": {
            "id": lambda: [timed(partial(store.put, each, array)) for each in ids],
            "hop": lambda: [timed(lambda: refs.append(hop.put(array))) for _ in ids],
            "ray": lambda: [timed(lambda: theirs.append(ray.put(array))) for _ in ids],
        },
        "get local": {
            "id": lambda: [timed(partial(store.get, each)) for each in ids],
            "hop": lambda: [timed(partial(hop.get, each)) for each in refs],
            "ray": lambda: [timed(partial(ray.get, each)) for each in theirs],
        },
        "get remote": {
            "id": lambda: ray.get(far.ids_s.remote(ids)),
            "hop": lambda: ray.get(far.hop_s.remote(refs)),
            "ray": lambda: ray.get(far.ray_s.remote(theirs)),
        },
        "call": {
            "hop": lambda: [
                timed(lambda: hop.get(far.answer_hop.remote(hop.put(array)))) for _ in ids
            ],
            "ray": lambda: [
                timed(lambda: ray.get(far.answer_ray.remote(ray.put(array)))) for _ in ids
            ],
        },
        "reduce": {
            "hop": lambda: [timed(lambda: hop.get(hop.reduce(refs[:REDUCED]))) for _ in "12"],
            "ray": lambda: [timed(lambda: ray.get(total.remote(*theirs[:REDUCED]))) for _ in "12"],
        },
    }
    measured = {}
    for what, by in deeds.items():
        for who in sorted(by, reverse=is_ray_first):
            measured[f"{who} {{}} {what}"] = by[who]()
    for each in ids:
        store.delete(each)
    return measured


@ray.remote(num_cpus=0)
def total(*arrays: np.ndarray) -> Any:
    return sum(arrays)


def timed(deed: Callable[[], object]) -> float:
    started = time.perf_counter()
    deed()
    return time.perf_counter() - started


# ---- what came of it ----


def report(times: Times, options: argparse.Namespace) -> None:
    size = f"{options.size_mib} MiB"
    copy_s, hop_s, ray_s = (times.median(w) for w in ("memcpy", "hop large put", "ray large put"))
    line(f"memcpy of {size}, warm", options.size_bytes / copy_s / 1e9, "GB/s")
    line(
        f"first put of {size}",
        options.size_bytes / hop_s / 1e9,
        f"GB/s: {copy_s / hop_s:.2f} of the memcpy (at least {COPY_SHARE_MIN}); "
        f"ray.put {options.size_bytes / ray_s / 1e9:.2f}; "
        f"{hop_s / ray_s:.2f} x ray.put's time (at most {PUT_RATIO_MAX})",
    )
    get_us = {who: times.median(f"{who} large get") * 1e6 for who in ("hop", "ray")}
    limit_us = VIEW_S_MAX * 1e6
    rest = f"us (at most {limit_us:.0f}); ray.get {get_us['ray']:.0f}"
    line("get of it as a view", get_us["hop"], rest)
    hop_s, ray_s = (times.median(f"{who} large remote get") for who in ("hop", "ray"))
    line(
        "get of it from a second node",
        options.size_bytes / hop_s / 1e9,
        f"GB/s: {hop_s / ray_s:.2f} x ray.get's time (at most {REMOTE_RATIO_MAX})",
    )
    for name in SMALL:
        for what, limit in SMALL_RATIO_MAX.items():
            us = small_us(times, f"{name} {what}")
            ratio = f"us: {us['hop'] / us['ray']:.2f} x Ray's {us['ray']:.0f} (at most {limit})"
            by_id = f"; by id {us['id']:.0f}" if "id" in us else ""
            line(f"{what} of {name}", us["hop"], ratio + by_id)


def figures(times: Times, options: argparse.Namespace) -> list[Figure]:
    """Each kind of work, by each contender. The bound of a large put is a warm memcpy."""
    size = f"{options.size_mib} MiB"
    copy_s = times.median("memcpy")
    found: list[Figure] = []

    def add(case: str, key: str, goal: float | None, bound: float | None = None) -> None:
        names = {"hop": OURS, "id": f"{OURS}, by id", "ray": "Ray"}
        for short, by in names.items():
            if samples := times.taken.get(f"{short} {key}"):
                limit = goal if short == "hop" else None
                found.append(
                    Figure(
                        case=case,
                        by=by,
                        unit="s",
                        samples=tuple(samples),
                        bound=bound,
                        goal=limit,
                    )
                )

    add(f"first put of {size}", "large put", copy_s / COPY_SHARE_MIN, copy_s)
    add(f"get of {size} as a view", "large get", VIEW_S_MAX)
    remote_s = REMOTE_RATIO_MAX * times.median("ray large remote get")
    add(f"get of {size} from a second node", "large remote get", remote_s)
    words = {
        "put": "put of {}",
        "get local": "get of {} on its node",
        "get remote": "get of {} from a second node",
        "call": "put of {}, a call with it on a second node, and its answer",
        "reduce": f"reduce of {REDUCED} of {{}}; by Ray in a task",
    }
    for name in SMALL:
        for what, limit in SMALL_RATIO_MAX.items():
            theirs_s = times.median(f"ray {name} {what}")
            add(words[what].format(name), f"{name} {what}", limit * theirs_s)
    return found


def small_us(times: Times, what: str) -> dict[str, float]:
    names = ("id", "hop", "ray")
    keys = {who: f"{who} {what}" for who in names}
    return {who: times.median(key) * 1e6 for who, key in keys.items() if key in times.taken}


def line(what: str, figure: float, rest: str) -> None:
    print(f"{what:<26}{figure:8.2f} {rest}")


if __name__ == "__main__":
    main()
