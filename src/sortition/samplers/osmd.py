"""What the OSMD samplers have in common: experts above a floor, drawn from as a mixture."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.rates import doubling_epoch, expert_rates, meta_rate, num_experts
from sortition.core.state import count
from sortition.core.types import FloatArray
from sortition.core.validation import (
    distribution,
    fraction,
    one_of,
    positive_number,
    require_support,
    whole_number,
)
from sortition.engine.clients import Roster
from sortition.engine.osmd_experts import OSMDExperts
from sortition.samplers.base import BaseSampler, Common, Config, fingerprint
from sortition.samplers.feedback_bound import Bounded, BoundedSampler


def prior_roster(
    prior: ArrayLike | None, num_clients: int, client_weights: FloatArray | None
) -> tuple[FloatArray | None, Roster]:
    """The prior as it was given, checked, and the roster that has its masses.

    It generalises the paper's uniform start: experts start at the prior, and the floor is ``exploration``
    times the prior, where the paper has alpha / M.
    """
    if prior is None:
        return None, Roster(num_clients, None)
    given = distribution("prior", prior, num_clients)
    require_support("prior", given, client_weights)
    return given, Roster(num_clients, np.asarray(given))


class OSMDSampler(BaseSampler):
    r"""Online stochastic mirror descent with one learning rate (Algorithm 1).

    .. math:: \hat p^{t+1} = \arg\min_{p \in \mathcal A}\;
              \eta\,\langle p, \nabla\hat l_t(\hat p^t)\rangle + D_\Phi(p \,\|\, \hat p^t),
              \qquad \mathcal A = \{p \ge \alpha \cdot \mathrm{prior}\}

    ``core.rates.learning_rate`` gives the rate that the theory asks for (Equation 20). ``exploration`` is
    :math:`\alpha`; ``prior`` is also where it starts (uniform). Further keywords are those of every sampler:
    ``client_weights``, ``design``, ``seed``, ``guard`` and ``privacy``.

    >>> sampler = OSMDSampler(num_clients=4, cohort_size=1, learning_rate=0.05, exploration=0.4)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [2.0])
    >>> sampler.probabilities(cohort.clients).round(4)  # 1/4 e^0.8 / (3/4 + 1/4 e^0.8)
    array([0.4259])
    """

    def __init__(
        self,
        *,
        learning_rate: float,
        exploration: float = 0.4,
        prior: ArrayLike | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self._learning_rate = positive_number("learning_rate", learning_rate)
        self._exploration = fraction("exploration", exploration)
        self._given_prior, self._roster = prior_roster(prior, self._initial_clients, self._given_weights)
        self._start_anew()

    def _start_anew(self) -> None:
        self._distribution = self._expert = OSMDExperts(
            self._roster, exploration=self._exploration, experts=1
        )

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        log_rates = np.array([math.log(self._learning_rate)])
        self._expert.advance(
            cohort.clients, cohort.weights, log_feedback, self._cohort_size, log_rates, -math.inf
        )

    def _config(self) -> Config:
        return {
            "learning_rate": self._learning_rate,
            "exploration": self._exploration,
            "prior": fingerprint(self._given_prior),
        }

    def _state(self) -> dict[str, Any]:
        return self._expert.state()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._expert.restore(state, experts=1)


class Meta(Bounded, total=False):
    """The keywords of a sampler that mixes OSMD experts."""

    exploration: float
    """alpha, the least ratio of a probability to the prior; 0.4 by default."""
    prior: ArrayLike | None
    """Where the experts start; uniform by default."""
    rate_scale: float
    """What the experts' rates are multiplied by; 1, the text, by default."""


class MetaSampler(BoundedSampler):
    """OSMD experts at several rates, mixed by exponential weights; a subclass says for which horizon."""

    def __init__(
        self,
        *,
        exploration: float = 0.4,
        prior: ArrayLike | None = None,
        rate_scale: float = 1.0,
        **bounded: Unpack[Bounded],
    ) -> None:
        super().__init__(**bounded)
        self._exploration = fraction("exploration", exploration)
        self._rate_scale = positive_number("rate_scale", rate_scale)
        self._given_prior, self._roster = prior_roster(prior, self._initial_clients, self._given_weights)
        self._rates: tuple[Hashable, FloatArray, float] = (None, np.zeros(0), 0.0)
        self._start_anew()

    def _start_anew(self) -> None:
        super()._start_anew()
        self._distribution = self._experts = OSMDExperts(
            self._roster, exploration=self._exploration, experts=self._num_experts(0)
        )

    @property
    def expert_weights(self) -> FloatArray:
        """theta_e, the experts' weights in the mixture, slowest first."""
        return self._experts.weights

    @property
    def expert_rates(self) -> FloatArray | None:
        """eta_e, or None before the feedback bound is known."""
        if math.isnan(self._log_bound):
            return None
        with np.errstate(over="ignore"):  # inf where no double can hold a rate
            return np.asarray(np.exp(self._log_rates()[0]))

    @property
    def clients_seen(self) -> int:
        """How many clients have been heard of: only these take memory."""
        return self._experts.count

    @property
    def share_of_seen(self) -> float:
        """The probability of all clients met so far together."""
        return self._experts.share_of_seen()

    @property
    def share_adapted(self) -> float:
        """How much of the distribution is not the prior any more: 0 at the start, at most 1 - exploration."""
        return self._experts.share_above_base()

    @abstractmethod
    def _horizon(self, learnt_rounds: int) -> int:
        """The T that the rates are made for, after so many rounds."""

    def _num_experts(self, learnt_rounds: int) -> int:
        """E; it stays with the number of clients at the start, on which it hardly depends."""
        return num_experts(self._initial_clients, self._horizon(learnt_rounds), self._exploration)

    def _log_rates(self) -> tuple[FloatArray, float]:
        """Logarithms of the experts' rates and of the meta rate, for the bound and the clients there are."""
        horizon = self._horizon(self._learnt_rounds)
        key = (horizon, self.num_clients, self._log_bound)
        if self._rates[0] != key:
            setting = (self.num_clients, self._cohort_size, horizon, self._exploration)
            rates = expert_rates(*setting, 1.0, self._num_experts(self._learnt_rounds))
            with np.errstate(divide="ignore"):  # one client: nothing to learn, a rate of 0
                logs = np.log(rates)
            log_meta = math.log(meta_rate(*setting, feedback_bound=1.0)) - 0.5 * self._log_bound
            self._rates = (key, logs + math.log(self._rate_scale) - self._log_bound, log_meta)
        return self._rates[1:]

    def _learn_bounded(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        log_rates, log_meta_rate = self._log_rates()
        self._experts.advance(
            cohort.clients, cohort.weights, log_feedback, self._cohort_size, log_rates, log_meta_rate
        )

    def _config(self) -> Config:
        return {
            "rate_scale": self._rate_scale,
            "exploration": self._exploration,
            "prior": fingerprint(self._given_prior),
            **super()._config(),
        }

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), **self._experts.state()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        rounds = count(state, "learnt_rounds")
        self._experts.restore(state, experts=self._num_experts(rounds))
        super()._restore(state)


