"""The first replies: believed while there is too little to judge them by, and judged once there is more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import StateError
from sortition.core.state import array, check
from sortition.core.types import FloatArray

Replies = list[tuple[Cohort, FloatArray]]
"""Cohorts and the norms of those who replied."""


LONGEST = 20
"""A trial ends after so many times the replies that it needs, if nearly all of them are zero."""


class Trial:
    """The replies of the first cohorts, as they came: as long as no more than ``limit`` are above zero."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._replies: Replies = []
        self._heard = np.zeros(2, dtype=np.int64)  # norms so far, and those of them above zero

    @property
    def is_open(self) -> bool:
        """Whether there are too few replies to judge anybody by."""
        heard, above_zero = self._heard.tolist()
        return bool(above_zero <= self._limit and heard <= LONGEST * self._limit)

    @property
    def above_zero(self) -> int:
        """How many norms above zero there were, all told."""
        return int(self._heard[1])

    def hear(self, cohort: Cohort, norms: FloatArray) -> None:
        """Keep what a cohort replied, unless that is enough."""
        self._heard += np.array([len(norms), np.count_nonzero(norms)])
        if self.is_open:
            self._replies.append((cohort, norms.copy()))

    def end(self) -> Replies:
        """When the trial is over: all that was kept, once."""
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

    def restored(self, state: Mapping[str, Any], ids: int) -> Trial:
        """A trial with the memory of ``state``, of a sampler with so many ids."""
        trial = Trial(self._limit)
        heard = array(state, "trial.heard", np.int64, (2,))
        sizes = array(state, "trial.sizes", np.int64, (None, 3))
        drawn = array(state, "trial.drawn", np.int64, (2, None))
        told = array(state, "trial.told", np.float64, (3, drawn.shape[1]))
        check("trial.told", told, (told >= 0.0) & np.isfinite(told), "finite and not negative")
        check("trial.told", told[:2], told[:2] > 0.0, "above 0, but for norms")
        check("trial.drawn", drawn[0], (drawn[0] >= 0) & (drawn[0] < ids), f"from 0 to {ids - 1}")
        check("trial.drawn", drawn[1], drawn[1] > 0, "above 0, but for clients")
        check("trial.sizes", sizes, sizes >= (0, 1, 0), "not negative")
        if sizes[:, 2].sum() != drawn.shape[1]:
            raise StateError("state must hold 'trial.sizes' and 'trial.drawn' that agree, got others")
        start = 0
        for round_index, cohort_size, length in sizes.tolist():
            part = slice(start, start + length)
            clients, counts = drawn[:, part]
            probabilities, weights, norms = told[:, part]
            if len(np.unique(clients)) < length:
                raise StateError(f"state must hold 'trial.drawn', each client once a round, got {clients}")
            trial.hear(Cohort(round_index, cohort_size, clients, counts, probabilities, weights), norms)
            start += length
        kept, trial._heard = trial._heard, heard
        if not np.array_equal(kept, heard if trial.is_open else (0, 0)):
            raise StateError(
                f"state must hold all replies on trial and no others, got {kept} where {heard} were heard"
            )
        return trial


def _joined(rows: list[Any], width: int = 2) -> FloatArray:
    """One array of so many rows, cohort after cohort."""
    return np.concatenate([np.zeros((width, 0)), *(np.array(row, dtype=np.float64) for row in rows)], axis=1)
