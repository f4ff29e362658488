r"""The paper's synthetic data (Section 7): three generators, each a function of a seed alone."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from sortition.core.types import FloatArray

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
