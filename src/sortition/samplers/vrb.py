"""VRB: the regularised-leader sampler of Borsos, Krause and Levy (2018)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.guard_settings import Guard
from sortition.core.types import FloatArray
from sortition.core.validation import fraction
from sortition.engine.reweighted import ReweightedPrior
from sortition.samplers.base import BaseSampler
from sortition.samplers.feedback_bound import FeedbackBound
from sortition.samplers.privacy import NormPrivacy


class VRBSampler(BaseSampler):
    r"""Follows the regularised leader on the cumulated feedback.

    .. math:: p = (1-\theta)\,\mathrm{normalise}\Big(\sqrt{w_m + L M/\theta}\Big) + \theta/M, \qquad
              w_m \mathrel{+}= a_m / p_m \text{ for each draw}

    :math:`\theta` is ``exploration`` (0.4 in the paper's comparison, :math:`(M/T)^{1/3}` in theory) and L is
    ``feedback_bound``, by default the largest of the first feedback. ``count / p`` at draw time is
    ``K weight``. All is kept in logs.

    With a ``prior`` :math:`\pi` the regulariser is :math:`(M \pi_m)^2 L M/\theta`, and :math:`\theta \pi_m`
    takes the place of :math:`\theta/M`: the start is the prior, and what it follows in the end is the same.

    Borsos, Krause and Levy, *Online Variance Reduction for Stochastic Optimization*, COLT 2018.

    >>> sampler = VRBSampler(num_clients=3, cohort_size=1, exploration=0.5, feedback_bound=1.0)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [3.0])  # w = 1/9 * 9 * 3
    >>> sampler.probabilities(cohort.clients).round(4)  # 1/2 * 3 / (3 + 2 sqrt 6) + 1/6
    array([0.3566])
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
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
        self._exploration = fraction("exploration", exploration)
        self._bound = FeedbackBound(feedback_bound)
        self.settings |= {"exploration": self._exploration, "feedback_bound": self._bound.given}
        self._set_prior(prior)
        self._begin()

    def _begin(self) -> None:
        self._bound.begin()
        self._distribution = self._reweighted = ReweightedPrior(self._roster, share=self._exploration)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        if not self._bound.known_from(log_feedback):
            return
        self._bound.learnt_rounds += 1
        # the roots are normalised: relative to that of an unseen client they are sqrt(1 + w / offset)
        log_offset = self._bound.log + math.log(self._initial_clients / self._exploration)
        log_offsets = log_offset + 2.0 * self._log_prior_ratios(cohort.clients)
        gains = math.log(self._cohort_size) + np.log(cohort.weights) + log_feedback - log_offsets
        squares = 2.0 * self._reweighted.logs(cohort.clients)
        self._reweighted.reweight(cohort.clients, 0.5 * np.logaddexp(squares, gains))

    @property
    def feedback_bound(self) -> float | None:
        """L; None before it is known, inf where no double can hold it."""
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
