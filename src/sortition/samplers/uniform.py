"""Everybody alike: what federations do by default."""

from __future__ import annotations

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray, IntArray
from sortition.samplers.base import BaseSampler


class UniformSampler(BaseSampler):
    r"""Draws uniformly, :math:`p_m = 1/M`, and learns nothing.

    >>> sampler = UniformSampler(num_clients=4, cohort_size=2, seed=1)
    >>> sampler.probabilities()
    array([0.25, 0.25, 0.25, 0.25])
    >>> sampler.draw().weights.sum()
    np.float64(4.0)
    """

    def _probabilities(self, clients: IntArray | None) -> FloatArray:
        return np.full(self._num_clients if clients is None else len(clients), 1.0 / self._num_clients)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Nothing to learn."""
