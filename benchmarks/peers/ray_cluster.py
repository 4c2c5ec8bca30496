"""Real Ray nodes on an emulated network: a head and raylets, each in a namespace of its own.

    with Network(8, rate_mbit=500) as network:
        nodes = RayCluster.start(network, store_bytes=1 << 30)
        subprocess.run([*network.within(0), sys.executable, "driver.py"], env=nodes.environment)

where the driver calls `ray.init(nodes.address)`. The network ends all processes of Ray by their
process ids, because `ray stop` would end every Ray process of the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from network import Network

_PORT = 6379
_STARTS = 3  # attempts; Ray gives a raylet 30 s, too little on a busy machine
_START_S = 90.0
_ROOT = Path(__file__).parents[2]
_PATHS = [str(_ROOT), str(_ROOT / "benchmarks"), str(_ROOT / "examples")]


class RayCluster:
    """One Ray node per node of the network, with a resource of its own: n0, n1, ..."""

    def __init__(self, network: Network, *, store_bytes: int, cpus: int) -> None:
        self.address = f"{network.address(0)}:{_PORT}"
        # Workers and drivers import our modules, and those of the benchmarks and the examples.
        paths = [*_PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",  # our workers have another environment than those
        }
        self.environment.pop("RAY_ADDRESS", None)
        self._network = network
        self._options = [f"--num-cpus={cpus}", f"--object-store-memory={store_bytes}"]
        self._options.append(
            "--include-log-monitor=false"
        )  # saves a process: no driver reads the logs

    @classmethod
    def start(
        cls,
        network: Network,
        *,
        store_bytes: int,
        cpus: int = 2,
        count: int | None = None,
        told: Callable[[int], None] = lambda rank: None,
    ) -> Self:
        """Start the head, and then the others; `told` hears of each that has started.

        With `count` only the first nodes of the network; `add` starts the others.

        Raises:  OSError with the last words of a node that did not start.
        Cost:    15 s for the head on an idle machine of two cores and 3 s for each other node; 200
                 MB of memory each, and `store_bytes` of shared memory as they are used.
        """
        started = cls(network, store_bytes=store_bytes, cpus=cpus)
        for rank in range(network.count if count is None else count):
            started.add(rank)  # at once, two of them take the same socket's name
            told(rank)
        return started

    def add(self, rank: int, resource: str | None = None) -> None:
        """Start a Ray node; the first one is the head. `resource` is in place of its n0, n1, ...

        A node that takes the place of a dead one has another resource, because Ray learns late of
        deaths.
        """
        folder = f"--temp-dir={self._network.folder / 'ray'}"
        head = ["--head", f"--port={_PORT}", "--include-dashboard=false", folder]
        role = [f"--address={self.address}"] if rank else head
        self._start(rank, role, resource or f"n{rank}")

    def on(self, rank: int) -> dict[str, Any]:
        """Options that place a task or an actor on a node, beside whatever runs there."""
        return {"num_cpus": 0, "resources": {f"n{rank}": 0.001}}

    def _start(self, rank: int, role: Sequence[str], resource: str) -> None:
        command = [*self._network.within(rank), sys.executable, "-m", "ray.scripts.scripts"]
        command += ["start", *role, *self._options, "--disable-usage-stats"]
        command += [f"--node-ip-address={self._network.address(rank)}"]
        command += ["--resources", f'{{"{resource}": 1}}']
        log = self._network.folder / f"ray-start-{rank}.log"
        for _ in range(_STARTS):
            with open(log, "wb") as words:  # a pipe would stay open in the raylet
                try:
                    done = subprocess.run(
                        command,
                        env=self.environment,
                        stdin=subprocess.DEVNULL,
                        stdout=words,
                        stderr=subprocess.STDOUT,
                        timeout=_START_S,
                        check=False,
                    )
                except subprocess.TimeoutExpired as error:
                    raise OSError(f"Ray's node {rank} did not start: {error}") from error
            if done.returncode == 0:
                return
        last = log.read_text().strip().splitlines()[-10:]
        raise OSError(f"Ray's node {rank} did not start in {_STARTS} attempts: {' '.join(last)}")
