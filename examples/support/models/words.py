"""Word vectors of wordllama, and what is found and judged by them.

The package `wordllama` brings its vectors along: nothing is downloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.models.facts import POLITE, RUDE

WIDTH = 256  # of a vector
LISTS, LISTS_ASKED = 64, 8  # of FAISS: clusters of tokens, and how many of them a search looks into
TRAINING = 40  # tokens that FAISS wants for each list
NEAREST = 48  # tokens of passages that are candidates for each token of a query
STIFFNESS = 0.3  # of the classifier: with a larger one it fits its sentences less


class Words:
    """Texts as vectors, one for each token. The more often a token is used, the shorter it is."""

    def __init__(self) -> None:
        import wordllama

        home = Path(wordllama.__file__).parent  # its tokenizer is found there, and not by default
        model = wordllama.WordLlama.load(cache_dir=home, disable_download=True)
        self._tokenizer, self._vectors = model.tokenizer, model.embedding

    def encode(self, text: str) -> np.ndarray:
        """Return the vectors of a text, tokens x WIDTH."""
        numbers = self._tokenizer.encode(text.lower(), add_special_tokens=False).ids
        return np.asarray(self._vectors[numbers])

    def mean(self, text: str) -> np.ndarray:
        """Return the mean of a text's vectors, of length 1."""
        return unit(self.encode(text).mean(axis=0))


class Passages:
    """Passages as token vectors and their mean. FAISS finds candidates, and MaxSim ranks them.

    Each token of a query counts with the vector of the passage that is nearest to it, times its own
    length. Source: ColBERT (late interaction); PreFLMR.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        faiss, words = load_faiss(), Words()
        means = centre(np.stack([words.mean(text) for text in texts]))
        rows = [
            np.vstack([words.encode(text), mean]) for text, mean in zip(texts, means, strict=True)
        ]
        lengths = np.array([len(each) for each in rows])
        self._begins = np.cumsum(lengths) - lengths
        self._lengths = lengths
        self._owners = np.repeat(np.arange(len(rows)), lengths)
        self._tokens = unit(np.concatenate(rows))
        lists = min(LISTS, max(len(self._tokens) // TRAINING, 1))
        self._quantizer = faiss.IndexFlatIP(WIDTH)  # the index does not keep it alive
        self._index = faiss.IndexIVFFlat(self._quantizer, WIDTH, lists, faiss.METRIC_INNER_PRODUCT)
        self._index.train(self._tokens)
        self._index.add(self._tokens)
        self._index.nprobe = LISTS_ASKED

    def find(self, query: np.ndarray, count: int) -> np.ndarray:
        """Return the numbers of the best passages, the best first; fewer if few are candidates."""
        _, near = self._index.search(np.ascontiguousarray(query, np.float32), NEAREST)
        candidates = np.unique(self._owners[near[near >= 0]])
        scores = self.score(query, candidates)
        return candidates[np.argsort(-scores, kind="stable")[:count]]

    def score(self, query: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Return the MaxSim of a query with each candidate."""
        counts = self._lengths[candidates]
        firsts = np.cumsum(counts) - counts
        rows = np.repeat(self._begins[candidates] - firsts, counts) + np.arange(counts.sum())
        likeness = self._tokens[rows] @ query.T
        return np.maximum.reduceat(likeness, firsts, axis=0).sum(axis=1)


class Nearest:
    """Passages in an index of FAISS, by the mean vectors of their titles: what is before "is"."""

    def __init__(self, texts: Sequence[str]) -> None:
        words = Words()
        self._texts = texts
        self._index = load_faiss().IndexFlatIP(WIDTH)
        self._index.add(np.stack([words.mean(text.partition(" is ")[0]) for text in texts]))

    def find(self, vectors: np.ndarray) -> list[str]:
        """Return the passage that is nearest to each vector."""
        _, found = self._index.search(vectors, 1)
        return [self._texts[number] for number in found[:, 0]]


class Manners:
    """Tells rude sentences from polite ones, by a plane between a few of both."""

    def __init__(self) -> None:
        self._words = Words()
        vectors = np.stack([self._words.mean(text) for text in (*RUDE, *POLITE)])
        signs = np.array([1.0] * len(RUDE) + [-1.0] * len(POLITE))
        self._weights = ridge(vectors, signs[:, None], STIFFNESS)[:, 0]

    def is_rude(self, text: str) -> bool:
        """Return whether a sentence is rude."""
        return float(with_one(self._words.mean(text)) @ self._weights) > 0


def load_faiss() -> Any:
    """Return the module, which is to use one thread, because the stages share the cores."""
    logging.getLogger("faiss").setLevel(logging.WARNING)  # else it says which build it takes
    import faiss

    faiss.omp_set_num_threads(1)
    return faiss


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows of length 1."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return (rows / np.maximum(length, 1e-9)).astype(np.float32)


def centre(rows: np.ndarray) -> np.ndarray:
    """Return what tells rows from each other, without what they have in common, at length 1."""
    return unit(rows - rows.mean(axis=0))


def with_one(rows: np.ndarray) -> np.ndarray:
    """Return rows with a 1 at the end, for the constant of a linear map."""
    return np.concatenate([rows, np.ones((*rows.shape[:-1], 1), rows.dtype)], axis=-1)


def ridge(inputs: np.ndarray, outputs: np.ndarray, stiffness: float) -> np.ndarray:
    """Return the linear map with a constant that fits best, in closed form.

    inputs:     rows x n; the map has n + 1 rows.
    stiffness:  of the map's squared size in the sum that is least, times a row's mean square.
    """
    rows = with_one(inputs).astype(np.float64)
    penalty = stiffness * np.square(rows).sum(axis=1).mean()
    if len(rows) < rows.shape[1]:  # the system of the rows is smaller than that of the unknowns
        solved = np.linalg.solve(rows @ rows.T + penalty * np.eye(len(rows)), outputs)
        return (rows.T @ solved).astype(np.float32)
    square = rows.T @ rows + penalty * np.eye(rows.shape[1])
    return np.linalg.solve(square, rows.T @ outputs).astype(np.float32)
