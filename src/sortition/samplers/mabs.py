"""MABS: the bandit sampler of Salehi, Celis and Thiran (2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.guard_settings import Guard
from sortition.core.simplex import LARGEST_STEP
from sortition.core.types import FloatArray
from sortition.core.validation import fraction, whole_number
from sortition.engine.reweighted import ReweightedPrior
from sortition.samplers.base import BaseSampler
from sortition.samplers.feedback_bound import FeedbackBound
from sortition.samplers.privacy import NormPrivacy


class MABSSampler(BaseSampler):
    r"""Exponential weights over the clients, with the variance loss as the loss.

    .. math:: p = (1-\eta)\,\mathrm{softmax}(v) + \eta/M, \qquad
              v_m \mathrel{+}= \delta\, a_m / p_m^3 \text{ for each draw}, \qquad
              \delta = \sqrt{\frac{\eta^4 \ln M}{T M^5 \bar a^2}}

    :math:`\eta` is ``exploration`` and :math:`\bar a` is ``feedback_bound``, by default the largest of the
    first feedback. For designs other than with replacement ``count / p`` is ``K weight``, which is the same
    number where there is replacement. With a ``prior`` :math:`\pi`, the softmax is that of
    :math:`v + \ln \pi`, and :math:`\eta\,\pi` takes the place of :math:`\eta/M`.

    Salehi, Celis and Thiran, *Stochastic Optimization with Bandit Sampling*, arXiv 1708.02544, 2017.

    >>> sampler = MABSSampler(num_clients=3, cohort_size=1, num_rounds=10, feedback_bound=1.0)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [3.0])
    >>> bool(sampler.probabilities(cohort.clients) > 1 / 3)
    True
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        num_rounds: int,
        exploration: float = 0.4,
        feedback_bound: float | None = None,
        prior: ArrayLike | None = None,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        self._num_rounds = whole_number("num_rounds", num_rounds, least=1)
        self._exploration = fraction("exploration", exploration)
        self._bound = FeedbackBound(feedback_bound)
        self.settings |= {
            "num_rounds": self._num_rounds,
            "exploration": self._exploration,
            "feedback_bound": self._bound.given,
        }
        self._set_prior(prior)
        self._begin()

    def _begin(self) -> None:
        self._bound.begin()
        self._distribution = self._reweighted = ReweightedPrior(self._roster, share=self._exploration)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        if not self._bound.known_from(log_feedback):
            return
        self._bound.learnt_rounds += 1
        if self.num_clients == 1:
            return  # ln M = 0: the rate is zero
        log_m = math.log(self.num_clients)
        log_delta = 0.5 * (
            4.0 * math.log(self._exploration) + math.log(log_m) - math.log(self._num_rounds) - 5.0 * log_m
        )
        log_steps = (
            log_delta
            - self._bound.log
            + math.log(self._cohort_size)
            + np.log(cohort.weights)
            + log_feedback
            - 2.0 * np.log(self._reweighted.look_up(cohort.clients))
        )
        steps = np.exp(np.minimum(log_steps, math.log(LARGEST_STEP)))
        raised = np.minimum(self._reweighted.logs(cohort.clients) + steps, LARGEST_STEP)
        self._reweighted.reweight(cohort.clients, raised)

    @property
    def feedback_bound(self) -> float | None:
        """The bound of the formula; None before it is known, inf where no double can hold it."""
        return self._bound.value

    def calibrate(self, norms: ArrayLike, clients: ArrayLike | None = None) -> None:
        """Set the feedback bound from a pre-training pass: see ``FeedbackBound.calibrate``."""
        self._bound.calibrate(self._largest_log_feedback("calibrate", norms, clients))

    def _membership_changed(self, weight_factor: float) -> None:
        self._bound.rescale(weight_factor)

    def _state(self) -> dict[str, Any]:
        return {**self._bound.state(), **self._reweighted.state()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._bound.restore(state)
        self._reweighted.restore(state)
