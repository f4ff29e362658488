"""What algorithms with local steps need of a federation, and the steps themselves."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sortition.core.types import FloatArray, IntArray
from sortition.problems.protocol import Problem


class LocalProblem(Problem, Protocol):
    """A federation whose clients can also take steps of their own."""

    def local_gradients(
        self, models: FloatArray, clients: IntArray, round_index: int, step: int
    ) -> FloatArray:
        """The stochastic gradient of each client's local step, at its own model (a row of ``models``)."""


def train_locally(
    model: FloatArray,
    clients: IntArray,
    problem: LocalProblem,
    round_index: int,
    *,
    num_steps: int,
    step_size: float,
    corrections: FloatArray | None = None,
) -> FloatArray:
    r"""The clients' models after their local steps, one row a client; the whole cohort at once.

    .. math:: w^{t,b+1}_m = w^{t,b}_m
              - \mu_l \big(\nabla\phi(w^{t,b}_m; \xi^{t,b}_m) + \mathrm{correction}_m\big),
              \qquad w^{t,0}_m = w^t            (Algorithm 4, lines 7 to 10)
    """
    models = np.tile(model, (len(clients), 1))
    for step in range(num_steps):
        direction = problem.local_gradients(models, clients, round_index, step)
        if corrections is not None:
            direction = direction + corrections
        models = models - step_size * direction
    return models
