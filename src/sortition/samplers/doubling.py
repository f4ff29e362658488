"""Adaptive-OSMD Sampler with the doubling trick: Algorithm 6."""

from __future__ import annotations

from typing import Literal, Unpack

from sortition.core.cohort import Cohort
from sortition.core.rates import doubling_epoch
from sortition.core.types import FloatArray
from sortition.core.validation import one_of
from sortition.samplers.meta import Meta, MetaSampler
from sortition.samplers.state import Config


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
