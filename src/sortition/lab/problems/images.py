r"""Softmax regression on images over clients of very different sizes (Section 8)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.lab.problems.batches import BATCHES, batch_rows, stream
from sortition.lab.problems.idx import load_images

NUM_CLASSES = 10
SHARES = (0.65, 0.20, 0.10, 0.05)
SIZES = (1, 5, 30, 100)
AUTHORS_SIZES = (1, 10, 30, 100)
VALIDATION = 10
BLOCK = 64
"""Clients whose gradients are formed at a time where only their norms are asked for."""


def client_sizes(num_clients: int, sizes: tuple[int, ...] = SIZES) -> IntArray:
    """Training images of each client: 65% have one, 20% five, 10% thirty, 5% a hundred (Figure 5).

    >>> np.unique(client_sizes(500), return_counts=True)[1]
    array([325, 100,  50,  25])
    """
    rank = (np.arange(num_clients) + 0.5) / num_clients
    return np.array(sizes)[np.searchsorted(np.cumsum(SHARES), rank)]


class ImageFederation:
    r"""Images dealt at random to ``num_clients`` clients; :math:`\lambda_m = n_m/n`.

    The model is the matrix W of Section 8, (pixels, 10), flat, without a bias; pixels are scaled to [0, 1].
    Each client also has ``validation`` images, on which only the accuracy is measured. An update is the
    mean gradient over :math:`\min(5, n_m)` images drawn i.i.d. from the client's own.

    Which images a client has depends on ``seed``, and so do the mini-batches.

    Deviation: the text's cross-entropy lacks its minus sign. It does not say which images go to whom; ours
    are dealt at random. Where there are too few images, clients have fewer validation images.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.uint8],
        *,
        num_clients: int = 500,
        sizes: tuple[int, ...] = SIZES,
        batch_size: int = 5,
        validation: int = VALIDATION,
        seed: int = 0,
    ) -> None:
        self.num_clients = whole_number("num_clients", num_clients, least=2)
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        rng = np.random.default_rng(seed)
        self.client_sizes: IntArray = rng.permutation(client_sizes(num_clients, sizes))
        self.num_training = int(self.client_sizes.sum())
        self.validation = min(validation, (len(images) - self.num_training) // num_clients)
        if self.validation < 1:
            raise ConfigurationError(
                f"images must be at least {self.num_training + num_clients} for {num_clients} clients, "
                f"got {len(images)}"
            )
        dealt = rng.permutation(len(images))
        held_out = dealt[self.num_training :][: self.validation * num_clients]
        dealt = dealt[: self.num_training]
        self._features = _pixels(images[dealt])
        self._labels = labels[dealt].astype(np.int64)
        self._held_out = _pixels(images[held_out]), labels[held_out].astype(np.int64)
        self._first_rows = np.cumsum(self.client_sizes) - self.client_sizes
        self.client_weights: FloatArray = self.client_sizes / self.client_sizes.sum()
        self._batches = stream(seed, BATCHES)
        self._everybody = np.arange(num_clients)

    @classmethod
    def load(
        cls,
        name: str,
        directory: Path | None = None,
        *,
        num_clients: int = 500,
        sizes: tuple[int, ...] = SIZES,
        seed: int = 0,
    ) -> ImageFederation:
        """The federation on ``mnist``, ``kmnist`` or ``fashion-mnist``, wherever the files are."""
        images, labels, _ = load_images(name, directory)
        return cls(images, labels, num_clients=num_clients, sizes=sizes, seed=seed)

    def initial_model(self) -> FloatArray:
        """W = 0."""
        return np.zeros(self._features.shape[1] * NUM_CLASSES)

    def updates(
        self, model: FloatArray, clients: IntArray, round_index: int, batch_sizes: IntArray | None = None
    ) -> FloatArray:
        r""":math:`g_m = \frac1B \sum_b x_b\,(\varsigma(W^\top x_b) - e_{y_b})^\top`, one row a client."""
        residuals, features = self._batch(model, clients, round_index, batch_sizes)
        gradients = features.transpose(0, 2, 1) @ residuals
        return np.asarray(gradients.reshape(len(clients), -1), dtype=np.float64)

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        r"""The norm of every client's update.

        No gradient is formed: with x and r the features and weighted residuals of a mini-batch,
        :math:`\|\sum_b x_b r_b^\top\|^2 = \sum_{b,b'} \langle x_b, x_{b'}\rangle \langle r_b, r_{b'}\rangle`.
        """
        norms = np.empty(self.num_clients)
        for start in range(0, self.num_clients, BLOCK):
            clients = self._everybody[start : start + BLOCK]
            residuals, features = self._batch(model, clients, round_index, None)
            products = (features @ features.transpose(0, 2, 1)) * (residuals @ residuals.transpose(0, 2, 1))
            norms[clients] = np.sqrt(np.maximum(products.sum(axis=(1, 2)), 0.0))
        return norms

    def batch_losses(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """The mean loss of each client's mini-batch of the round."""
        rows, weights = self._rows(clients, round_index, None)
        losses = self._losses(model, self._features[rows.ravel()], self._labels[rows.ravel()])
        return np.asarray(np.sum(losses.reshape(rows.shape) * weights, axis=1))

    def loss(self, model: FloatArray) -> float:
        """Mean cross-entropy over all training images."""
        return float(self._losses(model, self._features, self._labels).mean())

    def client_losses(self, model: FloatArray) -> FloatArray:
        """Mean cross-entropy of each client's training images."""
        losses = self._losses(model, self._features, self._labels)
        return np.asarray(np.add.reduceat(losses, self._first_rows) / self.client_sizes)

    def accuracy(self, model: FloatArray) -> float:
        """Share of the validation images that are classified right."""
        features, labels = self._held_out
        logits = features @ model.astype(np.float32).reshape(-1, NUM_CLASSES)
        return float(np.mean(np.argmax(logits, axis=1) == labels))

    def _batch(
        self, model: FloatArray, clients: IntArray, round_index: int, batch_sizes: IntArray | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weighted residuals (C, B, 10) and features (C, B, pixels) of the clients' mini-batches."""
        rows, weights = self._rows(clients, round_index, batch_sizes)
        features = self._features[rows.ravel()]
        residuals = np.exp(_log_softmax(model, features))
        residuals[np.arange(rows.size), self._labels[rows.ravel()]] -= 1.0
        residuals *= weights.reshape(-1, 1)
        return residuals.reshape(*rows.shape, NUM_CLASSES), features.reshape(*rows.shape, -1)

    def _rows(
        self, clients: IntArray, round_index: int, batch_sizes: IntArray | None
    ) -> tuple[IntArray, NDArray[np.float32]]:
        """The rows of the mini-batches, and the weight of each in its batch's mean: 0 beyond its size."""
        uniforms = self._batches.of_round(round_index).random((self.num_clients, self.batch_size))
        rows = self._first_rows[clients, None] + batch_rows(
            uniforms[clients], self.client_sizes[clients], False
        )
        if batch_sizes is None:
            batch_sizes = np.minimum(self.batch_size, self.client_sizes[clients])
        weights = (np.arange(self.batch_size) < batch_sizes[:, None]) / batch_sizes[:, None]
        return rows, weights.astype(np.float32)

    @staticmethod
    def _losses(model: FloatArray, features: NDArray[np.float32], labels: IntArray) -> NDArray[np.float32]:
        return np.asarray(-_log_softmax(model, features)[np.arange(len(labels)), labels])


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.asarray(images.reshape(len(images), -1) / np.float32(255.0), dtype=np.float32)


def _log_softmax(model: FloatArray, features: NDArray[np.float32]) -> NDArray[np.float32]:
    logits = features @ model.astype(np.float32).reshape(-1, NUM_CLASSES)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return np.asarray(logits)
