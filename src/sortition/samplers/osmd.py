"""Online stochastic mirror descent: one rate, many rates, and many rates without a horizon."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.guard_settings import Guard
from sortition.core.rates import doubling_epoch, expert_rates, meta_rate, num_experts
from sortition.core.types import FloatArray
from sortition.core.validation import fraction, one_of, positive_number, whole_number
from sortition.engine.osmd_experts import OSMDExperts
from sortition.samplers.base import BaseSampler
from sortition.samplers.feedback_bound import FeedbackBound
from sortition.samplers.privacy import NormPrivacy


class OSMDSampler(BaseSampler):
    r"""Online stochastic mirror descent with one learning rate (Algorithm 1).

    .. math:: \hat p^{t+1} = \arg\min_{p \in \mathcal A}\;
              \eta\,\langle p, \nabla\hat l_t(\hat p^t)\rangle + D_\Phi(p \,\|\, \hat p^t),
              \qquad \mathcal A = \{p \ge \alpha \cdot \mathrm{prior}\}

    ``core.rates.learning_rate`` gives the rate that the theory asks for (Equation 20). ``exploration`` is
    :math:`\alpha`. ``prior`` is where it starts; it generalises the paper's uniform start, and the floor is
    ``exploration`` times the prior, where the paper has :math:`\alpha / M`.

    >>> sampler = OSMDSampler(num_clients=4, cohort_size=1, learning_rate=0.05, exploration=0.4)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [2.0])
    >>> sampler.probabilities(cohort.clients).round(4)  # 1/4 e^0.8 / (3/4 + 1/4 e^0.8)
    array([0.4259])
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        learning_rate: float,
        exploration: float = 0.4,
        prior: ArrayLike | None = None,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        self._learning_rate = positive_number("learning_rate", learning_rate)
        self._exploration = fraction("exploration", exploration)
        self._set_prior(prior)
        self.settings |= {"learning_rate": self._learning_rate, "exploration": self._exploration}
        self._begin()

    def _begin(self) -> None:
        self._distribution = self._expert = OSMDExperts(
            self._roster, exploration=self._exploration, experts=1
        )

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        log_rates = np.array([math.log(self._learning_rate)])
        self._expert.advance(
            cohort.clients, cohort.weights, log_feedback, self._cohort_size, log_rates, -math.inf
        )

    def _state(self) -> dict[str, Any]:
        return self._expert.state()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._expert.restore(state, experts=1)


