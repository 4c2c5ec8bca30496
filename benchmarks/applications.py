"""Three applications over a Ray cluster, timed by round; training.py runs this at node 0.

A turn plays some rounds of one application over one store: hoplite, plain Ray, or Gloo between the
same actors. All train the perceptron of examples/support on handwritten digits, with batches so
small that the gradient's bytes and not its sums are what a round takes. One line of JSON comes out
for each turn.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from meters import cores_s
from network import rail_device

import hoplite_ray as hop
from examples.support.digits import SIDE, batches, load
from examples.support.perceptron import Perceptron

BATCH = 4
RATE = 0.05
DIGITS = 10
TIMEOUT_S = 120.0  # of each wait; far longer than a round
GLOO_PORT = 29400

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Turn:
    """Rounds of one application over one store, and the core time that they used."""

    application: str
    parameters: int
    peer: str
    seconds: list[float]  # of each round but the first
    busy_s: float  # core seconds of all processes, with the first round and the drain
    cores_s: float  # core seconds that the machine had
    compute_s: float  # core seconds of gradients and updates
    failure: str | None = None


class Hoplite:
    """The store as users use it."""

    put = staticmethod(hop.put)
    empty = staticmethod(hop.empty)

    @staticmethod
    def add(gradients: list[Any], count: int) -> tuple[Array, list[Any]]:
        total = hop.reduce(gradients, op="sum", count=count)
        return hop.get(total, timeout_s=TIMEOUT_S), hop.sources(total)

    @staticmethod
    def add_for_all(gradients: list[Any]) -> Any:
        return hop.all_reduce(gradients, op="sum")


class Plain:
    """The same over Ray's own object store."""

    put = staticmethod(ray.put)

    @staticmethod
    def empty(size: int) -> Array:
        return np.empty(size, np.float32)

    @staticmethod
    def add(gradients: list[Any], count: int) -> tuple[Array, list[Any]]:
        sources, _ = ray.wait(gradients, num_returns=count, timeout=TIMEOUT_S)
        first, *others = ray.get(sources)
        total = first + (others.pop() if others else 0)
        for other in others:
            total += other
        return total, sources

    @staticmethod
    def add_for_all(gradients: list[Any]) -> Any:
        return ray.put(Plain.add(gradients, len(gradients))[0])


STORES: dict[str, Any] = {"hoplite": Hoplite, "ray": Plain}


@ray.remote
class Worker:
    """Has a share of the data; makes gradients of the parameters that it is given or keeps."""

    def __init__(self, network: Perceptron, data: tuple[Array, Array], seed: int) -> None:
        self._network = network
        self._batches = batches(*data, size=BATCH, seed=seed)
        self._params = network.initial(seed=0)
        self._compute_s = 0.0
        self._ended_s: list[float] = []

    def warm_up(self) -> None:
        """Attach to the node, and do the work that is done once."""
        hop.array(self._gradient(self._params, hop.empty(self._network.size)))
        self._compute_s = 0.0

    def read(self, params: Any) -> tuple[float, float]:
        array = np.asarray(params)
        return float(array[0]), float(array[-1])

    def gradient(self, params: Any, empty: Callable[[int], Any]) -> Any:
        return self._gradient(np.asarray(params), empty(self._network.size))

    def step(self, total: Any, share: float, empty: Callable[[int], Any]) -> Any:
        """Apply the sum of the last round, if there was one; return the next gradient."""
        if total is not None:
            self._apply(np.asarray(total), share)
        return self._gradient(self._params, empty(self._network.size))

    def finish(self, total: Any, share: float) -> tuple[list[float], float]:
        """Apply the last sum; return when each round ended, and a checksum of the parameters."""
        if total is not None:
            self._apply(np.asarray(total), share)
        ended_s, self._ended_s = self._ended_s, []
        return ended_s, float(self._params.sum(dtype=np.float64))

    def take_compute_s(self) -> float:
        taken, self._compute_s = self._compute_s, 0.0
        return taken

    def join_gloo(self, address: str, rank: int, count: int) -> None:
        """Join a process group of the actors, over the network's links."""
        os.environ["GLOO_SOCKET_IFNAME"] = rail_device(0)
        import torch.distributed

        where = f"tcp://{address}:{GLOO_PORT}"
        torch.distributed.init_process_group("gloo", where, rank=rank, world_size=count)

    def gloo_steps(self, rounds: int, share: float) -> None:
        """Like `step`, but Gloo makes the sum in the gradient's own memory."""
        import torch

        gradient = np.empty(self._network.size, np.float32)
        for _ in range(rounds):
            self._gradient(self._params, gradient)
            torch.distributed.all_reduce(torch.from_numpy(gradient))
            self._apply(gradient, share)

    def _gradient(self, params: Array, room: Any) -> Any:
        """Fill `room`, which is an array or to be seen as one, with the next gradient."""
        began_s = time.thread_time()
        self._network.gradient(params, *next(self._batches), out=np.asarray(room))
        self._compute_s += time.thread_time() - began_s
        return room

    def _apply(self, total: Array, share: float) -> None:
        began_s = time.thread_time()
        self._params -= np.float32(RATE * share) * total
        self._compute_s += time.thread_time() - began_s
        self._ended_s.append(time.monotonic())


