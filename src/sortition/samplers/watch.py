"""A guard at work: what it has seen of late, whom it caught, and whom it holds down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import StateError
from sortition.core.state import array, check, count, number
from sortition.core.types import FloatArray, IntArray
from sortition.engine.capped import Capped
from sortition.engine.drawing import Distribution
from sortition.samplers.guard import Guard, Suspect
from sortition.samplers.outliers import Fences, among, bounds_of, levelled
from sortition.samplers.trial import Replies, Trial
from sortition.samplers.yardstick import LARGEST_LOG, Yardstick

WeightsOf = Callable[[IntArray], FloatArray]
"""Tells the client weights of ids."""
BELIEVED = 1e18
"""A reply on trial counts for at most so many times the bound."""
FORGIVEN = 5
"""After so many replies in a row that are not, a client is no outlier any more."""
MANY = 1000
"""More outliers than this are not summed up at every feedback."""


class Watch:
    """The defences of ``guard.py``, for one sampler."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._fences = Fences(guard.outlier_factor, guard.outlier_fence, guard.clip_factor, guard.fence)
        self._yardstick = Yardstick(self._fences)
        self._trial = Trial(guard.trial_replies)
        self._hits: dict[int, tuple[int, float]] = {}
        self._outliers = np.zeros(0, dtype=np.int64)  # clients whose norm was above the bound, ascending
        self._calm = np.zeros(0, dtype=np.int64)  # how often each has replied below it since
        self._outlying = 0.0  # such a part of the last cohort they were
        self._put_off = 0  # for so many feedbacks many outliers need not be summed up
        self._draws = 0  # so many there had been at the last feedback
        self._limited = np.zeros(0, dtype=np.int64)  # held before the last draw or heard since, ascending
        self._limits = np.zeros(0)  # what they may have until the next draw
        self._held = np.zeros(0, dtype=np.int64)  # those of them who would have more
        self._ceilings = np.zeros(0)

    # The clip ----------------------------------------------------------------------------------------

    @property
    def norm_bound(self) -> float:
        """What a norm may be; inf before there is one above zero.

        While the first replies are on trial, no more than ``clip_factor`` times the median: few of them are
        enough to be a tenth of those heard, and none would be too much for the model.
        """
        if self._trial.is_open and len(self._yardstick):
            return min(self._yardstick.norm_bound, self.guard.clip_factor * self._yardstick.median)
        return self._yardstick.norm_bound

    def clip(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        """The norms as they may count; whoever is above the bounds is remembered."""
        self._yardstick.remember(cohort, norms)
        anybody = self._note_outliers(cohort, norms)
        self._trial.hear(cohort, norms)
        if self._trial.is_open:
            return np.minimum(norms, min(self._yardstick.norm_bound * BELIEVED, np.finfo(float).max))
        return self._clipped(cohort, norms) if anybody else norms

    @property
    def on_trial(self) -> bool:
        """Whether there are too few replies to judge anybody by."""
        return self._trial.is_open

    def judge_trial(self) -> Replies:
        """When the trial is over: its replies as they may count, if any of them was a lie; else nothing."""
        replies, bound = self._trial.end(), self._yardstick.norm_bound
        if not any(np.any(norms > bound) for _, norms in replies):
            return []
        return [(cohort, self._clipped(cohort, norms)) for cohort, norms in replies]

    def _clipped(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        bound = self._yardstick.norm_bound
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

    def _note_outliers(self, cohort: Cohort, norms: FloatArray) -> bool:
        """Whoever was above the bound when last heard is an outlier, until it was below often enough.

        Says whether anybody was: whoever is above the clip is.
        """
        found = self._yardstick.outliers(cohort, norms)
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
        """The clients that hit the clip, the most frequent first."""
        found = [
            Suspect(client, hits, math.exp(worst) if worst < LARGEST_LOG else math.inf)
            for client, (hits, worst) in self._hits.items()
        ]
        return sorted(found, key=lambda suspect: (-suspect.hits, suspect.client))

    # The ceilings ------------------------------------------------------------------------------------

    def over(self, distribution: Distribution, num_clients: int, weights_of: WeightsOf) -> Distribution:
        """What to draw from instead of ``distribution``; itself, where nobody is held down."""
        cap = max(self.guard.largest_probability, 1.0 / num_clients)
        clients, ceilings = self._all_ceilings(distribution, weights_of)
        if cap == 1.0 and not len(clients):
            return distribution
        return Capped(distribution, clients, ceilings, cap)

    def hold(
        self,
        clients: IntArray,
        before: FloatArray,
        distribution: Distribution,
        num_clients: int,
        weights_of: WeightsOf,
        draws: int,
    ) -> None:
        """After ``clients``, who had the probabilities ``before``, were learnt from: limit their rise.

        Ceilings go up with the first feedback after a draw (there were ``draws`` of them), and then stay.
        """
        self._put_off_summing_up(distribution)
        rise = self.guard.largest_rise
        if draws != self._draws:
            self._draws = draws
            self._limited, self._limits = self._held, np.minimum(rise * self._ceilings, 1.0)
        self._limit(clients, np.minimum(rise * before, 1.0))
        if not len(self._held):
            shown = self.over(distribution, num_clients, weights_of)
            if not np.any(shown.look_up(self._limited) > self._limits):
                return
        self._held, self._ceilings = self._limited, self._limits
        shown = self.over(distribution, num_clients, weights_of)
        scale = shown.scale if isinstance(shown, Capped) else 1.0
        binding = scale * distribution.look_up(self._held) > self._ceilings
        self._held, self._ceilings = self._held[binding], self._ceilings[binding]

    def rescale(self, factor: float) -> None:
        """Clients came or left, and everybody's probability was multiplied by ``factor``: ceilings too."""
        self._ceilings = np.minimum(factor * self._ceilings, 1.0)
        self._limits = np.minimum(factor * self._limits, 1.0)

    def forget(self, clients: IntArray) -> None:
        """``clients`` (ascending) have left, and hold nobody down any more."""
        self._yardstick.forget(clients)
        stay = ~among(self._outliers, clients)
        self._outliers, self._calm = self._outliers[stay], self._calm[stay]
        stay = ~among(self._limited, clients)
        self._limited, self._limits = self._limited[stay], self._limits[stay]
        stay = ~among(self._held, clients)
        self._held, self._ceilings = self._held[stay], self._ceilings[stay]

    def _limit(self, clients: IntArray, limits: FloatArray) -> None:
        """Who has a limit already keeps it, if it is the lower one."""
        if not len(self._limited):
            order = np.argsort(clients)
            self._limited, self._limits = clients[order], limits[order]
            return
        everybody = np.concatenate((self._limited, clients))
        limits = np.concatenate((self._limits, limits))
        order = np.lexsort((limits, everybody))
        self._limited, first = np.unique(everybody[order], return_index=True)
        self._limits = limits[order][first]

    def _all_ceilings(self, distribution: Distribution, weights_of: WeightsOf) -> tuple[IntArray, FloatArray]:
        """Whose probability is limited, ascending, and by what: their rise, or the outliers' share."""
        crowd = self._outliers
        if not len(crowd) or self.guard.outliers_share == 1.0 or self._few_outlying_replies():
            return self._held, self._ceilings
        p = distribution.look_up(crowd)
        if float(p.sum()) <= self.guard.outliers_share:
            return self._held, self._ceilings
        weights = weights_of(crowd)
        counting = weights > 0.0  # of the others nothing is learnt
        crowd, p, weights = crowd[counting], p[counting], weights[counting]
        share = max(self.guard.outliers_share, self._yardstick.expected_share, float(weights.sum()))
        if float(p.sum()) <= share:
            return self._held, self._ceilings
        ceilings = levelled(p, weights, share)
        if not len(self._held):
            return crowd, ceilings
        everybody = np.union1d(self._held, crowd)
        limits = np.full(len(everybody), np.inf)
        limits[np.searchsorted(everybody, self._held)] = self._ceilings
        places = np.searchsorted(everybody, crowd)
        limits[places] = np.minimum(limits[places], ceilings)
        return everybody, limits

    def _few_outlying_replies(self) -> bool:
        """Whether many outliers had little at the last count, and were a small part of the last cohort."""
        if len(self._outliers) <= MANY or not self._put_off:
            return False
        return self._outlying < 0.5 * self.guard.outliers_share

    def _put_off_summing_up(self, distribution: Distribution) -> None:
        """At a feedback: if n > MANY outliers hold little, they need not be summed up for n / MANY more."""
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
            **self._yardstick.state(),
            **self._trial.state(),
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

    def restored(self, state: Mapping[str, Any], ids: int) -> Watch:
        """A watch with the memory of ``state``, of a sampler with so many ids."""
        watch = Watch(self.guard)
        watch._yardstick, watch._trial = self._yardstick.restored(state), self._trial.restored(state, ids)
        if watch._trial.above_zero != watch._yardstick.replies:
            raise StateError(
                f"state must hold 'guard.replies' that agree with 'trial.heard', {watch._trial.above_zero}, "
                f"got {watch._yardstick.replies}"
            )
        suspects = array(state, "guard.suspects", np.int64, (None,))
        hits = array(state, "guard.hits", np.int64, (len(suspects),))
        worst = array(state, "guard.excesses", np.float64, (len(suspects),))
        watch._hits = dict(
            zip(suspects.tolist(), zip(hits.tolist(), worst.tolist(), strict=True), strict=True)
        )
        watch._outliers = array(state, "guard.outliers", np.int64, (None,))
        watch._calm = array(state, "guard.calm", np.int64, (len(watch._outliers),))
        watch._outlying = number(state, "guard.outlying", least=0.0, most=1.0)
        watch._put_off, watch._draws = count(state, "guard.put_off"), count(state, "guard.draws")
        watch._limited = array(state, "guard.limited", np.int64, (None,))
        watch._limits = array(state, "guard.limits", np.float64, (len(watch._limited),))
        watch._held = array(state, "guard.held", np.int64, (None,))
        watch._ceilings = array(state, "guard.ceilings", np.float64, (len(watch._held),))
        for name, values in (("guard.limits", watch._limits), ("guard.ceilings", watch._ceilings)):
            check(name, values, (values >= 0.0) & (values <= 1.0), "from 0 to 1")
        for name, clients in (
            ("guard.outliers", watch._outliers),
            ("guard.limited", watch._limited),
            ("guard.held", watch._held),
        ):
            right = (np.diff(clients, prepend=-1) > 0) & (clients < ids)
            check(name, clients, right, f"ascending, from 0 to {ids - 1}")
        check("guard.hits", hits, hits > 0, "above 0")
        check("guard.excesses", worst, (worst >= 0.0) & np.isfinite(worst), "finite and not negative")
        check("guard.calm", watch._calm, (watch._calm >= 0) & (watch._calm < FORGIVEN), f"below {FORGIVEN}")
        return watch
