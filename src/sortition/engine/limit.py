r"""What is left of a distribution of which some clients together may hold a share at most.

Let p be learnt, or a mixture :math:`p = a\,\pi + (1-a)\,q` of the prior with what was learnt. Of q, the
clients may hold the share S. If they hold more, all others are scaled up, and the clients are cut down to one
level L above their weights w:

.. math:: q'_m = \begin{cases} \min(L\,w_m,\; s\,q_m) & \text{of the clients} \\ s\,q_m & \text{otherwise}
          \end{cases}, \qquad s = \frac{1-S}{\sum_{\text{others}} q_m}, \qquad p' = a\,\pi + (1-a)\,q'

with the L for which the clients sum to S. That is the mixture with another share of the prior, times one
scale, except for the clients: :math:`p' = \sigma\,(b\,\pi + (1-b)\,q)`, :math:`\sigma = a + (1-a)\,s`,
:math:`b = a / \sigma`. Where the others hold next to nothing of q, s is ``LARGEST_SCALE``, and what is
missing comes from the prior.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from sortition.core.types import FloatArray, IntArray

VANISHING = 1e-290
"""If the others hold no more than this, their proportions are lost."""
LARGEST_SCALE = 1000.0
"""Beyond this scale hardly a draw is kept, and rounding counts: draw from the vector of all probabilities."""


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
def levelled(q: FloatArray, weights: FloatArray, share: float) -> FloatArray:
    """``q`` with the highest ratios to ``weights`` cut down to one level, so that ``share`` is the sum.

    ``share`` must be at most the sum of ``q``, and the weights above 0. The level only rises: who is below it
    once keeps what it has.

    >>> levelled(np.array([0.4, 0.4, 0.1]), np.array([0.2, 0.4, 0.2]), 0.6)
    array([0.16666667, 0.33333333, 0.1       ])
    """
    level, cut_before = 0.0, q.size + 1
    while True:
        kept, weight, cut = 0.0, 0.0, 0
        for i in range(q.size):
            if q[i] < level * weights[i]:
                kept += q[i]
            else:
                weight += weights[i]
                cut += 1
        if cut == 0 or cut == cut_before:
            break
        level, cut_before = max(level, (share - kept) / weight), cut
    return np.minimum(q, level * weights)


@njit(cache=True)
def limit_learnt(
    q: FloatArray, own: FloatArray, weights: FloatArray, share: float
) -> tuple[float, float, float, FloatArray]:
    """What the clients hold of ``q``, and their ``Limit``, with ``own`` as their prior.

    Rounding counts where they leave next to nothing to the others.
    """
    held = q.sum()
    if held <= share:
        return held, 1.0, 0.0, q
    left = max(1.0 - held, 0.0)
    scale, from_prior = (1.0 - share) / max(left, VANISHING), 0.0
    if scale > LARGEST_SCALE:
        scale = LARGEST_SCALE
        from_prior = (1.0 - share - scale * left) / max(1.0 - own.sum(), VANISHING)
    return held, scale, from_prior, levelled(scale * q + from_prior * own, weights, share)
