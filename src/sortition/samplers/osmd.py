"""OSMD Sampler: Algorithms 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray
from sortition.core.validation import fraction, positive_number
from sortition.engine.ensemble import Ensemble
from sortition.samplers.base import BaseSampler, Common
from sortition.samplers.experts import prior_roster
from sortition.samplers.state import Config, fingerprint


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
        self._given_prior, self._roster = prior_roster(prior, self._founders, self._given_weights)
        self._start_anew()

    def _start_anew(self) -> None:
        self._distribution = self._expert = Ensemble(self._roster, exploration=self._exploration, experts=1)

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
