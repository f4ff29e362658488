r"""Two rules against clients that lie about their norms.

``docs/research/hostile-clients.md`` derives the bounds.

*Clip.* Norms are clipped at B(``clip_factor``, ``fence``), a robust bound made from recent norms. The first
``MANY`` replies are judged together. If lies were among them, or some were of clients that have left, all are
learnt again.

*Share.* An outlier is a client with a norm above the lower bound B(``outlier_factor``, ``outlier_fence``),
until the root mean square of its norms since is below. Of what was learnt, all outliers together hold at most
``largest_gain`` times their client weight, and at most half; or what the largest clients of their weight
would hold if norms were log-normal, if that is more.

With the median :math:`Q_2` and the ninth decile :math:`Q_9` of recent norms,
:math:`B(f, e) = Q_9 \max(f, (Q_9 / Q_2)^e)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import StateError
from sortition.core.guard_settings import LARGEST_LOG, Guard, Hits, Suspect, hits_in, suspects_of
from sortition.core.state import array, check, count
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.engine import norm_window
from sortition.engine.capped import limited
from sortition.engine.clients import PriorMasses, Roster
from sortition.engine.drawing import Distribution
from sortition.engine.norm_window import (
    BEFORE,
    CLIENT,
    CLIP,
    DEVIATION,
    LOG,
    NORMAL_DECILE,
    OUTLIER,
    RATE,
    REMEMBERED,
    SIZE,
)

LOWEST_LOG = math.log(np.nextafter(0.0, 1.0))
MOST = 0.5
"""What ``largest_gain`` lets all outliers together hold at most."""
NORMAL = NormalDist()
MANY = 50
"""So many first replies are judged together; with fewer norms, updates are bounded by the median."""
MOST_REPLIES = 2**62

Shares = tuple[IntArray, FloatArray, float, IntArray]
"""Clients, ascending, their weights, what they may hold together, and hints for their look-up."""
NOBODY: Shares = (np.zeros(0, dtype=np.int64), np.zeros(0), 1.0, np.zeros(0, dtype=np.int64))
Replies = list[tuple[Cohort, FloatArray]]
"""Cohorts and the norms of the clients that replied; or those that did not, with nan."""


def among(clients: IntArray, ascending: IntArray) -> BoolArray:
    """Which of ``clients`` are in ``ascending``.

    >>> among(np.array([4, 1]), np.array([1, 2])).tolist()
    [False, True]
    """
    if not len(ascending):
        return np.zeros(len(clients), dtype=bool)
    places = np.minimum(np.searchsorted(ascending, clients), len(ascending) - 1)
    return np.asarray(ascending[places] == clients)


class GuardState:
    """What the guard of one sampler remembers: recent norms, the outliers and the suspects."""

    def __init__(self, guard: Guard, num_clients: int) -> None:
        self.guard, self._initial_clients = guard, num_clients
        logs = (math.log(guard.outlier_factor), guard.outlier_fence, math.log(guard.clip_factor), guard.fence)
        self._factors = np.array(logs)
        self._set_window(0, 0, np.zeros((2, REMEMBERED), dtype=np.int64), np.zeros((2, REMEMBERED)))
        self._outliers = np.zeros(0, dtype=np.int64)  # ascending
        self._means = np.zeros(0)  # the logarithm of the root mean square of each one's norms since it is one
        self._counts = np.zeros(0, dtype=np.int64)  # how many these are
        self._hints = np.zeros(0, dtype=np.int64)  # for their look-up
        self._hinted: Distribution | None = None  # in this distribution
        self._weighed: tuple[PriorMasses, IntArray, FloatArray, float, IntArray] | None = None
        self._share: float | None = None  # that of the outliers as they were weighed, by the present bounds
        self._hits: Hits = {}
        self._first: Replies = []  # too few to judge by
        self._dropped = False  # whether some of them were of clients that have left since
        self._begun = False

    def _set_window(self, size: int, replies: int, entries: IntArray, values: FloatArray) -> None:
        self._counters, self._bounds = np.array([size, replies]), np.empty(3)
        self._window = (entries, values, self._counters, self._factors, self._bounds)
        norm_window.judge(*self._window)

    @property
    def norm_bound(self) -> float:
        """Larger norms are clipped; inf before there is a norm above zero.

        With few norms it is at most ``clip_factor`` times their median: it must be safe for updates, too, and
        a few liars can then be a tenth of all.
        """
        return _norm_bound(self._window)

    def norm_bound_with(self, cohort: Cohort, norms: FloatArray) -> float:
        """``norm_bound`` after these replies were judged; nothing is remembered."""
        entries, values, counters, factors, bounds = self._window
        window = entries.copy(), values.copy(), counters.copy(), factors, bounds.copy()
        outliers = self._outliers, self._means.copy(), self._counts.copy()
        norm_window.remember(*window, cohort.clients, cohort.counts, cohort.weights, norms, *outliers)
        return _norm_bound(window)

    @property
    def outlier_bound(self) -> float:
        """Clients with larger norms are outliers; inf before there is a norm above zero."""
        return math.exp(min(self._bounds[OUTLIER], LARGEST_LOG)) if self._counters[SIZE] else math.inf

    def judge(self, cohort: Cohort, norms: FloatArray) -> tuple[bool, Replies]:
        """What to learn now, clipped, and whether to forget all before; outliers and suspects are remembered.

        The first replies are too few to judge by. They are learnt as they are, and kept. Once there are
        enough, they are judged; if lies were among them, or some were of clients that have
        left, all are learnt again, clipped.
        """
        before, self._share = self._outliers, None
        anybody, others = norm_window.remember(
            *self._window,
            cohort.clients,
            cohort.counts,
            cohort.weights,
            norms,
            before,
            self._means,
            self._counts,
        )
        if others:
            self._outliers, self._means, self._counts, self._hints = norm_window.note_outliers(
                *self._window, cohort.clients, norms, before, self._means, self._counts, self._hints
            )
            self._weighed = None
        if self._begun:
            return False, [(cohort, self._clipped(cohort.clients, norms, before) if anybody else norms)]
        self._first.append((cohort, norms.copy()))
        if sum(np.count_nonzero(~np.isnan(told)) for _, told in self._first) < MANY:
            return False, [(cohort, norms)]
        first, self._first, self._begun = self._first, [], True
        judged = [(one, self._clipped(one.clients, told, before)) for one, told in first if len(told)]
        return (True, judged) if self._hits or self._dropped else (False, [(cohort, norms)])

    def keep_silent(self, cohort: Cohort, silent: BoolArray) -> None:
        """Keep who did not reply among the first replies, in case these are learnt again."""
        if not self._begun and silent.any():
            self._first.append((cohort.only(silent), np.full(np.count_nonzero(silent), np.nan)))

    def _clipped(self, clients: IntArray, norms: FloatArray, before: IntArray) -> FloatArray:
        """The norms, clipped; ``before`` are the clients that were outliers before this cohort.

        A newcomer that is none counts for an outlier's bound at most: otherwise clients that come back under
        other names would set what is expected of newcomers.
        """
        outlier, clip, _ = self._bounds.tolist()
        outlier, clip = math.exp(min(outlier, LARGEST_LOG)), math.exp(min(clip, LARGEST_LOG))
        if norm_window.all_below(clients, self._initial_clients, norms, clip):
            return norms
        for i in np.flatnonzero(norms > clip).tolist():
            hits, worst = self._hits.get(int(clients[i]), (0, 0.0))
            self._hits[int(clients[i])] = (hits + 1, max(worst, math.log(norms[i]) - math.log(clip)))
        clipped = np.minimum(norms, clip)
        new = clients >= self._initial_clients
        if new.any():
            new &= ~among(clients, before)
            clipped[new] = np.minimum(norms[new], outlier)
        return clipped

    def clip_alone(self, norms: FloatArray) -> FloatArray:
        """``norms``, clipped by their own bound; nothing is remembered."""
        logs = np.sort(np.log(norms[norms > 0.0]))
        if not len(logs):
            return norms
        bounds = np.empty(3)
        norm_window.bounds_of(logs, np.ones(len(logs)), self._factors, bounds)
        return np.minimum(norms, math.exp(min(bounds[CLIP], LARGEST_LOG)))

    def limited(self, distribution: Distribution, client_weights: Roster) -> Distribution:
        """``distribution`` with no more for the outliers than their share; itself, if they hold no more."""
        outliers, weights, share, hints = self.shares(distribution, client_weights)
        return limited(distribution, outliers, weights, share, hints) if share < 1.0 else distribution

    def shares(self, distribution: Distribution, client_weights: Roster) -> Shares:
        """What the outliers may hold of what was learnt; nobody, with a share of 1, if that is all of it."""
        if not len(self._outliers):
            return NOBODY
        if distribution is not self._hinted:
            self._hints, self._hinted, self._weighed = np.full(len(self._outliers), -1), distribution, None
        if self._weighed is None or self._weighed[0] is not client_weights.arrays:
            self._weighed = (client_weights.arrays, *self._weigh_outliers(client_weights))
            self._share = None
        _, outliers, weights, weight, hints = self._weighed
        if self._share is None:
            self._share = self.largest_share(weight)
        share = self._share
        return (outliers, weights, share, hints) if 0.0 < share < 1.0 else NOBODY

    def _weigh_outliers(self, client_weights: Roster) -> tuple[IntArray, FloatArray, float, IntArray]:
        """The outliers with a weight, their weights and the sum of these, and hints for their look-up."""
        outliers, hints, weights = self._outliers, self._hints, client_weights.shares(self._outliers)
        if not weights.all():  # nothing is learnt of clients without a weight
            counting = weights > 0.0
            outliers, hints, weights = outliers[counting], hints[counting], weights[counting]
        return outliers, weights, float(weights.sum()), hints

    def largest_share(self, weight: float) -> float:
        """S(c): what outliers of this client weight may hold of what was learnt."""
        if not 0.0 < weight < 1.0:
            return weight
        deviation = max(self._bounds[DEVIATION], NORMAL_DECILE)
        largest = NORMAL.cdf(NORMAL.inv_cdf(weight) + deviation)
        return max(largest, min(MOST, self.guard.largest_gain * weight))

    def suspects(self) -> list[Suspect]:
        """The clients whose norms were clipped, the most frequent first."""
        return suspects_of(self._hits)

    def forget(self, clients: IntArray) -> None:
        """``clients`` (ascending) have left; what was learnt of their norms is dropped."""
        norm_window.forget(*self._window, clients)
        self._weighed = self._share = None
        here = ~among(self._outliers, clients)
        self._outliers, self._means = self._outliers[here], self._means[here]
        self._counts, self._hints = self._counts[here], self._hints[here]
        stay = [~among(cohort.clients, clients) for cohort, _ in self._first]
        self._dropped = self._dropped or not all(which.all() for which in stay)
        self._first = [
            (c.only(which), told[which]) for (c, told), which in zip(self._first, stay, strict=True)
        ]

    def clients(self) -> IntArray:
        """All whose norms it remembers; some more than once."""
        remembered = self._window[0][CLIENT, : self._counters[SIZE]]
        return np.concatenate([remembered, self._outliers, *(cohort.clients for cohort, _ in self._first)])

    def state(self) -> dict[str, Any]:
        """All that the guard remembers."""
        entries, values, (size, replies), _, _ = self._window
        cohorts = [cohort for cohort, _ in self._first]
        sizes = [(cohort.round_index, cohort.cohort_size, len(cohort)) for cohort in cohorts]
        drawn = [np.stack((cohort.clients, cohort.counts)) for cohort in cohorts]
        told = [np.stack((c.probabilities, c.weights, norms)) for c, norms in self._first]
        return {
            "guard.begun": int(self._begun),
            "guard.dropped": int(self._dropped),
            "guard.first_sizes": np.array(sizes, dtype=np.int64).reshape(-1, 3),
            "guard.first_drawn": np.concatenate([np.zeros((2, 0), dtype=np.int64), *drawn], axis=1),
            "guard.first_told": np.concatenate([np.zeros((3, 0)), *told], axis=1),
            "guard.clients": entries[CLIENT, :size].copy(),
            "guard.before": entries[BEFORE, :size].copy(),
            "guard.logs": values[LOG, :size].copy(),
            "guard.rates": values[RATE, :size].copy(),
            "guard.replies": int(replies),
            "guard.outliers": self._outliers.copy(),
            "guard.means": self._means.copy(),
            "guard.counts": self._counts.copy(),
            "guard.suspects": np.array(list(self._hits), dtype=np.int64),
            "guard.hits": np.array([hits for hits, _ in self._hits.values()], dtype=np.int64),
            "guard.excesses": np.array([worst for _, worst in self._hits.values()], dtype=np.float64),
        }

    def restored(self, state: Mapping[str, Any], ids: int) -> GuardState:
        """The guard's memory out of ``state``, from a sampler with ``ids`` client ids."""
        guard, replies = GuardState(self.guard, self._initial_clients), count(state, "guard.replies")
        if replies > MOST_REPLIES:
            raise StateError(f"state has 'guard.replies' = {replies}; at most {MOST_REPLIES} are possible")
        clients = array(state, "guard.clients", np.int64, (None,))
        size = len(clients)
        if size > REMEMBERED or len(np.unique(clients)) < size or np.any((clients < 0) | (clients >= ids)):
            raise StateError(
                f"state has 'guard.clients' that do not exist, one of them twice, or more than {REMEMBERED}"
            )
        before = array(state, "guard.before", np.int64, (size,))
        logs, rates = (array(state, f"guard.{name}", np.float64, (size,)) for name in ("logs", "rates"))
        check("guard.before", before, (before >= 0) & (before < replies), f"from 0 to {replies - 1}")
        ascending = np.diff(logs, prepend=-math.inf) >= 0.0
        check(
            "guard.logs", logs, ascending & (np.abs(logs) <= -LOWEST_LOG), "ascending logarithms of doubles"
        )
        check("guard.rates", rates, (rates > 0.0) & np.isfinite(rates), "finite and above 0")
        entries, values = guard._window[:2]
        entries[:, :size], values[:, :size] = (clients, before), (logs, rates)
        guard._set_window(size, replies, entries, values)
        guard._outliers = outliers = array(state, "guard.outliers", np.int64, (None,))
        guard._means = array(state, "guard.means", np.float64, (len(outliers),)).copy()
        guard._counts = array(state, "guard.counts", np.int64, (len(outliers),)).copy()
        guard._hints = np.full(len(outliers), -1)
        right = (outliers >= 0) & (outliers < ids) & (np.diff(outliers, prepend=-1) > 0)
        check("guard.outliers", outliers, right, f"ascending, from 0 to {ids - 1}")
        check("guard.means", guard._means, np.abs(guard._means) <= -LOWEST_LOG, "logarithms of doubles")
        right = (guard._counts > 0) & (guard._counts <= MOST_REPLIES)
        check("guard.counts", guard._counts, right, f"from 1 to {MOST_REPLIES}")
        guard._hits = hits_in(state)
        guard._begun = count(state, "guard.begun") > 0
        guard._dropped = count(state, "guard.dropped") > 0
        guard._first = _first_replies(state, ids)
        return guard


