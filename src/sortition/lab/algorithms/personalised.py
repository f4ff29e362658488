"""Two samplers for a personalised objective: one for each part of its gradient (Appendix D.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import positive_number
from sortition.core.variance import aggregate


class PersonalisedProblem(Protocol):
    r"""Minimise :math:`h(w) = \sum_m \lambda_m F_m(w, \hat\beta_m(w))` (Appendix D.1).

    Here :math:`\hat\beta_m(w) = \arg\min_\beta G_m(w, \beta)` is the client's own answer to the shared w.
    """

    @property
    def num_clients(self) -> int:
        """M, the number of clients."""

    @property
    def client_weights(self) -> FloatArray:
        """lambda_m; they sum to one."""

    def direct_gradients(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        r""":math:`\nabla_1 F_m = \nabla_w F_m(w, \hat\beta_m(w))`, one row a client."""

    def response_gradients(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        r""":math:`\nabla_2 F_m`, through what the local parameters answer to w, one row a client."""


@dataclass(frozen=True)
class Personalised:
    r"""One step of "doubly variance reduction": two cohorts, each drawn by a sampler of its own.

    .. math:: g^t_i = \sum_{m \in S^t_i} \lambda_m\,\mathrm{weight}_{i,m}\, g^t_{i,m}, \qquad
              w^{t+1} = w^t - \mu\,(g^t_1 + g^t_2)

    A client that matters for the shared part need not matter for the response part, so each sampler learns
    from the norms of its own part.

    Deviation: the text's gradient (Appendix D.1) has a factor 1/M beside :math:`\lambda_m`, which its
    objective has not; we take the gradient of the objective, and a test checks it by finite differences.
    """

    step_size: float

    def __post_init__(self) -> None:
        positive_number("step_size", self.step_size)

    def __call__(
        self,
        model: FloatArray,
        cohorts: tuple[Cohort, Cohort],
        problem: PersonalisedProblem,
        round_index: int,
    ) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
        """The next model, and for each cohort the norms of its part, aligned with its clients."""
        first, second = cohorts
        direct = problem.direct_gradients(model, first.clients, round_index)
        response = problem.response_gradients(model, second.clients, round_index)
        weights = problem.client_weights
        step = aggregate(first, weights[first.clients], direct)
        step = step + aggregate(second, weights[second.clients], response)
        norms = (np.linalg.norm(direct, axis=1), np.linalg.norm(response, axis=1))
        return model - self.step_size * step, norms
