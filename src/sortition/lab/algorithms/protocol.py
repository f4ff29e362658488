"""What an algorithm promises to whoever runs the rounds."""

from __future__ import annotations

from typing import Protocol

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray
from sortition.lab.problems.protocol import Problem


class Algorithm(Protocol):
    """One federated round: a pure function, so that the same cohort on the same model gives the same."""

    def __call__(
        self, model: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model, and the norms of the cohort's updates, aligned with ``cohort.clients``."""
