"""K-Vib: the regularised-leader sampler of Zeng et al. for independent draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design, inclusion_probabilities
from sortition.core.guard_settings import Guard
from sortition.core.state import array, check
from sortition.core.types import FloatArray
from sortition.core.validation import fraction, one_of, whole_number
from sortition.engine.fixed import Dense
from sortition.samplers.base import BaseSampler
from sortition.samplers.feedback_bound import FeedbackBound
from sortition.samplers.privacy import NormPrivacy


class KVibSampler(BaseSampler):
    r"""Follows the regularised leader on the cumulated feedback, for clients drawn independently.

    With :math:`\theta` = ``exploration`` and G = ``feedback_bound``,

    .. math:: & u_m = \sqrt{\omega_m + \tfrac{G M}{\theta K}}, \qquad
              p_m = \min(1, c\,u_m) \text{ with } \textstyle\sum_m p_m = K, \\
              & \tilde p_m = (1-\theta)\,p_m + \theta\,\tfrac KM, \qquad
              \omega_m \mathrel{+}= a_m / \tilde p_m

    where :math:`\tilde p_m` is the probability that client m is in the cohort and :math:`1/\tilde p_m` its
    weight; by default :math:`\theta = \min(1, (M/(TK))^{1/3})`. ``probabilities()`` is :math:`\tilde p / K`:
    as no :math:`\tilde p_m` exceeds one, the design's :math:`\min(1, c\,\tilde p_m / K)` gives back just
    :math:`\tilde p_m`.

    With a ``prior`` :math:`\pi` the regulariser is :math:`(M \pi_m)^2 G M / (\theta K)`, and
    :math:`\min(1, c\,\pi_m)` takes the place of :math:`K/M`.

    It is here to be compared with: a round costs O(M log M).

    Zeng, Xu, Pan, Luo, Wang and Tang, *Enhanced Federated Optimization: Adaptive Unbiased Client Sampling
    with Reduced Variance*, TMLR 2025.

    >>> sampler = KVibSampler(num_clients=4, cohort_size=2, num_rounds=4, feedback_bound=1.0)
    >>> sampler.probabilities()
    array([0.25, 0.25, 0.25, 0.25])
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, np.full(len(cohort), 9.0))
    >>> bool(np.all(sampler.probabilities(cohort.clients) >= 0.25))
    True
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        num_rounds: int,
        exploration: float | None = None,
        feedback_bound: float | None = None,
        prior: ArrayLike | None = None,
        client_weights: ArrayLike | None = None,
        design: Design = "independent",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        one_of("design", design, ("independent",))
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        self._num_rounds = whole_number("num_rounds", num_rounds, least=1)
        if exploration is None:
            exploration = min(
                1.0, (self._initial_clients / (self._num_rounds * self._cohort_size)) ** (1.0 / 3.0)
            )
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
        self._distribution = self._dense = Dense(self._roster)
        self._log_omega = np.full(self._roster.ids, -np.inf)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        if not self._bound.known_from(log_feedback):
            return
        self._bound.learnt_rounds += 1
        gains = log_feedback + np.log(cohort.weights)  # a weight is 1 / p~
        self._log_omega[cohort.clients] = np.logaddexp(self._log_omega[cohort.clients], gains)
        prior = (
            self._roster.masses(None) / self._roster.total
        )  # 1/M, unless one was given or newcomers have one
        log_g = self._bound.log + math.log(self.num_clients / (self._exploration * self._cohort_size))
        with np.errstate(divide="ignore"):
            log_offsets = log_g + 2.0 * np.log(self.num_clients * prior)
        logs = np.where(prior > 0.0, 0.5 * np.logaddexp(self._log_omega, log_offsets), -np.inf)
        u = np.exp(logs - logs.max())
        p = inclusion_probabilities(u / u.sum(), self._cohort_size)
        start = inclusion_probabilities(prior, self._cohort_size)
        self._dense.set((1.0 - self._exploration) * p / p.sum() + self._exploration * start / start.sum())

    @property
    def feedback_bound(self) -> float | None:
        """G; None before it is known, inf where no double can hold it."""
        return self._bound.value

    def calibrate(self, norms: ArrayLike, clients: ArrayLike | None = None) -> None:
        """Set the feedback bound from a pre-training pass: see ``FeedbackBound.calibrate``."""
        self._bound.calibrate(self._largest_log_feedback("calibrate", norms, clients))

    def _membership_changed(self, weight_factor: float) -> None:
        self._bound.rescale(weight_factor)
        newcomers = self._roster.ids - len(self._log_omega)
        self._log_omega = np.concatenate((self._log_omega, np.full(newcomers, -np.inf)))
        self._log_omega += 2.0 * math.log(weight_factor)  # the feedback goes with lambda squared

    def _state(self) -> dict[str, Any]:
        return {**self._bound.state(), "log_omega": self._log_omega.copy(), "masses": self._dense.masses}

    def _restore(self, state: Mapping[str, Any]) -> None:
        log_omega = array(state, "log_omega", np.float64, (self._roster.ids,))
        check("log_omega", log_omega, log_omega < np.inf, "below inf")
        self._bound.restore(state)
        self._dense.restore(state)
        self._log_omega = log_omega
