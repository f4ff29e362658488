r"""Softmax regression over clients of very different sizes: one federation, on three kinds of data.

- :func:`digits_federation`: scikit-learn's 1797 images of 8 x 8 pixels, a digit or two a client. Section 8 in
  small: it needs no download and trains in milliseconds a round.
- :func:`image_federation`: MNIST and its kin over 500 clients, as in Section 8;
  :func:`label_skewed_images`: the same images, a few labels a client.
- :func:`gaussian_federation`: generated classes, a few labels a client, sizes with a Pareto tail.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.lab.problems.batches import BATCHES, LOCAL_STEPS, STEPS_A_ROUND, batch_rows, stream

NUM_CLASSES = 10

NUM_DIGITS = 1797
"""Images that come with scikit-learn."""
STEP_SIZE = 0.3
"""The best of 0.2, 0.3, 0.5, 0.7, 1 and 1.5 for *uniform* sampling on the digits, by the mean loss over 500
rounds (100 clients, 5 drawn a round, 12 seeds). A sampler of less variance would gain from a larger one."""

SHARES = (0.65, 0.20, 0.10, 0.05)
SIZES = (1, 5, 30, 100)
"""Training images of a client in the text (Figure 5): 65% of the clients have one, and so on."""
AUTHORS_SIZES = (1, 10, 30, 100)
"""The same in the authors' code."""
VALIDATION = 10
"""Validation images of a client."""

DIMENSION, MOST_SAMPLES = 20, 2000
"""Of the generated classes."""
MOST_IMAGES = 400
"""Of a client with few labels."""

MANY_ENTRIES = 4096
"""Gradients with at least this many entries are not formed where only their norms are wanted."""
BLOCK = 64
"""Clients whose norms are then computed at a time."""


