"""Asynchronous SGD while a worker dies and comes back: how long each step takes.

    python benchmarks/sgd_death.py

Six workers and a parameter server on this machine. In a step the server adds up the first half of
the gradients and hands new parameters to their workers. A gradient takes 50 ms and hardly any CPU
time. A worker is killed in the middle of one; Ray restarts the worker and repeats its task. hoplite
and plain Ray take turns, with the same workers. Source: Figure 12 of the Hoplite paper.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import ray
from applications import BATCH, RATE, STORES, TIMEOUT_S, perceptron
from figures import OURS, Figure, print_figures
from meters import machine

from examples.support.digits import batches, load

WORKERS = 6
GRADIENT_S = 0.05
KILLED_AFTER_S = 0.02  # into a gradient
USUAL_S = 0.1  # before a kill: steps that end earlier know nothing of it
SOON_S = 1.0  # after a kill: a step that waits for the dead worker shows within this time


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Worker:
    """Makes a gradient of the parameters that it is given."""

    def __init__(self, parameters: int, data: Any, seed: int) -> None:
        self._network = perceptron(parameters)
        self._batches = batches(*ray.get(data[0]), size=BATCH, seed=seed)

    def pid(self) -> int:
        return os.getpid()

    def gradient(self, params: Any, empty: Callable[[int], Any]) -> Any:
        time.sleep(GRADIENT_S)
        room = empty(self._network.size)
        self._network.gradient(np.asarray(params), *next(self._batches), out=np.asarray(room))
        return room


@dataclass(slots=True)
class Trial:
    """One kill: steps as (when one ended, in seconds after the kill; how many ms it took)."""

    store: str
    steps: list[tuple[float, float]] = field(default_factory=list)
    back_s: float | None = None  # when a gradient of the killed worker was added up

    @property
    def usual_ms(self) -> float:
        return statistics.median(took for ended, took in self.steps if ended < -USUAL_S)

    @property
    def longest_ms(self) -> float:
        """The longest of the steps that the death can delay."""
        return max(took for ended, took in self.steps if 0 <= ended <= SOON_S + took / 1e3)


class Server:
    """The parameter server over one store, step after step."""

    def __init__(self, store: str, workers: list[Any], parameters: int) -> None:
        self._store = STORES[store]
        self._params = perceptron(parameters).initial(seed=0)
        shared = self._store.put(self._params)
        self._asked = {each.gradient.remote(shared, self._store.empty): each for each in workers}
        self._count = len(workers) // 2

    def step(self, ends_s: list[float]) -> list[Any]:
        """Add to `ends_s` when it ended.

        Returns: the workers whose gradients were added up; they have new parameters.
        """
        total, sources = self._store.add(list(self._asked), self._count)
        self._params -= np.float32(RATE / self._count) * total
        shared = self._store.put(self._params)
        given = [self._asked.pop(source) for source in sources]
        for worker in given:
            self._asked[worker.gradient.remote(shared, self._store.empty)] = worker
        ends_s.append(time.monotonic())
        return given

    def finish(self) -> None:
        """Wait for all outstanding gradients."""
        rest = list(self._asked)
        done, _ = ray.wait(rest, num_returns=len(rest), timeout=TIMEOUT_S, fetch_local=False)
        assert len(done) == len(rest) and np.isfinite(self._params).all()


def played(store: str, workers: list[Any], options: argparse.Namespace) -> Iterator[Trial]:
    """One kill after the other, of another worker each time."""
    server = Server(store, workers, int(options.parameters * 1e6))
    for number in range(options.kills):
        victim = workers[number % len(workers)]
        pid = ray.get(victim.pid.remote(), timeout=TIMEOUT_S)
        ends_s = [time.monotonic()]
        due_s = ends_s[0] + options.around_s
        # After a step that knows nothing of the kill, also where the first one was very long.
        while victim not in server.step(ends_s) or ends_s[-1] < max(due_s, ends_s[1] + USUAL_S):
            pass
        threading.Timer(KILLED_AFTER_S, os.kill, (pid, signal.SIGKILL)).start()
        killed_s = ends_s[-1] + KILLED_AFTER_S
        trial, over_s = Trial(store), killed_s + TIMEOUT_S
        while ends_s[-1] < over_s:
            if victim in server.step(ends_s) and trial.back_s is None:
                trial.back_s = round(ends_s[-1] - killed_s, 4)
                over_s = ends_s[-1] + options.around_s
        trial.steps = [
            (round(end_s - killed_s, 4), round((end_s - begin_s) * 1e3, 1))
            for begin_s, end_s in pairwise(ends_s)
        ]
        yield trial
    server.finish()


def lines(trials: list[Trial]) -> Iterator[str]:
    for store in STORES:
        own = [each for each in trials if each.store == store]
        usual_ms = statistics.median(each.usual_ms for each in own)
        longest = ", ".join(f"{each.longest_ms:.0f}" for each in own)
        back = ", ".join("never" if each.back_s is None else f"{each.back_s:.1f}" for each in own)
        yield (
            f"{store:8} a step takes {usual_ms:.0f} ms; the longest within {SOON_S:g} s of a kill "
            f"{longest} ms; the killed worker is back after {back} s"
        )


def figures(trials: list[Trial]) -> Iterator[Figure]:
    """Return the time of a step, the cost of a death and the return of the worker, by store."""
    for store, by in (("hoplite", OURS), ("ray", "Ray")):
        own = [each for each in trials if each.store == store]
        usual = tuple(took / 1e3 for each in own for ended, took in each.steps if ended < -USUAL_S)
        longest = tuple(each.longest_ms / 1e3 for each in own)
        back = tuple(each.back_s for each in own if each.back_s is not None)
        yield Figure(case="a step of asynchronous SGD", by=by, unit="s", samples=usual)
        case = f"the longest step within {SOON_S:g} s of a worker's death"
        yield Figure(case=case, by=by, unit="s", samples=longest)
        never = None if back else "the killed worker never came back"
        case = "until the killed worker takes part again"
        yield Figure(case=case, by=by, unit="s", samples=back, failure=never)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=float, default=1.0, help="of the model, in millions")
    parser.add_argument("--kills", type=int, default=3, help="in a turn of each store")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--around-s", type=float, default=4.0, help="before a kill and after it")
    parser.add_argument("--json", action="store_true", help="add a line for each kill")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs")
    options = parser.parse_args()
    if options.toy:
        options.parameters, options.kills, options.turns, options.around_s = 0.1, 1, 1, 0.5
    where = machine()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [root, os.path.join(root, "benchmarks"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    flag = {"hoplite": {"arena_bytes": 1 << 30}}
    ray.init("local", num_cpus=2, runtime_env=flag, log_to_driver=False, include_dashboard=False)
    try:
        training, _ = load(copies=1, seed=0)
        data = [ray.put(training)]
        parameters = int(options.parameters * 1e6)
        workers = [Worker.remote(parameters, data, seed) for seed in range(WORKERS)]
        ray.get([each.pid.remote() for each in workers], timeout=TIMEOUT_S)
        trials = [
            trial
            for _ in range(options.turns)
            for store in STORES
            for trial in played(store, workers, options)
        ]
    finally:
        ray.shutdown()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    print(*lines(trials), sep="\n")
    if options.toy:
        print("toy sizes: they prove only that it runs")
    if options.json:
        for trial in trials:
            print(json.dumps({"benchmark": "sgd death"} | asdict(trial) | where))
        print_figures("sgd_death", figures(trials), where)
    return int(any(trial.back_s is None for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
