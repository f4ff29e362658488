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


class Trial:
    """The replies of the first cohorts, as they came."""

    def __init__(self) -> None:
        self._replies: Replies = []

    def take(self, cohort: Cohort, norms: FloatArray) -> None:
        """Keep what a cohort replied."""
        self._replies.append((cohort, norms.copy()))

    def end(self) -> Replies:
        """All that was taken, once."""
        replies, self._replies = self._replies, []
        return replies

    def state(self) -> dict[str, Any]:
        """All that was taken."""
        cohorts = [cohort for cohort, _ in self._replies]
        sizes = [(cohort.round_index, cohort.cohort_size, len(cohort)) for cohort in cohorts]
        return {
            "trial.sizes": np.array(sizes, dtype=np.int64).reshape(-1, 3),
            "trial.drawn": _joined([(c.clients, c.counts) for c in cohorts]).astype(np.int64),
            "trial.told": _joined([(c.probabilities, c.weights, norms) for c, norms in self._replies], 3),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Trial:
        """A trial with the memory of ``state``."""
        trial = cls()
        sizes = array(state, "trial.sizes", np.int64, (None, 3))
        drawn = array(state, "trial.drawn", np.int64, (2, None))
        told = array(state, "trial.told", np.float64, (3, drawn.shape[1]))
        check("trial.told", told, (told >= 0.0) & np.isfinite(told), "finite and not negative")
        if sizes[:, 2].sum() != drawn.shape[1] or (sizes < 0).any() or (drawn < 0).any():
            raise StateError("state must hold 'trial.sizes' and 'trial.drawn' that agree, got others")
        start = 0
        for round_index, cohort_size, length in sizes.tolist():
            part = slice(start, start + length)
            clients, counts = drawn[:, part]
            probabilities, weights, norms = told[:, part]
            trial.take(Cohort(round_index, cohort_size, clients, counts, probabilities, weights), norms)
            start += length
        return trial


def _joined(rows: list[Any], width: int = 2) -> FloatArray:
    """One array of so many rows, cohort after cohort."""
    return np.concatenate([np.zeros((width, 0)), *(np.array(row, dtype=np.float64) for row in rows)], axis=1)