class SoftmaxFederation:
    r"""Softmax regression over clients: client m holds ``client_sizes[m]`` consecutive rows of the data.

    *Model.* The (features, 10) matrix W, flat, starting at 0, without regularisation;
    :math:`\lambda_m = n_m / n`. The training loss is the mean cross-entropy

    .. math:: F(W) = \sum_m \lambda_m \frac1{n_m} \sum_i \phi(W; x_{m,i}, y_{m,i}), \qquad
              \phi(W; x, y) = -\log [\varsigma(W^\top x)]_y            (Section 8)

    *Update.* :math:`g^t_m`, the mean gradient over a mini-batch of :math:`\min(B, n_m)` rows drawn i.i.d.
    from the client's own (Algorithm 3, line 8). ``batch_generator`` gives the randomness of a round, so
    that a mini-batch is a function of (seed, round, client). ``local_gradients`` are those of local steps.

    ``held_out`` are features and labels on which only the accuracy is measured. Computations are in the
    precision of ``features``; models and updates are doubles.

    Deviation: the text's cross-entropy lacks its minus sign.
    """

    def __init__(
        self,
        features: NDArray[np.floating],
        labels: IntArray,
        client_sizes: IntArray,
        *,
        batch_size: int,
        seed: int,
        batch_generator: Callable[[int], np.random.Generator] | None = None,
        held_out: tuple[NDArray[np.floating], IntArray] | None = None,
    ) -> None:
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        seed = whole_number("seed", seed, least=0)
        self.num_clients = len(client_sizes)
        self.client_sizes: IntArray = client_sizes
        self.client_weights: FloatArray = client_sizes / client_sizes.sum()
        self.labels: IntArray = labels
        self._features = features
        self._first_rows = np.cumsum(client_sizes) - client_sizes
        self._batches = batch_generator or stream(seed, BATCHES).of_round
        self._local = stream(seed, LOCAL_STEPS)
        self._held_out = held_out

    def initial_model(self) -> FloatArray:
        """W = 0: every class is as likely as any other, and the loss is log 10."""
        return np.zeros(self._features.shape[1] * NUM_CLASSES)

    def client_labels(self, client: int) -> IntArray:
        """The labels of one client's rows."""
        first = self._first_rows[client]
        return self.labels[first : first + self.client_sizes[client]]

    def batch_rows(self, clients: IntArray, round_index: int) -> IntArray:
        """The rows of the clients' mini-batches; a client smaller than the batch uses only the first ones."""
        return self._rows(clients, self._batches(round_index))

    def updates(
        self, model: FloatArray, clients: IntArray, round_index: int, batch_sizes: IntArray | None = None
    ) -> FloatArray:
        r""":math:`g_m = \frac1B \sum_b x_b\,(\varsigma(W^\top x_b) - e_{y_b})^\top`, one row a client.

        ``batch_sizes`` takes the place of :math:`\min(B, n_m)`.
        """
        return self._gradients(model, clients, self.batch_rows(clients, round_index), batch_sizes)

    def local_gradients(
        self, models: FloatArray, clients: IntArray, round_index: int, step: int
    ) -> FloatArray:
        """The gradient of each client's local step, at its own model (a row of ``models``)."""
        generator = self._local.of_round(round_index * STEPS_A_ROUND + step)
        return self._gradients(models, clients, self._rows(clients, generator), None)

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        r"""The norm of the update that each client would send in this round, drawn or not.

        Large gradients are not formed: with x and r the features and weighted residuals of a mini-batch,
        :math:`\|\sum_b x_b r_b^\top\|^2 = \sum_{b,b'} \langle x_b, x_{b'}\rangle \langle r_b, r_{b'}\rangle`.
        """
        everybody = np.arange(self.num_clients)
        if model.size < MANY_ENTRIES:
            return np.asarray(np.linalg.norm(self.updates(model, everybody, round_index), axis=1))
        norms, all_rows = np.empty(self.num_clients), self.batch_rows(everybody, round_index)
        for start in range(0, self.num_clients, BLOCK):
            clients = everybody[start : start + BLOCK]
            residuals, features = self._residuals(model, clients, all_rows[clients], None)
            products = (features @ features.transpose(0, 2, 1)) * (residuals @ residuals.transpose(0, 2, 1))
            norms[clients] = np.sqrt(np.maximum(products.sum(axis=(1, 2)), 0.0))
        return norms

    def batch_losses(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """The mean loss of each client's mini-batch of the round."""
        rows = self.batch_rows(clients, round_index)
        losses = self._losses(model, self._features[rows.ravel()], self.labels[rows.ravel()])
        return np.asarray(np.sum(losses.reshape(rows.shape) * self._slot_weights(clients, None), axis=1))

    def loss(self, model: FloatArray) -> float:
        """Mean cross-entropy over the training data of all clients."""
        return float(self._losses(model, self._features, self.labels).mean())

    def client_losses(self, model: FloatArray, clients: IntArray, power: float = 1.0) -> FloatArray:
        """The mean cross-entropy of all the training data of ``clients``, or its mean of this ``power``."""
        losses = self._losses(model, self._features, self.labels)
        means = np.add.reduceat(losses**power, self._first_rows) / self.client_sizes
        return np.asarray(means[clients] ** (1.0 / power))

    def accuracy(self, model: FloatArray) -> float:
        """Share of the held-out rows that are classified right."""
        if self._held_out is None:
            raise ConfigurationError("accuracy needs held-out data, and this federation has none")
        features, labels = self._held_out
        return float(np.mean(np.argmax(self._logits(model, features), axis=1) == labels))

    def _rows(self, clients: IntArray, generator: np.random.Generator) -> IntArray:
        uniforms = generator.random((self.num_clients, self.batch_size))[clients]
        rows: IntArray = batch_rows(uniforms, self.client_sizes[clients], False)
        return self._first_rows[clients, None] + rows

    def _slot_weights(self, clients: IntArray, batch_sizes: IntArray | None) -> NDArray[np.floating]:
        """The weight of each row in the mean of its mini-batch: 0 beyond the batch's size."""
        if batch_sizes is None:
            batch_sizes = np.minimum(self.batch_size, self.client_sizes[clients])
        weights = (np.arange(self.batch_size) < batch_sizes[:, None]) / batch_sizes[:, None]
        return np.asarray(weights, dtype=self._features.dtype)

    def _gradients(
        self, models: FloatArray, clients: IntArray, rows: IntArray, batch_sizes: IntArray | None
    ) -> FloatArray:
        residuals, features = self._residuals(models, clients, rows, batch_sizes)
        gradients = features.transpose(0, 2, 1) @ residuals
        return np.asarray(gradients.reshape(len(clients), models.shape[-1]), dtype=np.float64)

    def _residuals(
        self, models: FloatArray, clients: IntArray, rows: IntArray, batch_sizes: IntArray | None
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Weighted residuals (C, B, 10) and features (C, B, d), at one model or at one model a client."""
        flat = self._features[rows.ravel()]
        features = flat.reshape(*rows.shape, flat.shape[1])
        logs = self._log_softmax(models, flat if models.ndim == 1 else features)
        residuals = np.exp(logs).reshape(rows.size, NUM_CLASSES)
        residuals[np.arange(rows.size), self.labels[rows.ravel()]] -= 1.0
        residuals *= self._slot_weights(clients, batch_sizes).reshape(-1, 1)
        return residuals.reshape(*rows.shape, NUM_CLASSES), features

    def _losses(
        self, model: FloatArray, features: NDArray[np.floating], labels: IntArray
    ) -> NDArray[np.floating]:
        return np.asarray(-self._log_softmax(model, features)[np.arange(len(labels)), labels])

    def _log_softmax(self, models: FloatArray, features: NDArray[np.floating]) -> NDArray[np.floating]:
        logits = self._logits(models, features)
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return logits

    @staticmethod
    def _logits(models: FloatArray, features: NDArray[np.floating]) -> NDArray[np.floating]:
        matrices = models.astype(features.dtype).reshape(*models.shape[:-1], features.shape[-1], NUM_CLASSES)
        return np.asarray(features @ matrices)


def digits_federation(*, num_clients: int = 100, batch_size: int = 5, seed: int = 0) -> SoftmaxFederation:
    r"""Handwritten digits over ``num_clients`` clients of very different sizes, most with one or two digits.

    As many images as the clients need are chosen at random, sorted by digit and cut into consecutive pieces
    of the :func:`skewed_sizes`, in random order. So a client holds one digit or two neighbouring ones (a
    large client at times three). Pixels are scaled to [0, 1], and a constant 1 is appended for the bias.

    >>> federation = digits_federation(num_clients=20, seed=1)
    >>> federation.client_sizes.sum(), round(federation.loss(federation.initial_model()), 4)
    (np.int64(193), 2.3026)
    """
    pixels, digits, client_sizes = digits_dealt(num_clients, seed)

    def batch_generator(round_index: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, round_index)))

    return SoftmaxFederation(
        np.column_stack([pixels, np.ones(len(pixels))]),
        digits,
        client_sizes,
        batch_size=batch_size,
        seed=seed,
        batch_generator=batch_generator,
    )


def digits_dealt(num_clients: int, seed: int) -> tuple[FloatArray, IntArray, IntArray]:
    """Pixels in [0, 1], digits, and how many consecutive rows each client holds: mostly of one digit."""
    whole_number("num_clients", num_clients, least=2, most=NUM_DIGITS)
    whole_number("seed", seed, least=0)
    from sklearn.datasets import load_digits  # needed here and nowhere else

    pixels, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    client_sizes = rng.permutation(skewed_sizes(num_clients))
    chosen = rng.permutation(NUM_DIGITS)[: client_sizes.sum()]
    chosen = chosen[np.argsort(digits[chosen], kind="stable")]
    return pixels[chosen] / 16.0, digits[chosen].astype(np.int64), client_sizes


def skewed_sizes(num_clients: int) -> IntArray:
    """The paper's sample sizes, largest first: 5% hold 100 images, 10% 30, 20% 5, and 65% one.

    Deviation: beyond 186 clients that is more than there are images; then all but the first image of
    each client are scaled down in proportion.

    >>> skewed_sizes(20)
    array([100,  30,  30,   5,   5,   5,   5,   1,   1,   1,   1,   1,   1,
             1,   1,   1,   1,   1,   1,   1])
    """
    rank = (np.arange(num_clients) + 0.5) / num_clients
    sizes = np.array(SIZES[::-1])[np.searchsorted(np.cumsum(SHARES[::-1]), rank)]
    beyond_first = int(sizes.sum()) - num_clients
    scale = min(1.0, (NUM_DIGITS - num_clients) / beyond_first) if beyond_first else 1.0
    return 1 + np.floor(scale * (sizes - 1)).astype(np.int64)


def image_federation(
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    *,
    num_clients: int = 500,
    sizes: tuple[int, ...] = SIZES,
    batch_size: int = 5,
    validation: int = VALIDATION,
    seed: int = 0,
) -> SoftmaxFederation:
    r"""Images dealt at random to ``num_clients`` clients (Section 8); pixels are scaled to [0, 1], no bias.

    Each client also gets ``validation`` images, which are held out. The seed decides which images a client
    has, and the mini-batches.

    Deviation: the text does not say which images a client gets; ours are dealt at random. Where there are too
    few images, clients have fewer validation images.
    """
    whole_number("num_clients", num_clients, least=2)
    rng = np.random.default_rng(seed)
    dealt_sizes = rng.permutation(client_sizes(num_clients, sizes))
    training = int(dealt_sizes.sum())
    each = min(validation, (len(images) - training) // num_clients)
    if each < 1:
        raise ConfigurationError(
            f"images must be at least {training + num_clients} for {num_clients} clients, got {len(images)}"
        )
    dealt = rng.permutation(len(images))
    held_out = dealt[training:][: each * num_clients]
    dealt = dealt[:training]
    return SoftmaxFederation(
        _pixels(images[dealt]),
        labels[dealt].astype(np.int64),
        dealt_sizes,
        batch_size=batch_size,
        seed=seed,
        held_out=(_pixels(images[held_out]), labels[held_out].astype(np.int64)),
    )


def label_skewed_images(
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    *,
    concentration: float,
    tail: float,
    num_clients: int = 100,
    batch_size: int = 10,
    seed: int = 0,
) -> SoftmaxFederation:
    """Images with few labels a client and sizes with a Pareto tail, as in :func:`gaussian_federation`.

    An image of the label is drawn at random for each sample, so several clients may hold the same one.
    """
    rng = np.random.default_rng(seed)
    sizes, dealt = _skewed_labels(rng, concentration, tail, num_clients, MOST_IMAGES)
    of_label = [np.flatnonzero(labels == label) for label in range(NUM_CLASSES)]
    chosen = np.array([of_label[label][rng.integers(len(of_label[label]))] for label in dealt])
    return SoftmaxFederation(_pixels(images[chosen]), dealt, sizes, batch_size=batch_size, seed=seed)


def client_sizes(num_clients: int, sizes: tuple[int, ...] = SIZES) -> IntArray:
    """Training images of each client: 65% have one, 20% five, 10% thirty, 5% a hundred (Figure 5).

    >>> np.unique(client_sizes(500), return_counts=True)[1]
    array([325, 100,  50,  25])
    """
    rank = (np.arange(num_clients) + 0.5) / num_clients
    return np.array(sizes)[np.searchsorted(np.cumsum(SHARES), rank)]


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.asarray(images.reshape(len(images), -1) / np.float32(255.0), dtype=np.float32)


def gaussian_federation(
    *, concentration: float, tail: float, num_clients: int = 100, batch_size: int = 10, seed: int = 0
) -> SoftmaxFederation:
    r"""Gaussian classes; few labels a client, and sizes with a Pareto tail.

    Client m has :math:`n_m = \lfloor 10\,(1 + \mathrm{Pareto}(\mathrm{tail})) \rfloor` samples, at most 2000,
    and labels from a Dirichlet distribution of its own with all parameters ``concentration``. A sample of
    class c is :math:`N(\mu_c, I)` in 20 dimensions, with :math:`\mu_c \sim N(0, I/4)`.
    """
    rng = np.random.default_rng(seed)
    sizes, labels = _skewed_labels(rng, concentration, tail, num_clients, MOST_SAMPLES)
    centres = 0.5 * rng.standard_normal((NUM_CLASSES, DIMENSION))
    features = centres[labels] + rng.standard_normal((len(labels), DIMENSION))
    return SoftmaxFederation(features, labels, sizes, batch_size=batch_size, seed=seed)


def alike_federation(seed: int = 0) -> SoftmaxFederation:
    """A hundred clients with as much data, and of the same kind: there is nothing for a sampler to learn."""
    return gaussian_federation(concentration=1000.0, tail=1000.0, seed=seed)


def _skewed_labels(
    rng: np.random.Generator, concentration: float, tail: float, num_clients: int, most: int
) -> tuple[IntArray, IntArray]:
    """The clients' sizes, and the labels of all samples, client by client."""
    sizes: IntArray = np.minimum(10 * (1.0 + rng.pareto(tail, num_clients)), most).astype(np.int64)
    shares = rng.dirichlet(np.full(NUM_CLASSES, concentration), num_clients)
    labels: IntArray = np.concatenate(
        [rng.choice(NUM_CLASSES, n, p=p) for n, p in zip(sizes, shares, strict=True)]
    )
    return sizes, labels
