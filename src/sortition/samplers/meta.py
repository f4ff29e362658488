"""The meta-algorithm over OSMD experts: what Algorithms 5 and 6 have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.rates import expert_rates, meta_rate, num_experts
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import fraction, positive_number
from sortition.samplers.base import Config
from sortition.samplers.bounded import Bounded, BoundedSampler
from sortition.samplers.experts import Experts


class Meta(Bounded, total=False):
    """The keywords of a sampler that mixes OSMD experts."""

    exploration: float
    prior: ArrayLike | None
    rate_scale: float


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
        self._experts = Experts(
            num_clients=self._num_clients,
            client_weights=self._client_weights,
            prior=prior,
            exploration=exploration,
            experts=num_experts(self._num_clients, self._horizon(), exploration),
        )

    @property
    def expert_weights(self) -> FloatArray:
        """theta_e, the experts' weights in the mixture, slowest first."""
        return self._experts.weights

    @property
    def expert_rates(self) -> FloatArray | None:
        """eta_e, or None before the feedback bound is known."""
        return None if math.isnan(self._log_bound) else np.exp(self._log_rates())

    @abstractmethod
    def _horizon(self) -> int:
        """The T that the rates are made for."""

    def _log_rates(self) -> FloatArray:
        rates = expert_rates(
            self._num_clients, self._cohort_size, self._horizon(), self._exploration, feedback_bound=1.0
        )
        with np.errstate(divide="ignore"):
            return np.log(rates) + math.log(self._rate_scale) - self._log_bound

    def _log_meta_rate(self) -> float:
        rate = meta_rate(
            self._num_clients, self._cohort_size, self._horizon(), self._exploration, feedback_bound=1.0
        )
        return math.log(rate) - 0.5 * self._log_bound

    def _probabilities(self, clients: IntArray | None) -> FloatArray:
        return self._experts.mixture(clients)

    def _learn_bounded(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        self._experts.advance(self._log_rates(), self._log_meta_rate(), cohort, log_feedback)

    def _config(self) -> Config:
        return {
            "rate_scale": self._rate_scale,
            **super()._config(),
            **self._experts.config(),
        }

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), **self._experts.state()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._experts.restore(state)
        super()._restore(state)
