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
(``norm_window._follow``), so that old ones do not set the bounds.
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
from sortition.engine.norm_window import BOUNDS, ENTRY, LEAST_LOG, MANY, OUTLIER

MOST_REPLIES = 2**62
ABOVE_ZERO = (np.finfo(float).smallest_subnormal, np.finfo(float).max)
"""The least and the largest number that is finite and above zero."""
FIRST = np.dtype(
    [
        *((name, np.int64) for name in ("round", "size", "client", "count")),
        *((name, np.float64) for name in ("probability", "weight", "norm")),
    ]
)
"""One of the first replies: what its cohort says of it, and the norm; nan if there was none."""

Shares = tuple[IntArray, FloatArray, float, float]
"""Clients, ascending, their weights, and the gain and the deviation that say what they may hold."""
NOBODY: Shares = (np.zeros(0, dtype=np.int64), np.zeros(0), 1.0, 0.0)
Replies = list[tuple[Cohort, FloatArray]]
"""Cohorts and the norms of the clients that replied; or those that did not, with nan."""


class GuardState:
    """What the guard of one sampler remembers: recent norms, the outliers and the suspects."""

    def __init__(self, guard: Guard, num_clients: int) -> None:
        self.guard, self._least_deviation = guard, guard.least_deviation
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
        self._first: Any = np.zeros(0, dtype=FIRST)  # too few to judge by
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
        self._keep(cohort, norms)
        if np.count_nonzero(~np.isnan(self._first["norm"])) < MANY:
            return False, [(cohort, norms)]
        judged = [(one, self._clipped(one.clients, told, before)) for one, told in _replies(self._first)]
        self._first, self._begun = self._first[:0], True
        return (True, judged) if self._hits or self._left else (False, [(cohort, norms)])

    def keep_silent(self, cohort: Cohort, silent: BoolArray) -> None:
        """Keep who did not reply among the first replies, in case these are learnt again."""
        if not self._begun:
            self._keep(cohort.only(silent), np.full(np.count_nonzero(silent), np.nan))

    def _keep(self, cohort: Cohort, norms: FloatArray) -> None:
        """Put these among the first replies."""
        drawn = (cohort.clients, cohort.counts, cohort.probabilities, cohort.weights)
        told = (cohort.round_index, cohort.cohort_size, *drawn, norms)
        more = np.zeros(len(norms), dtype=FIRST)
        for name, values in zip(FIRST.names or (), told, strict=True):
            more[name] = values
        self._first = np.concatenate((self._first, more))

    def _clipped(self, clients: IntArray, norms: FloatArray, before: Any) -> FloatArray:
        """The norms, clipped; ``before`` are the outliers before this cohort.

        A newcomer that was no outlier counts for the outliers' bound at most: otherwise clients that come
        back under other names would set what is expected of newcomers.
        """
        clip = _exp(self._bounds["clip"][0])
        for i in np.flatnonzero(norms > clip).tolist():
            hits, worst = self._hits.get(int(clients[i]), (0, 0.0))
            self._hits[int(clients[i])] = (hits + 1, max(worst, math.log(norms[i]) - math.log(clip)))
        new = (clients >= self._bounds["newcomers"]) & ~np.isin(clients, before["client"])
        return np.minimum(norms, np.where(new, self.outlier_bound, clip))

    def clip_alone(self, norms: FloatArray) -> FloatArray:
        """``norms``, clipped by their own bound; nothing is remembered."""
        bounds, above_zero = self._bounds.copy(), np.sort(norms[norms > 0.0])
        norm_window.judge(bounds, np.log(above_zero), np.ones(len(above_zero)))
        return np.minimum(norms, _exp(bounds["clip"][0]))

    def limited(self, distribution: Distribution, client_weights: Roster) -> Distribution:
        """``distribution`` with no more for the outliers than their share; itself, if they hold no more."""
        shares = self.shares(client_weights)
        return limited(distribution, *shares) if len(shares[0]) else distribution

    def shares(self, client_weights: Roster) -> Shares:
        """The outliers, and what they may hold of what was learnt."""
        if not len(self._outliers):
            return NOBODY
        if self._weighed is None or self._weighed[0] is not client_weights.arrays:
            weights = client_weights.shares(self.outliers)
            counting = weights > 0.0  # nothing is learnt of clients without a weight
            self._weighed = (client_weights.arrays, self.outliers[counting], weights[counting])
        return *self._weighed[1:], self.guard.largest_gain, self._deviation

    @property
    def _deviation(self) -> float:
        return max(float(self._bounds["deviation"][0]), self._least_deviation)

    def largest_share(self, weight: float) -> float:
        """S(c): what outliers of this client weight may hold of what was learnt."""
        return share_of(weight, self.guard.largest_gain, self._deviation)

    def suspects(self) -> list[Suspect]:
        """The clients whose norms were clipped, the most frequent first."""
        return suspects_of(self._hits)

    def forget(self, clients: IntArray) -> None:
        """``clients`` have left; what was learnt of their norms is dropped."""
        self._window, self._outliers, self._first = (
            records[~np.isin(records["client"], clients)]
            for records in (self._window, self._outliers, self._first)
        )
        norm_window.judge_window(self._bounds, self._window)
        self._weighed, self._left = None, True

    def clients(self) -> IntArray:
        """All whose norms it remembers; some more than once."""
        return np.concatenate([self._window["client"], self.outliers, self._first["client"]])

    def state(self) -> dict[str, Any]:
        """All that the guard remembers."""
        kept = {"first_": self._first, "window_": self._window, "outlier_": self._outliers}
        return {
            "guard.begun": int(self._begun),
            "guard.left": int(self._left),
            "guard.replies": int(self._bounds["replies"][0]),
            "guard.trend": float(self._bounds["trend"][0]),
            **{f"guard.{kind}{name}": r[name].copy() for kind, r in kept.items() for name in r.dtype.names},
            "guard.suspects": np.array(list(self._hits), dtype=np.int64),
            "guard.hits": np.array([hits for hits, _ in self._hits.values()], dtype=np.int64),
            "guard.excesses": np.array([worst for _, worst in self._hits.values()], dtype=np.float64),
        }

    def restored(self, state: Mapping[str, Any], ids: int) -> GuardState:
        """The guard's memory out of ``state``, from a sampler with ``ids`` client ids."""
        guard, replies = GuardState(self.guard, self._bounds["newcomers"][0]), count(state, "guard.replies")
        if replies > MOST_REPLIES:
            raise StateError(f"state has 'guard.replies' = {replies}; at most {MOST_REPLIES} are possible")
        an_id, a_count, a_log = (0, ids - 1), (1, MOST_REPLIES), (LEAST_LOG, -LEAST_LOG)
        entry = (an_id, (0, replies - 1), a_log, ABOVE_ZERO)
        reply = ((0, MOST_REPLIES), a_count, an_id, a_count, ABOVE_ZERO, ABOVE_ZERO, (0.0, ABOVE_ZERO[1]))
        guard._window = _records(state, "guard.window_", ENTRY, entry)
        guard._outliers = _records(state, "guard.outlier_", OUTLIER, (an_id, a_count, a_log))
        guard._first = _records(state, "guard.first_", FIRST, reply)
        for name, records, key in (("window", guard._window, "log"), ("outlier", guard._outliers, "client")):
            if len(np.unique(records["client"])) < len(records):
                raise StateError(f"state has 'guard.{name}_client' twice")
            records[:] = records[np.argsort(records[key], kind="stable")]
        guard._bounds["replies"] = replies
        most = norm_window.LARGEST_TREND
        guard._bounds["trend"] = number(state, "guard.trend", least=-most, most=most)
        norm_window.judge_window(guard._bounds, guard._window)
        guard._hits = hits_in(state, ids)
        guard._begun, guard._left = count(state, "guard.begun") > 0, count(state, "guard.left") > 0
        return guard


