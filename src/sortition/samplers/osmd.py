"""OSMD Sampler: Algorithms 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import positive_number
from sortition.samplers.base import BaseSampler, Common, Config
from sortition.samplers.experts import Experts


class OSMDSampler(BaseSampler):
    r"""Online stochastic mirror descent with one learning rate (Algorithm 1).

    .. math:: \hat p^{t+1} = \arg\min_{p \in \mathcal A}\;
              \eta\,\langle p, \nabla\hat l_t(\hat p^t)\rangle + D_\Phi(p \,\|\, \hat p^t),
              \qquad \mathcal A = \{p \ge \alpha \cdot \mathrm{prior}\}

    ``core.rates.learning_rate`` gives the rate that the theory asks for (Equation 20).

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
        self._experts = Experts(
            num_clients=self._num_clients,
            client_weights=self._client_weights,
            prior=prior,
            exploration=exploration,
            experts=1,
        )

    def _probabilities(self, clients: IntArray | None) -> FloatArray:
        return self._experts.mixture(clients)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        self._experts.advance(np.array([math.log(self._learning_rate)]), -math.inf, cohort, log_feedback)

    def _config(self) -> Config:
        return {"learning_rate": self._learning_rate, **self._experts.config()}

    def _state(self) -> dict[str, Any]:
        return self._experts.state()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._experts.restore(state)
