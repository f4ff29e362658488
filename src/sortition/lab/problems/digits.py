r"""Softmax regression on scikit-learn's digits, split unevenly over the clients (Section 8 in small).

The paper's real-data federations are MNIST and its kin over 500 clients. This one needs no download and
trains in milliseconds a round: the 1797 images of 8 x 8 pixels that come with scikit-learn.
"""

from __future__ import annotations

import numpy as np

from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import whole_number

NUM_IMAGES = 1797
NUM_CLASSES = 10
SHARES = (0.05, 0.10, 0.20, 0.65)
SIZES = (100, 30, 5, 1)

STEP_SIZE = 0.3
"""The best of 0.2, 0.3, 0.5, 0.7, 1 and 1.5 for *uniform* sampling, by the mean loss over 500 rounds (100
clients, 5 drawn a round, 12 seeds). A sampler of less variance would gain from a larger one."""


def skewed_sizes(num_clients: int) -> IntArray:
    """The paper's sample sizes, largest first: 5% hold 100 images, 10% 30, 20% 5, and 65% one.

    Deviation: beyond 186 clients that is more than there are images; then all but the first image of
    each client are scaled down in proportion.

    >>> skewed_sizes(20)
    array([100,  30,  30,   5,   5,   5,   5,   1,   1,   1,   1,   1,   1,
             1,   1,   1,   1,   1,   1,   1])
    """
    rank = (np.arange(num_clients) + 0.5) / num_clients
    sizes = np.array(SIZES)[np.searchsorted(np.cumsum(SHARES), rank)]
    beyond_first = int(sizes.sum()) - num_clients
    scale = min(1.0, (NUM_IMAGES - num_clients) / beyond_first) if beyond_first else 1.0
    return 1 + np.floor(scale * (sizes - 1)).astype(np.int64)


class DigitsFederation:
    r"""Handwritten digits over ``num_clients`` clients of very different sizes, most with one or two digits.

    *Data.* As many images as the clients need are chosen at random, sorted by digit and cut into
    consecutive pieces of the :func:`skewed_sizes`, in random order. A client so holds one digit or two
    neighbouring ones (a large client at times three). :math:`\lambda_m = n_m / n`.

    *Model.* Softmax regression with a bias: pixels are scaled to [0, 1], a constant 1 is appended, and
    the model is the (65, 10) matrix W, flat. There is no regularisation. The training loss is the mean
    cross-entropy

    .. math:: F(W) = \sum_m \lambda_m \frac1{n_m} \sum_i \phi(W; x_{m,i}, y_{m,i}), \qquad
              \phi(W; x, y) = -\log [\varsigma(W^\top x)]_y            (Section 8)

    *Update.* :math:`g^t_m`, the mean gradient over a mini-batch of :math:`\min(B, n_m)` images drawn
    i.i.d. from the client's own (Algorithm 3, line 8). The mini-batch is a function of (seed, round,
    client): every sampler meets the same one.

    >>> federation = DigitsFederation(num_clients=20, seed=1)
    >>> federation.client_sizes.sum(), round(federation.loss(federation.initial_model()), 4)
    (np.int64(193), 2.3026)
    """

    def __init__(self, *, num_clients: int = 100, batch_size: int = 5, seed: int = 0) -> None:
        self.num_clients = whole_number("num_clients", num_clients, least=2, most=NUM_IMAGES)
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.seed = whole_number("seed", seed, least=0)

        rng = np.random.default_rng(seed)
        pixels, digits = _images()
        self.client_sizes: IntArray = rng.permutation(skewed_sizes(num_clients))
        chosen = rng.permutation(NUM_IMAGES)[: self.client_sizes.sum()]
        chosen = chosen[np.argsort(digits[chosen], kind="stable")]
        self.labels: IntArray = digits[chosen]
        self._features = np.column_stack([pixels[chosen] / 16.0, np.ones(len(chosen))])
        self._first_rows = np.cumsum(self.client_sizes) - self.client_sizes

        self.client_weights: FloatArray = self.client_sizes / self.client_sizes.sum()
        batch_sizes = np.minimum(batch_size, self.client_sizes)[:, None]
        self._slot_weights = (np.arange(batch_size) < batch_sizes) / batch_sizes

    def initial_model(self) -> FloatArray:
        """W = 0: every digit is as likely as any other, and the loss is log 10."""
        return np.zeros(self._features.shape[1] * NUM_CLASSES)

    def client_labels(self, client: int) -> IntArray:
        """The digits on the images of one client."""
        first = self._first_rows[client]
        return self.labels[first : first + self.client_sizes[client]]

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        r"""Mini-batch gradients of the given clients, one row each.

        .. math:: g_m = \frac1{|\mathcal B_m|} \sum_{b \in \mathcal B_m}
                        x_b \, (\varsigma(W^\top x_b) - e_{y_b})^\top
        """
        rows = self._batches(round_index)[clients]
        features = self._features[rows.ravel()]
        residuals = np.exp(self._log_softmax(model, features))
        residuals[np.arange(rows.size), self.labels[rows.ravel()]] -= 1.0
        residuals *= self._slot_weights[clients].reshape(-1, 1)
        by_client = features.reshape(*rows.shape, features.shape[1]).transpose(0, 2, 1)
        gradients = by_client @ residuals.reshape(*rows.shape, NUM_CLASSES)
        return np.asarray(gradients.reshape(len(rows), model.size))

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        """The norm of the update that each client would send in this round, drawn or not."""
        updates = self.updates(model, np.arange(self.num_clients), round_index)
        return np.asarray(np.linalg.norm(updates, axis=1))

    def loss(self, model: FloatArray) -> float:
        """Mean cross-entropy over all images of the federation."""
        log_softmax = self._log_softmax(model, self._features)
        return float(-log_softmax[np.arange(len(self.labels)), self.labels].mean())

    def _batches(self, round_index: int) -> IntArray:
        """The row of each slot of each client's mini-batch; slots beyond its size have weight zero."""
        stream = np.random.SeedSequence(self.seed, spawn_key=(1, round_index))
        uniform = np.random.default_rng(stream).random((self.num_clients, self.batch_size))
        return self._first_rows[:, None] + (uniform * self.client_sizes[:, None]).astype(np.int64)

    @staticmethod
    def _log_softmax(model: FloatArray, features: FloatArray) -> FloatArray:
        logits = features @ model.reshape(-1, NUM_CLASSES)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return np.asarray(logits)


def _images() -> tuple[FloatArray, IntArray]:
    """Pixels (1797, 64) from 0 to 16, and digits. Scikit-learn is needed here and nowhere else."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    return pixels, digits.astype(np.int64)
