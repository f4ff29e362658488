"""Distributions that are given: the prior itself, and a vector of masses that is set as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from sortition.core.errors import ConfigurationError, StateError
from sortition.core.state import array, check
from sortition.core.types import Fields, FloatArray, IntArray
from sortition.engine.clients import Roster, draw_prior, mass_of, named_prior
from sortition.engine.drawing import Distribution
from sortition.engine.pivotal import ProbabilityLine, line_of_masses

LEAST_RATIO = 1e-250
MOST_DENSE = 2**24
"""Clients that a vector of masses may have: each takes some 50 bytes, and a round visits all of them."""


@njit(cache=True)
def _draw(uniforms: FloatArray, prior_fields: Fields) -> tuple[IntArray, FloatArray]:
    prior = named_prior(prior_fields)
    draws = np.empty(uniforms.shape[0], dtype=np.int64)
    probabilities = np.empty(uniforms.shape[0])
    for i in range(uniforms.shape[0]):
        draws[i] = draw_prior(prior, uniforms[i, 1] * prior.total)
        probabilities[i] = mass_of(prior, draws[i]) / prior.total
    return draws, probabilities


class Prior(Distribution):
    """Draws in proportion to the masses of the roster.

    >>> Prior(Roster(2, np.array([1.0, 3.0]))).everybody()
    array([0.25, 0.75])
    """

    def __init__(self, roster: Roster) -> None:
        self.roster = roster

    def draw(self, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Independent draws, one for each row of two uniforms, and their probabilities."""
        drawn: tuple[IntArray, FloatArray] = _draw(uniforms, self.roster.fields)
        return drawn

    def look_up(self, clients: IntArray) -> FloatArray:
        """The probabilities of ``clients``."""
        return self.roster.masses(clients) / self.roster.total

    def everybody(self) -> FloatArray:
        """The probabilities of all ids."""
        return self.roster.masses(None) / self.roster.total

    def line(self) -> ProbabilityLine:
        """All probabilities, laid end to end."""
        roster = self.roster
        return line_of_masses(roster.fields, roster.seats, tuple(roster.own.arrays))

    def heavy(self, threshold: float) -> IntArray:
        """All clients with a mass of their own whose probability is at least ``threshold``."""
        return self.roster.heavy(threshold * self.roster.total)

    def block_probability(self) -> float:
        """The probability of a member of the roster's block; 0 if there is none."""
        return 1.0 / self.roster.total if self.roster.seats else 0.0

    def summed(self) -> float:
        """The masses of a roster are checked where they come from."""
        return 1.0

    def add(self, masses: FloatArray) -> IntArray:
        """Add newcomers."""
        return self.roster.add(masses)

    def remove(self, clients: IntArray) -> None:
        """Remove ``clients``."""
        self.roster.remove(clients)


class Dense(Distribution):
    """A vector of masses, one for each id, that can be set at any time.

    >>> dense = Dense(Roster(2, None))
    >>> dense.set(np.array([1.0, 3.0]))
    >>> dense.everybody()
    array([0.25, 0.75])
    """

    def __init__(self, roster: Roster) -> None:
        if roster.ids > MOST_DENSE:
            raise ConfigurationError(
                f"num_clients must be at most {MOST_DENSE} for a sampler that keeps a mass for every client, "
                f"got {roster.ids}"
            )
        self.roster = roster
        self.set(roster.masses(None))

    def set(self, masses: FloatArray) -> None:
        """Take these masses, one for each id, at least one above 0; clients that left must have 0.

        They are kept relative to the largest. A mass above 0 is at least ``LEAST_RATIO`` of it, so that no
        weight is infinite.
        """
        relative = masses / masses.max()
        self.masses = np.where(masses > 0.0, np.maximum(relative, LEAST_RATIO), 0.0)
        self._probabilities = self.masses / self.masses.sum()
        self._cumulative: FloatArray | None = None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the ``masses`` of a state."""
        self.set_checked(array(state, "masses", np.float64, (self.roster.ids,)))

    def set_checked(self, masses: FloatArray) -> None:
        """Take masses from a state."""
        here = self.roster.present(np.arange(len(masses)))
        right = (masses >= 0.0) & (masses < np.inf) & (here | (masses == 0.0))
        check("masses", masses, right, "finite and not negative, and 0 of those that left")
        if not masses.any():
            raise StateError("state has 'masses' that are all 0")
        self.set(masses)

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
        """Nobody is unseen here."""
        return 0.0

    def add(self, masses: FloatArray) -> IntArray:
        """Add newcomers, at the lowest ratio to the prior: that of a client never drawn."""
        prior = self.roster.masses(None)
        lowest = np.min(self.masses[prior > 0.0] / prior[prior > 0.0])
        newcomers = self.roster.add(masses)
        self.set(np.concatenate((self.masses, lowest * masses)))
        return newcomers

    def remove(self, clients: IntArray) -> None:
        """Remove ``clients``; the others keep their proportions, or get the prior's if they had no mass."""
        self.roster.remove(clients)
        masses = self.masses.copy()
        masses[clients] = 0.0
        self.set(masses if masses.any() else self.roster.masses(None))
