r"""Defences against clients that lie about their norms; ``docs/hostile-clients.md`` derives the bounds.

*Clip.* Norms are clipped at B(``clip_factor``, ``fence``), a robust bound made from recent norms
(``bounds_of``). The first ``trial_replies`` are too few to judge by. They are believed at first, and judged
once when there are more; if lies were among them, everything is learnt again with the lies clipped.

*Share.* An outlier is a client with a recent norm above the lower bound B(``outlier_factor``,
``outlier_fence``). All outliers together hold at most ``outliers_share`` of the distribution; more is allowed
only up to what they would hold if the norms were log-normal, or up to their part of all client weights. The
highest ratios of probability to weight are cut first.

*Rise.* Between two draws, a client's reports raise its probability by at most the factor ``largest_rise``.
If the reports ask for more, it rises by another such factor in each following round, heard again or not.

*Cap.* No probability exceeds ``largest_probability``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import StateError
from sortition.core.state import array, check, count, number
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import fraction, named_keywords, positive_number, whole_number
from sortition.engine.capped import Capped
from sortition.engine.clients import Roster
from sortition.engine.drawing import Distribution

FACTORS = ("clip_factor", "largest_rise", "outlier_factor")
LONGEST_TRIAL = 5000
"""Older norms are forgotten: with a longer trial the first replies would be judged by later ones."""


@dataclass(frozen=True, slots=True, repr=False)
class Guard:
    """The defences of a sampler against clients that lie about their norms.

    ``guard=None`` is the paper to the letter.

    ``Guard(outliers_share=0.2, clip_factor=20)`` leaves less to liars, and costs more where a few honest
    clients have very large norms: ``docs/hostile-clients.md`` has the figures.
    """

    clip_factor: float = 100.0
    """A norm is clipped at this multiple of the ninth decile of recent norms, or at ``fence``."""
    fence: float = 4.0
    """The same in distances of that decile from the median, in logarithms; the higher of the two counts."""
    largest_rise: float = 10.0
    """The factor by which a client's probability may rise between two draws."""
    largest_probability: float = 1.0
    """No probability exceeds this."""
    outlier_factor: float = 5.0
    """Above this multiple of the ninth decile, or ``outlier_fence``, a client is an outlier."""
    outlier_fence: float = 1.0
    """As ``fence``, for outliers."""
    outliers_share: float = 0.5
    """What all outliers together may hold of the distribution."""
    trial_replies: int = 50
    """The first replies, which are judged when there are more."""

    def __post_init__(self) -> None:
        numbers = {
            **{n: positive_number(n, getattr(self, n), above=1.0) for n in FACTORS},
            **{n: positive_number(n, getattr(self, n)) for n in ("fence", "outlier_fence")},
            **{n: fraction(n, getattr(self, n)) for n in ("largest_probability", "outliers_share")},
            "trial_replies": whole_number("trial_replies", self.trial_replies, least=0, most=LONGEST_TRIAL),
        }
        for name, value in numbers.items():
            object.__setattr__(self, name, value)  # 100 and 100.0 are one setting

    def __repr__(self) -> str:
        changed = (f.name for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Guard({', '.join(f'{name}={getattr(self, name)!r}' for name in changed)})"


Guard.__init__ = named_keywords(Guard.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A client whose norms were clipped."""

    client: int
    hits: int
    """How many of its reports were clipped."""
    largest_excess: float
    """The largest of them, as a multiple of the bound (inf where no double can hold it)."""


FEW = 20
"""With fewer norms than this the high quantile is the third quartile, otherwise the ninth decile."""
THIRD_QUARTILE = (0.75, 0.6744897501960817)
NINTH_DECILE = (0.9, 1.2815515655446004)
"""The level of the high quantile, and where the standard normal distribution has it."""
UNCERTAINTY = 1.25
"""The deviation is at most this multiple of what quantiles say: in 92% of cases with a hundred clients."""


@dataclass(frozen=True, slots=True)
class Fences:
    """The factors and the fences of the two bounds: that of outliers, and that of the clip."""

    outlier_factor: float
    outlier_fence: float
    clip_factor: float
    clip_fence: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What recent norms say; the bounds are logarithms."""

    outlier: float
    clip: float
    expected_share: float
    r"""What clients above ``outlier`` hold of the best distribution if the norms are log-normal.

    With s the deviation of their logarithms, those that exceed the median by x hold :math:`\Phi(s - x/s)`.
    """


def bounds_of(logs: FloatArray, weights: FloatArray, fences: Fences) -> Bounds:
    """The bounds by the logarithms of norms and their weights, and by the logarithms alone.

    The smaller bounds count. With weights, those of ``NormWindow``, a client that is drawn often counts no
    more than the others; but then a client that is hardly ever drawn counts for many. Neither may decide
    alone.

    >>> fences = Fences(outlier_factor=3, outlier_fence=1, clip_factor=10, clip_fence=2)
    >>> found = bounds_of(np.log(np.full(9, 2.0)), np.ones(9), fences)
    >>> round(math.exp(found.outlier), 9), round(math.exp(found.clip), 9), found.expected_share
    (6.0, 20.0, 0.0)
    """
    both = [_bounds_by(logs, by, fences) for by in (weights, np.ones(len(logs)))]
    least = min(both, key=lambda bounds: bounds.outlier)
    clip = min(bounds.clip for bounds in both)
    return Bounds(min(least.outlier, clip), clip, least.expected_share)


def all_ordinary(largest: float, logs: FloatArray, weights: FloatArray, factor: float) -> bool:
    """Whether a log-norm is at most log ``factor`` above the high quantiles: quicker than the quantiles."""
    level = level_for(len(logs))[0] * (1.0 - 1e-9)
    below = logs < largest - math.log(factor)
    return bool(np.count_nonzero(below) < level * len(logs) and weights @ below < level * weights.sum())


def level_for(count: int) -> tuple[float, float]:
    """The high quantile that ``count`` norms allow: its level, and its place in the standard normal."""
    return THIRD_QUARTILE if count < FEW else NINTH_DECILE


def median_and_quantile(values: FloatArray, weights: FloatArray, level: float) -> tuple[float, float]:
    """The smallest of ``values`` up to which there is half of the weight, and the share ``level`` of it.

    >>> median_and_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 1.0]), 0.75)
    (1.0, 2.0)
    """
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order])
    # rounding must not carry a share that is met exactly to the next value
    places = np.searchsorted(cumulated, np.array([0.5, level]) * cumulated[-1] * (1.0 - 1e-12))
    median, high = values[order[places]].tolist()
    return median, high


