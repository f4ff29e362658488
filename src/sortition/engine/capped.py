r"""A distribution of which some clients together hold a share at most; the others keep their proportions.

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
from sortition.engine.drawing import LEAST_LEFT, Distribution
from sortition.engine.pivotal import ProbabilityLine, line_of_vector

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


def limit(
    distribution: Distribution, clients: IntArray, weights: FloatArray, share: float, hints: IntArray
) -> Limit:
    """What becomes of q if ``clients`` (ascending) may have ``share`` of it; NO_LIMIT if they have no more.

    ``weights`` are those of the clients; ``hints`` make their look-up quicker: see ``look_up_learnt``.
    """
    q = distribution.look_up_learnt(clients, hints)
    held, learnt = _scaled_and_levelled(q, weights, share)
    if held <= share:
        return NO_LIMIT
    if held <= 1.0 - LEAST_LEFT:
        return Limit((1.0 - share) / (1.0 - held), 0.0, clients, learnt)
    left = distribution.with_prior_share(0.0, 1.0).sum_without(clients)
    scale, from_prior = (1.0 - share) / max(left, VANISHING), 0.0
    if distribution.prior_share is None:
        if left <= VANISHING:
            return NO_LIMIT  # nobody could have the rest
        return Limit(scale, 0.0, clients, levelled(np.minimum(scale * q, 1.0), weights, share))
    if scale > LARGEST_SCALE:
        scale, prior = LARGEST_SCALE, distribution.with_prior_share(1.0, 0.0)
        from_prior = max(1.0 - share - scale * left, 0.0) / max(prior.mass_without(clients), VANISHING)
    q = scale * q + from_prior * distribution.look_up_prior(clients)
    return Limit(scale, from_prior, clients, levelled(q, weights, share))


def limited(
    distribution: Distribution, clients: IntArray, weights: FloatArray, share: float, hints: IntArray
) -> Distribution:
    """``distribution`` with at most ``share`` of what was learnt for ``clients``; itself, if they have less.

    >>> from sortition.engine.fixed import Prior
    >>> from sortition.engine.clients import Roster
    >>> inner = Prior(Roster(4, np.array([0.5, 0.3, 0.1, 0.1])))
    >>> limited(inner, np.array([0, 1]), np.array([0.25, 0.25]), 0.6, np.full(2, -1)).everybody()
    array([0.3, 0.3, 0.2, 0.2])
    """
    found = limit(distribution, clients, weights, share, hints)
    return distribution if found is NO_LIMIT else Capped(distribution, found, hints)


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
def _scaled_and_levelled(q: FloatArray, weights: FloatArray, share: float) -> tuple[float, FloatArray]:
    """What the clients hold of ``q``, and q' of them, if they hold more than ``share`` and leave enough."""
    held = q.sum()
    if held <= share or held > 1.0 - LEAST_LEFT:
        return held, q
    return held, levelled(q * ((1.0 - share) / (1.0 - held)), weights, share)


class Capped(Distribution):
    r""":math:`p' = a\,\pi + (1-a)\,q'` of a distribution, with the ``limit`` of q."""

    def __init__(self, distribution: Distribution, limit: Limit, hints: IntArray) -> None:
        a = distribution.prior_share
        self._clients, self._hints = limit.clients, hints
        self._generator: np.random.Generator | None = None
        if a is None:
            self.scale, self._inner, self._probabilities = limit.scale, distribution, limit.learnt
            return
        of_prior, of_learnt = a + (1.0 - a) * limit.from_prior, (1.0 - a) * limit.scale
        self.scale = of_prior + of_learnt
        self._inner = distribution.with_prior_share(of_prior / self.scale, of_learnt / self.scale)
        self._probabilities = a * distribution.look_up_prior(limit.clients) + (1.0 - a) * limit.learnt

    def with_generator(self, generator: np.random.Generator) -> Capped:
        """This distribution, ready to draw: rejected draws are repeated with ``generator``."""
        self._generator = generator
        return self

    def draw(self, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Independent draws and their probabilities."""
        if self.scale > LARGEST_SCALE:
            p = self.everybody()
            points = np.cumsum(p)
            draws = np.searchsorted(points, uniforms[:, 0] * points[-1], side="right")
            return draws, p[draws]
        if self._generator is None:
            raise TypeError("with_generator must be called before draw")
        kept: list[IntArray] = []
        missing, batch = len(uniforms), uniforms
        while missing > 0:
            draws, p = self._inner.draw(batch)
            keep = self._generator.random(len(draws)) * self.scale * p < self._lowered(draws, p)
            kept.append(draws[keep][:missing])
            missing -= len(kept[-1])
            batch = self._generator.random((int(np.ceil(self.scale * missing)), 2))
        drawn = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
        return drawn, self.look_up(drawn)

    def look_up(self, clients: IntArray) -> FloatArray:
        """The probabilities of ``clients``."""
        return self._lowered(clients, self._inner.look_up(clients))

    def line(self) -> ProbabilityLine:
        """All probabilities, laid end to end: those of ``inner``, scaled, except for the clients."""
        if self.scale > LARGEST_SCALE:
            return line_of_vector(self.everybody())
        without = self._inner.line_without(self._clients, self._hints)
        line = self._inner.line() if without is None else without
        return line._replace(
            scale=self.scale,
            listed=self._clients,
            listed_probabilities=self._probabilities,
            listed_are_out=without is not None,
        )

    def everybody(self) -> FloatArray:
        """The probabilities of all ids."""
        p = self.scale * self._inner.everybody()
        p[self._clients] = self._probabilities
        return p

    def heavy(self, threshold: float) -> IntArray:
        """A superset of the clients with at least ``threshold``, except the unseen of the roster's block."""
        return self._inner.heavy(threshold / self.scale)

    def block_probability(self) -> float:
        """The probability of an unseen client of the roster's block; 0 if there is none."""
        return self.scale * self._inner.block_probability()

    def add(self, masses: FloatArray) -> IntArray:
        """Not here: clients join the distribution inside."""
        raise NotImplementedError

    def remove(self, clients: IntArray) -> None:
        """Not here: clients leave the distribution inside."""
        raise NotImplementedError

    def _lowered(self, clients: IntArray, p: FloatArray) -> FloatArray:
        place = np.minimum(np.searchsorted(self._clients, clients), len(self._clients) - 1)
        return np.where(self._clients[place] == clients, self._probabilities[place], self.scale * p)
