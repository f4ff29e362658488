r"""The quantity that samplers reduce: the variance of the aggregate (Section 3).

``feedback`` is :math:`a_m = \lambda_m^2 \|g_m\|^2` throughout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray


def log_feedback(client_weights: ArrayLike, norms: ArrayLike) -> FloatArray:
    r"""Logarithm of the feedback, :math:`\log a_m = 2 (\log\lambda_m + \log\|g_m\|)`; -inf for 0.

    >>> log_feedback(1.0, [0.0, 1e300])
    array([        -inf, 1381.5510558])
    """
    with np.errstate(divide="ignore"):
        return np.asarray(2.0 * (np.log(client_weights) + np.log(norms)))


def aggregate(cohort: Cohort, client_weights: FloatArray, updates: FloatArray) -> FloatArray:
    r"""Unbiased estimate of :math:`J = \sum_m \lambda_m g_m` from the cohort's updates (Equation 2).

    ``client_weights`` and ``updates`` (one row a client) are aligned with ``cohort.clients``.

    >>> cohort = Cohort(0, 2, [0, 3], [1, 1], [0.5, 0.25], [1.0, 2.0])
    >>> aggregate(cohort, np.array([0.5, 0.5]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([0.5, 1. ])
    """
    return np.asarray((client_weights * cohort.weights) @ updates, dtype=float)


def variance_loss(probabilities: FloatArray, feedback: FloatArray, cohort_size: int) -> float:
    r"""Sampling variance of the aggregate, up to a constant that no sampler can change.

    With :math:`a` = ``feedback`` and :math:`K` = ``cohort_size``,

    .. math:: l_t(p) = \frac1K \sum_m \frac{a_m}{p_m}            (Equation 4)

    >>> variance_loss(np.array([0.5, 0.5]), np.array([1.0, 1.0]), cohort_size=2)
    2.0
    """
    seen = feedback > 0.0
    with np.errstate(divide="ignore"):
        return float(np.sum(feedback[seen] / probabilities[seen]) / cohort_size)


def optimal_probabilities(feedback: FloatArray) -> FloatArray:
    r"""The distribution that minimises :math:`l_t`: :math:`p_m \propto \sqrt{a_m}` (Section 3.1).

    Uniform where there is no feedback at all.

    >>> optimal_probabilities(np.array([1.0, 9.0]))
    array([0.25, 0.75])
    """
    roots = np.sqrt(feedback)
    total = roots.sum()
    return roots / total if total > 0.0 else np.full(len(roots), 1.0 / len(roots))


def aggregate_variance(
    probabilities: FloatArray, client_weights: FloatArray, updates: FloatArray, cohort_size: int
) -> float:
    r"""Variance of the aggregate under draws with replacement (Equation 3).

    .. math:: \mathbb V[g] = l_t(p) - \frac1K \Big\|\sum_m \lambda_m g_m\Big\|^2

    >>> aggregate_variance(np.array([0.5, 0.5]), np.array([0.5, 0.5]), np.array([[1.0], [3.0]]), 1)
    1.0
    """
    weighted = client_weights[:, None] * updates
    feedback = np.sum(weighted**2, axis=1)
    mean = weighted.sum(axis=0)
    return variance_loss(probabilities, feedback, cohort_size) - float(mean @ mean) / cohort_size


def estimated_loss(comparator: FloatArray, cohort: Cohort, feedback: FloatArray) -> float:
    r"""Unbiased estimate of :math:`l_t(q)` from one cohort (Equation 6).

    .. math:: \hat l_t(q; p) = \frac1K \sum_m \mathrm{weight}_m \frac{a_m}{q_m}

    ``comparator`` (q) and ``feedback`` are aligned with ``cohort.clients``.

    >>> cohort = Cohort(0, 2, [0, 3], [1, 1], [0.5, 0.25], [1.0, 2.0])
    >>> estimated_loss(np.array([0.5, 0.25]), cohort, np.array([1.0, 1.0]))
    5.0
    """
    return float(np.sum(cohort.weights * feedback / comparator) / cohort.cohort_size)


def estimated_gradient(comparator: FloatArray, cohort: Cohort, feedback: FloatArray) -> FloatArray:
    r"""The drawn entries of the unbiased gradient estimate; the others are zero (Equation 7).

    .. math:: [\nabla\hat l_t(q; p)]_m = -\frac1K\,\mathrm{weight}_m \frac{a_m}{q_m^2}

    >>> cohort = Cohort(0, 2, [0, 3], [1, 1], [0.5, 0.25], [1.0, 2.0])
    >>> estimated_gradient(np.array([0.5, 0.25]), cohort, np.array([1.0, 1.0]))
    array([ -2., -16.])
    """
    return -cohort.weights * feedback / comparator**2 / cohort.cohort_size


def log_estimated_loss(
    log_comparator: FloatArray, log_feedback: FloatArray, weights: FloatArray, cohort_size: int
) -> float:
    """Logarithm of ``estimated_loss``, for feedback that no double can hold; -inf for none.

    >>> round(log_estimated_loss(np.log([0.5, 0.25]), np.zeros(2), np.array([1.0, 2.0]), 2), 12)
    1.609437912434
    """
    seen = log_feedback > -np.inf
    terms = np.log(weights[seen]) + log_feedback[seen] - log_comparator[seen]
    top = terms.max(initial=-np.inf)
    if top == -np.inf:
        return -np.inf
    return float(top + np.log(np.sum(np.exp(terms - top))) - np.log(cohort_size))


def dynamic_regret(losses: FloatArray, comparator_losses: FloatArray) -> FloatArray:
    r"""Regret against a changing comparator, cumulated over the rounds (Equation 18).

    .. math:: \mathrm{D\text{-}Regret}_t = \sum_{u \le t} l_u(p^u) - \sum_{u \le t} l_u(q^u)

    >>> dynamic_regret(np.array([3.0, 2.0]), np.array([1.0, 1.0]))
    array([2., 3.])
    """
    return np.cumsum(np.asarray(losses) - np.asarray(comparator_losses))
