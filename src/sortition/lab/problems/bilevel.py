r"""A personalised least-squares problem small enough to differentiate by hand (Appendix D.1)."""

from __future__ import annotations

import numpy as np

from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import positive_number, whole_number


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
