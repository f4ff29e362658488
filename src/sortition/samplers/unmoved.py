"""Samplers that learn nothing, whatever they hear."""

from __future__ import annotations

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray
from sortition.samplers.base import BaseSampler


class UnmovedSampler(BaseSampler):
    """Base of the samplers whose distribution does not follow feedback: given, or known otherwise."""

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Nothing to learn."""

    def _start_anew(self) -> None:
        """Nothing to forget."""
