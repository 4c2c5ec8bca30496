"""Eight kinds of classifiers, and the digits that come with scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import Perceptron, RidgeClassifier
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

ROWS = 300  # of the images each learns from: its own, so that they differ also by what they know
KINDS = {
    "nearest neighbours": KNeighborsClassifier(3),
    "support vectors": SVC(),
    "random trees": ExtraTreesClassifier(random_state=0),
    "Gaussian Bayes": GaussianNB(),
    "perceptron": Perceptron(random_state=0),
    "ridge regression": RidgeClassifier(),
    "Bernoulli Bayes": BernoulliNB(binarize=8.0),
    "decision tree": DecisionTreeClassifier(random_state=0),
}


def digits() -> list[np.ndarray]:
    """Return images to learn from and to be tried on, then what they show."""
    return train_test_split(*load_digits(return_X_y=True), test_size=0.4, random_state=0)


def trained(number: int) -> Any:
    """Return one of them; the same wherever it is trained."""
    images, _, labels, _ = digits()
    rows = np.random.default_rng(number).choice(len(images), ROWS, replace=False)
    return list(KINDS.values())[number].fit(images[rows], labels[rows])
