"""A distribution of which some clients hold a share at most; the others keep their proportions."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from sortition.core.types import FloatArray, IntArray
from sortition.engine.drawing import Distribution
from sortition.engine.limit import Limit
from sortition.engine.pivotal import ProbabilityLine, line_of_vector

LARGEST_SCALE = 1000.0
"""Beyond this scale hardly a draw is kept, and rounding counts: draw from the vector of all probabilities."""


def limited(
    distribution: Distribution, clients: IntArray, weights: FloatArray, gain: float, deviation: float
) -> Distribution:
    """``distribution`` with no more for ``clients`` (ascending) than ``share_of`` says of their ``weights``.

    Itself, if they have less.

    >>> from sortition.engine.fixed import Prior
    >>> from sortition.engine.clients import Roster
    >>> inner = Prior(Roster(4, np.array([0.5, 0.3, 0.1, 0.1])))
    >>> limited(inner, np.array([0, 1]), np.array([0.1, 0.1]), 2.0, 0.0).everybody()
    array([0.2, 0.2, 0.3, 0.3])
    """
    too_much, scale, from_prior, learnt = distribution.limit_learnt(clients, weights, gain, deviation)
    return Capped(distribution, Limit(scale, from_prior, clients, learnt)) if too_much else distribution


class Capped(Distribution):
    r""":math:`p' = a\,\pi + (1-a)\,q'` of a distribution, with the ``limit`` of q."""

    def __init__(self, distribution: Distribution, limit: Limit) -> None:
        self._distribution, self._limit = distribution, limit
        a = distribution.prior_share or 0.0
        self._of_prior, self._of_learnt = a + (1.0 - a) * limit.from_prior, (1.0 - a) * limit.scale
        self.scale = self._of_prior + self._of_learnt
        self._generator: np.random.Generator | None = None

    @property
    def _clients(self) -> IntArray:
        return self._limit.clients

    @cached_property
    def _inner(self) -> Distribution:
        """The mixture that is p' over the scale, except for the clients."""
        return self._distribution.with_prior_share(self._of_prior / self.scale, self._of_learnt / self.scale)

    @cached_property
    def _probabilities(self) -> FloatArray:
        """p' of the clients."""
        a = self._distribution.prior_share or 0.0
        return a * self._distribution.look_up_prior(self._clients) + (1.0 - a) * self._limit.learnt

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
        drawn = np.zeros(0, dtype=np.int64)
        while len(drawn) < len(uniforms):
            missing = len(uniforms) - len(drawn)
            draws, p = self._inner.draw(self._generator.random((int(np.ceil(self.scale * missing)), 2)))
            keep = self._generator.random(len(draws)) * self.scale * p < self._lowered(draws, p)
            drawn = np.append(drawn, draws[keep][:missing])
        return drawn, self.look_up(drawn)

    def look_up(self, clients: IntArray) -> FloatArray:
        """The probabilities of ``clients``."""
        return self._lowered(clients, self._inner.look_up(clients))

    def line(self) -> ProbabilityLine:
        """All probabilities, laid end to end."""
        without = self._distribution.line_without(self._clients)
        if without is None and self.scale > LARGEST_SCALE:
            return line_of_vector(self.everybody())
        line = self._distribution.line() if without is None else without
        return ProbabilityLine(*line[:-2], limit=tuple(self._limit), listed_are_out=without is not None)

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
