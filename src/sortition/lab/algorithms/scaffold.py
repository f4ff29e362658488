"""SCAFFOLD over a cohort (last appendix; Karimireddy et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import aggregate
from sortition.lab.algorithms.local import LocalProblem, LocalSteps


@dataclass(frozen=True, eq=False)
class ScaffoldState:
    """What SCAFFOLD carries from round to round."""

    model: FloatArray
    server_control: FloatArray
    """c, always the weighted mean of the clients' controls."""
    client_controls: FloatArray
    """c_m, one row a client."""

    @classmethod
    def start(cls, problem: LocalProblem) -> ScaffoldState:
        """The federation's initial model, and controls of zero."""
        model = problem.initial_model()
        return cls(model, np.zeros_like(model), np.zeros((problem.num_clients, model.size)))


@dataclass(frozen=True)
class Scaffold(LocalSteps):
    r"""One round of SCAFFOLD: local steps corrected by control variates, against the clients' drift.

    .. math:: w^{t,b+1}_m = w^{t,b}_m - \mu_l\big(\nabla\phi(w^{t,b}_m; \xi^{t,b}_m) - c_m + c\big), \qquad
              c_m^+ = c_m - c + \frac{w^t - w^{t+}_m}{B \mu_l}            (option II)

    .. math:: w^{t+1} = w^t + \mu \sum_{m \in S^t} \lambda_m\,\mathrm{weight}_m\,(w^{t+}_m - w^t), \qquad
              c \leftarrow c + \sum_{m \in S^t} \lambda_m (c_m^+ - c_m)

    The sampler learns from :math:`\|w^{t+}_m - w^t\|` (last appendix). Uniform draws and weights make this
    the original algorithm; the model's step stays unbiased for any sampler and design.
    """

    def __call__(
        self, state: ScaffoldState, cohort: Cohort, problem: LocalProblem, round_index: int
    ) -> tuple[ScaffoldState, FloatArray]:
        """The next state, and the norms of the cohort's updates, aligned with ``cohort.clients``."""
        drawn = cohort.clients
        updates = self.updates(state, drawn, problem, round_index)
        weights = problem.client_weights[drawn]
        change = updates / (self.local_steps * self.local_step_size) - state.server_control
        controls = state.client_controls.copy()
        controls[drawn] += change
        following = ScaffoldState(
            model=state.model - self.step_size * aggregate(cohort, weights, updates),
            server_control=state.server_control + weights @ change,
            client_controls=controls,
        )
        return following, np.asarray(np.linalg.norm(updates, axis=1))

    def updates(
        self, state: ScaffoldState, clients: IntArray, problem: LocalProblem, round_index: int
    ) -> FloatArray:
        r""":math:`w^t - w^{t+}_m` of ``clients``, one row each."""
        corrections = state.server_control - state.client_controls[clients]
        return self.moves(state.model, clients, problem, round_index, corrections)
