r"""Least squares over clients (Section 7): the paper's data, the federation, and a personalised one."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import positive_number, whole_number
from sortition.lab.problems.batches import (
    BATCHES,
    LOCAL_STEPS,
    STEPS_A_ROUND,
    batch_rows,
    least_squares_batches,
    least_squares_norms,
    stream,
)

NUM_CLIENTS, SAMPLES, DIMENSION = 100, 100, 10
CONDITION = 25.0
LARGEST_SCALE = 10.0
NOISE = 0.1
AUTHORS_SEED = 111

Data: TypeAlias = tuple[FloatArray, FloatArray]


def diagonal() -> FloatArray:
    r"""The diagonal of :math:`\Sigma`: :math:`\Sigma_{jj} = \kappa^{(j-1)/(d-1)-1}`, :math:`\kappa = 25`.

    >>> diagonal()[[0, -1]]
    array([0.04, 1.  ])
    """
    return np.asarray(CONDITION ** (np.arange(DIMENSION) / (DIMENSION - 1) - 1.0))


def heterogeneous(spread: float, seed: int) -> Data:
    r"""Features of client m with **covariance** :math:`s_m \Sigma`, as the text says (Equation 26).

    .. math:: y_{m,i} = \langle w_\star, x_{m,i}\rangle + N(0, 0.1^2), \quad
              x_{m,i} \sim N(0, s_m \Sigma), \quad s_m \propto e^{N(0, \sigma^2)},\ \max_m s_m = 10

    with :math:`\sigma` = ``spread``; the entries of :math:`w_\star` are N(10, 3), 3 read as the variance.

    >>> features, targets = heterogeneous(1.0, seed=0)
    >>> features.shape, targets.shape
    ((100, 100, 10), (100, 100))
    """
    rng = np.random.default_rng(seed)
    truth = rng.normal(10.0, np.sqrt(3.0), DIMENSION)
    scales = np.exp(rng.normal(0.0, spread, NUM_CLIENTS))
    scales *= LARGEST_SCALE / scales.max()
    deviations = np.sqrt(scales[:, None, None] * diagonal())
    features = deviations * rng.standard_normal((NUM_CLIENTS, SAMPLES, DIMENSION))
    return features, features @ truth + rng.normal(0.0, NOISE, (NUM_CLIENTS, SAMPLES))


def authors_heterogeneous(spread: float, seed: int = AUTHORS_SEED) -> Data:
    r"""What the authors' generator makes: features with **standard deviation** :math:`s_m \Sigma_{jj}`.

    numpy's legacy generator, seeded anew for each :math:`\sigma`: :math:`w_\star \sim N(10, 3)` (3 is here
    the standard deviation), the scales, and then for each client its rows, one by one, and its noises. That
    the seed is set for each :math:`\sigma` is our reading: the published curves of optimal sampling agree
    with it to 0.02, and with one seed for all three not at all.
    """
    rng = np.random.RandomState(seed)
    truth = rng.normal(10.0, 3.0, DIMENSION)
    scales = np.exp(rng.normal(0.0, spread, NUM_CLIENTS))
    scales = scales / scales.max() * LARGEST_SCALE
    features = np.empty((NUM_CLIENTS, SAMPLES, DIMENSION))
    noises = np.empty((NUM_CLIENTS, SAMPLES))
    for client, scale in enumerate(scales):
        features[client] = rng.normal(0.0, scale * diagonal(), (SAMPLES, DIMENSION))
        noises[client] = rng.normal(0.0, NOISE, SAMPLES)
    return features, features @ truth + noises


def one_coordinate(spread: float, seed: int) -> Data:
    r"""Clients that know one coordinate each (Section 7.4): fixed against dynamic distributions.

    Client m has one coordinate, chosen at random, with values N(1, 0.1^2), and zeros elsewhere; the entries
    of :math:`w_\star` are :math:`e^{N(0, \nu^2)}` with :math:`\nu` = ``spread``. All clients are then about
    equally smooth, but what they have to say differs by orders of magnitude and changes as it is learnt.

    >>> features, _ = one_coordinate(1.0, seed=0)
    >>> int(np.count_nonzero(features[0].any(axis=0)))
    1
    """
    rng = np.random.default_rng(seed)
    truth = np.exp(rng.normal(0.0, spread, DIMENSION))
    support = rng.integers(0, DIMENSION, NUM_CLIENTS)
    features = np.zeros((NUM_CLIENTS, SAMPLES, DIMENSION))
    features[np.arange(NUM_CLIENTS), :, support] = rng.normal(1.0, 0.1, (NUM_CLIENTS, SAMPLES))
    return features, features @ truth + rng.normal(0.0, NOISE, (NUM_CLIENTS, SAMPLES))


class LeastSquares:
    r"""M clients with n samples each, all of the same weight.

    .. math:: F(w) = \frac1M \sum_m F_m(w), \qquad
              F_m(w) = \frac1{2n} \sum_i (y_{m,i} - \langle w, x_{m,i}\rangle)^2            (Section 7)

    ``features`` is (M, n, d), ``targets`` (M, n). The model starts at 0. An update is the mean gradient of a
    mini-batch of ``batch_size`` samples, drawn i.i.d. (Algorithm 3, line 8), or with ``distinct`` without
    repetition. A local step (Algorithm 4, line 9) has a mini-batch of ``local_batch_size``.

    Deviation: the text's loss has :math:`w_\star` in the place of w, and no sum over i; the evident is meant.

    >>> features, targets = np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [4.0]])
    >>> problem = LeastSquares(features, targets, batch_size=1)
    >>> problem.updates(np.zeros(1), np.array([1]), round_index=0)
    array([[-8.]])
    >>> problem.loss(np.zeros(1))
    4.25
    """

    def __init__(
        self,
        features: FloatArray,
        targets: FloatArray,
        *,
        batch_size: int = 10,
        local_batch_size: int = 1,
        distinct: bool = False,
        seed: int = 0,
    ) -> None:
        if features.ndim != 3 or targets.shape != features.shape[:2]:
            raise ConfigurationError(
                "features and targets must have shapes (M, n, d) and (M, n), "
                f"got {features.shape} and {targets.shape}"
            )
        self.features = np.ascontiguousarray(features, dtype=np.float64)
        self.targets = np.ascontiguousarray(targets, dtype=np.float64)
        self.num_clients, self.samples, self.dimension = features.shape
        most = self.samples if distinct else None
        self.batch_size = whole_number("batch_size", batch_size, least=1, most=most)
        self.local_batch_size = whole_number("local_batch_size", local_batch_size, least=1, most=most)
        self.distinct = distinct
        seed = whole_number("seed", seed, least=0)
        self.client_weights: FloatArray = np.full(self.num_clients, 1.0 / self.num_clients)
        self._batches, self._local = stream(seed, BATCHES), stream(seed, LOCAL_STEPS)
        self._uniforms: tuple[int, FloatArray] = (-1, np.zeros((0, 0)))

        # ||y - X w||^2 = rest + ||R (w - best)||^2: no cancellation where the loss is small
        flat = self.features.reshape(-1, self.dimension)
        self.minimiser: FloatArray = np.asarray(
            np.linalg.lstsq(flat, self.targets.ravel(), rcond=None)[0], dtype=np.float64
        )
        self._root = np.linalg.qr(flat, mode="r") / np.sqrt(2.0 * len(flat))
        self.least_loss = float(np.mean((flat @ self.minimiser - self.targets.ravel()) ** 2)) / 2.0

    def initial_model(self) -> FloatArray:
        """w = 0."""
        return np.zeros(self.dimension)

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        r""":math:`g_m = \frac1B \sum_{b} (\langle w, x_b\rangle - y_b)\, x_b`, one row a client."""
        return self._gradients(model.reshape(1, -1), clients, self._round(round_index))

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        """The norm of the update that each client would send in this round, drawn or not."""
        norms: FloatArray = least_squares_norms(
            self.features, self.targets, model, self._round(round_index), self.distinct
        )
        return norms

    def local_gradients(
        self, models: FloatArray, clients: IntArray, round_index: int, step: int
    ) -> FloatArray:
        """The gradient of each client's local step, at its own model (a row of ``models``)."""
        generator = self._local.of_round(round_index * STEPS_A_ROUND + step)
        return self._gradients(models, clients, generator.random((self.num_clients, self.local_batch_size)))

    def batch_losses(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """The mean loss of each client's mini-batch of the round."""
        sizes = np.full(len(clients), self.samples)
        rows = batch_rows(self._round(round_index)[clients], sizes, self.distinct)
        residuals = self.features[clients[:, None], rows] @ model - self.targets[clients[:, None], rows]
        return np.asarray(np.mean(residuals**2, axis=1) / 2.0)

    def loss(self, model: FloatArray) -> float:
        """F(w), over all samples of all clients."""
        offset = self._root @ (model - self.minimiser)
        return self.least_loss + float(offset @ offset)

    def client_losses(self, model: FloatArray, clients: IntArray, power: float = 1.0) -> FloatArray:
        """The mean of the sample losses of each of ``clients``, or their mean of this ``power``."""
        losses = (self.features[clients] @ model - self.targets[clients]) ** 2 / 2.0
        return np.asarray(np.mean(losses**power, axis=1) ** (1.0 / power))

    def smoothness(self) -> FloatArray:
        r"""L_m, the smoothness of each client's loss: the largest eigenvalue of :math:`X_m^\top X_m / n`."""
        grams = self.features.transpose(0, 2, 1) @ self.features / self.samples
        return np.asarray(np.linalg.eigvalsh(grams)[:, -1])

    def _gradients(self, models: FloatArray, clients: IntArray, uniforms: FloatArray) -> FloatArray:
        gradients: FloatArray = least_squares_batches(
            self.features, self.targets, models, clients, uniforms, self.distinct
        )
        return gradients

    def _round(self, round_index: int) -> FloatArray:
        if self._uniforms[0] != round_index:
            generator = self._batches.of_round(round_index)
            self._uniforms = (round_index, generator.random((self.num_clients, self.batch_size)))
        return self._uniforms[1]


class PersonalisedLeastSquares:
    r"""Clients share w and have :math:`\beta_m` of their own, fitted to other data than w is judged by.

    .. math:: F_m(w, \beta) = \frac1{2n} \|A_m w + B_m \beta - y_m\|^2, \qquad
              G_m(w, \beta) = \frac1{2n} \|\bar A_m w + \bar B_m \beta - \bar y_m\|^2
              + \frac\rho2 \|\beta\|^2

    with :math:`\rho` = ``ridge``. The client's answer is
    :math:`\hat\beta_m(w) = H_m^{-1} \frac1n \bar B_m^\top(\bar y_m - \bar A_m w)`,
    :math:`H_m = \frac1n \bar B_m^\top \bar B_m + \rho I`. Weights are proportional to random sizes; scales
    differ between clients by orders of magnitude, and for A and B independently.

    >>> problem = PersonalisedLeastSquares(num_clients=3, seed=1)
    >>> problem.responses(np.zeros(4), np.arange(3)).shape
    (3, 2)
    """

    def __init__(
        self,
        *,
        num_clients: int = 20,
        samples: int = 8,
        shared: int = 4,
        local: int = 2,
        ridge: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.num_clients = whole_number("num_clients", num_clients, least=1)
        self.ridge = positive_number("ridge", ridge)
        rng = np.random.default_rng(seed)
        scale_a, scale_b = np.exp(rng.normal(0.0, 1.0, (2, num_clients, 1, 1)))
        shape = (num_clients, samples)
        truth = rng.normal(size=shared)
        own = rng.normal(size=(num_clients, 1, local))
        self._a, self._a_bar = scale_a * rng.normal(size=(2, *shape, shared))
        self._b, self._b_bar = scale_b * rng.normal(size=(2, *shape, local))
        self._y = self._a @ truth + np.sum(self._b * own, axis=2) + 0.1 * rng.normal(size=shape)
        self._y_bar = self._a_bar @ truth + np.sum(self._b_bar * own, axis=2) + 0.1 * rng.normal(size=shape)
        self._samples = samples
        self._hessians = self._b_bar.transpose(0, 2, 1) @ self._b_bar / samples + ridge * np.eye(local)
        sizes = rng.uniform(1.0, 10.0, num_clients)
        self.client_weights: FloatArray = sizes / sizes.sum()

    def initial_model(self) -> FloatArray:
        """w = 0."""
        return np.zeros(self._a.shape[2])

    def responses(self, model: FloatArray, clients: IntArray) -> FloatArray:
        r""":math:`\hat\beta_m(w)`, one row a client."""
        b_bar = self._b_bar[clients]
        pull = b_bar.transpose(0, 2, 1) @ (self._y_bar[clients] - self._a_bar[clients] @ model)[..., None]
        return np.asarray(np.linalg.solve(self._hessians[clients], pull / self._samples)[..., 0])

    def loss(self, model: FloatArray) -> float:
        """h(w)."""
        residuals = self._residuals(model, np.arange(self.num_clients))
        return float(self.client_weights @ np.mean(residuals**2, axis=1)) / 2.0

    def direct_gradients(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        r""":math:`\nabla_w F_m = \frac1n A_m^\top r_m` with r the residuals."""
        residuals = self._residuals(model, clients)[..., None]
        return np.asarray((self._a[clients].transpose(0, 2, 1) @ residuals)[..., 0] / self._samples)

    def response_gradients(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        r""":math:`-\nabla^2_{w\beta^\top} G_m\,[\nabla^2_{\beta\beta^\top} G_m]^{-1}\,\nabla_\beta F_m`."""
        residuals = self._residuals(model, clients)[..., None]
        by_local = self._b[clients].transpose(0, 2, 1) @ residuals / self._samples
        mixed = self._a_bar[clients].transpose(0, 2, 1) @ self._b_bar[clients] / self._samples
        return np.asarray(-(mixed @ np.linalg.solve(self._hessians[clients], by_local))[..., 0])

    def _residuals(self, model: FloatArray, clients: IntArray) -> FloatArray:
        own = np.sum(self._b[clients] * self.responses(model, clients)[:, None, :], axis=2)
        return np.asarray(self._a[clients] @ model + own - self._y[clients])
