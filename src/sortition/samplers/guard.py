r"""Two rules against clients that lie about their norms.

``docs/research/hostile-clients.md`` derives the bounds.

*Clip.* Norms are clipped at B(``clip_factor``, ``fence``), a robust bound made from recent norms, and updates
at the lower B(``update_factor``, 1), ``norm_bound``. The first ``MANY`` replies are judged together. If lies
were among them, or clients have left, all are learnt again.

*Share.* An outlier is a client with a norm above the lower bound B(``outlier_factor``, ``outlier_fence``),
until the root mean square of its norms since is below. Of what was learnt, outliers together hold at most
``largest_gain`` times their client weight, and at most half; or what the largest clients of their weight
would hold if norms were log-normal, if that is more (``engine.limit``).

With the median :math:`Q_2` and the ninth decile :math:`Q_9` of recent norms,
:math:`B(f, e) = Q_9 \max(f, (Q_9 / Q_2)^e)`. The norms that are remembered follow what all norms do
(``norm_window._take_out``), so that old ones do not set the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import StateError
from sortition.core.guard_settings import LARGEST_LOG, Guard, Hits, Suspect, hits_in, suspects_of
from sortition.core.state import array, check, count, number
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.engine import norm_window
from sortition.engine.capped import limited
from sortition.engine.clients import PriorMasses, Roster
from sortition.engine.drawing import Distribution
from sortition.engine.limit import share_of
from sortition.engine.norm_window import (
    BOUNDS,
    ENTRY,
    LARGEST_TREND,
    MANY,
    NORMAL_DECILE,
    OUTLIER,
)

LOWEST_LOG = math.log(np.nextafter(0.0, 1.0))
MOST_REPLIES = 2**62

Shares = tuple[IntArray, FloatArray, float, float]
"""Clients, ascending, their weights, and the gain and the deviation that say what they may hold."""
NOBODY: Shares = (np.zeros(0, dtype=np.int64), np.zeros(0), 1.0, 0.0)
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
        self._bounds = np.zeros(1, dtype=BOUNDS)
        self._bounds["newcomers"] = num_clients
        for name in norm_window.SETTINGS:
            value = getattr(guard, name)
            self._bounds[name] = math.log(value) if name.endswith("factor") else value
        self._window: Any = np.zeros(0, dtype=ENTRY)
        norm_window.judge_window(self._bounds, self._window)
        self._outliers: Any = np.zeros(0, dtype=OUTLIER)
        self._weighed: tuple[PriorMasses, IntArray, FloatArray] | None = None
        self._hits: Hits = {}
        self._first: Replies = []  # too few to judge by
        self._left = False  # whether clients have left
        self._begun = False

    @property
    def norm_bound(self) -> float:
        """The norm that an update may have; inf before there is a norm above zero."""
        return _exp(self._bounds["update"][0])

    def norm_bound_with(self, cohort: Cohort, norms: FloatArray) -> float:
        """``norm_bound`` after these replies were judged; nothing is remembered."""
        bounds = self._bounds.copy()
        self._remember(bounds, self._outliers.copy(), cohort, norms)
        return _exp(bounds["update"][0])

    @property
    def outlier_bound(self) -> float:
        """Clients with larger norms are outliers; inf before there is a norm above zero."""
        return _exp(self._bounds["outlier"][0])

    @property
    def outliers(self) -> IntArray:
        """The clients that are outliers, ascending."""
        return np.ascontiguousarray(self._outliers["client"])

    def _remember(
        self, bounds: Any, outliers: Any, cohort: Cohort, norms: FloatArray
    ) -> tuple[Any, Any, bool, bool]:
        found: tuple[Any, Any, bool, bool] = norm_window.remember(
            bounds, self._window, outliers, cohort.clients, cohort.counts, cohort.weights, norms
        )
        return found

    def judge(self, cohort: Cohort, norms: FloatArray) -> tuple[bool, Replies]:
        """What to learn now, clipped, and whether to forget all before; outliers and suspects are remembered.

        The first replies are too few to judge by. They are learnt as they are, and kept. Once there are
        enough, they are judged; if lies were among them, or clients have left, all are learnt again, clipped.
        """
        before = self._outliers
        self._window, self._outliers, others, clip = self._remember(self._bounds, before, cohort, norms)
        if others:
            self._weighed = None
        if self._begun:
            return False, [(cohort, self._clipped(cohort.clients, norms, before) if clip else norms)]
        self._first.append((cohort, norms.copy()))
        if sum(np.count_nonzero(~np.isnan(told)) for _, told in self._first) < MANY:
            return False, [(cohort, norms)]
        first, self._first, self._begun = self._first, [], True
        judged = [(one, self._clipped(one.clients, told, before)) for one, told in first if len(told)]
        return (True, judged) if self._hits or self._left else (False, [(cohort, norms)])

    def keep_silent(self, cohort: Cohort, silent: BoolArray) -> None:
        """Keep who did not reply among the first replies, in case these are learnt again."""
        if not self._begun and silent.any():
            self._first.append((cohort.only(silent), np.full(np.count_nonzero(silent), np.nan)))

    def _clipped(self, clients: IntArray, norms: FloatArray, before: Any) -> FloatArray:
        """The norms, clipped; ``before`` are the outliers before this cohort.

        A newcomer that was no outlier counts for the outliers' bound at most: otherwise clients that come
        back under other names would set what is expected of newcomers.
        """
        clip = _exp(self._bounds["clip"][0])
        for i in np.flatnonzero(norms > clip).tolist():
            hits, worst = self._hits.get(int(clients[i]), (0, 0.0))
            self._hits[int(clients[i])] = (hits + 1, max(worst, math.log(norms[i]) - math.log(clip)))
        new = (clients >= self._initial_clients) & ~among(clients, before["client"])
        return np.minimum(norms, np.where(new, self.outlier_bound, clip))

    def clip_alone(self, norms: FloatArray) -> FloatArray:
        """``norms``, clipped by their own bound; nothing is remembered."""
        bounds, above_zero = self._bounds.copy(), norms[norms > 0.0]
        if len(above_zero):
            norm_window.judge(bounds, np.sort(np.log(above_zero)), np.ones(len(above_zero)))
        return np.minimum(norms, _exp(bounds["clip"][0])) if len(above_zero) else norms

    def limited(self, distribution: Distribution, client_weights: Roster) -> Distribution:
        """``distribution`` with no more for the outliers than their share; itself, if they hold no more."""
        shares = self.shares(client_weights)
        return limited(distribution, *shares) if len(shares[0]) else distribution

    def shares(self, client_weights: Roster) -> Shares:
        """The outliers, and what they may hold of what was learnt."""
        if not len(self._outliers):
            return NOBODY
        if self._weighed is None or self._weighed[0] is not client_weights.arrays:
            outliers, weights = self.outliers, client_weights.shares(self.outliers)
            counting = weights > 0.0  # nothing is learnt of clients without a weight
            outliers, weights = outliers[counting], weights[counting]
            self._weighed = (client_weights.arrays, outliers, weights)
        _, outliers, weights = self._weighed
        return outliers, weights, self.guard.largest_gain, self._deviation

    @property
    def _deviation(self) -> float:
        return max(float(self._bounds["deviation"][0]), NORMAL_DECILE)

    def largest_share(self, weight: float) -> float:
        """S(c): what outliers of this client weight may hold of what was learnt."""
        return share_of(weight, self.guard.largest_gain, self._deviation)

    def suspects(self) -> list[Suspect]:
        """The clients whose norms were clipped, the most frequent first."""
        return suspects_of(self._hits)

    def forget(self, clients: IntArray) -> None:
        """``clients`` (ascending) have left; what was learnt of their norms is dropped."""
        self._window = self._window[~among(self._window["client"], clients)]
        norm_window.judge_window(self._bounds, self._window)
        self._outliers = self._outliers[~among(self._outliers["client"], clients)]
        self._weighed, self._left = None, True
        here = [~among(cohort.clients, clients) for cohort, _ in self._first]
        self._first = [
            (c.only(which), told[which]) for (c, told), which in zip(self._first, here, strict=True)
        ]

    def clients(self) -> IntArray:
        """All whose norms it remembers; some more than once."""
        first = (cohort.clients for cohort, _ in self._first)
        return np.concatenate([self._window["client"], self.outliers, *first])

    def state(self) -> dict[str, Any]:
        """All that the guard remembers."""
        cohorts = [cohort for cohort, _ in self._first]
        sizes = [(cohort.round_index, cohort.cohort_size, len(cohort)) for cohort in cohorts]
        drawn = [np.stack((cohort.clients, cohort.counts)) for cohort in cohorts]
        told = [np.stack((c.probabilities, c.weights, norms)) for c, norms in self._first]
        return {
            "guard.begun": int(self._begun),
            "guard.left": int(self._left),
            "guard.first_sizes": np.array(sizes, dtype=np.int64).reshape(-1, 3),
            "guard.first_drawn": np.concatenate([np.zeros((2, 0), dtype=np.int64), *drawn], axis=1),
            "guard.first_told": np.concatenate([np.zeros((3, 0)), *told], axis=1),
            "guard.replies": int(self._bounds["replies"][0]),
            "guard.trend": float(self._bounds["trend"][0]),
            **{f"guard.window_{name}": self._window[name].copy() for name in ENTRY.names or ()},
            **{f"guard.outlier_{name}": self._outliers[name].copy() for name in OUTLIER.names or ()},
            "guard.suspects": np.array(list(self._hits), dtype=np.int64),
            "guard.hits": np.array([hits for hits, _ in self._hits.values()], dtype=np.int64),
            "guard.excesses": np.array([worst for _, worst in self._hits.values()], dtype=np.float64),
        }

    def restored(self, state: Mapping[str, Any], ids: int) -> GuardState:
        """The guard's memory out of ``state``, from a sampler with ``ids`` client ids."""
        guard, replies = GuardState(self.guard, self._initial_clients), count(state, "guard.replies")
        if replies > MOST_REPLIES:
            raise StateError(f"state has 'guard.replies' = {replies}; at most {MOST_REPLIES} are possible")
        window, outliers = _records(state, "guard.window_", ENTRY), _records(state, "guard.outlier_", OUTLIER)
        clients, before, rates = window["client"], window["before"], window["rate"]
        if len(np.unique(clients)) < len(clients):
            raise StateError("state has 'guard.window_client' twice")
        check("guard.window_client", clients, (clients >= 0) & (clients < ids), f"from 0 to {ids - 1}")
        check("guard.window_before", before, (before >= 0) & (before < replies), f"from 0 to {replies - 1}")
        check("guard.window_rate", rates, (rates > 0.0) & np.isfinite(rates), "finite and above 0")
        clients, counts = outliers["client"], outliers["count"]
        right = (clients >= 0) & (clients < ids) & (np.diff(clients, prepend=-1) > 0)
        check("guard.outlier_client", clients, right, f"ascending, from 0 to {ids - 1}")
        right = (counts > 0) & (counts <= MOST_REPLIES)
        check("guard.outlier_count", counts, right, f"from 1 to {MOST_REPLIES}")
        logs, means = window["log"], outliers["log"]
        right = np.abs(logs) <= -LOWEST_LOG
        right[1:] &= logs[1:] >= logs[:-1]
        check("guard.window_log", logs, right, "ascending logarithms of doubles")
        check("guard.outlier_log", means, np.abs(means) <= -LOWEST_LOG, "logarithms of doubles")
        guard._bounds["trend"] = number(state, "guard.trend", least=-LARGEST_TREND, most=LARGEST_TREND)
        guard._bounds["replies"] = replies
        guard._window, guard._outliers = window, outliers
        norm_window.judge_window(guard._bounds, window)
        guard._hits = hits_in(state)
        suspects = np.array(list(guard._hits), dtype=np.int64)
        check("guard.suspects", suspects, (suspects >= 0) & (suspects < ids), f"from 0 to {ids - 1}")
        guard._begun = count(state, "guard.begun") > 0
        guard._left = count(state, "guard.left") > 0
        guard._first = _first_replies(state, ids)
        return guard


