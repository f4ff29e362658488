"""VRB: the regularised-leader sampler of Borsos, Krause and Levy (2018)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray
from sortition.core.validation import fraction
from sortition.engine.reweighted import ReweightedPrior
from sortition.samplers.base import Config
from sortition.samplers.feedback_bound import Bounded, BoundedSampler


class VRBSampler(BoundedSampler):
    r"""Follows the regularised leader on the cumulated feedback.

    .. math:: p = (1-\theta)\,\mathrm{normalise}\Big(\sqrt{w_m + L M/\theta}\Big) + \theta/M, \qquad
              w_m \mathrel{+}= a_m / p_m \text{ for each draw}

    :math:`\theta` is ``exploration`` (0.4 in the paper's comparison, :math:`(M/T)^{1/3}` in theory) and L is
    ``feedback_bound``, by default the largest of the first feedback. ``count / p`` at draw time is
    ``K weight``. Kept in logs. Further keywords are those of every sampler: ``client_weights``, ``design``,
    ``seed``, ``guard`` and ``privacy``.

    >>> sampler = VRBSampler(num_clients=3, cohort_size=1, exploration=0.5, feedback_bound=1.0)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [3.0])  # w = 1/9 * 9 * 3
    >>> sampler.probabilities(cohort.clients).round(4)  # 1/2 * 3 / (3 + 2 sqrt 6) + 1/6
    array([0.3566])
    """

    def __init__(self, *, exploration: float = 0.4, **bounded: Unpack[Bounded]) -> None:
        super().__init__(**bounded)
        self._exploration = fraction("exploration", exploration)
        self._start_anew()

    def _start_anew(self) -> None:
        super()._start_anew()
        self._distribution = self._reweighted = ReweightedPrior(self._roster, share=self._exploration)

    def _learn_bounded(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        # the roots are normalised: relative to that of a client not met they are sqrt(1 + w / offset)
        log_offset = self._log_bound + math.log(self._initial_clients / self._exploration)
        gains = math.log(self._cohort_size) + np.log(cohort.weights) + log_feedback - log_offset
        squares = 2.0 * self._reweighted.logs(cohort.clients)
        self._reweighted.lift(cohort.clients, 0.5 * np.logaddexp(squares, gains))

    def _config(self) -> Config:
        return {"exploration": self._exploration, **super()._config()}

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), **self._reweighted.state()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._reweighted.restore(state)
        super()._restore(state)
