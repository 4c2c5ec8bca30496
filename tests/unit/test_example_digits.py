"""What `examples/async_sgd.py` trains: data as they should be, and the right gradient."""

from __future__ import annotations

import numpy as np
import pytest

from examples.support.digits import SIDE, TEST_IMAGES, augment, batches, load
from examples.support.perceptron import Perceptron


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).random((200, SIDE * SIDE)).astype(np.float32)


def test_augmented_images_keep_shape_dtype_and_range(images: np.ndarray) -> None:
    warped = augment(images, seed=1)
    assert warped.shape == images.shape
    assert warped.dtype == np.float32
    assert warped.min() >= 0.0
    assert warped.max() <= 1.0


def test_augmented_images_differ_from_their_originals_and_from_each_other() -> None:
    dot = np.zeros((SIDE, SIDE), np.float32)
    dot[2:5, 1:4] = 1.0
    warped = augment(np.tile(dot.reshape(1, -1), (50, 1)), seed=1)
    assert len(np.unique(warped, axis=0)) == 50
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for picture in warped.reshape(-1, SIDE, SIDE):  # the dot's middle, (3, 2), stays near
        assert abs(np.average(rows, weights=picture) - 3) < 1.5
        assert abs(np.average(columns, weights=picture) - 2) < 1.5


def test_augmentation_repeats_with_its_seed(images: np.ndarray) -> None:
    assert np.array_equal(augment(images, seed=1), augment(images, seed=1))
    assert not np.array_equal(augment(images, seed=1), augment(images, seed=2))


def test_the_split_has_every_image_once_and_the_warped_ones_only_for_training() -> None:
    (train, train_labels), (test, test_labels) = load(copies=2, seed=3)
    assert len(test) == len(test_labels) == TEST_IMAGES
    assert len(train) == len(train_labels) == 3 * (1797 - TEST_IMAGES)
    assert np.bincount(test_labels).min() >= 40  # of each of the ten digits
    seen = {image.tobytes() for image in train}
    assert sum(image.tobytes() in seen for image in test) == 0
    assert np.allclose(train.mean(axis=0), 0.0, atol=1e-4)


def test_warped_images_have_the_label_of_their_original() -> None:
    (train, labels), _ = load(copies=1, seed=3)
    originals, warped = np.split(train, 2)
    means = np.stack([originals[labels[: len(originals)] == digit].mean(0) for digit in range(10)])
    nearest = np.square(warped[:, None] - means).sum(axis=2).argmin(axis=1)
    assert np.mean(nearest == labels[len(originals) :]) > 0.5  # by chance 0.1


def test_batches_are_rows_with_their_own_labels() -> None:
    numbers = np.arange(10.0)
    some, labels = next(batches(numbers[:, None], numbers, size=100, seed=0))
    assert some.shape == (100, 1)
    assert np.array_equal(some[:, 0], labels)
    assert len(np.unique(labels)) > 5


def test_layers_are_views_that_cover_the_flat_vector() -> None:
    network = Perceptron(4, 3, 2)
    flat = np.zeros(network.size)
    for weights, biases in network.layers(flat):
        weights += 1
        biases += 1
    assert network.size == 4 * 3 + 3 + 3 * 2 + 2
    assert np.array_equal(flat, np.ones(network.size))


def test_gradient_equals_finite_differences_of_the_loss() -> None:
    network, rng = Perceptron(6, 5, 4, 3), np.random.default_rng(0)
    params = rng.standard_normal(network.size)
    images, labels = rng.standard_normal((7, 6)), rng.integers(3, size=7)

    def loss(at: np.ndarray) -> float:
        return network.judge(at, images, labels)[0]

    steps = 1e-6 * np.eye(network.size)
    numeric = [(loss(params + step) - loss(params - step)) / 2e-6 for step in steps]
    gradient = network.gradient(params, images, labels)
    assert np.allclose(gradient, numeric, atol=1e-7)
    assert np.abs(gradient).max() > 0.01
    room = np.full(network.size, np.nan)
    assert network.gradient(params, images, labels, out=room) is room
    assert np.array_equal(room, gradient)


def test_training_reads_digits_it_has_not_seen() -> None:
    training, test = load(copies=1, seed=0)
    network = Perceptron(SIDE * SIDE, 50, 50, 10)
    params, stream = network.initial(seed=0), batches(*training, size=64, seed=0)
    before = network.judge(params, *test)
    for _ in range(150):
        params -= 0.1 * network.gradient(params, *next(stream))
    assert params.dtype == np.float32
    after = network.judge(params, *test)
    assert before[1] < 0.3
    assert after[0] < before[0] / 4
    assert after[1] > 0.85
