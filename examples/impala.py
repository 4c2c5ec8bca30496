"""IMPALA on CartPole: a learner takes the rollouts of the first actors that are ready.

Each actor plays frames by the weights that it was given last, which are older than the learner's:
V-trace corrects for that. Source: Espeholt et al., "IMPALA", ICML 2018.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
from support.rl.jobs import Player, parse_options, play_runs
from support.rl.policy import Adam, Policy
from support.rl.rollouts import Report, join, traced_batch
from support.rl.scores import Scores

import hoplite_ray as hop

TIMEOUT_S = 120.0  # of each wait; far longer than a step


class Hoplite:
    title, put, wrap = "hoplite_ray", hop.put, hop.array

    def take(rollouts: list, count: int) -> tuple[list[dict], list]:
        ready, _ = hop.wait(rollouts, num_returns=count, timeout_s=TIMEOUT_S)
        return hop.get(ready, timeout_s=TIMEOUT_S), ready


class Plain:
    title, put, wrap = "plain Ray", ray.put, lambda value: value

    def take(rollouts: list, count: int) -> tuple[list[dict], list]:
        ready, _ = ray.wait(rollouts, num_returns=count, timeout=TIMEOUT_S)
        return ray.get(ready), ready


@ray.remote(scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1)
class Actor(Player):
    @ray.method(num_returns=2)
    def rollout(self, shared: Any, wrap: Callable) -> tuple[Any, Report]:
        rollout, report = self.play(np.asarray(shared))
        return wrap(rollout), report


def learn(store: Any, actors: Sequence[Any], policy: Policy, scores: Scores) -> None:
    """The learner: the actors whose rollouts it has taken get the new weights."""
    count, ready = len(actors) // 2, list(actors)
    weights, adam = policy.initial(seed=scores.seed), Adam(policy)
    under_way: dict[Any, tuple[Any, Any]] = {}  # rollout -> its actor and its report
    shared = store.put(weights)
    while not scores.is_over:
        for actor in ready:
            rollout, report = actor.rollout.remote(shared, store.wrap)
            under_way[rollout] = actor, report
        rollouts, sources = store.take(list(under_way), count)
        batch = traced_batch(policy, weights, join(rollouts))
        weights = adam.step(weights, policy.gradient(weights, batch), scores.rate)
        shared = store.put(weights)
        ready, reports = zip(*[under_way.pop(source) for source in sources], strict=True)
        scores.add(ray.get(list(reports)))


if __name__ == "__main__":
    raise SystemExit(play_runs(learn, (Hoplite, Plain), Actor, parse_options(__doc__)))
