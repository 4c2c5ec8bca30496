"""Asynchronous SGD with a parameter server, on a Ray cluster of several nodes on this machine.

Eight workers compute gradients of a network of 10 million parameters. The server adds up the first
four that arrive and hands new parameters to those four workers; the others stay outstanding. Two
runs take turns: one with hoplite_ray, one over Ray's own object store.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
import ray
from support.comparison import Run, compare
from support.digits import batches, load
from support.local_cluster import local_cluster
from support.options import parse_options
from support.perceptron import Perceptron

import hoplite_ray as hop

BATCH, RATE, MOMENTUM = 64, 0.1, 0.5
ACCURACY_MIN = 0.95  # on images that no worker sees
STORE_BYTES = 1 << 30  # on each node, for hoplite_ray and for Ray


class Hoplite:
    put, wrap = hop.put, hop.array

    def add(gradients: list, count: int) -> tuple[np.ndarray, list]:
        total = hop.reduce(gradients, op="sum", count=count)
        return hop.get(total), hop.sources(total)


class Plain:
    put, wrap = ray.put, np.asarray

    def add(gradients: list, count: int) -> tuple[np.ndarray, list]:
        sources, _ = ray.wait(gradients, num_returns=count)
        return functools.reduce(np.add, ray.get(sources)), sources


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Worker:
    def __init__(self, network: Perceptron, training: tuple, seed: int) -> None:
        self.network, self.batches = network, batches(*training, size=BATCH, seed=seed)

    def gradient(self, params: np.ndarray | hop.Array, wrap: Callable) -> np.ndarray | hop.Array:
        return wrap(self.network.gradient(np.asarray(params), *next(self.batches)))


def train(store: type, workers: list, params: np.ndarray, steps: int) -> Iterator[np.ndarray]:
    """The parameter server. Yields the parameters after every step."""
    count, speed, shared = len(workers) // 2, np.zeros_like(params), store.put(params)
    outstanding = {worker.gradient.remote(shared, store.wrap): worker for worker in workers}
    for step in range(steps):
        total, sources = store.add(list(outstanding), count)
        speed = MOMENTUM * speed - RATE * (1 - step / steps) / count * total
        params = params + speed
        shared = store.put(params)
        for worker in [outstanding.pop(source) for source in sources]:
            outstanding[worker.gradient.remote(shared, store.wrap)] = worker
        yield params


def main(plain: bool, hidden: int, nodes: int, workers: int, steps: int, seed: int) -> int:
    training, test = load(copies=8, seed=seed)
    params = (network := Perceptron(64, hidden, hidden, 10)).initial(seed=seed)
    with local_cluster(nodes, workers, STORE_BYTES) as address:
        ray.init(address, runtime_env={"hoplite": {"arena_bytes": STORE_BYTES}})
        data = ray.put(training)
        actors = [Worker.remote(network, data, rank) for rank in range(workers)]
        ray.get([actor.__ray_ready__.remote() for actor in actors])  # before the clocks start
        stores = [Plain] if plain else [Hoplite, Plain]
        runs = [Run(store.__name__, train(store, actors, params, steps), steps) for store in stores]
        compare(runs, workers // 2, lambda params: network.accuracy(params, *test))
    return 0 if all(run.accuracy >= ACCURACY_MIN for run in runs) else 1


if __name__ == "__main__":
    raise SystemExit(main(**parse_options(__doc__)))
