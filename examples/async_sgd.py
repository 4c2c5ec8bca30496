"""Asynchronous SGD with a parameter server, on a Ray cluster of several nodes.

Eight workers; the server adds up the first four gradients and hands new parameters to those four.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any

import ray
from support.comparison import Run, compare
from support.digits import batches, load
from support.killing import Roll, killing, noted, start_of_worker
from support.leftovers import Leftovers, settled
from support.local_cluster import cluster_at
from support.options import Options, parse_options

import hoplite_ray as hop

MOMENTUM, STORE_BYTES = 0.5, 1 << 30  # on each node, ours and Ray's


class Hoplite:
    title, put, wrap = "hoplite_ray", hop.put, hop.array

    def add(gradients: list, count: int) -> tuple[Any, list]:
        total = hop.reduce(gradients, op="sum", count=count)
        return noted("reduce", hop.get, total), hop.sources(total)


class Plain:
    title, put, wrap = "plain Ray", ray.put, lambda array: array

    def add(gradients: list, count: int) -> tuple[Any, list]:
        sources, _ = ray.wait(gradients, num_returns=count)
        first, *others = ray.get(sources)
        return sum(others, first), sources


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Worker:
    def __init__(self, network: Any, data: list, batch: int, seed: int, roll: Any) -> None:
        self.network, self.batches = network, batches(*ray.get(data[0]), size=batch, seed=seed)
        start_of_worker(roll, seed)

    def gradient(self, params: Any, wrap: Callable) -> Any:
        params = noted("get", self.network.read, params)
        return noted("put", wrap, self.network.gradient(params, *next(self.batches)))


def train(store: type, workers: list, params: Any, rates: Iterable) -> Generator[Any]:
    """The parameter server. Yields the parameters after every step, and the refs under way."""
    count, speed, shared = len(workers) // 2, params * 0, store.put(params)
    outstanding = {worker.gradient.remote(shared, store.wrap): worker for worker in workers}
    for rate in rates:
        total, sources = store.add(list(outstanding), count)
        speed = MOMENTUM * speed - rate / count * total
        params = params + speed
        shared = store.put(params)
        for worker in [outstanding.pop(source) for source in sources]:
            outstanding[worker.gradient.remote(shared, store.wrap)] = worker
        yield params, list(outstanding)


def main(o: Options) -> int:
    (training, test), params = load(copies=8, seed=o.seed), o.network.initial(seed=o.seed)
    with cluster_at(o.address, o.nodes, o.workers, STORE_BYTES) as place:
        hop.init(**place, arena_bytes=STORE_BYTES)
        data, roll = ray.put(training), Roll.remote()
        made = Worker.options(max_restarts=-o.kill, max_task_retries=-o.kill)  # -1: without end
        actors = [made.remote(o.network, [data], o.batch, i, roll) for i in range(o.workers)]
        ray.get([actor.__ray_ready__.remote() for actor in actors])  # before the clocks start
        before, stores = Leftovers.read(o.address), [Hoplite, Plain][o.plain :]
        runs = [Run(each.title, train(each, actors, params, o.rates())) for each in stores]
        with killing(roll, o.kill, seed=o.seed):
            good = compare(runs, o, place["address"], lambda it: o.network.judge(it, *test))
        return 0 if settled(before) and good else 1


if __name__ == "__main__":
    raise SystemExit(main(parse_options(__doc__)))
