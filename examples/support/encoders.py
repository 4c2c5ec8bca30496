"""Small models with random weights, in numpy, for `retrieval.py`: sizes are rows x columns."""

from __future__ import annotations

import numpy as np

WORDS, WORD_WIDTH, VOCABULARY = 32, 128, 1000  # of a text: WORDS numbers below VOCABULARY
PATCHES, PATCH_WIDTH, PATCH_PIXELS = 256, 256, 768  # of an image: PATCHES x PATCH_PIXELS
DOCUMENT_WORDS = 16


class Layers:
    """Layers of self-attention, each followed by a perceptron."""

    def __init__(self, count: int, width: int, rng: np.random.Generator) -> None:
        self._weights = [
            (weights(rng, width, 3 * width), weights(rng, width, width)) for _ in range(count)
        ]

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        for attention, perceptron in self._weights:
            queries, keys, values = np.split(rows @ attention, 3, axis=1)
            rows = normal(rows + attended(queries, keys, values))
            rows = normal(rows + np.maximum(rows @ perceptron, 0))
        return rows


class TextEncoder:
    """Numbers of words -> WORDS x WORD_WIDTH."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._embedding = normal(weights(rng, VOCABULARY, WORD_WIDTH))
        self._layers = Layers(2, WORD_WIDTH, rng)

    def encode(self, words: np.ndarray) -> np.ndarray:
        return self._layers(self._embedding[words])


class ImageEncoder:
    """Patches of bytes -> PATCHES x PATCH_WIDTH, and that `copies` times.

    The copies stand for the features of a larger model: they change the answer by no more than
    rounding does, and have to be sent and read as those would.
    """

    def __init__(self, copies: int) -> None:
        rng = np.random.default_rng(2)
        self._copies = copies
        self._patches = weights(rng, PATCH_PIXELS, PATCH_WIDTH)
        self._layers = Layers(4, PATCH_WIDTH, rng)

    def encode(self, patches: np.ndarray) -> np.ndarray:
        rows = patches.astype(np.float32) / 255
        return np.tile(self._layers(normal(rows @ self._patches)), (self._copies, 1))


class CrossAttention:
    """Words ask all features of the image -> WORDS x WORD_WIDTH."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self._queries = weights(rng, WORD_WIDTH, PATCH_WIDTH)
        self._values = weights(rng, PATCH_WIDTH, WORD_WIDTH)

    def attend(self, words: np.ndarray, features: np.ndarray) -> np.ndarray:
        seen = attended(words @ self._queries, features, features)
        return normal(words + seen @ self._values)


class Documents:
    """Documents of random words, kept in memory, and the search for those that fit best.

    Each word of the query counts with the word of the document that is nearest to it (MaxSim).
    """

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(4)
        self._words = normal(weights(rng, count * DOCUMENT_WORDS, WORD_WIDTH))

    def best(self, words: np.ndarray, count: int) -> np.ndarray:
        """Return the numbers of the best documents, best first."""
        likeness = (self._words @ words.T).reshape(-1, DOCUMENT_WORDS, len(words))
        return np.argsort(-likeness.max(axis=1).sum(axis=1), kind="stable")[:count]


def query(number: int) -> dict[str, np.ndarray]:
    """Return a text and an image of noise, the same ones for the same number."""
    rng = np.random.default_rng(number)
    patches = rng.integers(256, size=(PATCHES, PATCH_PIXELS), dtype=np.uint8)
    return {"words": rng.integers(VOCABULARY, size=WORDS), "patches": patches}


def weights(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return random ones that keep the size of what they are applied to."""
    return rng.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)


def normal(rows: np.ndarray) -> np.ndarray:
    """Return rows of mean 0 and spread 1."""
    spread = rows.std(axis=1, keepdims=True)
    return (rows - rows.mean(axis=1, keepdims=True)) / (spread + np.float32(1e-6))


def attended(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each query the values, weighted by how its keys fit."""
    fit = queries @ keys.T / np.float32(queries.shape[1] ** 0.5)
    share = np.exp(fit - fit.max(axis=1, keepdims=True))
    return share / share.sum(axis=1, keepdims=True) @ values