def levelled(p: FloatArray, weights: FloatArray, share: float) -> FloatArray:
    """``p`` with the highest ratios to ``weights`` cut down to one level, so that ``share`` is the sum.

    ``share`` must be at most the sum of ``p``, and the weights above 0.

    >>> levelled(np.array([0.4, 0.4, 0.1]), np.array([0.2, 0.4, 0.2]), share=0.6)
    array([0.16666667, 0.33333333, 0.1       ])
    """
    ratios = p / weights
    order = np.argsort(ratios)
    keeping = np.concatenate(
        ([0.0], np.cumsum(p[order])[:-1])
    )  # those before, if the level is below m's ratio
    cut = np.cumsum(weights[order][::-1])[::-1]
    levels = (share - keeping) / cut
    first = int(np.argmax(levels <= ratios[order]))
    return np.asarray(np.minimum(p, levels[first] * weights))


def among(clients: IntArray, ascending: IntArray) -> BoolArray:
    """Which of ``clients`` are in ``ascending``.

    >>> among(np.array([4, 1]), np.array([1, 2])).tolist()
    [False, True]
    """
    if not len(ascending):
        return np.zeros(len(clients), dtype=bool)
    places = np.minimum(np.searchsorted(ascending, clients), len(ascending) - 1)
    return np.asarray(ascending[places] == clients)


def _bounds_by(logs: FloatArray, weights: FloatArray, fences: Fences) -> Bounds:
    level, z = level_for(len(logs))
    median, high = median_and_quantile(logs, weights, level)
    spread = high - median
    outlier = high + max(math.log(fences.outlier_factor), fences.outlier_fence * spread)
    clip = high + max(math.log(fences.clip_factor), fences.clip_fence * spread)
    deviation = UNCERTAINTY * spread / z
    expected = 0.0
    if deviation > 0.0 and len(logs) >= FEW:  # a third quartile says too little of the tail
        expected = 0.5 * math.erfc(((outlier - median) / deviation - deviation) / math.sqrt(2.0))
    return Bounds(outlier, clip, expected)