def _exp(log: float) -> float:
    """The norm of a logarithm; inf stays."""
    return math.exp(min(log, LARGEST_LOG)) if log < math.inf else math.inf


def _records(state: Mapping[str, Any], prefix: str, kind: np.dtype[Any], limits: Any) -> Any:
    """Records out of one array for each field, whose numbers are within ``limits``; a norm may be nan."""
    size = len(array(state, prefix + "client", np.int64, (None,)))
    records = np.zeros(size, dtype=kind)
    for name, (least, most) in zip(kind.names or (), limits, strict=True):
        values = records[name] = array(state, prefix + name, kind[name].type, (size,))
        right = ((values >= least) & (values <= most)) | (np.isnan(values) & (name == "norm"))
        check(prefix + name, values, right, f"from {least:g} to {most:g}")
    return records


def _replies(first: Any) -> Replies:
    """The first replies by their cohorts, those of clients that were silent apart."""
    starts = np.flatnonzero(np.diff(first["round"]) | np.diff(np.isnan(first["norm"]))) + 1
    found = []
    for part in np.split(first, starts):
        drawn: Any = (part[name] for name in ("client", "count", "probability", "weight"))
        found.append((Cohort(int(part["round"][0]), int(part["size"][0]), *drawn), part["norm"]))
    return found
