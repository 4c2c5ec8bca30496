"""The network of `perceptron.py` in torch, for `async_sgd.py --torch`: tensors all the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from support.perceptron import Perceptron
from torch.nn import functional

import hoplite_ray as hop


class TorchPerceptron:
    """Like `Perceptron`: all parameters are one flat tensor, and so is a gradient."""

    def __init__(self, *widths: int) -> None:
        self.numpy = Perceptron(*widths)

    def initial(self, *, seed: int) -> torch.Tensor:
        return torch.from_numpy(self.numpy.initial(seed=seed))

    def read(self, shared: Any) -> torch.Tensor:
        """Return the tensor that a worker is given, or the tensor of a handle."""
        return shared.torch() if isinstance(shared, hop.Array) else shared

    def scores(self, params: torch.Tensor, images: np.ndarray) -> torch.Tensor:
        signal, start = torch.from_numpy(images), 0
        for rows, columns in self.numpy.shapes:
            table = params[start : start + rows * columns].view(rows, columns)
            signal = signal if start == 0 else functional.relu(signal)
            signal, start = signal @ table[:-1] + table[-1], start + rows * columns
        return signal

    def gradient(
        self, params: torch.Tensor, images: np.ndarray, labels: np.ndarray
    ) -> torch.Tensor:
        params = params.requires_grad_()
        functional.cross_entropy(self.scores(params, images), torch.from_numpy(labels)).backward()
        assert params.grad is not None
        return params.grad

    def judge(
        self, params: torch.Tensor, images: np.ndarray, labels: np.ndarray
    ) -> tuple[float, float]:
        with torch.no_grad():
            scores, digits = self.scores(params, images), torch.from_numpy(labels)
            loss = functional.cross_entropy(scores, digits)
            return float(loss), float((scores.argmax(dim=1) == digits).float().mean())
