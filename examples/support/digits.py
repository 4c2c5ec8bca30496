"""Handwritten digits, for `async_sgd.py`. They come with scikit-learn: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import ndimage

SIDE = 8  # pixels: an image is SIDE x SIDE
TEST_IMAGES = 450  # of 1797; the rest is for training


Labelled = tuple[np.ndarray, np.ndarray]  # images, one flat row each, and the digits they show


def load(*, copies: int, seed: int) -> tuple[Labelled, Labelled]:
    """Return what to train with, each image also in `copies` warped ones, and what to test with."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / images.max()).astype(np.float32)
    train, test, train_labels, test_labels = train_test_split(
        images, labels, test_size=TEST_IMAGES, stratify=labels, random_state=seed
    )
    train = np.concatenate([train, augment(np.tile(train, (copies, 1)), seed=seed)])
    mean, spread = train.mean(axis=0), train.std()
    train, test = (train - mean) / spread, (test - mean) / spread
    return (train, np.tile(train_labels, copies + 1)), (test, test_labels)


def augment(images: np.ndarray, *, seed: int) -> np.ndarray:
    """Turn (15 degrees at most), scale (10 %) and shift (0.7 pixels) each image, all in one go."""
    rng, count, middle = np.random.default_rng(seed), len(images), (SIDE - 1) / 2
    angle = rng.uniform(-np.pi / 12, np.pi / 12, (count, 1, 1))
    scale = rng.uniform(0.9, 1.1, (count, 1, 1))
    shift = rng.uniform(-0.7, 0.7, (2, count, 1, 1)) + middle
    y, x = np.mgrid[:SIDE, :SIDE] - middle
    rows = scale * (np.cos(angle) * y - np.sin(angle) * x) + shift[0]
    columns = scale * (np.sin(angle) * y + np.cos(angle) * x) + shift[1]
    which = np.broadcast_to(np.arange(count)[:, None, None], rows.shape)
    stack = images.reshape(count, SIDE, SIDE)
    return ndimage.map_coordinates(stack, [which, rows, columns], order=1).reshape(images.shape)


def batches(images: np.ndarray, labels: np.ndarray, *, size: int, seed: int) -> Iterator[Labelled]:
    """Yield random batches, for ever."""
    rng = np.random.default_rng(seed)
    while True:
        rows = rng.integers(len(labels), size=size)
        yield images[rows], labels[rows]
