"""Frames of CartPole, played by a policy in several environments at once; the extra `rl` has it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from support.rl.policy import Batch, Policy, log_softmax, pick
from support.rl.returns import n_step_returns, trace

PACKAGES = {"gymnasium": "gymnasium"}  # import name -> what brings it
REWARD = 0.02  # of a frame: values stay small, so that their errors leave room for the policy's
TINY = 1e-8

Rollout = dict[str, np.ndarray]  # of shape (steps, environments); observations have a step more


class Report(NamedTuple):
    """A rollout's part of the scores."""

    frames: int
    returns: list[int]  # of the episodes that ended, in their order: how long each was


class Environments:
    """Environments that are played in step; an episode goes on in the next rollout."""

    def __init__(self, count: int, *, seed: int) -> None:
        import gymnasium

        self._vector: Any = gymnasium.make_vec("CartPole-v1", num_envs=count)
        self._observations, _ = self._vector.reset(seed=seed)
        self._lengths = np.zeros(count, int)  # of the episodes that go on
        self._begins = np.zeros(count, bool)  # True where the next step only begins an episode
        self._rng = np.random.default_rng(seed)

    def play(self, policy: Policy, weights: np.ndarray, steps: int) -> tuple[Rollout, Report]:
        """Return the next frames, and what the scores need of them."""
        rows: dict[str, list[np.ndarray]] = {name: [] for name in ("observations", *_PER_STEP)}
        returns: list[int] = []
        for _ in range(steps):
            logs = log_softmax(policy.forward(weights, self._observations).scores)
            actions = (self._rng.random(len(logs)) < np.exp(logs[:, 1])).astype(np.int8)
            before, counts = self._observations, ~self._begins
            self._observations, _, ended, truncated, _ = self._vector.step(actions)
            cut = ended | truncated
            step = (actions, pick(logs, actions), ended, cut, counts)
            for name, row in zip(rows, (before, *step), strict=True):
                rows[name].append(row)
            self._lengths += counts
            returns += self._lengths[cut].tolist()
            self._lengths[cut] = 0
            self._begins = cut
        rows["observations"].append(self._observations)
        rollout = {name: np.stack(each) for name, each in rows.items()}
        return rollout, Report(int(rollout["counts"].sum()), returns)


# The actions and the logarithms of their probabilities; whether an episode ended by itself, or was
# cut for any reason; and whether it is a frame at all, and not the begin of an episode.
_PER_STEP = ("actions", "logs", "ended", "cut", "counts")


def join(rollouts: Sequence[Rollout]) -> Rollout:
    """Return one rollout of all environments."""
    return {name: np.concatenate([each[name] for each in rollouts], axis=1) for name in rollouts[0]}


def n_step_batch(policy: Policy, weights: np.ndarray, rollout: Rollout) -> Batch:
    """Return what A3C learns from a rollout that these weights have played."""
    values = policy.forward(weights, rollout["observations"]).values
    rewards = REWARD * rollout["counts"]
    returns = n_step_returns(rewards, values, rollout["ended"], rollout["cut"])
    return _batch(rollout, returns - values[:-1], returns)


def traced_batch(policy: Policy, weights: np.ndarray, rollout: Rollout) -> Batch:
    """Return what IMPALA learns from a rollout that older weights have played."""
    _, scores, values = policy.forward(weights, rollout["observations"])
    logs = pick(log_softmax(scores[:-1]), rollout["actions"])
    rewards = REWARD * rollout["counts"]
    ratios = np.exp(logs - rollout["logs"])
    traced = trace(ratios, rewards, values, rollout["ended"], rollout["cut"])
    return _batch(rollout, traced.advantages, traced.targets)


def _batch(rollout: Rollout, advantages: np.ndarray, targets: np.ndarray) -> Batch:
    """Return the frames as rows, with advantages of mean 0 and spread 1."""
    counts = rollout["counts"]
    rows = advantages[counts]
    rows = (rows - rows.mean()) / (rows.std() + TINY)
    return Batch(
        rollout["observations"][:-1][counts], rollout["actions"][counts], rows, targets[counts]
    )


def lacking() -> list[str]:
    """Return the packages of the extra `rl` that are not installed."""
    return [package for name, package in PACKAGES.items() if find_spec(name) is None]