def _norm_bound(window: tuple[IntArray, FloatArray, IntArray, FloatArray, FloatArray]) -> float:
    _, values, (size, _), factors, bounds = window
    if not size:
        return math.inf
    median = values[LOG, (size - 1) // 2] if size < MANY else math.inf
    return math.exp(min(bounds[CLIP], median + factors[2], LARGEST_LOG))


def _first_replies(state: Mapping[str, Any], ids: int) -> Replies:
    """The first replies of ``state``."""
    sizes = array(state, "guard.first_sizes", np.int64, (None, 3))
    drawn = array(state, "guard.first_drawn", np.int64, (2, None))
    told = array(state, "guard.first_told", np.float64, (3, drawn.shape[1]))
    check("guard.first_sizes", sizes, sizes >= (0, 1, 0), "not negative")
    if sizes[:, 2].sum() != drawn.shape[1]:
        raise StateError("state has 'guard.first_sizes' that disagree with 'guard.first_drawn'")
    check("guard.first_drawn", drawn, drawn >= ((0,), (1,)), "ids, and counts above 0")
    check("guard.first_drawn", drawn[0], drawn[0] < ids, f"from 0 to {ids - 1}")
    right = ((told >= 0.0) & np.isfinite(told)) | np.isnan(told)
    check("guard.first_told", told, right, "finite and not negative, or nan for no reply")
    check("guard.first_told", told[:2], told[:2] > 0.0, "above 0 (norms may be 0)")
    parts = np.split(np.arange(drawn.shape[1]), np.cumsum(sizes[:, 2])[:-1]) if len(sizes) else []
    return [
        (Cohort(int(t), int(size), *drawn[:, part], *told[:2, part]), told[2, part])
        for (t, size, _), part in zip(sizes, parts, strict=True)
    ]
