"""Asynchronous SGD with a parameter server, on a Ray cluster of several nodes on this machine.

Eight workers; the server adds up the first four gradients and hands new parameters to those four.
"""

from collections.abc import Callable, Generator
from typing import Any

import ray
from support.comparison import Run, compare
from support.digits import batches, load
from support.killing import Roll, killing, noted, start_of_worker
from support.leftovers import Leftovers, settled
from support.local_cluster import local_cluster
from support.options import parse_options

import hoplite_ray as hop

BATCH, RATE, MOMENTUM, STORE_BYTES = 64, 0.1, 0.5, 1 << 30  # on each node, ours and Ray's


class Hoplite:
    put, wrap = hop.put, hop.array

    def add(gradients: list, count: int) -> tuple[Any, list]:
        total = hop.reduce(gradients, op="sum", count=count)
        return noted("reduce", hop.get, total), hop.sources(total)


class Plain:
    put, wrap = ray.put, lambda array: array

    def add(gradients: list, count: int) -> tuple[Any, list]:
        sources, _ = ray.wait(gradients, num_returns=count)
        first, *others = ray.get(sources)
        return sum(others, first), sources


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Worker:
    def __init__(self, network: Any, data: list, seed: int, roll: Any) -> None:
        self.network, self.batches = network, batches(*ray.get(data[0]), size=BATCH, seed=seed)
        start_of_worker(roll, seed)

    def gradient(self, params: Any, wrap: Callable) -> Any:
        params = noted("get", self.network.read, params)
        return noted("put", wrap, self.network.gradient(params, *next(self.batches)))


def train(store: type, workers: list, params: Any, steps: int) -> Generator[Any]:
    """The parameter server. Yields the parameters after every step."""
    count, speed, shared = len(workers) // 2, params * 0, store.put(params)
    outstanding = {worker.gradient.remote(shared, store.wrap): worker for worker in workers}
    for step in range(steps):
        total, sources = store.add(list(outstanding), count)
        speed = MOMENTUM * speed - RATE * (1 - step / steps) / count * total
        params = params + speed
        shared = store.put(params)
        for worker in [outstanding.pop(source) for source in sources]:
            outstanding[worker.gradient.remote(shared, store.wrap)] = worker
        yield params


def main(plain: bool, kill: bool, network, nodes: int, workers: int, steps: int, seed: int) -> int:
    (training, test), params = load(copies=8, seed=seed), network.initial(seed=seed)
    with local_cluster(nodes, workers, STORE_BYTES) as address:
        hop.init(address, arena_bytes=STORE_BYTES)
        data, roll = ray.put(training), Roll.remote()
        made = Worker.options(max_restarts=-kill, max_task_retries=-kill)  # -1: without end
        actors = [made.remote(network, [data], rank, roll) for rank in range(workers)]
        ray.get([actor.__ray_ready__.remote() for actor in actors])  # before the clocks start
        before, stores = Leftovers.read(), [Plain] if plain else [Hoplite, Plain]
        runs = [Run(store.__name__, train(store, actors, params, steps), steps) for store in stores]
        with killing(roll, kill, seed=seed):
            good = compare(runs, workers // 2, lambda params: network.accuracy(params, *test))
        return 0 if settled(before) and good else 1


if __name__ == "__main__":
    raise SystemExit(main(**parse_options(__doc__)))