REMEMBERED = 500
"""At most this many clients are remembered: those that replied last."""
OUTDATED = 5000
"""A client's norm is forgotten after this many more replies of others."""

LOWEST_LOG = math.log(np.nextafter(0.0, 1.0))
LARGEST_LOG = math.log(np.finfo(float).max)


class NormWindow:
    r"""The last norm of each client that replied recently, and the bounds that follow from them.

    Norms of zero say nothing about how large a norm may be, and are left out.

    If there are more clients than can be remembered, those drawn often are more likely to be in the window: a
    client that sends a reply with probability r is among the last T with about min(1, r T), and counts for
    the inverse.
    """

    def __init__(self, fences: Fences) -> None:
        self._fences = fences
        self._clients = np.zeros(0, dtype=np.int64)  # in the order of their last replies
        self._logs = np.zeros(0)  # of their norms
        self._rates = np.zeros(0)  # how likely a reply was to be theirs
        self._before = np.zeros(0, dtype=np.int64)  # reply count when each norm was stored
        self.replies = 0
        """How many replies above zero there were in all."""
        self._bounds: Bounds | None = None  # once somebody asked

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def bounds(self) -> Bounds:
        """The bounds by the norms in the window; there must be one."""
        if self._bounds is None:
            self._bounds = bounds_of(self._logs, self._weights(), self._fences)
        return self._bounds

    @property
    def norm_bound(self) -> float:
        """Larger norms are clipped; inf while the window is empty."""
        return math.exp(min(self.bounds.clip, LARGEST_LOG)) if len(self) else math.inf

    @property
    def median(self) -> float:
        """The lower median; there must be a norm."""
        return math.exp(np.sort(self._logs)[(len(self) - 1) // 2])

    @property
    def expected_share(self) -> float:
        """What outliers hold if the norms are log-normal; 0 while nothing is known."""
        return self.bounds.expected_share if len(self) else 0.0

    def remember(self, cohort: Cohort, norms: FloatArray) -> None:
        """Store the replies of a cohort."""
        above_zero = norms > 0.0
        if not above_zero.any():
            return
        clients = cohort.clients[above_zero]
        rates = cohort.counts[above_zero] / cohort.weights[above_zero] / len(clients)
        self.forget(np.sort(clients))
        outdated = int(np.searchsorted(self._before, self.replies - OUTDATED))
        self._clients = np.concatenate((self._clients, clients))
        self._logs = np.concatenate((self._logs, np.log(norms[above_zero])))
        self._rates = np.concatenate((self._rates, rates))
        self._before = np.concatenate((self._before, np.full(len(clients), self.replies)))
        self.replies += len(clients)
        self._keep(slice(max(outdated, len(self._clients) - REMEMBERED), None))

    def _keep(self, which: slice | BoolArray) -> None:
        self._clients, self._logs = self._clients[which], self._logs[which]
        self._rates, self._before = self._rates[which], self._before[which]
        self._bounds = None

    def outliers(self, cohort: Cohort, norms: FloatArray) -> IntArray:
        """The clients above the outliers' bound, ascending: of the window and of a cohort."""
        largest = max(float(norms.max()), math.exp(min(self._logs.max(initial=-math.inf), LARGEST_LOG)))
        factor = min(self._fences.outlier_factor, self._fences.clip_factor)
        if largest == 0.0 or all_ordinary(math.log(largest), self._logs, self._weights(), factor):
            return np.zeros(0, dtype=np.int64)
        above = norms > math.exp(min(self.bounds.outlier, LARGEST_LOG))
        return np.union1d(cohort.clients[above], self._clients[self._logs > self.bounds.outlier])

    def forget(self, clients: IntArray) -> None:
        """Drop the norms of ``clients`` (ascending)."""
        self._keep(~among(self._clients, clients))

    def _weights(self) -> FloatArray:
        span = self.replies - int(self._before[0])
        return np.asarray(1.0 / np.minimum(span * self._rates, 1.0))

    def state(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "guard.clients": self._clients.copy(),
            "guard.logs": self._logs.copy(),
            "guard.rates": self._rates.copy(),
            "guard.before": self._before.copy(),
            "guard.replies": self.replies,
        }

    def restored(self, state: Mapping[str, Any]) -> NormWindow:
        """A window with the content of ``state``."""
        window = NormWindow(self._fences)
        window._clients = array(state, "guard.clients", np.int64, (None,))
        shape = (len(window._clients),)
        window._logs = array(state, "guard.logs", np.float64, shape)
        window._rates = array(state, "guard.rates", np.float64, shape)
        window._before = array(state, "guard.before", np.int64, shape)
        window.replies = count(state, "guard.replies")
        logs, before, clients = window._logs, window._before, window._clients
        check("guard.logs", logs, np.abs(logs) <= -LOWEST_LOG, "logarithms of doubles")
        in_order = (np.diff(before, prepend=0) >= 0) & (before < window.replies)
        check("guard.before", before, in_order, f"ascending and below {window.replies}")
        if len(np.unique(clients)) < len(clients) or (clients < 0).any():
            raise StateError("state has 'guard.clients' that are negative, or one of them twice")
        rates = window._rates
        check("guard.rates", rates, (rates > 0.0) & np.isfinite(rates), "finite and above 0")
        return window


Replies = list[tuple[Cohort, FloatArray]]
"""Cohorts and the norms of the clients that replied."""

LONGEST = 20
"""The first replies end after this multiple of ``trial_replies``, if nearly all of them are zero."""


class FirstReplies:
    """The replies of the first cohorts, as they came, as long as no more than ``limit`` are above zero."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._replies: Replies = []
        self._heard = np.zeros(2, dtype=np.int64)  # norms so far, and those of them above zero

    @property
    def is_open(self) -> bool:
        """Whether there are too few replies to judge by."""
        heard, above_zero = self._heard.tolist()
        return bool(above_zero <= self._limit and heard <= LONGEST * self._limit)

    @property
    def above_zero(self) -> int:
        """How many norms above zero there were in all."""
        return int(self._heard[1])

    def hear(self, cohort: Cohort, norms: FloatArray) -> None:
        """Keep the replies of a cohort, unless there are enough."""
        self._heard += np.array([len(norms), np.count_nonzero(norms)])
        if self.is_open:
            self._replies.append((cohort, norms.copy()))

    def end(self) -> Replies:
        """When there are enough replies: all that were kept, once."""
        if self.is_open:
            return []
        replies, self._replies = self._replies, []
        return replies

    def state(self) -> dict[str, Any]:
        """All that is kept."""
        cohorts = [cohort for cohort, _ in self._replies]
        sizes = [(cohort.round_index, cohort.cohort_size, len(cohort)) for cohort in cohorts]
        return {
            "trial.heard": self._heard.copy(),
            "trial.sizes": np.array(sizes, dtype=np.int64).reshape(-1, 3),
            "trial.drawn": _joined([(c.clients, c.counts) for c in cohorts]).astype(np.int64),
            "trial.told": _joined([(c.probabilities, c.weights, norms) for c, norms in self._replies], 3),
        }

    def restored(self, state: Mapping[str, Any], ids: int) -> FirstReplies:
        """The first replies of ``state``, from a sampler with ``ids`` client ids."""
        replies = FirstReplies(self._limit)
        heard = array(state, "trial.heard", np.int64, (2,))
        sizes = array(state, "trial.sizes", np.int64, (None, 3))
        drawn = array(state, "trial.drawn", np.int64, (2, None))
        told = array(state, "trial.told", np.float64, (3, drawn.shape[1]))
        check("trial.told", told, (told >= 0.0) & np.isfinite(told), "finite and not negative")
        check("trial.told", told[:2], told[:2] > 0.0, "above 0 (norms may be 0)")
        check("trial.drawn", drawn[0], (drawn[0] >= 0) & (drawn[0] < ids), f"from 0 to {ids - 1}")
        check("trial.drawn", drawn[1], drawn[1] > 0, "above 0")
        check("trial.sizes", sizes, sizes >= (0, 1, 0), "not negative")
        if sizes[:, 2].sum() != drawn.shape[1]:
            raise StateError("state has 'trial.sizes' that disagree with 'trial.drawn'")
        start = 0
        for round_index, cohort_size, length in sizes.tolist():
            part = slice(start, start + length)
            clients, counts = drawn[:, part]
            probabilities, weights, norms = told[:, part]
            if len(np.unique(clients)) < length:
                raise StateError(f"state has 'trial.drawn' with a client twice in one round: {clients}")
            replies.hear(Cohort(round_index, cohort_size, clients, counts, probabilities, weights), norms)
            start += length
        kept, replies._heard = replies._heard, heard
        if not np.array_equal(kept, heard if replies.is_open else (0, 0)):
            raise StateError(f"state has {kept} replies on trial, but 'trial.heard' says {heard}")
        return replies


def _joined(rows: list[Any], width: int = 2) -> FloatArray:
    """One array with ``width`` rows, cohort after cohort."""
    return np.concatenate([np.zeros((width, 0)), *(np.array(row, dtype=np.float64) for row in rows)], axis=1)


BELIEVED = 1e18
"""A reply on trial is clipped at this multiple of the bound."""
FORGIVEN = 5
"""After this many ordinary replies in a row, an outlier is one no more."""
MANY = 1000
"""More outliers than this are not summed up at every feedback."""


class GuardState:
    """What the guard of one sampler remembers: the four rules at work."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._fences = Fences(guard.outlier_factor, guard.outlier_fence, guard.clip_factor, guard.fence)
        self._window = NormWindow(self._fences)
        self._first_replies = FirstReplies(guard.trial_replies)
        self._hits: dict[int, tuple[int, float]] = {}
        self._outliers = np.zeros(0, dtype=np.int64)  # clients whose norm was above the bound, ascending
        self._calm = np.zeros(0, dtype=np.int64)  # how often each has replied below it since
        self._outlying = 0.0  # their part of the last cohort
        self._put_off = 0  # feedbacks until many outliers are summed up again
        self._draws = 0  # rounds drawn at the last feedback
        self._limited = np.zeros(0, dtype=np.int64)  # held before the last draw or heard since, ascending
        self._limits = np.zeros(0)  # the most that they may have until the next draw
        self._held = np.zeros(0, dtype=np.int64)  # those of them that would have more
        self._ceilings = np.zeros(0)

    # The clip ----------------------------------------------------------------------------------------

    @property
    def norm_bound(self) -> float:
        """Larger norms are clipped; inf before there is a norm above zero.

        While the first replies are on trial it is at most ``clip_factor`` times the median, since a few lies
        can then be a tenth of all norms.
        """
        if self._first_replies.is_open and len(self._window):
            return min(self._window.norm_bound, self.guard.clip_factor * self._window.median)
        return self._window.norm_bound

    def clip(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        """The norms, clipped; clients above the bounds are remembered."""
        self._window.remember(cohort, norms)
        anybody = self._note_outliers(cohort, norms)
        self._first_replies.hear(cohort, norms)
        if self._first_replies.is_open:
            return np.minimum(norms, min(self._window.norm_bound * BELIEVED, np.finfo(float).max))
        return self._clipped(cohort, norms) if anybody else norms

    @property
    def on_trial(self) -> bool:
        """Whether there are too few replies to judge by."""
        return self._first_replies.is_open

    def judge_first_replies(self) -> Replies:
        """When there are enough to judge by, once: the first replies, clipped, if any was above the bound."""
        replies, bound = self._first_replies.end(), self._window.norm_bound
        if not any(np.any(norms > bound) for _, norms in replies):
            return []
        return [(cohort, self._clipped(cohort, norms)) for cohort, norms in replies]

    def _clipped(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        bound = self._window.norm_bound
        caught = norms > bound
        if not caught.any():
            return norms
        for client, norm in zip(cohort.clients[caught].tolist(), norms[caught].tolist(), strict=True):
            hits, worst = self._hits.get(client, (0, 0.0))
            self._hits[client] = (hits + 1, max(worst, math.log(norm) - math.log(bound)))
        return np.minimum(norms, bound)

    def clip_alone(self, norms: FloatArray) -> FloatArray:
        """``norms``, clipped by their own bound; nothing is remembered."""
        logs = np.log(norms[norms > 0.0])
        if not len(logs):
            return norms
        return np.minimum(
            norms, math.exp(min(bounds_of(logs, np.ones(len(logs)), self._fences).clip, LARGEST_LOG))
        )

    def _note_outliers(self, cohort: Cohort, norms: FloatArray) -> bool:
        """A client above the outliers' bound is an outlier until it was below often enough.

        Returns whether anybody is above that bound now; every client above the clip is.
        """
        found = self._window.outliers(cohort, norms)
        self._outlying = 0.0
        if not len(found) and not len(self._outliers):
            return False
        above = among(cohort.clients, found)
        self._outlying = float(above.mean())
        self._calm[among(self._outliers, np.sort(cohort.clients))] += 1
        stay = (self._calm < FORGIVEN) & ~among(self._outliers, found)
        clients = np.concatenate((self._outliers[stay], found))
        calm = np.concatenate((self._calm[stay], np.zeros(len(found), dtype=np.int64)))
        order = np.argsort(clients)
        self._outliers, self._calm = clients[order], calm[order]
        return len(found) > 0

    def suspects(self) -> list[Suspect]:
        """The clients whose norms were clipped, the most frequent first."""
        found = [
            Suspect(client, hits, math.exp(worst) if worst < LARGEST_LOG else math.inf)
            for client, (hits, worst) in self._hits.items()
        ]
        return sorted(found, key=lambda suspect: (-suspect.hits, suspect.client))

    # The ceilings ------------------------------------------------------------------------------------

    def apply_ceilings(
        self, distribution: Distribution, num_clients: int, client_weights: Roster
    ) -> Distribution:
        """``distribution`` under all ceilings; itself, if no client has one."""
        cap = max(self.guard.largest_probability, 1.0 / num_clients)
        clients, ceilings = self._all_ceilings(distribution, client_weights)
        if cap == 1.0 and not len(clients):
            return distribution
        return Capped(distribution, clients, ceilings, cap)

    def limit_rise(
        self,
        clients: IntArray,
        before: FloatArray,
        distribution: Distribution,
        num_clients: int,
        client_weights: Roster,
        draws: int,
    ) -> None:
        """Limit the rise of ``clients``, which had the probabilities ``before`` the sampler learnt from them.

        Ceilings go up with the first feedback after a draw (there were ``draws`` of them), and then stay.
        """
        self._put_off_summing_up(distribution)
        rise = self.guard.largest_rise
        if draws != self._draws:
            self._draws = draws
            self._limited, self._limits = self._held, np.minimum(rise * self._ceilings, 1.0)
        self._limit(clients, np.minimum(rise * before, 1.0))
        if not len(self._held):
            effective = self.apply_ceilings(distribution, num_clients, client_weights)
            if not np.any(effective.look_up(self._limited) > self._limits):
                return
        self._held, self._ceilings = self._limited, self._limits
        effective = self.apply_ceilings(distribution, num_clients, client_weights)
        scale = effective.scale if isinstance(effective, Capped) else 1.0
        binding = scale * distribution.look_up(self._held) > self._ceilings
        self._held, self._ceilings = self._held[binding], self._ceilings[binding]

    def rescale(self, factor: float) -> None:
        """Clients joined or left and all probabilities were multiplied by ``factor``: so are the ceilings."""
        self._ceilings = np.minimum(factor * self._ceilings, 1.0)
        self._limits = np.minimum(factor * self._limits, 1.0)

    def forget(self, clients: IntArray) -> None:
        """``clients`` (ascending) have left; drop all that is remembered of them."""
        self._window.forget(clients)
        stay = ~among(self._outliers, clients)
        self._outliers, self._calm = self._outliers[stay], self._calm[stay]
        stay = ~among(self._limited, clients)
        self._limited, self._limits = self._limited[stay], self._limits[stay]
        stay = ~among(self._held, clients)
        self._held, self._ceilings = self._held[stay], self._ceilings[stay]

    def _limit(self, clients: IntArray, limits: FloatArray) -> None:
        """Set limits; a client that has a lower one keeps it."""
        if not len(self._limited):
            order = np.argsort(clients)
            self._limited, self._limits = clients[order], limits[order]
            return
        everybody = np.concatenate((self._limited, clients))
        limits = np.concatenate((self._limits, limits))
        order = np.lexsort((limits, everybody))
        self._limited, first = np.unique(everybody[order], return_index=True)
        self._limits = limits[order][first]

    def _all_ceilings(
        self, distribution: Distribution, client_weights: Roster
    ) -> tuple[IntArray, FloatArray]:
        """The clients with a ceiling, ascending, and their ceilings: for the rise or the outliers' share."""
        outliers = self._outliers
        if not len(outliers) or self.guard.outliers_share == 1.0 or self._few_outlying_replies():
            return self._held, self._ceilings
        p = distribution.look_up(outliers)
        if float(p.sum()) <= self.guard.outliers_share:
            return self._held, self._ceilings
        weights = client_weights.shares(outliers)
        counting = weights > 0.0  # nothing is learnt of the others
        outliers, p, weights = outliers[counting], p[counting], weights[counting]
        share = max(self.guard.outliers_share, self._window.expected_share, float(weights.sum()))
        if float(p.sum()) <= share:
            return self._held, self._ceilings
        ceilings = levelled(p, weights, share)
        if not len(self._held):
            return outliers, ceilings
        everybody = np.union1d(self._held, outliers)
        limits = np.full(len(everybody), np.inf)
        limits[np.searchsorted(everybody, self._held)] = self._ceilings
        places = np.searchsorted(everybody, outliers)
        limits[places] = np.minimum(limits[places], ceilings)
        return everybody, limits

    def _few_outlying_replies(self) -> bool:
        """Whether many outliers held little at the last sum, and were a small part of the last cohort."""
        if len(self._outliers) <= MANY or not self._put_off:
            return False
        return self._outlying < 0.5 * self.guard.outliers_share

    def _put_off_summing_up(self, distribution: Distribution) -> None:
        """If n > MANY outliers hold little, they are not summed up for the next n / MANY feedbacks."""
        if self._put_off:
            self._put_off -= 1
        elif len(self._outliers) > MANY:
            together = float(distribution.look_up(self._outliers).sum())
            if together < 0.5 * self.guard.outliers_share:
                self._put_off = len(self._outliers) // MANY

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that the guard remembers."""
        return {
            **self._window.state(),
            **self._first_replies.state(),
            "guard.suspects": np.array(list(self._hits), dtype=np.int64),
            "guard.hits": np.array([hits for hits, _ in self._hits.values()], dtype=np.int64),
            "guard.excesses": np.array([worst for _, worst in self._hits.values()], dtype=np.float64),
            "guard.outliers": self._outliers.copy(),
            "guard.calm": self._calm.copy(),
            "guard.outlying": self._outlying,
            "guard.put_off": self._put_off,
            "guard.draws": self._draws,
            "guard.limited": self._limited.copy(),
            "guard.limits": self._limits.copy(),
            "guard.held": self._held.copy(),
            "guard.ceilings": self._ceilings.copy(),
        }

    def restored(self, state: Mapping[str, Any], ids: int) -> GuardState:
        """The guard's memory out of ``state``, from a sampler with ``ids`` client ids."""
        guard = GuardState(self.guard)
        guard._window = self._window.restored(state)
        guard._first_replies = self._first_replies.restored(state, ids)
        if guard._first_replies.above_zero != guard._window.replies:
            raise StateError(
                f"state has 'guard.replies' = {guard._window.replies}, but 'trial.heard' says "
                f"{guard._first_replies.above_zero}"
            )
        suspects = array(state, "guard.suspects", np.int64, (None,))
        hits = array(state, "guard.hits", np.int64, (len(suspects),))
        worst = array(state, "guard.excesses", np.float64, (len(suspects),))
        guard._hits = dict(
            zip(suspects.tolist(), zip(hits.tolist(), worst.tolist(), strict=True), strict=True)
        )
        guard._outliers = array(state, "guard.outliers", np.int64, (None,))
        guard._calm = array(state, "guard.calm", np.int64, (len(guard._outliers),))
        guard._outlying = number(state, "guard.outlying", least=0.0, most=1.0)
        guard._put_off, guard._draws = count(state, "guard.put_off"), count(state, "guard.draws")
        guard._limited = array(state, "guard.limited", np.int64, (None,))
        guard._limits = array(state, "guard.limits", np.float64, (len(guard._limited),))
        guard._held = array(state, "guard.held", np.int64, (None,))
        guard._ceilings = array(state, "guard.ceilings", np.float64, (len(guard._held),))
        for name, values in (("guard.limits", guard._limits), ("guard.ceilings", guard._ceilings)):
            check(name, values, (values >= 0.0) & (values <= 1.0), "from 0 to 1")
        for name, clients in (
            ("guard.outliers", guard._outliers),
            ("guard.limited", guard._limited),
            ("guard.held", guard._held),
        ):
            right = (np.diff(clients, prepend=-1) > 0) & (clients < ids)
            check(name, clients, right, f"ascending, from 0 to {ids - 1}")
        check("guard.hits", hits, hits > 0, "above 0")
        check("guard.excesses", worst, (worst >= 0.0) & np.isfinite(worst), "finite and not negative")
        check("guard.calm", guard._calm, (guard._calm >= 0) & (guard._calm < FORGIVEN), f"below {FORGIVEN}")
        return guard
