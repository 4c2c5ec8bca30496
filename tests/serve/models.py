"""The models of test_ensemble.py: apart from applications.py, for sklearn takes 1.3 s to import."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from hoplite_ray.serve import stage
from tests.serve.applications import LIGHT

MODELS = (
    SVC(),
    GaussianNB(),
    KNeighborsClassifier(3),
    BernoulliNB(binarize=8.0),
    DecisionTreeClassifier(random_state=0),
)


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels to learn from, and to be tried on."""
    images, labels = load_digits(return_X_y=True)
    return images[:1000], labels[:1000], images[1000:], labels[1000:]


def member(number: int) -> Any:
    """One of the ensemble's models, which learns when its replica starts."""

    @stage(**LIGHT)
    class Model:
        def __init__(self) -> None:
            images, labels, _, _ = digits()
            self._model = MODELS[number].fit(images, labels)

        def __call__(self, queries: list[np.ndarray]) -> list[np.ndarray]:
            return [self._model.predict(query) for query in queries]

    return Model
