"""The meta-algorithm over OSMD experts: what Algorithms 5 and 6 have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.rates import expert_rates, meta_rate, num_experts
from sortition.core.state import count
from sortition.core.types import FloatArray
from sortition.core.validation import fraction, positive_number
from sortition.engine.ensemble import Ensemble
from sortition.samplers.bounded import Bounded, BoundedSampler
from sortition.samplers.experts import prior_roster
from sortition.samplers.state import Config, fingerprint


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
        self._given_prior, self._roster = prior_roster(prior, self._founders, self._given_weights)
        self._rates: tuple[Hashable, FloatArray, float] = (None, np.zeros(0), 0.0)
        self._start_anew()

    def _start_anew(self) -> None:
        super()._start_anew()
        self._distribution = self._experts = Ensemble(
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
    def clients_met(self) -> int:
        """How many clients have been heard of: only these take memory."""
        return self._experts.count

    @property
    def share_of_met(self) -> float:
        """The probability of all clients met so far together."""
        return self._experts.share_of_met()

    @property
    def share_adapted(self) -> float:
        """How much of the distribution is not the prior any more: 0 at the start, at most 1 - exploration."""
        return self._experts.share_above_base()

    @abstractmethod
    def _horizon(self, learnt_rounds: int) -> int:
        """The T that the rates are made for, after so many rounds."""

    def _num_experts(self, learnt_rounds: int) -> int:
        """E; it stays with the number of clients at the start, on which it hardly depends."""
        return num_experts(self._founders, self._horizon(learnt_rounds), self._exploration)

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
