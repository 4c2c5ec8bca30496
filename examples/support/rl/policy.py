"""An actor-critic in numpy, for `a3c.py` and `impala.py`.

All parameters are one flat vector: the weights are one object, and so is a gradient. The vector may
be longer than the network needs, so that messages have the size of a larger network's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

OBSERVED, ACTIONS = 4, 2  # numbers in an observation of CartPole, and actions to choose from
SCALE = (1.0, 1.0, 5.0, 1.0)  # of an observation's numbers: the angle is far smaller than the rest
VALUE_SHARE, ENTROPY_SHARE = 0.5, 0.01  # of the loss


class Batch(NamedTuple):
    """The material of a gradient: a row for each frame."""

    observations: np.ndarray  # (frames, 4)
    actions: np.ndarray  # (frames,)
    advantages: np.ndarray  # (frames,): how much better an action was than the policy's mean
    targets: np.ndarray  # (frames,): what the value of an observation should be


class Outputs(NamedTuple):
    """The network's answers, with the signals of its hidden layers."""

    hidden: tuple[np.ndarray, np.ndarray]
    scores: np.ndarray  # (..., 2): logarithms of probabilities, up to a constant
    values: np.ndarray  # (...,)


@dataclass(frozen=True)
class Policy:
    """Two hidden layers; then a layer for the probabilities of actions, and one for the value."""

    width: int = 64
    parameters: int = 0  # of the flat vector, if the network needs fewer

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of each layer's table, whose last row are the biases."""
        hidden = pairwise((OBSERVED, self.width, self.width))
        outputs = ((self.width, ACTIONS), (self.width, 1))
        return [(inputs + 1, columns) for inputs, columns in (*hidden, *outputs)]

    @property
    def network_size(self) -> int:
        """How many of the flat vector's numbers the network uses; they come first."""
        return sum(rows * columns for rows, columns in self.shapes)

    @property
    def size(self) -> int:
        return max(self.network_size, self.parameters)

    def tables(self, flat: np.ndarray) -> list[np.ndarray]:
        """Return the layers' tables, as views of the flat vector."""
        ends = np.cumsum([rows * columns for rows, columns in self.shapes])
        return [
            flat[end - rows * columns : end].reshape(rows, columns)
            for end, (rows, columns) in zip(ends, self.shapes, strict=True)
        ]

    def initial(self, *, seed: int) -> np.ndarray:
        """Return weights to start from: orthogonal rows, no biases, nearly equal probabilities."""
        rng, flat = np.random.default_rng(seed), np.zeros(self.size, np.float32)
        for table, gain in zip(self.tables(flat), (1.4, 1.4, 0.01, 1.0), strict=True):
            rows, columns = table[:-1].shape
            square = rng.standard_normal((max(rows, columns),) * 2)
            table[:-1] = gain * np.linalg.qr(square)[0][:rows, :columns]
        return flat

    def forward(self, weights: np.ndarray, observations: np.ndarray) -> Outputs:
        """Return the outputs for observations of any leading shape."""
        first, second, actor, critic = self.tables(weights)
        one = np.tanh(_scale(observations) @ first[:-1] + first[-1])
        two = np.tanh(one @ second[:-1] + second[-1])
        values = two @ critic[:-1] + critic[-1]
        return Outputs((one, two), two @ actor[:-1] + actor[-1], values[..., 0])

    def loss(self, weights: np.ndarray, batch: Batch) -> float:
        """Return what `gradient` is the derivative of: the mean over all frames."""
        _, scores, values = self.forward(weights, batch.observations)
        logs = log_softmax(scores)
        entropies = -(np.exp(logs) * logs).sum(axis=-1)
        gains = batch.advantages * pick(logs, batch.actions)
        errors = 0.5 * (values - batch.targets) ** 2
        return float(np.mean(VALUE_SHARE * errors - gains - ENTROPY_SHARE * entropies))

    def gradient(
        self, weights: np.ndarray, batch: Batch, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the derivative of `loss` by every number of the flat vector.

        out: where to write it, if it has a place already. Only the numbers in use are written.
        """
        gradient = np.zeros_like(weights) if out is None else out
        (one, two), scores, values = self.forward(weights, batch.observations)
        logs, frames = log_softmax(scores), np.arange(len(scores))
        odds = np.exp(logs)
        entropies = -(odds * logs).sum(axis=-1, keepdims=True)
        chosen = np.zeros_like(odds)
        chosen[frames, batch.actions] = 1
        by_scores = (odds - chosen) * batch.advantages[:, None]
        by_scores += ENTROPY_SHARE * odds * (logs + entropies)
        by_values = VALUE_SHARE * (values - batch.targets)[:, None]
        _, second, actor, critic = self.tables(weights)
        by_two = (by_scores @ actor[:-1].T + by_values @ critic[:-1].T) * (1 - two**2)
        by_one = by_two @ second[:-1].T * (1 - one**2)
        signals = (_scale(batch.observations), one, two, two)
        errors = (by_one, by_two, by_scores, by_values)
        for table, signal, error in zip(self.tables(gradient), signals, errors, strict=True):
            table[:-1] = signal.T @ error / len(scores)
            table[-1] = error.mean(axis=0)
        return gradient


class Adam:
    """Steps down a gradient. Source: Kingma and Ba, "Adam", ICLR 2015."""

    FADES, TINY = (0.9, 0.999), 1e-8
    NORM_MAX = 0.5  # a longer gradient is made so short

    def __init__(self, policy: Policy) -> None:
        self._used = policy.network_size
        self._moments = [np.zeros(self._used) for _ in self.FADES]
        self._steps = 0

    def step(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        """Return new weights; those that the network does not use stay as they are."""
        gradient = gradient[: self._used].astype(np.float64)
        gradient *= min(1.0, self.NORM_MAX / (np.linalg.norm(gradient) + self.TINY))
        self._steps += 1
        means = []
        for fade, moment, power in zip(self.FADES, self._moments, (1, 2), strict=True):
            moment += (1 - fade) * (gradient**power - moment)
            means.append(moment / (1 - fade**self._steps))
        weights = weights.copy()
        weights[: self._used] -= rate * means[0] / (np.sqrt(means[1]) + self.TINY)
        return weights


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Return the logarithms of the probabilities that belong to the scores of actions."""
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def pick(logs: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the numbers of the actions that were chosen."""
    return np.take_along_axis(logs, actions[..., None].astype(np.intp), axis=-1)[..., 0]


def _scale(observations: np.ndarray) -> np.ndarray:
    return observations * np.array(SCALE, observations.dtype)
