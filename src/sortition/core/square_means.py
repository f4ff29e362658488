r"""What a batch sampler believes of each example: a running mean of its squared norms."""

from __future__ import annotations

import math

import numpy as np

from sortition.core.types import FloatArray, IntArray

FADING = 0.5
"""What a visit counts for an epoch later; two epochs later the square of it, after half an epoch the root."""
POPULATION = 0.03
"""The visits that the mean of all units counts for."""
LEAST_SHARE = 0.15
r"""The share :math:`\alpha` of the draws that comes from the prior, at least.

No weight :math:`1/(n p_i)` is more than :math:`1/(\alpha\, n \pi_i)`: without a prior, one over the share.
"""
TRUST = 8.0
"""What was learnt and the prior are compared by this power of their losses."""


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

    *How far it is trusted.* Norms may differ by chance alone, and then any p but the prior does harm. The
    norms of an epoch were not known to the q that drew it. So with the weight w of a visit, its probability
    by the prior over that by p, :math:`\ell` tells what q would have lost, with the least share of the prior,
    over what the prior alone would have lost:

    .. math:: \ell = \log \frac{\sum w\,x^2 / r_u}{\sum w\,x^2}, \qquad
              r = (1-\alpha_{\min})\,\frac{q}{\pi} + \alpha_{\min}, \qquad
              \alpha = \max\Big(\alpha_{\min}, \frac{o}{1 + o}\Big), \qquad o = e^{\tau \bar\ell}

    In the mean :math:`\bar\ell` older epochs fade as visits do. It is 0, and the share one half, before there
    is evidence; less than an epoch of evidence counts for its part only.

    :math:`v_u` fades also where a unit is not visited, by the part of an epoch that was heard. What was small
    long ago goes back to the population, is drawn again, and has no large weight then. The visits of one
    epoch count alike: a group has many.

    ``masses`` are the prior of the units: of a group, the sum over its examples. ``num_draws`` are those of
    an epoch.

    >>> beliefs, every = SquareMeans(np.full(3, 1 / 3), num_draws=3), np.arange(3)
    >>> squares = np.array([1.0, 1.0, 16.0])
    >>> beliefs.learn(every, squares, np.ones(3))
    >>> beliefs.ratios().round(2)
    array([0.76, 0.76, 1.47])
    >>> beliefs.learn(every, squares, 1 / beliefs.ratios())  # the norms are as they were: they can be trusted
    >>> beliefs.ratios().round(2)
    array([0.59, 0.59, 1.82])
    """

    def __init__(self, masses: FloatArray, num_draws: int) -> None:
        self.masses, self.num_draws = masses, num_draws
        self.means, self.visits = np.zeros((2, len(masses)))
        self.evidence = np.zeros(2)  # the sum of the log ratios of losses, and the epochs that it is of

    def learn(self, units: IntArray, squares: FloatArray, weights: FloatArray) -> None:
        """Learn from visits of an epoch: the unit, the square of x and the weight of each, in any unit."""
        part = len(units) / self.num_draws
        kept = FADING**part
        if self.visits.any():
            losses = weights * squares
            learnt = (1.0 - LEAST_SHARE) * self._learnt()[units] + LEAST_SHARE
            of_prior, of_learnt = float(losses.sum()), float((losses / learnt).sum())
            if of_prior > 0.0:
                self.evidence = kept * self.evidence + part * np.array([math.log(of_learnt / of_prior), 1.0])
        count = np.bincount(units, minlength=len(self.masses))
        total = np.bincount(units, weights=squares, minlength=len(self.masses))
        self.visits *= kept
        seen = count > 0
        self.means[seen] = (self.visits * self.means + total)[seen] / (self.visits + count)[seen]
        self.visits += count

    @property
    def share(self) -> float:
        """Of the draws that comes from the prior."""
        log_ratios, epochs = self.evidence.tolist()
        return max(LEAST_SHARE, 0.5 + 0.5 * math.tanh(0.5 * TRUST * log_ratios / max(epochs, 1.0)))

    def ratios(self) -> FloatArray:
        """p over the prior, of each unit; one before anything is learnt."""
        share = self.share
        return np.asarray((1.0 - share) * self._learnt() + share)

    def _learnt(self) -> FloatArray:
        """q over the prior."""
        seen = self.visits > 0.0
        known = float(self.masses[seen].sum())
        population = float((self.masses[seen] * self.means[seen]).sum()) / known if known > 0.0 else 0.0
        if not population > 0.0:
            return np.ones(len(self.masses))
        shrunk = (self.visits * self.means + POPULATION * population) / (self.visits + POPULATION)
        roots = np.sqrt(shrunk)
        return np.asarray(roots / float((self.masses * roots).sum()))
