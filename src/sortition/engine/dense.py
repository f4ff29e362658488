"""A distribution with a number for every client: for oracles and comparators, at a cost that grows with M."""

from __future__ import annotations

import numpy as np

from sortition.core.types import FloatArray, IntArray
from sortition.engine.drawing import Distribution
from sortition.engine.roster import Roster


class Dense(Distribution):
    """Probabilities that are set at will.

    >>> dense = Dense(Roster(2, None))
    >>> dense.set(np.array([1.0, 3.0]))
    >>> dense.everybody()
    array([0.25, 0.75])
    """

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.set(roster.masses(None))

    def set(self, masses: FloatArray) -> None:
        """Take these masses, one for each id, of any sum above 0; who left must have 0."""
        self.masses = masses
        self._probabilities = masses / masses.sum()
        self._cumulative: FloatArray | None = None

    def draw(self, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Independent draws, one for each row of two uniforms, and their probabilities."""
        if self._cumulative is None:
            self._cumulative = np.cumsum(self._probabilities)
        points = uniforms[:, 1] * self._cumulative[-1]
        draws = np.searchsorted(self._cumulative, points, side="right").astype(np.int64)
        return draws, self._probabilities[draws]

    def look_up(self, clients: IntArray) -> FloatArray:
        """The probabilities of ``clients``."""
        return np.asarray(self._probabilities[clients])

    def everybody(self) -> FloatArray:
        """The probabilities of all ids."""
        return np.array(self._probabilities)

    def heavy(self, threshold: float) -> IntArray:
        """All clients with at least ``threshold``."""
        return np.flatnonzero(self._probabilities >= threshold)

    def block_probability(self) -> float:
        """Nobody is a stranger here."""
        return 0.0

    def add(self, masses: FloatArray) -> IntArray:
        """Let newcomers in, at the lowest ratio to the prior: it is that of a client never drawn."""
        prior = self.roster.masses(None)
        lowest = np.min(self.masses[prior > 0.0] / prior[prior > 0.0])
        newcomers = self.roster.add(masses)
        self.set(np.concatenate((self.masses, lowest * masses)))
        return newcomers

    def remove(self, clients: IntArray) -> None:
        """Let ``clients`` go: the others keep their proportions, or have the prior's if they had nothing."""
        self.roster.remove(clients)
        masses = self.masses.copy()
        masses[clients] = 0.0
        self.set(masses if masses.any() else self.roster.masses(None))