class Applications:
    """The workers of one model, one on each node, and a server, which is this process at node 0."""

    def __init__(self, parameters: int, nodes: int, address: str) -> None:
        self.parameters = parameters
        self._network = perceptron(parameters)
        self._address = address
        training, _ = load(copies=1, seed=0)
        data = ray.put(training)
        self._workers = [
            Worker.options(num_cpus=0, resources={f"n{node}": 0.001}).remote(
                self._network, data, node
            )
            for node in range(nodes)
        ]
        for worker in self._workers:  # one after the other, so that they don't compete for cores
            ray.get(worker.warm_up.remote(), timeout=TIMEOUT_S)
        self._has_gloo = False
        self._compute_s = 0.0  # of this process

    def close(self) -> None:
        for worker in self._workers:
            ray.kill(worker)

    def turn(self, application: str, peer: str, rounds: int) -> Turn:
        """Play `rounds` rounds and one before them that is not counted."""
        play = {"broadcast": self._broadcast, "async SGD": self._async, "sync SGD": self._sync}
        before = cores_s()
        try:
            seconds, failure = play[application](peer, rounds), None
        except Exception as error:  # the table names the error, and the other turns go on
            cause = getattr(error, "cause", error)  # Ray's wrapping begins with a traceback
            seconds, failure = [], f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
        after = cores_s()
        compute_s = 0.0
        if failure is None:
            compute_s = sum(ray.get([each.take_compute_s.remote() for each in self._workers]))
        compute_s, self._compute_s = compute_s + self._compute_s, 0.0
        busy_s, all_s = after.busy_s - before.busy_s, after.all_s - before.all_s
        return Turn(
            application, self._network.size, peer, seconds, busy_s, all_s, compute_s, failure
        )

    def _broadcast(self, peer: str, rounds: int) -> list[float]:
        """The server's parameters to a worker on every other node, until each has read them."""
        store = STORES[peer]
        params = np.zeros(self._network.size, np.float32)
        seconds = []
        for number in range(rounds + 1):
            params[:] = number
            shared = store.put(params)
            began_s = time.monotonic()
            reads = [worker.read.remote(shared) for worker in self._workers[1:]]
            values = ray.get(reads, timeout=TIMEOUT_S)
            seconds.append(time.monotonic() - began_s)
            assert values == [(number, number)] * len(reads), values
        return seconds[1:]

    def _async(self, peer: str, rounds: int) -> list[float]:
        """A parameter server: adds the first half of the gradients, and hands out new parameters.

        The server's node has no worker. A gradient that comes later counts in a later round.
        Source: Zhuang et al., "Hoplite", SIGCOMM 2021, and its released benchmark.
        """
        store, workers = STORES[peer], self._workers[1:]
        count = max(1, len(workers) // 2)
        params = self._network.initial(seed=0)
        shared = store.put(params)
        outstanding = {worker.gradient.remote(shared, store.empty): worker for worker in workers}
        ended_s = []
        for _ in range(rounds + 1):
            total, sources = store.add(list(outstanding), count)
            room = store.empty(self._network.size)
            began_s = time.thread_time()
            updated = np.asarray(room)
            np.multiply(total, np.float32(-RATE / count), out=updated)
            updated += params
            self._compute_s += time.thread_time() - began_s
            params, shared = updated, store.put(room)
            del total
            for worker in [outstanding.pop(source) for source in sources]:
                outstanding[worker.gradient.remote(shared, store.empty)] = worker
            ended_s.append(time.monotonic())
        rest = list(outstanding)
        ray.wait(rest, num_returns=len(rest), timeout=TIMEOUT_S, fetch_local=False)
        assert np.isfinite(params).all()
        return differences(ended_s)

    def _sync(self, peer: str, rounds: int) -> list[float]:
        """Every worker adds up all gradients of a round before it makes the next one."""
        share, total = 1 / len(self._workers), None
        if peer == "gloo":
            self._join_gloo()
            ray.get(
                [worker.gloo_steps.remote(rounds + 1, share) for worker in self._workers],
                timeout=TIMEOUT_S,
            )
        else:
            store = STORES[peer]
            for _ in range(rounds + 1):
                steps = [each.step.remote(total, share, store.empty) for each in self._workers]
                total = store.add_for_all(steps)
                del steps
        ends = [worker.finish.remote(total, share) for worker in self._workers]
        answers = ray.get(ends, timeout=TIMEOUT_S)
        sums = {each for _, each in answers}
        assert len(sums) == 1, f"the workers' parameters differ: {sums}"
        return differences(map(max, zip(*(ended_s for ended_s, _ in answers), strict=True)))

    def _join_gloo(self) -> None:
        if not self._has_gloo:
            count = len(self._workers)
            joins = [
                worker.join_gloo.remote(self._address, rank, count)
                for rank, worker in enumerate(self._workers)
            ]
            ray.get(joins, timeout=TIMEOUT_S)
            self._has_gloo = True


def perceptron(parameters: int) -> Perceptron:
    """Two hidden layers of equal width: at least as many parameters, and hardly more."""
    width = 1
    while (network := Perceptron(SIDE * SIDE, width, width, DIGITS)).size < parameters:
        width = max(width + 1, int(width * (parameters / network.size) ** 0.5))
    return network


def differences(ended_s: Iterable[float]) -> list[float]:
    return [after - before for before, after in pairwise(ended_s)]


def play(
    address: str,
    nodes: int,
    options: Mapping[str, int],
    turns: Sequence[Sequence[Any]],
) -> None:
    """Play all turns, (application, parameters, peer, rounds) each, and print them as they end."""
    host = address.partition(":")[0]
    ray.init(
        address,
        runtime_env={"hoplite": dict(options)},
        log_to_driver=False,
        _node_ip_address=host,
    )
    applications: Applications | None = None
    failed: set[tuple[str, int, str]] = set()
    for application, parameters, peer, rounds in turns:
        if (application, parameters, peer) in failed:
            continue
        if applications is None or applications.parameters != parameters:
            if applications is not None:
                applications.close()
            applications = Applications(parameters, nodes, host)
        turn = applications.turn(application, peer, rounds)
        if turn.failure:
            failed.add((application, parameters, peer))
        sys.stdout.write(json.dumps(asdict(turn) | {"asked": parameters}) + "\n")
        sys.stdout.flush()
