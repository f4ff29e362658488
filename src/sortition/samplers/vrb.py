"""VRB: the regularised-leader sampler of Borsos, Krause and Levy (2018)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import fraction
from sortition.samplers.base import Config, array
from sortition.samplers.bounded import Bounded, BoundedSampler


class VRBSampler(BoundedSampler):
    r"""Follows the regularised leader on the cumulated feedback.

    .. math:: p = (1-\theta)\,\mathrm{normalise}\Big(\sqrt{w_m + L M/\theta}\Big) + \theta/M, \qquad
              w_m \mathrel{+}= a_m / p_m \text{ for each draw}

    :math:`\theta` is ``exploration`` (0.4 in the paper's comparison, :math:`(M/T)^{1/3}` in theory) and L is
    ``feedback_bound``. ``count / p`` at draw time is ``K weight``. Kept in logs.

    >>> sampler = VRBSampler(num_clients=3, cohort_size=1, exploration=0.5, feedback_bound=1.0)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [3.0])  # w = 1/9 * 9 * 3
    >>> sampler.probabilities(cohort.clients).round(4)  # 1/2 * 3 / (3 + 2 sqrt 6) + 1/6
    array([0.3566])
    """

    def __init__(self, *, exploration: float = 0.4, **bounded: Unpack[Bounded]) -> None:
        super().__init__(**bounded)
        self._exploration = fraction("exploration", exploration)
        self._log_sums = np.full(self._num_clients, -np.inf)

    def _probabilities(self, clients: IntArray | None) -> FloatArray:
        roots = np.ones(self._num_clients)
        if not math.isnan(self._log_bound):
            offset = self._log_bound + math.log(self._num_clients / self._exploration)
            logs = 0.5 * np.logaddexp(self._log_sums, offset)
            roots = np.exp(logs - logs.max())
        mixed = (1.0 - self._exploration) * roots / roots.sum() + self._exploration / self._num_clients
        return np.asarray(mixed if clients is None else mixed[clients], dtype=float)

    def _learn_bounded(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        gains = math.log(self._cohort_size) + np.log(cohort.weights) + log_feedback
        self._log_sums[cohort.clients] = np.logaddexp(self._log_sums[cohort.clients], gains)

    def _config(self) -> Config:
        return {"exploration": self._exploration, **super()._config()}

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "log_sums": self._log_sums.copy()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        log_sums = array(state, "log_sums", np.float64, (self._num_clients,))
        super()._restore(state)
        self._log_sums = log_sums
