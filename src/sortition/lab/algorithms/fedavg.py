"""FedAvg over a cohort (Algorithm 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import aggregate
from sortition.lab.algorithms.local import LocalProblem, LocalSteps


@dataclass(frozen=True)
class FedAvg(LocalSteps):
    r"""One round of FedAvg: each drawn client takes B local steps, the server moves along their mean.

    With :math:`\mu_l` = ``local_step_size``, :math:`B` = ``local_steps``, :math:`\mu` = ``step_size`` and
    :math:`g^t_m = w^t - w^{t,B}_m`,

    .. math:: w^{t+1} = w^t - \mu \sum_{m \in S^t} \lambda_m\,\mathrm{weight}_m\, g^t_m     (Equation 15)

    The norms that the sampler is to learn from are :math:`\|g^t_m\| / (\mu_l \sqrt B)`, so that

    .. math:: a^t_m = \frac{\lambda_m^2 \|g^t_m\|^2}{\mu_l^2 B}
              = \frac{\lambda_m^2}{B} \Big\|\sum_b \nabla\phi(w^{t,b}_m; \xi^{t,b}_m)\Big\|^2

    (Algorithm 4, line 13) neither vanishes with :math:`\mu_l` nor grows with B where gradients are noise.
    """

    def __call__(
        self, model: FloatArray, cohort: Cohort, problem: LocalProblem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model, and the scaled norms of the cohort's updates, aligned with ``cohort.clients``."""
        updates = self.updates(model, cohort.clients, problem, round_index)
        step = aggregate(cohort, problem.client_weights[cohort.clients], updates)
        return model - self.step_size * step, self.scaled_norms(updates)

    def updates(
        self, model: FloatArray, clients: IntArray, problem: LocalProblem, round_index: int
    ) -> FloatArray:
        """g_m of ``clients``, one row each: how far, and in which direction, they would move."""
        return self.moves(model, clients, problem, round_index)

    def scaled_norms(self, updates: FloatArray) -> FloatArray:
        r""":math:`\|g_m\| / (\mu_l \sqrt B)`."""
        scale = self.local_step_size * math.sqrt(self.local_steps)
        return np.asarray(np.linalg.norm(updates, axis=1) / scale)
