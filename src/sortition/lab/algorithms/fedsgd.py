"""Mini-batch SGD over a cohort (Algorithm 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.core.variance import aggregate
from sortition.lab.problems.protocol import Problem


@dataclass(frozen=True)
class FedSGD:
    r"""One round of mini-batch SGD: each drawn client sends one gradient, the server takes one step.

    With :math:`\mu` = ``step_size`` and :math:`g^t_m` the cohort's mini-batch gradients,

    .. math:: w^{t+1} = w^t - \mu \sum_{m \in S^t} \lambda_m \, \mathrm{weight}_m \, g^t_m

    which with replacement is :math:`w^t - \mu \frac1K \sum_{m \in S^t} \frac{\lambda_m}{p^t_m} g^t_m`
    (Algorithm 3, lines 5 to 12, Equation 12). What the sampler learns from the norms (line 13) is not the
    algorithm's business.
    """

    step_size: float

    def __post_init__(self) -> None:
        if not 0.0 < self.step_size < np.inf:
            raise ConfigurationError(f"step_size must be positive and finite, got {self.step_size}")

    def __call__(
        self, model: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model, and the norms of the cohort's updates, aligned with ``cohort.clients``."""
        updates = problem.updates(model, cohort.clients, round_index)
        step = aggregate(cohort, problem.client_weights[cohort.clients], updates)
        return model - self.step_size * step, np.sqrt((updates * updates).sum(axis=1))
