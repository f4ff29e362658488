r"""What a batch sampler believes of each example: a running mean of its squared norms."""

from __future__ import annotations

import numpy as np

from sortition.core.types import FloatArray, IntArray

FADING = 0.5
"""What a visit counts for an epoch later; two epochs later the square of it, and so on."""
POPULATION = 0.03
"""The visits that the mean of all units counts for."""
LEAST_SHARE = 0.15
r"""The share :math:`\alpha` of the draws that comes from the prior.

No weight :math:`1/(n p_i)` is more than :math:`1/(\alpha\, n \pi_i)`: without a prior, one over the share.
"""


class SquareMeans:
    r"""Draws in proportion to the root of a mean of squares, over *units*: examples, or groups of them.

    With the prior :math:`\pi` of n examples let :math:`x = \|g_i\| / (n \pi_i)`: the best distribution is
    proportional to :math:`\pi x`. Of each unit the mean :math:`s_u` of :math:`x^2` over :math:`v_u` visits is
    kept, in which older epochs count for less and less, and shrunk towards the mean S of all units, which
    counts for :math:`\kappa` visits:

    .. math:: p_i = (1-\alpha)\,q_i + \alpha\,\pi_i, \qquad q_i \propto \pi_i \sqrt{m_{u(i)}}, \qquad
              m_u = \frac{v_u s_u + \kappa S}{v_u + \kappa}

    The variance of a batch is :math:`\sum_i \mathbb E \|g_i\|^2 / p_i`, up to constants. So it is the mean of
    squares that p must follow, also where the norms of some units are noisier than those of others: by a mean
    of logarithms or of norms a noisy unit would be drawn too rarely.

    :math:`v_u` fades also where a unit is not visited: what was small long ago goes back to the population,
    is drawn again, and has no large weight then. The visits of one epoch count alike: a group has many.

    ``masses`` are the prior of the units: of a group, the sum over its examples.

    >>> beliefs = SquareMeans(np.full(3, 1 / 3))
    >>> beliefs.learn(np.array([0, 1, 2]), np.array([1.0, 1.0, 16.0]))
    >>> beliefs.ratios().round(1)
    array([0.6, 0.6, 1.8])
    """

    def __init__(self, masses: FloatArray) -> None:
        self.masses = masses
        self.means, self.visits = np.zeros((2, len(masses)))

    def learn(self, units: IntArray, squares: FloatArray) -> None:
        """Learn from all visits of an epoch: the unit and the square of x of each."""
        count = np.bincount(units, minlength=len(self.masses))
        total = np.bincount(units, weights=squares, minlength=len(self.masses))
        self.visits *= FADING
        seen = count > 0
        self.means[seen] = (self.visits * self.means + total)[seen] / (self.visits + count)[seen]
        self.visits += count

    def ratios(self) -> FloatArray:
        """p over the prior, of each unit; one before anything is learnt."""
        seen = self.visits > 0.0
        known = float(self.masses[seen].sum())
        population = float(self.masses[seen] @ self.means[seen]) / known if known > 0.0 else 0.0
        if not population > 0.0:
            return np.ones(len(self.masses))
        shrunk = (self.visits * self.means + POPULATION * population) / (self.visits + POPULATION)
        roots = np.sqrt(shrunk)
        return np.asarray((1.0 - LEAST_SHARE) * roots / float(self.masses @ roots) + LEAST_SHARE)
