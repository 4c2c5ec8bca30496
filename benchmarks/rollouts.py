"""Weights from a trainer to rollouts that die and join: from publish until each has the version.

    sudo .venv/bin/python benchmarks/rollouts.py
    sudo .venv/bin/python benchmarks/rollouts.py --modes hoplite --seconds 60 --mib 64

Real Ray nodes, each in a network namespace with a full-duplex link. The trainer is at the first
node, and a rollout at each other one. The trainer changes 2 % of the weights and publishes them, at
every interval, or when it is done with the version before. Every so often a rollout is killed with
its node, and another node with another rollout takes its place. All modes have the same times.

hoplite  publish and watch.
ray      ray.put, and ray.get in the rollouts. A rollout is given the newest version when it has the
         one before.
gloo     torch.distributed's broadcast, in a group of all. Its users make the group again after a
         death, when the calls of all survivors have failed, and for a rollout that joins.

S/B is the time of all bytes over one link. A rollout that had the version before may get a delta:
the goal is 0.2 x S/B, and 1.2 x S/B for any other. A rollout misses a version that it never had,
although it lived from before its publication until the next one.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec

import bounds
from figures import Figure
from frame import add_output_options, refuse, run_on_network, start_driver
from meters import Links
from network import Network, why_impossible
from peers.ray_cluster import RayCluster
from ranks import sleep_until
from rollouts_driver import GLOO
from rollouts_record import MODES, Life, Record

MIB = 1 << 20
KILL_AFTER_S = 1.0  # of a publication, while the whole still travels
GLOO_BOUNDS = 5.0  # its timeout in S/B: its broadcast to 7 rollouts takes three of them
GLOO_LEAST_S = 10.0
START_S = 300.0  # for rollouts to start, on a machine that starts all of them at once
LAST_BOUNDS, LAST_S = 4.0, 20.0  # for the last version to come, in S/B and in seconds
_LOOK_S = 0.2  # between two looks for a death or a join
COPIES = 4  # of the weights in a store: the version in use, the last one, and the next one


def main() -> int:
    options = parse_options()
    impossible = why_impossible()
    if impossible:
        return refuse(impossible, options)
    network = Network(options.nodes, rate_mbit=options.rate_mbit)
    return run_on_network("rollouts", options, network, partial(play_all, options), describe)


def describe(figures: Sequence[Figure]) -> Iterator[str]:
    """Return a line for people of each figure."""
    for figure in figures:
        if figure.failure or figure.median is None:
            yield f"{figure.case}: {figure.by} FAILED: {figure.failure}"
            continue
        beside = f", {figure.median / figure.bound:.2f} x S/B" if figure.bound else ""
        mark = ", misses its goal" if figure.misses_its_goal() else ""
        yield f"{figure.case}: {figure.by} {figure.median:.2f} {figure.unit}{beside}{mark}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--modes", default=",".join(MODES), help=f"some of {','.join(MODES)}")
    parser.add_argument("--nodes", type=int, default=8, help="the trainer's, and the rollouts'")
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument("--mib", type=int, default=256, help="of the weights, in bf16")
    parser.add_argument("--changed", type=float, default=0.02, help="share of the elements")
    parser.add_argument("--seconds", type=float, default=300, help="of publications, in a mode")
    parser.add_argument("--every-s", type=float, default=10, help="between two publications")
    parser.add_argument("--kill-s", type=float, default=20, help="between two deaths; 0: none")
    add_output_options(parser)
    options = parser.parse_args()
    options.modes = options.modes.split(",")
    if unknown := [each for each in options.modes if each not in MODES]:
        parser.error(f"--modes {unknown[0]} is none of {','.join(MODES)}")
    if options.toy:
        options.nodes, options.mib, options.seconds = 3, 1, 8.0
        options.every_s, options.kill_s = 2.0, 4.0
    if options.nodes < 2 or options.mib < 1 or options.seconds < options.every_s:
        parser.error("at least two nodes, one MiB and one interval")
    return options


def play_all(options: argparse.Namespace, network: Network, stack: ExitStack) -> list[Figure]:
    """Play the modes, each with nodes of its own."""
    links = Links(network)
    stack.callback(links.close)
    found: list[Figure] = []
    for mode in options.modes:
        if mode == GLOO and find_spec("torch") is None:
            print("Gloo: torch is not installed", flush=True)
            continue
        with ExitStack() as within:
            within.callback(network.end_processes)
            record = _Play(mode, options, network, links, within).run()
        print(f"{MODES[mode]}:")
        print("\n".join(record.describe()), flush=True)
        found += record.figures(f"{options.mib} MiB to {options.nodes - 1} rollouts")
    return found


class _Play:
    """One mode: its nodes, its driver, and a thread that kills nodes and starts others."""

    def __init__(
        self,
        mode: str,
        options: argparse.Namespace,
        network: Network,
        links: Links,
        stack: ExitStack,
    ) -> None:
        self._options, self._network, self._links = options, network, links
        size_bytes = options.mib * MIB
        self._bound_s = bounds.hop_s(size_bytes, rate_mbit=options.rate_mbit)
        self._record = Record(mode, self._bound_s)
        self._living: dict[int, Life] = {}  # by rank
        self._events: queue.SimpleQueue[tuple[str, Life]] = queue.SimpleQueue()
        store_bytes = COPIES * size_bytes + 256 * MIB
        self._cluster = RayCluster.start(network, store_bytes=store_bytes)
        self._driver = start_driver(network, self._cluster, "rollouts_driver.play", store_bytes)
        stack.callback(self._driver.close)
        self._driver.do(
            "begin",
            mode=mode,
            size_bytes=size_bytes,
            changed_share=options.changed,
            gloo_timeout_s=max(GLOO_LEAST_S, GLOO_BOUNDS * self._bound_s),
        )

    def run(self) -> Record:
        """Publish, kill and join for the time that was asked for."""
        options, record = self._options, self._record
        for rank in range(1, options.nodes):
            self._begin_life(rank, f"n{rank}")
        if not self._wait_for(lambda life: life.began_s is not None, START_S):
            raise TimeoutError(f"the rollouts have not started in {START_S:.0f} s")
        self._driver.do("prepare")
        start_s, stopping = time.monotonic(), threading.Event()
        killing = threading.Thread(target=self._kill, args=(start_s, stopping))
        if options.kill_s:
            killing.start()
        try:
            self._publish_all(start_s)
        finally:
            stopping.set()
        if options.kill_s:
            killing.join()
        newest = max(record.published_s)
        self._wait_for(lambda life: newest in life.had_s, LAST_BOUNDS * self._bound_s + LAST_S)
        failures, wrong = self._driver.do("finish")
        record.failures += failures
        record.failures += [f"{each} has other bytes than the trainer" for each in wrong]
        return record

    def _publish_all(self, start_s: float) -> None:
        before = self._read_links()
        for number in range(int(self._options.seconds / self._options.every_s)):
            sleep_until(start_s + number * self._options.every_s)
            version = number + 1
            began_s, _ = self._driver.do("publish", version=version)
            self._record.published_s[version] = began_s
            self._attend(start_s + version * self._options.every_s - _LOOK_S)
            after = self._read_links()
            trainers, *came = (now - then for now, then in zip(after, before, strict=True))
            self._record.link_bytes[version] = sum(came) / len(came), trainers
            before = after

    def _read_links(self) -> list[int]:
        """Return the bytes that the trainer has sent, and those that each rollout's node got."""
        ranks = range(1, self._options.nodes)
        return [self._links.sent_bytes(0), *map(self._links.received_bytes, ranks)]

    def _attend(self, until_s: float) -> None:
        """Tell the driver of deaths and joins until that time; then ask what the rollouts have."""
        while True:
            self._pass_events_on()
            if time.monotonic() + _LOOK_S > until_s:
                break
            time.sleep(_LOOK_S)
        self._record.add_collected(self._driver.do("collect"), time.monotonic())

    def _wait_for(self, is_ready: Callable[[Life], bool], limit_s: float) -> bool:
        """Wait until all living rollouts are; returns whether they were in time."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            self._attend(time.monotonic() + _LOOK_S)
            if all(is_ready(each) for each in self._living.values() if each.ended_s is None):
                return True
        return False

    def _pass_events_on(self) -> None:
        while not self._events.empty():
            what, life = self._events.get()
            if what == "leave":
                self._driver.do("leave", life=life.name)
            else:
                self._begin_life(life.rank, life.name)

    def _begin_life(self, rank: int, resource: str) -> None:
        """Start a rollout on the node that has this resource."""
        life = self._living[rank] = self._record.lives[resource] = Life(resource, rank)
        self._driver.do("join", life=life.name, resource=resource)

    def _kill(self, start_s: float, stopping: threading.Event) -> None:
        """Kill a rollout with its node now and then, and start another node in its place."""
        ranks = itertools.cycle(range(1, self._options.nodes))
        for number in itertools.count(1):
            at_s = start_s + number * self._options.kill_s + KILL_AFTER_S
            if stopping.wait(max(0.0, at_s - time.monotonic())):
                return
            rank = next(ranks)
            if (life := self._living.get(rank)) is None or life.ended_s is not None:
                continue  # no rollout has begun there again
            life.ended_s = time.monotonic()
            self._network.end_processes(rank)
            self._events.put(("leave", life))
            resource = f"n{rank}.{number}"
            try:
                self._cluster.add(rank, resource)
            except OSError as error:
                self._record.failures.append(str(error))
                return
            self._events.put(("join", Life(resource, rank)))


if __name__ == "__main__":
    sys.exit(main())
