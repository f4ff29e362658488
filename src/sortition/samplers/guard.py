r"""Defences against clients that lie about their norms; ``docs/hostile-clients.md`` derives the bounds.

*Clip.* With :math:`Q_2, Q_3` the running median and third quartile of the norms, a norm counts for at most

.. math:: Q_3 \cdot \max\big(\mathrm{clip\_factor},\; (Q_3/Q_2)^{\mathrm{fence}}\big),

a factor that is stated or, where honest clients themselves differ by more, a fence like Tukey's in
logarithms. The quartiles are those of the last 500 replies above zero, taken twice, and the smaller bound
counts. Once each reply has its cohort weight: the weights have mean one for every client, so whoever is drawn
often counts no more than the others, and c colluding clients of M shift the quartiles by c / M. Once all
replies count alike, so that a single reply of a client that is hardly ever drawn, whose weight is large, does
not decide either.

*Rise.* A report raises the probability of its sender by at most ``largest_rise``; what it asks for beyond
that it gets in the following rounds, another such factor in each.

*Cap.* Nobody's probability exceeds ``largest_probability``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError
from sortition.core.state import array
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import fraction, positive_number
from sortition.engine.capped import Capped
from sortition.engine.drawing import Distribution

WINDOW = 500
LARGEST_LOG = math.log(np.finfo(float).max)


@dataclass(frozen=True, slots=True)
class Guard:
    """Which defences a sampler has: see ``samplers/guard.py``. ``guard=None`` is the paper to the letter.

    By default they cost an honest run nothing. ``Guard(clip_factor=10, fence=6)`` leaves liars less, and
    costs federations in which a few honest clients have norms ten times those of the others.
    """

    clip_factor: float = 100.0
    fence: float = 9.0
    largest_rise: float = 10.0
    largest_probability: float = 1.0

    def __post_init__(self) -> None:
        for name in ("clip_factor", "largest_rise"):
            if positive_number(name, getattr(self, name)) <= 1.0:
                raise ConfigurationError(f"{name} must be above 1, got {getattr(self, name)}")
        positive_number("fence", self.fence)
        fraction("largest_probability", self.largest_probability)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A client whose norms hit the clip."""

    client: int
    hits: int
    """How many of its reports were clipped."""
    largest_excess: float
    """How many times the bound the worst of them was (inf where no double can hold it)."""


class Watch:
    """A guard at work: the norms it has seen of late, whom it caught, and whom it holds down."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._logs = np.zeros(0)  # of the last norms above zero
        self._weights = np.zeros(0)  # of the cohorts that they came in
        self._hits: dict[int, tuple[int, float]] = {}
        self._held = np.zeros(0, dtype=np.int64)  # clients with a ceiling, ascending
        self._ceilings = np.zeros(0)

    # The clip ----------------------------------------------------------------------------------------

    @property
    def norm_bound(self) -> float:
        """What a norm counts for at most; inf before there is one above zero."""
        if not len(self._logs):
            return math.inf
        bounds = []
        for weights in (self._weights, np.ones(len(self._logs))):
            median, third = upper_quartiles(self._logs, weights)
            margin = max(math.log(self.guard.clip_factor), self.guard.fence * (third - median))
            bounds.append(third + margin)
        return math.exp(min(*bounds, LARGEST_LOG))

    def clip(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        """The norms as they may count; whoever is above the bound is remembered."""
        above_zero = norms > 0.0
        self._logs = np.concatenate((self._logs, np.log(norms[above_zero])))[-WINDOW:]
        self._weights = np.concatenate((self._weights, cohort.weights[above_zero]))[-WINDOW:]
        bound = self.norm_bound
        caught = norms > bound
        if not caught.any():
            return norms
        for client, norm in zip(cohort.clients[caught].tolist(), norms[caught].tolist(), strict=True):
            hits, worst = self._hits.get(client, (0, 0.0))
            self._hits[client] = (hits + 1, max(worst, math.log(norm) - math.log(bound)))
        return np.minimum(norms, bound)

    def suspects(self) -> list[Suspect]:
        """The clients that hit the clip, the most frequent first."""
        found = [
            Suspect(client, hits, math.exp(worst) if worst < LARGEST_LOG else math.inf)
            for client, (hits, worst) in self._hits.items()
        ]
        return sorted(found, key=lambda suspect: (-suspect.hits, suspect.client))

    # The ceilings ------------------------------------------------------------------------------------

    def over(self, distribution: Distribution, num_clients: int) -> Distribution:
        """What to draw from instead of ``distribution``; itself, where nobody is held down."""
        cap = max(self.guard.largest_probability, 1.0 / num_clients)
        if cap == 1.0 and not len(self._held):
            return distribution
        return Capped(distribution, self._held, self._ceilings, cap)

    def hold(
        self, clients: IntArray, before: FloatArray, distribution: Distribution, num_clients: int
    ) -> None:
        """After ``clients``, who had the probabilities ``before``, were learnt from: limit their rise."""
        rise = self.guard.largest_rise
        ceilings = rise * before
        if not len(self._held) and not np.any(distribution.look_up(clients) > ceilings):
            return
        others = ~np.isin(self._held, clients)
        everybody = np.concatenate((self._held[others], clients))
        limits = np.concatenate((rise * self._ceilings[others], ceilings))
        order = np.argsort(everybody)
        self._held, self._ceilings = everybody[order], np.minimum(limits[order], 1.0)
        binding = Capped(
            distribution,
            self._held,
            self._ceilings,
            max(self.guard.largest_probability, 1.0 / num_clients),
        ).binding
        self._held, self._ceilings = self._held[binding], self._ceilings[binding]

    def rescale(self, factor: float) -> None:
        """Clients came or left, and everybody's probability was multiplied by ``factor``: ceilings too."""
        self._ceilings = np.minimum(factor * self._ceilings, 1.0)

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that the guard remembers."""
        return {
            "guard.logs": self._logs.copy(),
            "guard.weights": self._weights.copy(),
            "guard.suspects": np.array(list(self._hits), dtype=np.int64),
            "guard.hits": np.array([hits for hits, _ in self._hits.values()], dtype=np.int64),
            "guard.excesses": np.array([worst for _, worst in self._hits.values()], dtype=np.float64),
            "guard.held": self._held.copy(),
            "guard.ceilings": self._ceilings.copy(),
        }

    def restored(self, state: Mapping[str, Any]) -> Watch:
        """A watch with the memory of ``state``."""
        watch = Watch(self.guard)
        watch._logs = array(state, "guard.logs", np.float64, (None,))
        watch._weights = array(state, "guard.weights", np.float64, (len(watch._logs),))
        suspects = array(state, "guard.suspects", np.int64, (None,))
        hits = array(state, "guard.hits", np.int64, (len(suspects),))
        worst = array(state, "guard.excesses", np.float64, (len(suspects),))
        watch._hits = dict(
            zip(suspects.tolist(), zip(hits.tolist(), worst.tolist(), strict=True), strict=True)
        )
        watch._held = array(state, "guard.held", np.int64, (None,))
        watch._ceilings = array(state, "guard.ceilings", np.float64, (len(watch._held),))
        return watch


def upper_quartiles(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """The smallest of ``values`` up to which there is half of the weight, and three quarters.

    >>> upper_quartiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 1.0]))
    (1.0, 2.0)
    """
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order])
    # rounding must not carry a share that is met exactly to the next value
    places = np.searchsorted(cumulated, np.array([0.5, 0.75]) * cumulated[-1] * (1.0 - 1e-12))
    median, third = values[order[places]].tolist()
    return median, third
