"""What algorithms with local steps need of a federation, and the steps themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import positive_number, whole_number
from sortition.lab.problems.protocol import Problem


class LocalProblem(Problem, Protocol):
    """A federation whose clients can also take steps of their own."""

    def local_gradients(
        self, models: FloatArray, clients: IntArray, round_index: int, step: int
    ) -> FloatArray:
        """The stochastic gradient of each client's local step, at its own model (a row of ``models``)."""


@dataclass(frozen=True)
class LocalSteps:
    r"""Algorithms whose clients take ``local_steps`` (B) steps of ``local_step_size`` (:math:`\mu_l`)."""

    local_step_size: float
    local_steps: int
    step_size: float = 1.0

    def __post_init__(self) -> None:
        positive_number("local_step_size", self.local_step_size)
        whole_number("local_steps", self.local_steps, least=1)
        positive_number("step_size", self.step_size)

    def moves(
        self,
        model: FloatArray,
        clients: IntArray,
        problem: LocalProblem,
        round_index: int,
        corrections: FloatArray | None = None,
    ) -> FloatArray:
        r""":math:`w^t - w^{t,B}_m`, one row for each of ``clients``; all of them at once.

        .. math:: w^{t,b+1}_m = w^{t,b}_m
                  - \mu_l \big(\nabla\phi(w^{t,b}_m; \xi^{t,b}_m) + \mathrm{correction}_m\big),
                  \qquad w^{t,0}_m = w^t            (Algorithm 4, lines 7 to 10)
        """
        models = np.tile(model, (len(clients), 1))
        for step in range(self.local_steps):
            direction = problem.local_gradients(models, clients, round_index, step)
            if corrections is not None:
                direction = direction + corrections
            models = models - self.local_step_size * direction
        return model - models