class AdaptiveOSMDSampler(MetaSampler):
    r"""OSMD at several learning rates, mixed by exponential weights (Algorithm 5, Section 6).

    .. math:: \hat p^t = \sum_e \theta^t_e \hat p^t_e, \qquad
              \theta^{t+1}_e \propto \theta^t_e \exp\{-\gamma\,\hat l_t(\hat p^t_e; \hat p^t)\}

    with the rates of Equation 22, their number of Equation 23 and :math:`\gamma` of Theorem 8.
    ``num_rounds`` fixes the rates; a run may go on beyond it. ``rate_scale`` multiplies them, 1 being the
    text; ``feedback_bound`` is :math:`A_{\max}`, by default the largest of the first feedback;
    ``exploration`` is :math:`\alpha` (0.4), and ``prior`` the distribution that the experts start from and
    that the floor is a share of (uniform). Further keywords are those of every sampler:
    ``client_weights``, ``design``, ``seed``, ``guard`` and ``privacy``.

    >>> sampler = AdaptiveOSMDSampler(num_clients=100, cohort_size=5, num_rounds=1000)
    >>> for _ in range(200):
    ...     cohort = sampler.draw()
    ...     sampler.observe(cohort, 1.0 + 9.0 * (cohort.clients == 3))
    >>> bool(sampler.probabilities([3]) > 0.03)
    True
    >>> len(sampler.expert_weights)
    8
    """

    def __init__(self, *, num_rounds: int, **meta: Unpack[Meta]) -> None:
        self._num_rounds = whole_number("num_rounds", num_rounds, least=1)
        super().__init__(**meta)

    def _horizon(self, learnt_rounds: int) -> int:
        return self._num_rounds

    def _config(self) -> Config:
        return {"num_rounds": self._num_rounds, **super()._config()}


class DoublingOSMDSampler(MetaSampler):
    r"""Adaptive-OSMD that needs no horizon: it starts anew at rounds 1, 2, 4, 8, ... (Algorithm 6).

    Epoch b holds the rounds :math:`2^{b-1} \le t < 2^b` and runs Algorithm 5 with T = :math:`2^{b-1}`, which
    makes its rates those of Equations 27 and 28. ``restart="mixture"`` carries on from the distribution at
    hand, as the paper advises; ``restart="prior"`` forgets it, as its theorem assumes. t counts the rounds
    that had feedback. All other keywords are those of ``AdaptiveOSMDSampler``, without ``num_rounds``.

    >>> sampler = DoublingOSMDSampler(num_clients=100, cohort_size=5)
    >>> counts = []
    >>> for _ in range(8):
    ...     counts.append(len(sampler.expert_weights))
    ...     cohort = sampler.draw()
    ...     sampler.observe(cohort, [1.0] * len(cohort))
    >>> counts
    [1, 3, 3, 3, 3, 3, 3, 4]
    """

    def __init__(self, *, restart: Literal["mixture", "prior"] = "mixture", **meta: Unpack[Meta]) -> None:
        one_of("restart", restart, ("mixture", "prior"))
        self._restart = restart
        super().__init__(**meta)

    def _horizon(self, learnt_rounds: int) -> int:
        """The length of the epoch of the round to come, 2^(b-1)."""
        return 1 << (doubling_epoch(learnt_rounds + 1) - 1)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        epoch = doubling_epoch(self._learnt_rounds + 1)
        super()._learn(cohort, log_feedback)
        if doubling_epoch(self._learnt_rounds + 1) != epoch:
            experts = self._num_experts(self._learnt_rounds)
            self._experts.restart(experts, at_mixture=self._restart == "mixture")

    def _config(self) -> Config:
        return {"restart": self._restart, **super()._config()}
