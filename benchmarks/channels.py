"""Versions of a channel: from a publication's begin until each reader has the version.

    sudo .venv/bin/python benchmarks/channels.py
    sudo .venv/bin/python benchmarks/channels.py --only readers --size-mib 8
    sudo .venv/bin/python benchmarks/channels.py --only deltas --deltas-mib 64

readers  one publisher and seven readers, which watch. The next version is published when all have
         the one before. The bound is the time of a version's bytes over one link.
deltas   2 % of the elements of 2 bytes change between versions, at random or in runs of 64, with
         three readers and with seven. The table has the largest share of the bytes on any link, and
         the time beside that of versions that travel whole in the same run. The second version is
         made on fresh pages, those from the third on in ranges of older versions.
deaths   the same as readers, while in each version one reader's node is killed as its bytes come,
         and comes back. The time counts the readers that were not killed.
late     a version is published with two copies and no reader, and its publisher's node is killed.
         The time is that of a reader that comes then. The bound is the time of a version's bytes
         over one link. Each round has nodes of its own.

Every node has a link of its own, and no Ray. The readers are threads of the benchmark's process,
each attached to its node. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field

import bounds
import numpy as np
import numpy.typing as npt
from cluster import Cluster, why_impossible
from figures import Figure
from frame import add_output_options, print_end, print_machine, refuse
from meters import Links, machine

from hoplite_ray.channel.names import name_channel, name_object
from hoplite_ray.errors import HopliteError
from hoplite_ray.store import Store

MIB = 1 << 20
CASES = ("readers", "deaths", "late", "deltas")
LIMIT_S = 60.0
CHANNEL = "weights"
KILL_AT = 0.5  # of the bound, after a publication's begin
GOAL = 1.1  # times the bound
LATE_NODES = 4
LATE_ROUNDS_MAX = 5  # each starts nodes
CHANGED = 0.02  # of the elements, between versions with a delta
RUN = 64  # elements in a row that change together
WHOLES = 3  # versions that travel whole, behind those with a delta
SHARE_GOAL = 0.033  # of the bytes, on every link
TIME_GOALS = {3: 0.10, 7: 0.15}  # of the time of the whole, by readers


class Reader:
    """A thread that watches the channel, and notes when it has each version."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.had_s: dict[int, float] = {}  # by version
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(HopliteError):  # its node was killed
            for update in self._store.watch(CHANNEL):
                if update.value[0] != update.version or update.value[-1] != update.version:
                    raise AssertionError(f"version {update.version} has other bytes")
                with self._news:
                    self.had_s[update.version] = time.monotonic()
                    self._news.notify_all()

    def wait_for(self, version: int) -> float:
        """Return when it had that version, or a newer one.

        Raises:  TimeoutError if it has none after LIMIT_S.
        """
        with self._news:
            has_it = self._news.wait_for(
                lambda: any(each >= version for each in self.had_s), LIMIT_S
            )
            if not has_it:
                raise TimeoutError(f"a reader has no version {version} after {LIMIT_S:g} s")
            return min(when for each, when in self.had_s.items() if each >= version)