class AdaptiveOSMDSampler(BaseSampler):
    r"""OSMD at several learning rates, mixed by exponential weights (Algorithm 5, Section 6).

    .. math:: \hat p^t = \sum_e \theta^t_e \hat p^t_e, \qquad
              \theta^{t+1}_e \propto \theta^t_e \exp\{-\gamma\,\hat l_t(\hat p^t_e; \hat p^t)\}

    with the rates of Equation 22, their number of Equation 23 and :math:`\gamma` of Theorem 8.
    ``num_rounds`` is T, which fixes the rates; a run may go on beyond it. ``exploration`` is :math:`\alpha`,
    the least ratio of a probability to the ``prior``, where all experts start. ``feedback_bound`` is
    :math:`A_{\max}`, by default the largest of the first feedback. ``rate_scale`` multiplies the rates; 1 is
    the text.

    >>> sampler = AdaptiveOSMDSampler(num_clients=100, cohort_size=5, num_rounds=1000)
    >>> for _ in range(200):
    ...     cohort = sampler.draw()
    ...     sampler.observe(cohort, 1.0 + 9.0 * (cohort.clients == 3))
    >>> bool(sampler.probabilities([3]) > 0.03)
    True
    >>> len(sampler.expert_weights)
    8
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        num_rounds: int,
        exploration: float = 0.4,
        prior: ArrayLike | None = None,
        feedback_bound: float | None = None,
        rate_scale: float = 1.0,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        self._num_rounds = whole_number("num_rounds", num_rounds, least=1)
        self.settings |= {"num_rounds": self._num_rounds}
        self._prepare(exploration, prior, feedback_bound, rate_scale)

    def _prepare(
        self, exploration: float, prior: ArrayLike | None, feedback_bound: float | None, rate_scale: float
    ) -> None:
        self._exploration = fraction("exploration", exploration)
        self._set_prior(prior)
        self._bound = FeedbackBound(feedback_bound)
        self._rate_scale = positive_number("rate_scale", rate_scale)
        self.settings |= {
            "exploration": self._exploration,
            "feedback_bound": self._bound.given,
            "rate_scale": self._rate_scale,
        }
        self._rates_for: Hashable = None  # what the rates below were computed for
        self._log_expert_rates, self._log_meta_rate = np.zeros(0), 0.0
        self._begin()

    def _begin(self) -> None:
        self._bound.begin()
        self._distribution = self._experts = OSMDExperts(
            self._roster, exploration=self._exploration, experts=self._num_experts()
        )

    def _horizon(self) -> int:
        """The T that the rates are made for."""
        return self._num_rounds

    def _num_experts(self) -> int:
        """E; it stays with the number of clients at the start, on which it hardly depends."""
        return num_experts(self._initial_clients, self._horizon(), self._exploration)

    def _log_rates(self) -> tuple[FloatArray, float]:
        """Logarithms of the experts' rates and of the meta rate, for the bound and the clients there are."""
        horizon = self._horizon()
        key = (horizon, self.num_clients, self._bound.log)
        if self._rates_for != key:
            setting = (self.num_clients, self._cohort_size, horizon, self._exploration)
            rates = expert_rates(*setting, 1.0, self._num_experts())
            with np.errstate(divide="ignore"):  # one client: nothing to learn, a rate of 0
                logs = np.log(rates)
            log_meta = math.log(meta_rate(*setting, feedback_bound=1.0)) - 0.5 * self._bound.log
            self._log_expert_rates = logs + math.log(self._rate_scale) - self._bound.log
            self._log_meta_rate, self._rates_for = log_meta, key
        return self._log_expert_rates, self._log_meta_rate

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        if not self._bound.known_from(log_feedback):
            return
        log_rates, log_meta_rate = self._log_rates()
        self._experts.advance(
            cohort.clients, cohort.weights, log_feedback, self._cohort_size, log_rates, log_meta_rate
        )
        self._bound.learnt_rounds += 1

    @property
    def expert_weights(self) -> FloatArray:
        """theta_e, the experts' weights in the mixture, slowest first."""
        return self._experts.weights

    @property
    def expert_rates(self) -> FloatArray | None:
        """eta_e, or None before the feedback bound is known."""
        if self._bound.value is None:
            return None
        with np.errstate(over="ignore"):  # inf where no double can hold a rate
            return np.asarray(np.exp(self._log_rates()[0]))

    @property
    def feedback_bound(self) -> float | None:
        """A_max; None before it is known, inf where no double can hold it."""
        return self._bound.value

    def calibrate(self, norms: ArrayLike, clients: ArrayLike | None = None) -> None:
        """Set the feedback bound from a pre-training pass: see ``FeedbackBound.calibrate``."""
        self._bound.calibrate(self._largest_log_feedback("calibrate", norms, clients))

    def _membership_changed(self, weight_factor: float) -> None:
        self._bound.rescale(weight_factor)

    def _state(self) -> dict[str, Any]:
        return {**self._bound.state(), **self._experts.state()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._bound.restore(state)
        self._experts.restore(state, experts=self._num_experts())


class DoublingOSMDSampler(AdaptiveOSMDSampler):
    r"""Adaptive-OSMD that needs no horizon: it starts anew at rounds 1, 2, 4, 8, ... (Algorithm 6).

    Epoch b holds the rounds :math:`2^{b-1} \le t < 2^b` and runs Algorithm 5 with T = :math:`2^{b-1}`, which
    makes its rates those of Equations 27 and 28. ``restart="mixture"`` carries on from the distribution at
    hand, as the paper advises; ``restart="prior"`` forgets it, as its theorem assumes. t counts the rounds
    that had feedback. For the other keywords see ``AdaptiveOSMDSampler``.

    >>> sampler = DoublingOSMDSampler(num_clients=100, cohort_size=5)
    >>> counts = []
    >>> for _ in range(8):
    ...     counts.append(len(sampler.expert_weights))
    ...     cohort = sampler.draw()
    ...     sampler.observe(cohort, [1.0] * len(cohort))
    >>> counts
    [1, 3, 3, 3, 3, 3, 3, 4]
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        restart: Literal["mixture", "prior"] = "mixture",
        exploration: float = 0.4,
        prior: ArrayLike | None = None,
        feedback_bound: float | None = None,
        rate_scale: float = 1.0,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        # not the constructor of Adaptive-OSMD: there is no num_rounds
        BaseSampler.__init__(self, num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        one_of("restart", restart, ("mixture", "prior"))
        self._restart = restart
        self.settings |= {"restart": restart}
        self._prepare(exploration, prior, feedback_bound, rate_scale)

    def _horizon(self) -> int:
        """The length of the epoch of the next round, 2^(b-1)."""
        return 1 << (doubling_epoch(self._bound.learnt_rounds + 1) - 1)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        epoch = doubling_epoch(self._bound.learnt_rounds + 1)
        super()._learn(cohort, log_feedback)
        if doubling_epoch(self._bound.learnt_rounds + 1) != epoch:
            self._experts.restart(self._num_experts(), at_mixture=self._restart == "mixture")
