"""The data of each client, the model (softmax regression in numpy) and how it is trained."""

from functools import lru_cache

import numpy as np
from sklearn.datasets import load_digits

NUM_CLIENTS = 100
BATCH = 5  # images in a step, if the client has as many
SIZES = (100,) * 5 + (30,) * 10 + (5,) * 20 + (1,) * 65  # examples of each client before they are shuffled


@lru_cache
def partitions(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels of every client: 5% have 100 images, 65% a single one, and most only one digit."""
    rng = np.random.default_rng(seed)
    pixels, labels = load_digits(return_X_y=True)
    images = np.column_stack([pixels / 16.0, np.ones(len(pixels))])
    sizes = rng.permutation(SIZES)
    chosen = rng.permutation(len(images))[: sizes.sum()]
    chosen = chosen[np.argsort(labels[chosen], kind="stable")]
    pieces = np.split(chosen, np.cumsum(sizes)[:-1])
    return [(images[piece], labels[piece]) for piece in pieces]


def initial_model() -> np.ndarray:
    """A model for which all digits are equally likely."""
    return np.zeros((65, 10))


def log_probabilities(model: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Logarithm of the softmax of the scores."""
    scores = images @ model
    scores -= scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def train(
    model: np.ndarray,
    images: np.ndarray,
    labels: np.ndarray,
    rng: np.random.Generator,
    steps: int,
    rate: float,
) -> np.ndarray:
    """Local SGD: some steps, each on up to five of the client's images."""
    model = model.copy()
    for _ in range(steps):
        batch = rng.permutation(len(images))[:BATCH]
        residuals = np.exp(log_probabilities(model, images[batch]))
        residuals[np.arange(len(batch)), labels[batch]] -= 1.0
        model -= rate * images[batch].T @ residuals / len(batch)
    return model


def loss(model: np.ndarray, seed: int) -> float:
    """Mean cross-entropy over the images of all clients."""
    images = np.concatenate([piece for piece, _ in partitions(seed)])
    labels = np.concatenate([piece for _, piece in partitions(seed)])
    return float(-log_probabilities(model, images)[np.arange(len(labels)), labels].mean())
