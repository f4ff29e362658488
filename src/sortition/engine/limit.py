r"""What is left of a distribution of which some clients, the outliers, may hold no more than a share.

Let p be learnt, or a mixture :math:`p = a\,\pi + (1-a)\,q` of the prior with what was learnt. Of q, outliers
of the weight c may hold S(c), ``share_of``, together. Those that stand highest above their weights w are cut
down to one level L, and everybody else is scaled up:

.. math:: q'_m = \begin{cases} \min(L\,w_m,\; s\,q_m) & \text{of the outliers} \\ s\,q_m & \text{otherwise}
          \end{cases}, \qquad p' = a\,\pi + (1-a)\,q'

L is the highest level at which, for every j, the j outliers with the highest ratios q / w hold at most S of
their weight. The j highest hold :math:`1 - s \sum_{\text{rest}} q` if no others are cut, so that is

.. math:: s = \max_j \frac{1 - S(w_1 + \dots + w_j)}{1 - q_1 - \dots - q_j}

with the L for which these j sum to their share. p' is the mixture with another share of the prior, times one
scale, except for the outliers: :math:`p' = \sigma\,(b\,\pi + (1-b)\,q)`, :math:`\sigma = a + (1-a)\,s`,
:math:`b = a / \sigma`. Where s would be above ``LARGEST_SCALE``, some of the prior is mixed into q first.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numba import njit

from sortition.core.types import FloatArray, IntArray

VANISHING = 1e-290
"""If the others hold no more than this, their proportions are lost."""
LARGEST_SCALE = 1000.0
"""Beyond this scale hardly a draw is kept, and rounding counts: draw from the vector of all probabilities."""
ALL = 1.0 - 1e-9
"""Who has this weight may hold everything."""
MOST = 0.5
"""What ``largest_gain`` lets outliers hold at most."""
QUANTILES = np.linspace(-9.0, 0.0, 2000)
WEIGHTS = np.array([NormalDist().cdf(quantile) for quantile in QUANTILES.tolist()])


class Limit(NamedTuple):
    """q' of a distribution: see above."""

    scale: float
    """s"""
    from_prior: float
    """What everybody has of the prior, where the others hold next to nothing of q."""
    clients: IntArray
    learnt: FloatArray
    """q' of the clients."""


NO_LIMIT = Limit(1.0, 0.0, np.zeros(0, dtype=np.int64), np.zeros(0))


@njit(cache=True)
def share_of(weight: float, gain: float, deviation: float) -> float:
    r"""S(c): what clients of this weight may hold of what was learnt.

    .. math:: S(c) = \max(\min(1/2,\; \text{gain} \cdot c),\; \Phi(\Phi^{-1}(c) + \text{deviation}))

    >>> share_of(0.01, 25.0, 1.28), share_of(1.0, 25.0, 1.28)
    (0.25, 1.0)
    """
    if weight <= 0.0 or weight > ALL:
        return 0.0 if weight <= 0.0 else 1.0
    quantile = np.interp(min(weight, 1.0 - weight), WEIGHTS, QUANTILES)
    largest = 0.5 * math.erfc(-((quantile if weight < 0.5 else -quantile) + deviation) / math.sqrt(2.0))
    return max(largest, min(MOST, gain * weight))


@njit(cache=True)
def _scale(
    q: FloatArray, weights: FloatArray, left: float, gain: float, deviation: float
) -> tuple[float, int, float]:
    """s, at least 1, the j that decides and its share; ``q`` with the highest ratio first."""
    scale, top, share, rest = 1.0, 0, 0.0, left
    cumulated = np.cumsum(weights)
    for j in range(q.size, 0, -1):
        allowed = share_of(cumulated[j - 1], gain, deviation)
        if 1.0 - allowed > scale * max(rest, VANISHING):
            scale, top, share = (1.0 - allowed) / max(rest, VANISHING), j, allowed
        rest += q[j - 1]
    return scale, top, share


@njit(cache=True)
def limit_learnt(
    q: FloatArray,
    own: FloatArray,
    weights: FloatArray,
    gain: float,
    deviation: float,
    left: float,
    prior_left: float,
    largest_scale: float,
) -> tuple[bool, float, float, FloatArray]:
    """Whether the clients hold too much of ``q``, and their ``Limit``.

    ``own`` is their prior; all others hold ``left`` of q, and ``prior_left`` of the prior, which is mixed in
    beyond ``largest_scale``.

    >>> ten = np.full(2, 0.1)
    >>> limit_learnt(np.array([0.6, 0.05]), ten, ten, 4.0, 0.0, 0.35, 0.8, 1000.0)
    (True, 1.5, 0.0, array([0.4  , 0.075]))
    """
    order = np.argsort(-q / weights)
    scale, top, share = _scale(q[order], weights[order], left, gain, deviation)
    if top == 0:
        return False, 1.0, 0.0, q
    mixed_in = 0.0
    if scale > largest_scale:  # so much that it is the largest scale for this j
        prior_rest = prior_left + own[order[top:]].sum()
        missing = (1.0 - share) * (1.0 / largest_scale - 1.0 / scale)
        mixed_in = missing / max(missing + prior_rest, VANISHING)
        q = (1.0 - mixed_in) * q + mixed_in * own
        left = (1.0 - mixed_in) * left + mixed_in * prior_left
        order = np.argsort(-q / weights)
        scale, top, share = _scale(q[order], weights[order], left, gain, deviation)
    level, below, cumulated = 0.0 if top else np.inf, 0.0, np.cumsum(weights[order])
    for i in range(top, 0, -1):  # if the i highest are cut; too few or too many make it lower
        level = max(level, (share - below) / cumulated[i - 1])
        below += scale * q[order[i - 1]]
    learnt = np.minimum(scale * q, level * weights)
    return True, scale * (1.0 - mixed_in), scale * mixed_in, learnt


@njit(cache=True)
def limit_in_one(
    q: FloatArray, own: FloatArray, weights: FloatArray, gain: float, deviation: float
) -> tuple[float, bool, float, float, FloatArray]:
    """What all others hold of ``q``, as the difference from one, and ``limit_learnt`` by that."""
    left, prior_left = 1.0 - q.sum(), max(1.0 - own.sum(), 0.0)
    return left, *limit_learnt(q, own, weights, gain, deviation, max(left, 0.0), prior_left, LARGEST_SCALE)
