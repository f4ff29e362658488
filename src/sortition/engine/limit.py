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
:math:`b = a / \sigma`. Where the others hold ``NEXT_TO_NOTHING`` of q, some of the prior is mixed in first.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numba import njit

from sortition.core.types import FloatArray, IntArray

VANISHING = 1e-290
"""If the others hold no more than this, nobody can have the rest."""
NEXT_TO_NOTHING = 1e-6
"""If the others hold less than this of q, they get about as much of the prior as is missing."""
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


Found = tuple[bool, float, float, FloatArray]
NO_LIMIT = Limit(1.0, 0.0, np.zeros(0, dtype=np.int64), np.zeros(0))


@njit(cache=True)
def share_of(weight: float, gain: float, deviation: float) -> float:
    r"""S(c): what clients of this weight may hold of what was learnt.

    .. math:: S(c) = \max(\min(1/2,\; \text{gain} \cdot c),\; \Phi(\Phi^{-1}(c) + \text{deviation}))

    >>> share_of(0.01, 21.0, 1.18), share_of(1.0, 21.0, 1.18)
    (0.21, 1.0)
    """
    if weight <= 0.0 or weight > ALL:
        return 0.0 if weight <= 0.0 else 1.0
    quantile = np.interp(min(weight, 1.0 - weight), WEIGHTS, QUANTILES)
    largest = 0.5 * math.erfc(-((quantile if weight < 0.5 else -quantile) + deviation) / math.sqrt(2.0))
    return max(largest, min(MOST, gain * weight))


@njit(cache=True)
def limit_learnt(
    q: FloatArray,
    own: FloatArray,
    weights: FloatArray,
    gain: float,
    deviation: float,
    left: float,
    prior_left: float,
) -> Found:
    """Whether the clients hold too much of ``q``, and s, what everybody has of the prior, and q' of them.

    ``own`` is their prior; all others hold ``left`` of q, and ``prior_left`` of the prior.

    >>> ten = np.full(2, 0.1)
    >>> limit_learnt(np.array([0.6, 0.05]), ten, ten, 4.0, 0.0, 0.35, 0.8)
    (True, 1.5, 0.0, array([0.4  , 0.075]))
    """
    missing = max(NEXT_TO_NOTHING - left, 0.0)
    mixed_in = missing / max(missing + prior_left, VANISHING)
    q, left = (1.0 - mixed_in) * q + mixed_in * own, (1.0 - mixed_in) * left + mixed_in * prior_left
    order = np.argsort(-q / weights)
    cumulated = np.cumsum(weights[order])
    scale, top, share, rest = 1.0, 0, 0.0, left
    for j in range(q.size if left > VANISHING else 0, 0, -1):
        allowed = share_of(cumulated[j - 1], gain, deviation)
        if 1.0 - allowed > scale * rest:
            scale, top, share = (1.0 - allowed) / rest, j, allowed
        rest += q[order[j - 1]]
    level, below = 0.0, 0.0
    for i in range(top, 0, -1):  # if the i highest are cut; too few or too many make it lower
        level = max(level, (share - below) / cumulated[i - 1])
        below += scale * q[order[i - 1]]
    return top > 0, scale * (1.0 - mixed_in), scale * mixed_in, np.minimum(scale * q, level * weights)
