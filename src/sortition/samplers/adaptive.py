"""Adaptive-OSMD Sampler: Algorithm 5."""

from __future__ import annotations

from typing import Unpack

from sortition.core.validation import whole_number
from sortition.samplers.meta import Meta, MetaSampler
from sortition.samplers.state import Config


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
