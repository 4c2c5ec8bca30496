"""A3C on CartPole: a parameter server adds up the first half of its workers' gradients.

Each worker plays frames by the weights that it is given, and returns the gradient of these frames.
Source: Mnih et al., "Asynchronous methods for deep reinforcement learning", ICML 2016.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
from support.rl.jobs import Player, parse_options, play_runs
from support.rl.policy import Adam, Policy
from support.rl.rollouts import Report, n_step_batch
from support.rl.scores import Scores

import hoplite_ray as hop

TIMEOUT_S = 120.0  # of each wait; far longer than a step


class Hoplite:
    title, put, wrap = "hoplite_ray", hop.put, hop.array

    def add(gradients: list, count: int) -> tuple[np.ndarray, list]:
        total = hop.reduce(gradients, op="sum", count=count)
        return hop.get(total, timeout_s=TIMEOUT_S), hop.sources(total)


class Plain:
    title, put, wrap = "plain Ray", ray.put, lambda array: array

    def add(gradients: list, count: int) -> tuple[np.ndarray, list]:
        sources, _ = ray.wait(gradients, num_returns=count, timeout=TIMEOUT_S)
        first, *others = ray.get(sources)
        return sum(others, first), sources


@ray.remote(scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1)
class Worker(Player):
    @ray.method(num_returns=2)
    def gradient(self, shared: Any, wrap: Callable) -> tuple[Any, Report]:
        weights = np.asarray(shared)
        rollout, report = self.play(weights)
        batch = n_step_batch(self.policy, weights, rollout)
        return wrap(self.policy.gradient(weights, batch)), report


def learn(store: Any, workers: Sequence[Any], policy: Policy, scores: Scores) -> None:
    """The parameter server: the workers whose gradients went in get the new weights."""
    count, ready = len(workers) // 2, list(workers)
    weights, adam = policy.initial(seed=scores.seed), Adam(policy)
    under_way: dict[Any, tuple[Any, Any]] = {}  # gradient -> its worker and its report
    shared = store.put(weights)
    while not scores.is_over:
        for worker in ready:
            gradient, report = worker.gradient.remote(shared, store.wrap)
            under_way[gradient] = worker, report
        total, sources = store.add(list(under_way), count)
        weights = adam.step(weights, total / count, scores.rate)
        shared = store.put(weights)
        ready, reports = zip(*[under_way.pop(source) for source in sources], strict=True)
        scores.add(ray.get(list(reports)))


if __name__ == "__main__":
    raise SystemExit(play_runs(learn, (Hoplite, Plain), Worker, parse_options(__doc__)))
