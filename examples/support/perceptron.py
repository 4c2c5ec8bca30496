"""A multilayer perceptron in numpy, for `async_sgd.py`.

All parameters are one flat vector: the parameters are one object, and so is a gradient.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np


class Perceptron:
    """Layers of these widths, rectified in between; softmax and cross-entropy in the end."""

    def __init__(self, *widths: int) -> None:
        self.shapes = [(inputs + 1, outputs) for inputs, outputs in pairwise(widths)]
        self.size = sum(rows * columns for rows, columns in self.shapes)

    def read(self, shared: Any) -> np.ndarray:
        """Return the array that a worker is given, or the array of a handle."""
        return np.asarray(shared)

    def layers(self, flat: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return weights and biases (the last row) of every layer, as views of the flat vector."""
        ends = np.cumsum([rows * columns for rows, columns in self.shapes])[:-1]
        tables = map(np.reshape, np.split(flat, ends), self.shapes)
        return [(table[:-1], table[-1]) for table in tables]

    def initial(self, *, seed: int) -> np.ndarray:
        """Return parameters to start from: random weights, no biases."""
        rng, params = np.random.default_rng(seed), np.zeros(self.size, np.float32)
        for weights, _ in self.layers(params):
            weights[:] = rng.standard_normal(weights.shape) * np.sqrt(2 / len(weights))
        weights *= 0.1  # the last layer: undecided at first
        return params

    def forward(self, params: np.ndarray, images: np.ndarray) -> list[np.ndarray]:
        """Return the input of every layer, and then the scores of the classes."""
        signals, (*hidden, last) = [images], self.layers(params)
        for weights, biases in hidden:
            signals.append(np.maximum(signals[-1] @ weights + biases, 0))
        return [*signals, signals[-1] @ last[0] + last[1]]

    def gradient(
        self,
        params: np.ndarray,
        images: np.ndarray,
        labels: np.ndarray,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the derivative of the mean cross-entropy of the images by every parameter.

        out: where to write it, if it has a place already.
        """
        *signals, scores = self.forward(params, images)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True)  # of each score: its probability ...
        error[np.arange(len(labels)), labels] -= 1  # ... minus 1 where it should be 1
        error /= len(labels)
        gradient = np.empty_like(params) if out is None else out
        layers = zip(signals, self.layers(params), self.layers(gradient), strict=True)
        for signal, (weights, _), (by_weights, by_biases) in reversed(list(layers)):
            np.matmul(signal.T, error, out=by_weights)
            np.sum(error, axis=0, out=by_biases)
            error = (error @ weights.T) * (signal > 0)
        return gradient

    def judge(
        self, params: np.ndarray, images: np.ndarray, labels: np.ndarray
    ) -> tuple[float, float]:
        """Return the mean cross-entropy of the images, and the share that is read right."""
        scores = self.forward(params, images)[-1]
        scores = scores - scores.max(axis=1, keepdims=True)
        chosen = scores[np.arange(len(labels)), labels]
        loss = np.mean(np.log(np.exp(scores).sum(axis=1)) - chosen)
        return float(loss), float(np.mean(scores.argmax(axis=1) == labels))
