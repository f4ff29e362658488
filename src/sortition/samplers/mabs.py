"""MABS: the bandit sampler of Salehi, Celis and Thiran (2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.simplex import LARGEST_STEP
from sortition.core.types import FloatArray
from sortition.core.validation import fraction, whole_number
from sortition.engine.reweighted import ReweightedPrior
from sortition.samplers.base import Config
from sortition.samplers.feedback_bound import Bounded, BoundedSampler


class MABSSampler(BoundedSampler):
    r"""Exponential weights over the clients, with the variance loss as the loss.

    .. math:: p = (1-\eta)\,\mathrm{softmax}(v) + \eta/M, \qquad
              v_m \mathrel{+}= \delta\, a_m / p_m^3 \text{ for each draw}, \qquad
              \delta = \sqrt{\frac{\eta^4 \ln M}{T M^5 \bar a^2}}

    :math:`\eta` is ``exploration`` and :math:`\bar a` is ``feedback_bound``, by default the largest of the
    first feedback. For designs other than with replacement ``count / p`` is ``K weight``, which is the same
    number where there is replacement. Further keywords are those of every sampler: ``client_weights``,
    ``design``, ``seed``, ``guard`` and ``privacy``.

    >>> sampler = MABSSampler(num_clients=3, cohort_size=1, num_rounds=10, feedback_bound=1.0)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [3.0])
    >>> bool(sampler.probabilities(cohort.clients) > 1 / 3)
    True
    """

    def __init__(self, *, num_rounds: int, exploration: float = 0.4, **bounded: Unpack[Bounded]) -> None:
        super().__init__(**bounded)
        self._num_rounds = whole_number("num_rounds", num_rounds, least=1)
        self._exploration = fraction("exploration", exploration)
        self._start_anew()

    def _start_anew(self) -> None:
        super()._start_anew()
        self._distribution = self._reweighted = ReweightedPrior(self._roster, share=self._exploration)

    def _learn_bounded(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        if self.num_clients == 1:
            return  # ln M = 0: the rate is zero
        log_m = math.log(self.num_clients)
        log_delta = 0.5 * (
            4.0 * math.log(self._exploration) + math.log(log_m) - math.log(self._num_rounds) - 5.0 * log_m
        )
        log_steps = (
            log_delta
            - self._log_bound
            + math.log(self._cohort_size)
            + np.log(cohort.weights)
            + log_feedback
            - 2.0 * np.log(self._reweighted.look_up(cohort.clients))
        )
        steps = np.exp(np.minimum(log_steps, math.log(LARGEST_STEP)))
        raised = np.minimum(self._reweighted.logs(cohort.clients) + steps, LARGEST_STEP)
        self._reweighted.lift(cohort.clients, raised)

    def _config(self) -> Config:
        return {"num_rounds": self._num_rounds, "exploration": self._exploration, **super()._config()}

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), **self._reweighted.state()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._reweighted.restore(state)
        super()._restore(state)
