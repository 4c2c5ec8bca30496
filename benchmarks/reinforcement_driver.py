"""The driver of reinforcement.py: it plays and times rounds of A3C and IMPALA over a store.

The learner is this process, at node 0, and an actor plays CartPole on each other node. Both learn
as examples/a3c.py and examples/impala.py do, but fill their objects in the store's own memory.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from applications import TIMEOUT_S, Hoplite, Plain
from frame import connect_driver
from meters import SEED
from ranks import serve
from support.rl.policy import Adam, Policy
from support.rl.rollouts import Environments, Rollout, join, n_step_batch, traced_batch

import hoplite_ray as hop

A3C, IMPALA = "A3C", "IMPALA"
ENVIRONMENTS, STEPS = 8, 32  # of an actor, and of a rollout
RATE = 1e-3
START_S = 300.0  # for an actor, also on a machine that starts all of them at once

Array = npt.NDArray[np.float32]


def play(address: str, arena_bytes: str, link_mbit: str, nodes: str) -> None:
    """Be the driver of a cluster, whose nodes have the resources n0, n1 and so on."""
    host = address.partition(":")[0]
    connect_driver(address, arena_bytes, link_mbit, _node_ip_address=host)
    serve(_Driver(int(nodes)))


def keep(value: Any) -> Any:
    """Return a value as it is: Ray puts what a task returns into its own store."""
    return value


class _Ours(Hoplite):
    wrap = staticmethod(hop.array)
    take = staticmethod(partial(hop.get, timeout_s=TIMEOUT_S))


class _Peer(Plain):
    wrap = staticmethod(keep)
    take = staticmethod(partial(ray.get, timeout=TIMEOUT_S))


STORES: dict[str, Any] = {"hoplite": _Ours, "ray": _Peer}


@ray.remote(num_cpus=0)
class _Actor:
    """Plays by the weights that it is given; returns what to learn from, and how many frames."""

    def __init__(self, policy: Policy, rank: int) -> None:
        self._policy = policy
        self._environments = Environments(ENVIRONMENTS, seed=SEED + rank)

    def warm_up(self) -> None:
        """Attach to the node, and do the work that is done once."""
        weights = self._policy.initial(seed=SEED)
        self._environments.play(self._policy, weights, STEPS)
        hop.array(weights)

    @ray.method(num_returns=2)
    def gradient(self, shared: Any, empty: Callable[[int], Any]) -> tuple[Any, int]:
        weights = np.asarray(shared)
        rollout, report = self._environments.play(self._policy, weights, STEPS)
        room = empty(self._policy.size)
        filled = np.asarray(room)
        filled[self._policy.network_size :] = 0
        self._policy.gradient(weights, n_step_batch(self._policy, weights, rollout), out=filled)
        return room, report.frames

    @ray.method(num_returns=2)
    def rollout(self, shared: Any, wrap: Callable[[Any], Any]) -> tuple[Any, int]:
        rollout, report = self._environments.play(self._policy, np.asarray(shared), STEPS)
        return wrap(rollout), report.frames


class _Driver:
    """The benchmark's commands."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._policy = Policy()
        self._actors: list[Any] = []

    def begin(self, parameters: int) -> int:
        """Start an actor on each node but the first, with weights of so many parameters.

        Returns: how many parameters the weights have.
        """
        for each in self._actors:
            ray.kill(each)
        self._policy = Policy(parameters=parameters)
        self._actors = [
            _Actor.options(resources={f"n{rank}": 0.001}).remote(self._policy, rank)
            for rank in range(1, self._nodes)
        ]
        for each in self._actors:  # one after the other, so that they don't compete for cores
            ray.get(each.warm_up.remote(), timeout=START_S)
        return self._policy.size

    def turn(self, application: str, peer: str, rounds: int) -> tuple[int, float]:
        """Play `rounds` rounds, and one before them that is not counted.

        Returns: the frames that were learnt from, and the seconds of these rounds.
        """
        learner = {A3C: _Server, IMPALA: _Learner}[application]
        playing = learner(STORES[peer], self._policy, self._actors)
        playing.play_round()
        began_s = time.monotonic()
        frames = sum(playing.play_round() for _ in range(rounds))
        took_s = time.monotonic() - began_s
        playing.finish()
        return frames, took_s


class _Playing(ABC):
    """The part that both learners share: in each round half of the actors get new weights."""

    def __init__(self, store: Any, policy: Policy, actors: Sequence[Any]) -> None:
        self._store, self._policy = store, policy
        self._count = max(1, len(actors) // 2)
        self._weights: Array = policy.initial(seed=SEED)
        self._adam = Adam(policy)
        self._under_way: dict[Any, tuple[Any, Any]] = {}  # result -> its actor and its frames
        self._hand_out(store.put(self._weights), actors)

    def play_round(self) -> int:
        """Take the first results, and hand out new weights; returns the frames in them."""
        gradient, sources = self._take(list(self._under_way))
        room = self._store.empty(self._policy.size)
        updated, used = np.asarray(room), self._policy.network_size
        updated[used:] = self._weights[used:]
        updated[:used] = self._adam.step(self._weights[:used], gradient, RATE)
        self._weights = updated
        taken = [self._under_way.pop(source) for source in sources]
        self._hand_out(self._store.put(room), [actor for actor, _ in taken])
        return sum(ray.get([frames for _, frames in taken], timeout=TIMEOUT_S))

    def finish(self) -> None:
        """Wait for all that is under way, so that no later turn shares the links with it."""
        rest = list(self._under_way)
        ray.wait(rest, num_returns=len(rest), timeout=TIMEOUT_S, fetch_local=False)

    def _hand_out(self, shared: Any, actors: Sequence[Any]) -> None:
        for actor in actors:
            result, frames = self._ask(actor, shared)
            self._under_way[result] = actor, frames

    @abstractmethod
    def _ask(self, actor: Any, shared: Any) -> list[Any]:
        """Ask an actor for its next result; returns the refs of the result and of its frames."""

    @abstractmethod
    def _take(self, results: list[Any]) -> tuple[Array, list[Any]]:
        """Return the next gradient, and the results that are in it."""


class _Server(_Playing):
    """A3C's parameter server."""

    def _ask(self, actor: Any, shared: Any) -> list[Any]:
        return list(actor.gradient.remote(shared, self._store.empty))

    def _take(self, results: list[Any]) -> tuple[Array, list[Any]]:
        total, sources = self._store.add(results, self._count)
        return total[: self._policy.network_size] / self._count, sources


class _Learner(_Playing):
    """IMPALA's learner."""

    def _ask(self, actor: Any, shared: Any) -> list[Any]:
        return list(actor.rollout.remote(shared, self._store.wrap))

    def _take(self, results: list[Any]) -> tuple[Array, list[Any]]:
        ready, _ = ray.wait(results, num_returns=self._count, timeout=TIMEOUT_S, fetch_local=False)
        rollouts: list[Rollout] = self._store.take(ready)
        policy, weights = self._policy, self._weights
        batch = traced_batch(policy, weights, join(rollouts))
        return policy.gradient(weights[: policy.network_size], batch), ready
