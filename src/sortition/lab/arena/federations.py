"""Federations beyond those of ``problems``: label-skewed softmax regression, and local steps."""

from __future__ import annotations

import numpy as np

from sortition.core.types import FloatArray, IntArray
from sortition.lab.algorithms.fedavg import FedAvg
from sortition.lab.algorithms.local import LocalProblem
from sortition.lab.problems.batches import BATCHES, LOCAL_STEPS, STEPS_A_ROUND, batch_rows, stream
from sortition.lab.problems.digits import DigitsFederation
from sortition.lab.problems.least_squares import LeastSquares
from sortition.lab.problems.protocol import Problem
from sortition.lab.problems.synthetic import (
    LARGEST_SCALE,
    NOISE,
    authors_heterogeneous,
    diagonal,
    heterogeneous,
    one_coordinate,
)


def paper_least_squares(seed: int, *, spread: float) -> Problem:
    """The paper's least squares in the scaling of the authors' data, which gives the published curves."""
    return LeastSquares(*authors_heterogeneous(spread, seed=seed), seed=seed)


def paper_one_coordinate(seed: int, *, spread: float) -> Problem:
    """Clients that know one coordinate each (Section 7.4)."""
    return LeastSquares(*one_coordinate(spread, seed), seed=seed)


def many_least_squares(seed: int, *, spread: float, num_clients: int, samples: int = 20) -> Problem:
    """The least squares of the paper's text with more clients, who have fewer samples."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(10.0, np.sqrt(3.0), len(diagonal()))
    scales = np.exp(rng.normal(0.0, spread, num_clients))
    scales *= LARGEST_SCALE / scales.max()
    features = np.sqrt(scales[:, None, None] * diagonal()) * rng.standard_normal(
        (num_clients, samples, len(truth))
    )
    targets = features @ truth + rng.normal(0.0, NOISE, (num_clients, samples))
    return LeastSquares(features, targets, seed=seed)


def digits(seed: int, *, num_clients: int) -> Problem:
    """Images over clients of very skewed sizes (Section 8 in small)."""
    return DigitsFederation(num_clients=num_clients, seed=seed)


def label_skewed(seed: int, *, concentration: float, tail: float) -> Problem:
    """Softmax regression, label-skewed, with Pareto sizes."""
    return SoftmaxFederation(concentration=concentration, tail=tail, seed=seed)


def fedavg_least_squares(seed: int, *, steps: int, step_size: float) -> Problem:
    """FedAvg on the paper's least squares (the text's, sigma = 1): so many local steps of one sample."""
    return LocalSteps(LeastSquares(*heterogeneous(1.0, seed), seed=seed), steps, step_size)


def fedavg_label_skewed(seed: int, *, steps: int, step_size: float) -> Problem:
    """FedAvg on label-skewed softmax regression with Pareto sizes."""
    return LocalSteps(SoftmaxFederation(concentration=0.3, tail=1.5, seed=seed), steps, step_size)


class LocalSteps:
    r"""A federation in which an update is what several local steps come to (Algorithm 4, FedAvg).

    From :math:`w^{t,0}_m = w^t` client m takes B local steps of size :math:`\mu`; its update is

    .. math:: g^t_m = \frac{w^t - w^{t,B}_m}{B\,\mu}

    the mean of its local gradients, so that norms and step sizes are those of gradients. ``FedSGD`` at step
    size :math:`B\,\mu` then is ``FedAvg``, with norms of another unit, which no sampler minds.
    """

    def __init__(self, problem: LocalProblem, steps: int, step_size: float) -> None:
        self._problem, self._scale = problem, steps * step_size
        self._algorithm = FedAvg(step_size, steps)
        self.num_clients, self.client_weights = problem.num_clients, problem.client_weights

    def initial_model(self) -> FloatArray:
        """That of the federation."""
        return self._problem.initial_model()

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """The mean local gradient of each of ``clients``, one row a client."""
        moves = self._algorithm.updates(model, clients, self._problem, round_index)
        return np.asarray(moves / self._scale)

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        """The norm of the update that each client would send in this round, drawn or not."""
        updates = self.updates(model, np.arange(self.num_clients), round_index)
        return np.asarray(np.linalg.norm(updates, axis=1))

    def loss(self, model: FloatArray) -> float:
        """That of the federation."""
        return self._problem.loss(model)


class SoftmaxFederation:
    r"""Softmax regression on Gaussian classes; few labels a client, and sizes with a Pareto tail.

    Client m has :math:`n_m = \lfloor 10\,(1 + \mathrm{Pareto}(\mathrm{tail})) \rfloor` samples, at most 2000,
    :math:`\lambda_m = n_m / n`, and labels from a Dirichlet distribution of its own with all parameters
    ``concentration``. A sample of class c is :math:`N(\mu_c, I)` in 20 dimensions, with
    :math:`\mu_c \sim N(0, I/4)`. The update is the mean gradient of a mini-batch of 10, drawn i.i.d.
    """

    classes, dimension, batch_size = 10, 20, 10

    def __init__(self, *, concentration: float, tail: float, num_clients: int = 100, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.num_clients = num_clients
        self.client_sizes: IntArray = np.minimum(10 * (1.0 + rng.pareto(tail, num_clients)), 2000).astype(int)
        shares = rng.dirichlet(np.full(self.classes, concentration), num_clients)
        self.labels: IntArray = np.concatenate(
            [rng.choice(self.classes, n, p=p) for n, p in zip(self.client_sizes, shares, strict=True)]
        )
        centres = 0.5 * rng.standard_normal((self.classes, self.dimension))
        self._features = centres[self.labels] + rng.standard_normal((len(self.labels), self.dimension))
        self._first_rows = np.cumsum(self.client_sizes) - self.client_sizes
        self.client_weights: FloatArray = self.client_sizes / self.client_sizes.sum()
        self._batches, self._local = stream(seed, BATCHES), stream(seed, LOCAL_STEPS)

    def initial_model(self) -> FloatArray:
        """W = 0."""
        return np.zeros(self.dimension * self.classes)

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """Mini-batch gradients of the given clients, one row each."""
        uniforms = self._batches.of_round(round_index).random((self.num_clients, self.batch_size))
        return self._gradients(np.tile(model, (len(clients), 1)), clients, uniforms)

    def local_gradients(
        self, models: FloatArray, clients: IntArray, round_index: int, step: int
    ) -> FloatArray:
        """The gradient of each client's local step, at its own model."""
        generator = self._local.of_round(round_index * STEPS_A_ROUND + step)
        return self._gradients(models, clients, generator.random((self.num_clients, self.batch_size)))

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        """The norm of the update that each client would send in this round, drawn or not."""
        updates = self.updates(model, np.arange(self.num_clients), round_index)
        return np.asarray(np.linalg.norm(updates, axis=1))

    def loss(self, model: FloatArray) -> float:
        """Mean cross-entropy over all samples."""
        logits = self._features @ model.reshape(self.dimension, self.classes)
        top = logits.max(axis=1)
        log_sums = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        return float(np.mean(log_sums - logits[np.arange(len(logits)), self.labels]))

    def _gradients(self, models: FloatArray, clients: IntArray, uniforms: FloatArray) -> FloatArray:
        rows = self._first_rows[clients, None] + batch_rows(
            uniforms[clients], self.client_sizes[clients], False
        )
        x = self._features[rows]
        logits = x @ models.reshape(len(clients), self.dimension, self.classes)
        logits -= logits.max(axis=2, keepdims=True)
        residuals = np.exp(logits)
        residuals /= residuals.sum(axis=2, keepdims=True)
        np.put_along_axis(
            residuals,
            self.labels[rows][:, :, None],
            np.take_along_axis(residuals, self.labels[rows][:, :, None], axis=2) - 1.0,
            axis=2,
        )
        gradients = x.transpose(0, 2, 1) @ residuals / self.batch_size
        return np.asarray(gradients.reshape(len(clients), models.shape[1]))
