r"""Least squares over clients (Section 7): mini-batch gradients, local steps, the loss and its constants."""

from __future__ import annotations

import numpy as np

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.lab.problems.batches import (
    BATCHES,
    LOCAL_STEPS,
    STEPS_A_ROUND,
    batch_rows,
    least_squares_batches,
    least_squares_norms,
    stream,
)


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