def _exp(log: float) -> float:
    """The norm of a logarithm; inf stays."""
    return math.exp(min(log, LARGEST_LOG)) if log < math.inf else math.inf


def _records(state: Mapping[str, Any], prefix: str, kind: np.dtype[Any]) -> Any:
    """Records out of one array for each field."""
    size = len(array(state, prefix + "client", np.int64, (None,)))
    records = np.zeros(size, dtype=kind)
    for name in kind.names or ():
        records[name] = array(state, prefix + name, kind[name].type, (size,))
    return records


def _first_replies(state: Mapping[str, Any], ids: int) -> Replies:
    """The first replies of ``state``."""
    sizes = array(state, "guard.first_sizes", np.int64, (None, 3))
    drawn = array(state, "guard.first_drawn", np.int64, (2, None))
    told = array(state, "guard.first_told", np.float64, (3, drawn.shape[1]))
    check("guard.first_sizes", sizes, sizes >= (0, 1, 0), "not negative")
    if sizes[:, 2].sum() != drawn.shape[1]:
        raise StateError("state has 'guard.first_sizes' that disagree with 'guard.first_drawn'")
    right = (drawn >= ((0,), (1,))) & (drawn <= MOST_REPLIES)
    check("guard.first_drawn", drawn, right, f"ids, and counts above 0, at most {MOST_REPLIES}")
    check("guard.first_drawn", drawn[0], drawn[0] < ids, f"from 0 to {ids - 1}")
    right = ((told >= 0.0) & np.isfinite(told)) | np.isnan(told)
    check("guard.first_told", told, right, "finite and not negative, or nan for no reply")
    check("guard.first_told", told[:2], told[:2] > 0.0, "above 0 (norms may be 0)")
    parts = np.split(np.arange(drawn.shape[1]), np.cumsum(sizes[:, 2])[:-1]) if len(sizes) else []
    return [
        (Cohort(int(t), int(size), *drawn[:, part], *told[:2, part]), told[2, part])
        for (t, size, _), part in zip(sizes, parts, strict=True)
    ]
