r"""A distribution with ceilings: no client is above its own, and the others keep their proportions.

With :math:`c_m` the ceiling of client m (infinite for most), the distribution drawn from is

.. math:: p'_m = \min(c_m,\; s\,p_m), \qquad \textstyle\sum_m p'_m = 1

for the one scale :math:`s \ge 1` that makes it sum to one. A draw from p is kept with probability
:math:`p'_m / (s\,p_m)`, which happens once in s draws.
"""

from __future__ import annotations

import numpy as np

from sortition.core.types import FloatArray, IntArray
from sortition.engine.drawing import Distribution
from sortition.engine.pivotal import ProbabilityLine, line_of_vector

LARGEST_SCALE = 64.0
"""Beyond this scale hardly a draw is kept: draw from the vector of all probabilities instead."""
LEAST_LEFT = 1e-12
"""If those below their ceilings hold less of p than this, it is summed up anew, without cancellation."""

MARGIN = 16.0
"""``heavy`` does not find unseen clients of the roster's block. All clients are looked at if one of them has
more than the cap over this factor, by which a client unseen by one expert may exceed one unseen by all."""


class Capped(Distribution):
    """``inner`` under the ceilings of ``clients`` (ascending ids) and a ``cap`` for everybody.

    >>> from sortition.engine.fixed import Prior
    >>> from sortition.engine.clients import Roster
    >>> inner = Prior(Roster(3, np.array([0.6, 0.2, 0.2])))
    >>> capped = Capped(inner, np.array([0]), np.array([0.3]), cap=1.0)
    >>> capped.everybody()
    array([0.3 , 0.35, 0.35])
    """

    def __init__(self, inner: Distribution, clients: IntArray, ceilings: FloatArray, cap: float) -> None:
        self._inner = inner
        self._clients, self._ceilings, self._cap = clients, np.minimum(ceilings, cap), cap
        self._generator: np.random.Generator | None = None
        self.scale = self._solve(inner.look_up(clients))

    def with_generator(self, generator: np.random.Generator) -> Capped:
        """This distribution, ready to draw: rejected draws are repeated with ``generator``."""
        self._generator = generator
        return self

    def draw(self, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Independent draws and their probabilities."""
        if self.scale == 1.0:
            return self._inner.draw(uniforms)
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
            batch = self._generator.random((len(uniforms), 2))
        drawn = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
        return drawn, self.look_up(drawn)

    def look_up(self, clients: IntArray) -> FloatArray:
        """The probabilities of ``clients``."""
        return self._lowered(clients, self._inner.look_up(clients))

    def line(self) -> ProbabilityLine:
        """All probabilities, laid end to end: those of ``inner``, scaled, except where a ceiling binds."""
        in_block = self._cap < 1.0 and MARGIN * self.block_probability() > self._cap
        if (
            in_block or self.scale > LARGEST_SCALE
        ):  # the cap may bind for clients that ``heavy`` does not find
            return line_of_vector(self.everybody())
        inner = self._inner.line()
        clients = self._clients
        if self._cap < 1.0:
            clients = np.union1d(clients, self._inner.heavy(self._cap / self.scale))
        p = self._inner.look_up(clients)
        lowered = self._lowered(clients, p)
        binding = lowered < self.scale * p
        return inner._replace(
            scale=self.scale, listed=clients[binding], listed_probabilities=lowered[binding]
        )

    def everybody(self) -> FloatArray:
        """The probabilities of all ids."""
        p = self._inner.everybody()
        return self._lowered(np.arange(len(p)), p)

    def heavy(self, threshold: float) -> IntArray:
        """A superset of the clients with at least ``threshold``, except the unseen of the roster's block."""
        return self._inner.heavy(threshold / self.scale)

    def block_probability(self) -> float:
        """The probability of an unseen client of the roster's block; 0 if there is none."""
        return self.scale * self._inner.block_probability()

    def add(self, masses: FloatArray) -> IntArray:
        """Add newcomers."""
        return self._inner.add(masses)

    def remove(self, clients: IntArray) -> None:
        """Remove ``clients``."""
        self._inner.remove(clients)

    def _lowered(self, clients: IntArray, p: FloatArray) -> FloatArray:
        lowered = np.minimum(self.scale * p, self._cap)
        if len(self._clients):
            place = np.minimum(np.searchsorted(self._clients, clients), len(self._clients) - 1)
            ceilings = np.where(self._clients[place] == clients, self._ceilings[place], np.inf)
            lowered = np.minimum(lowered, ceilings)
        return np.asarray(lowered)

    def _solve(self, own: FloatArray) -> float:
        """The scale: raise it while that pushes more clients to their ceilings."""
        scale = 1.0
        while True:
            clients, p, ceilings = self._clients, own, self._ceilings
            if self._cap < 1.0:
                if MARGIN * self._inner.block_probability() * scale > self._cap:
                    return self._solve_for_all()
                heavy = np.setdiff1d(self._inner.heavy(self._cap / scale), clients)
                p = np.concatenate((p, self._inner.look_up(heavy)))
                ceilings = np.concatenate((ceilings, np.full(len(heavy), self._cap)))
            binding = scale * p > ceilings
            left = 1.0 - float(p[binding].sum())
            if left < LEAST_LEFT:
                return self._solve_for_all()
            better = (1.0 - float(ceilings[binding].sum())) / left
            if better <= scale * (1.0 + 1e-12):
                return scale
            scale = better

    def _solve_for_all(self) -> float:
        """The scale from the vector of all probabilities: for the rare case that needs everybody.

        If the ceilings of all clients that can be drawn add up to less than one, all are raised alike.
        """
        p = self._inner.everybody()
        ceilings = np.full(len(p), self._cap if self._cap < 1.0 else np.inf)
        ceilings[self._clients] = self._ceilings
        possible = p > 0.0
        room = float(ceilings[possible].sum())
        if room <= 1.0 + 1e-12:
            self._ceilings = self._ceilings / room
            self._cap = min(1.0, self._cap / room)
            return float(np.max(ceilings[possible] / p[possible]) / room * (1.0 + 1e-9))
        scale = 1.0
        while True:
            binding = scale * p > ceilings
            better = (1.0 - float(ceilings[binding].sum())) / float(p[~binding].sum())
            if better <= scale * (1.0 + 1e-12):
                return scale
            scale = better
