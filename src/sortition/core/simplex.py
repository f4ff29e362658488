r"""One step of mirror descent on the simplex above a floor (Algorithm 2), in logs.

Both functions take logarithms, so that an exponent of 1e300 and a feedback of zero are ordinary values.
"""

from __future__ import annotations

import numpy as np

from sortition.core.types import FloatArray

LARGEST_STEP = 1e300
"""Steps are cut here: two clients beyond it are both certain to take all the mass there is."""


def mirror_steps(
    log_learning_rate: float,
    log_probabilities: FloatArray,
    log_feedback: FloatArray,
    weights: FloatArray,
    cohort_size: int,
) -> FloatArray:
    r"""Exponents of the entropic step of the drawn clients (Algorithm 2, line 3).

    .. math:: \log\frac{\tilde p_m}{p_m} = -\eta\,[\nabla\hat l_t(p)]_m
              = \frac{\eta}{K}\,\mathrm{weight}_m \frac{a_m}{p_m^2}

    With replacement ``weight = count / (K p)`` and this is the paper's
    :math:`\mathcal N\{m \in S\}\,\eta\,a_m / (K^2 p_m^3)`. All arrays are aligned with the cohort.

    >>> mirror_steps(0.0, np.log([0.5]), np.log([2.0]), np.array([1.0]), cohort_size=4)
    array([2.])
    """
    log_steps = (
        log_learning_rate + np.log(weights) + log_feedback - np.log(cohort_size) - 2.0 * log_probabilities
    )
    return np.asarray(np.exp(np.minimum(log_steps, np.log(LARGEST_STEP))), dtype=float)


def project_above_floor(log_values: FloatArray, floor: FloatArray) -> FloatArray:
    r"""The point of :math:`\{p \ge \mathrm{floor}, \sum p = 1\}` nearest to ``exp(log_values)``.

    Nearest in the Bregman divergence of the negative entropy. It is

    .. math:: p_m = \max(\mathrm{floor}_m,\; c\,\tilde p_m), \qquad \textstyle\sum_m p_m = 1

    (Algorithm 2, Proposition 12, with a floor of its own for each client). Sort by
    :math:`\tilde p_m / \mathrm{floor}_m`; the smallest are lifted, and the first one that need not be is
    the first with :math:`\tilde p_m (1 - \sum_{j<m} \mathrm{floor}_j) > \mathrm{floor}_m \sum_{j \ge m}
    \tilde p_j`. Clients without a floor take no part.

    >>> project_above_floor(np.log([0.1, 0.2, 1.7]), floor=np.full(3, 0.1))
    array([0.1, 0.1, 0.8])
    """
    result = np.zeros_like(floor)
    support = np.flatnonzero(floor > 0.0)
    top = log_values[support].max()
    if not np.isfinite(top):  # no value at all: the floor's own proportions are nearest
        result[support] = floor[support] / floor[support].sum()
        return result
    shifted = log_values[support] - top  # before the floor is taken off, which 1e300 would swallow
    by_ratio = np.argsort(shifted - np.log(floor[support]), kind="stable")
    order = support[by_ratio]
    floors = floor[order]
    values = np.exp(shifted[by_ratio])
    above = np.cumsum(values[::-1])[::-1]  # sum of the values from m on
    left = 1.0 - np.concatenate(([0.0], np.cumsum(floors)[:-1]))  # what the floors before m leave
    stays = values * left > floors * above
    first = int(np.argmax(stays)) if stays.any() else len(order) - 1
    result[order[:first]] = floors[:first]
    result[order[first:]] = values[first:] * (left[first] / above[first])
    return result