def publish_all(
    readers: int, size_bytes: int, rate_mbit: int, versions: int, *, kills: bool
) -> list[float]:
    """Publish versions, and return how long each took until all living readers had it."""
    took: list[float] = []
    bound_s = bounds.hop_s(size_bytes, rate_mbit=rate_mbit)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster(1 + readers, rate_mbit=rate_mbit, arena_bytes=6 * size_bytes + 64 * MIB)
        )
        publisher, *stores = (
            stack.enter_context(Store.attach(node.socket)) for node in cluster.nodes
        )
        listening = [Reader(store) for store in stores]
        for version in range(1, versions + 2):
            value = np.full(size_bytes // 4, version, np.float32)
            victim = version % readers if kills and version > 1 else None
            began_s = time.monotonic()
            killing = threading.Timer(
                KILL_AT * bound_s, cluster.kill, [1 + (victim if victim is not None else 0)]
            )
            if victim is not None:
                killing.start()
            publisher.publish(CHANNEL, value, timeout_s=LIMIT_S)
            had_s = [
                each.wait_for(version) for rank, each in enumerate(listening) if rank != victim
            ]
            if version > 1:  # before the first one no reader could begin early
                took.append(max(had_s) - began_s)
            if victim is not None:
                killing.join()
                cluster.revive(1 + victim)
                stores[victim] = stack.enter_context(Store.attach(cluster.nodes[1 + victim].socket))
                listening[victim] = Reader(stores[victim])
                listening[victim].wait_for(version)
        publisher.unpublish(CHANNEL, timeout_s=LIMIT_S)
    return took


def read_late(size_bytes: int, rate_mbit: int, rounds: int) -> list[float]:
    """Return how long readers took that came when the publisher's node was dead."""
    took: list[float] = []
    for number in range(1, rounds + 1):
        with ExitStack() as stack:
            cluster = stack.enter_context(
                Cluster(LATE_NODES, rate_mbit=rate_mbit, arena_bytes=3 * size_bytes + 64 * MIB)
            )
            publisher, *stores = (
                stack.enter_context(Store.attach(node.socket)) for node in cluster.nodes
            )
            value = np.full(size_bytes // 4, number, np.float32)
            publisher.publish(CHANNEL, value, copies=2, timeout_s=LIMIT_S)
            keepers = find_keepers(publisher)
            reader = next(each for each in stores if each.node_id not in keepers)
            cluster.kill(0)
            began_s = time.monotonic()
            update = reader.latest(CHANNEL, timeout_s=LIMIT_S)
            took.append(time.monotonic() - began_s)
            if update.value[0] != number or update.value[-1] != number:
                raise AssertionError("the late reader has other bytes")
    return took


def find_keepers(store: Store) -> set[int]:
    """Return the ids of the nodes that have the newest version."""
    channel = name_channel("", CHANNEL)
    newest = store._client.watch_version(channel, wait=False).result(LIMIT_S)
    if newest is None:
        raise AssertionError("the version is not visible")
    object_id = name_object(channel, newest.number)
    return {each.node_id for each in store.locate([object_id])[object_id]}


@dataclass(slots=True)
class DeltaRun:
    """The times of versions with deltas, one for each, and those of whole ones beside them."""

    second_s: float = 0.0  # of version 2, which its readers make on fresh pages
    later_s: list[float] = field(default_factory=list)  # from version 3 on
    shares: list[float] = field(default_factory=list)  # of the bytes, on the link with the most
    whole_s: list[float] = field(default_factory=list)


def change(value: npt.NDArray[np.uint16], changes: str, version: int) -> None:
    """Change some elements in place; the first and the last one say the version."""
    rng = np.random.default_rng(version)
    count = int(value.size * CHANGED)
    if changes == "random":
        where = rng.integers(0, value.size, count)
    else:
        starts = rng.integers(0, value.size - RUN, count // RUN)
        where = (starts[:, None] + np.arange(RUN)).reshape(-1)
    value[where] += np.uint16(1)
    value[[0, -1]] = version


def publish_deltas(
    changes: str, readers: int, size_bytes: int, rate_mbit: int, versions: int
) -> DeltaRun:
    """Publish one version whole, some with deltas, and then some whole again."""
    found = DeltaRun()
    value = np.random.default_rng(0).integers(0, 1 << 16, size_bytes // 2).astype(np.uint16)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster(1 + readers, rate_mbit=rate_mbit, arena_bytes=6 * size_bytes + 64 * MIB)
        )
        links = stack.enter_context(closing(Links(cluster.network)))
        publisher, *stores = (
            stack.enter_context(Store.attach(node.socket)) for node in cluster.nodes
        )
        listening = [Reader(store) for store in stores]
        for version in range(1, versions + WHOLES + 1):
            change(value, changes, version)
            ranks = range(1 + readers)
            before = [(links.sent_bytes(each), links.received_bytes(each)) for each in ranks]
            began_s = time.monotonic()
            publisher.publish(CHANNEL, value, delta=version <= versions, timeout_s=LIMIT_S)
            took_s = max(each.wait_for(version) for each in listening) - began_s
            moved = max(
                max(links.sent_bytes(each) - sent, links.received_bytes(each) - received)
                for each, (sent, received) in zip(ranks, before, strict=True)
            )
            if version > versions:
                found.whole_s.append(took_s)
            elif version > 2:
                found.later_s.append(took_s)
                found.shares.append(moved / size_bytes)
            elif version == 2:
                found.second_s = took_s
        publisher.unpublish(CHANNEL, timeout_s=LIMIT_S)
    return found


def measure_deltas(asked: argparse.Namespace) -> Iterator[Figure]:
    """Measure versions with deltas, and print their table."""
    mib = asked.deltas_mib
    print(f"{'changes':>8} {'readers':>7} {'link':>7} {'whole':>8} {'second':>15} {'later':>15}")
    for changes in ("random", "runs"):
        for readers in asked.deltas_readers:
            run = publish_deltas(
                changes, readers, mib * MIB, asked.rate_mbit, asked.deltas_versions
            )
            whole_s, later_s = statistics.median(run.whole_s), statistics.median(run.later_s)
            print(
                f"{changes:>8} {readers:>7} {max(run.shares):7.2%} {whole_s:6.3f} s"
                f" {run.second_s:6.3f} s {run.second_s / whole_s:4.2f} x"
                f" {later_s:6.3f} s {later_s / whole_s:4.2f} x",
                flush=True,
            )
            case = f"{mib} MiB, 2 % changed {changes}, {readers} readers"
            goal = TIME_GOALS.get(readers)
            yield Figure(
                case=f"{case}, bytes on a link",
                unit="share",
                samples=tuple(run.shares),
                goal=SHARE_GOAL,
            )
            yield Figure(
                case=f"{case}, from the third version on",
                unit="s",
                samples=tuple(run.later_s),
                goal=goal and goal * whole_s,
            )
            yield Figure(case=f"{case}, fresh pages", unit="s", samples=(run.second_s,))
            yield Figure(case=f"{case}, whole", unit="s", samples=tuple(run.whole_s))


def measure(asked: argparse.Namespace, cases: list[str]) -> Iterator[Figure]:
    """Measure the cases."""
    size_bytes = asked.size_mib * MIB
    bound_s = bounds.hop_s(size_bytes, rate_mbit=asked.rate_mbit)
    names = {
        "readers": f"{asked.size_mib} MiB to {asked.readers} readers",
        "deaths": f"{asked.size_mib} MiB to {asked.readers} readers, one killed in each version",
        "late": f"{asked.size_mib} MiB to a late reader, with the publisher's node dead",
    }
    for case in cases:
        if case == "deltas":
            yield from measure_deltas(asked)
            continue
        if case == "late":
            rounds = min(asked.versions, LATE_ROUNDS_MAX)
            took = read_late(size_bytes, asked.rate_mbit, rounds)
        else:
            took = publish_all(
                asked.readers, size_bytes, asked.rate_mbit, asked.versions, kills=case == "deaths"
            )
        median_s, worst_s, name = statistics.median(took), max(took), names[case]
        print(
            f"{name}, {len(took)} versions: median {median_s:.3f} s, {median_s / bound_s:.2f} x "
            f"the bound, at most {worst_s:.3f} s",
            flush=True,
        )
        yield Figure(case=name, unit="s", samples=tuple(took), bound=bound_s, goal=GOAL * bound_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--readers", type=int, default=7)
    parser.add_argument("--size-mib", type=int, default=32)
    parser.add_argument("--versions", type=int, default=50)
    parser.add_argument("--deltas-mib", type=int, default=256, help="of a version with a delta")
    parser.add_argument("--deltas-versions", type=int, default=10)
    parser.add_argument("--rate-mbit", type=int, default=500)
    add_output_options(parser)
    asked = parser.parse_args()
    chosen = asked.only.split(",")
    if unknown := [each for each in chosen if each not in CASES]:
        parser.error(f"--only {unknown[0]} is none of {','.join(CASES)}")
    impossible = why_impossible()
    if impossible:
        return refuse(impossible, asked)
    asked.deltas_readers = tuple(TIME_GOALS)
    if asked.toy:
        asked.readers, asked.size_mib, asked.versions = 2, 1, 3
        asked.deltas_readers, asked.deltas_mib, asked.deltas_versions = (2,), 1, 4
    where = machine()
    print_machine(where)
    print_end("channels", asked, list(measure(asked, chosen)), where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
