r"""Defences against clients that lie about their norms; ``docs/hostile-clients.md`` derives the bounds.

*Clip.* A norm counts for at most B(``clip_factor``, ``fence``), a robust bound by the last 500 replies above
zero: see ``outliers.py``.

*Share.* Outliers, clients whose last norm was above the lower bound B(``outlier_factor``, ``outlier_fence``),
hold together at most ``outliers_share`` of the distribution; or what they would hold if the norms were
log-normal, or their part of all client weights, if that is more. Those with the highest ratio to their
weights are cut down first.

*Rise.* A report raises the probability of its sender by at most ``largest_rise``; what it asks for beyond
that it gets in the following rounds, another such factor in each.

*Cap.* Nobody's probability exceeds ``largest_probability``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError
from sortition.core.state import array
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import fraction, positive_number
from sortition.engine.capped import Capped
from sortition.engine.drawing import Distribution
from sortition.samplers.outliers import Bounds, Fences, all_ordinary, bounds_of, levelled

WINDOW = 500
LARGEST_LOG = math.log(np.finfo(float).max)
MANY = 1000
"""Where there are more outliers than this, what they hold is looked up only if replies say it is much."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Which defences a sampler has: see ``samplers/guard.py``. ``guard=None`` is the paper to the letter.

    By default they cost an honest run nearly nothing, measured on the arena: see ``docs/hostile-clients.md``.
    ``Guard(outliers_share=0.2, clip_factor=20)`` leaves liars less, and costs federations in which a few
    honest clients have norms many times those of the others up to 40% more variance.
    """

    clip_factor: float = 100.0
    fence: float = 4.0
    largest_rise: float = 10.0
    largest_probability: float = 1.0
    outlier_factor: float = 5.0
    outlier_fence: float = 1.0
    outliers_share: float = 0.5

    def __post_init__(self) -> None:
        for name in ("clip_factor", "largest_rise", "outlier_factor"):
            if positive_number(name, getattr(self, name)) <= 1.0:
                raise ConfigurationError(f"{name} must be above 1, got {getattr(self, name)}")
        for name in ("fence", "outlier_fence"):
            positive_number(name, getattr(self, name))
        for name in ("largest_probability", "outliers_share"):
            fraction(name, getattr(self, name))


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
        self._fences = Fences(guard.outlier_factor, guard.outlier_fence, guard.clip_factor, guard.fence)
        self._logs = np.zeros(0)  # of the last norms above zero
        self._weights = np.zeros(0)  # of the cohorts that they came in
        self._bounds: Bounds | None = None  # of the window, once somebody asked
        self._hits: dict[int, tuple[int, float]] = {}
        self._outliers = np.zeros(0, dtype=np.int64)  # clients whose last norm was above the bound, ascending
        self._outlier_weights = np.zeros(0)  # their client weights
        self._held = np.zeros(0, dtype=np.int64)  # clients whose rise is limited, ascending
        self._ceilings = np.zeros(0)

    # The clip ----------------------------------------------------------------------------------------

    @property
    def norm_bound(self) -> float:
        """What a norm counts for at most; inf before there is one above zero."""
        return math.exp(min(self.bounds.clip, LARGEST_LOG)) if len(self._logs) else math.inf

    @property
    def bounds(self) -> Bounds:
        """What the norms of late say; there must have been one above zero."""
        if self._bounds is None:
            self._bounds = bounds_of(self._logs, self._weights, self._fences)
        return self._bounds

    def clip(
        self, cohort: Cohort, norms: FloatArray, weights_of: Callable[[IntArray], FloatArray]
    ) -> FloatArray:
        """The norms as they may count; whoever is above the bounds is remembered.

        ``weights_of`` tells the client weights of those who are.
        """
        above_zero = norms > 0.0
        if above_zero.any():
            self._logs = np.concatenate((self._logs, np.log(norms[above_zero])))[-WINDOW:]
            self._weights = np.concatenate((self._weights, cohort.weights[above_zero]))[-WINDOW:]
            self._bounds = None
        largest = float(norms.max())
        factor = min(self.guard.clip_factor, self.guard.outlier_factor)
        if largest == 0.0 or all_ordinary(math.log(largest), self._logs, self._weights, factor):
            if len(self._outliers):
                self._note_outliers(cohort.clients, np.zeros(len(cohort), dtype=bool), weights_of)
            return norms
        above = norms > math.exp(min(self.bounds.outlier, LARGEST_LOG))
        self._note_outliers(cohort.clients, above, weights_of)
        bound = self.norm_bound
        caught = norms > bound
        if not caught.any():
            return norms
        for client, norm in zip(cohort.clients[caught].tolist(), norms[caught].tolist(), strict=True):
            hits, worst = self._hits.get(client, (0, 0.0))
            self._hits[client] = (hits + 1, max(worst, math.log(norm) - math.log(bound)))
        return np.minimum(norms, bound)

    def moderate(self, norms: FloatArray) -> FloatArray:
        """``norms`` clipped by themselves alone, without being remembered."""
        logs = np.log(norms[norms > 0.0])
        if not len(logs):
            return norms
        return np.minimum(
            norms, math.exp(min(bounds_of(logs, np.ones(len(logs)), self._fences).clip, LARGEST_LOG))
        )

    def _note_outliers(
        self, clients: IntArray, above: BoolArray, weights_of: Callable[[IntArray], FloatArray]
    ) -> None:
        found = clients[above]
        known = among(clients, self._outliers)
        if not len(found) and not known.any():
            return
        weights = weights_of(found)
        counting = weights > 0.0
        others = ~np.isin(self._outliers, clients[known])
        everybody = np.concatenate((self._outliers[others], found[counting]))
        weights = np.concatenate((self._outlier_weights[others], weights[counting]))
        order = np.argsort(everybody)
        self._outliers, self._outlier_weights = everybody[order], weights[order]

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
        clients, ceilings = self._all_ceilings(distribution)
        if cap == 1.0 and not len(clients):
            return distribution
        return Capped(distribution, clients, ceilings, cap)

    def hold(
        self, clients: IntArray, before: FloatArray, distribution: Distribution, num_clients: int
    ) -> None:
        """After ``clients``, who had the probabilities ``before``, were learnt from: limit their rise."""
        rise = self.guard.largest_rise
        limits = rise * before
        shown = self.over(distribution, num_clients)
        if not len(self._held) and not np.any(shown.look_up(clients) > limits):
            return
        others = ~np.isin(self._held, clients)
        everybody = np.concatenate((self._held[others], clients))
        limits = np.concatenate((rise * self._ceilings[others], limits))
        order = np.argsort(everybody)
        self._held, self._ceilings = everybody[order], np.minimum(limits[order], 1.0)
        shown = self.over(distribution, num_clients)
        scale = shown.scale if isinstance(shown, Capped) else 1.0
        binding = scale * distribution.look_up(self._held) > self._ceilings
        self._held, self._ceilings = self._held[binding], self._ceilings[binding]

    def rescale(self, factor: float) -> None:
        """Clients came or left, and everybody's probability was multiplied by ``factor``: ceilings too."""
        self._ceilings = np.minimum(factor * self._ceilings, 1.0)

    def _all_ceilings(self, distribution: Distribution) -> tuple[IntArray, FloatArray]:
        """Whose probability is limited, ascending, and by what: their rise, or the outliers' share."""
        crowd = self._outliers
        if not len(crowd) or self.guard.outliers_share == 1.0 or self._few_outlying_replies():
            return self._held, self._ceilings
        p = distribution.look_up(crowd)
        together = float(p.sum())
        if together <= self.guard.outliers_share:
            return self._held, self._ceilings
        share = max(self.guard.outliers_share, self.bounds.expected_share, float(self._outlier_weights.sum()))
        if together <= share:
            return self._held, self._ceilings
        ceilings = levelled(p, self._outlier_weights, share)
        if not len(self._held):
            return crowd, ceilings
        everybody = np.union1d(self._held, crowd)
        limits = np.full(len(everybody), np.inf)
        limits[np.searchsorted(everybody, self._held)] = self._ceilings
        places = np.searchsorted(everybody, crowd)
        limits[places] = np.minimum(limits[places], ceilings)
        return everybody, limits

    def _few_outlying_replies(self) -> bool:
        """Whether many outliers made up for few of the last replies, so that they need not be summed up."""
        if len(self._outliers) <= MANY:
            return False
        return bool(np.mean(self._logs > self.bounds.outlier) < 0.5 * self.guard.outliers_share)

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that the guard remembers."""
        return {
            "guard.logs": self._logs.copy(),
            "guard.weights": self._weights.copy(),
            "guard.suspects": np.array(list(self._hits), dtype=np.int64),
            "guard.hits": np.array([hits for hits, _ in self._hits.values()], dtype=np.int64),
            "guard.excesses": np.array([worst for _, worst in self._hits.values()], dtype=np.float64),
            "guard.outliers": self._outliers.copy(),
            "guard.outlier_weights": self._outlier_weights.copy(),
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
        watch._outliers = array(state, "guard.outliers", np.int64, (None,))
        watch._outlier_weights = array(state, "guard.outlier_weights", np.float64, (len(watch._outliers),))
        watch._held = array(state, "guard.held", np.int64, (None,))
        watch._ceilings = array(state, "guard.ceilings", np.float64, (len(watch._held),))
        return watch


def among(clients: IntArray, ascending: IntArray) -> BoolArray:
    """Which of ``clients`` are in ``ascending``.

    >>> among(np.array([4, 1]), np.array([1, 2])).tolist()
    [False, True]
    """
    if not len(ascending):
        return np.zeros(len(clients), dtype=bool)
    places = np.minimum(np.searchsorted(ascending, clients), len(ascending) - 1)
    return np.asarray(ascending[places] == clients)
