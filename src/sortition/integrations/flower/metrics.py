"""What a round tells trackers about the sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from sortition.core.cohort import Cohort
from sortition.core.state import array
from sortition.core.types import FloatArray
from sortition.core.variance import estimated_loss

PREFIX = "sampling-"
MEMORY = 0.95


def effective_number(probabilities: FloatArray) -> float:
    r"""exp of the entropy: how many clients, drawn alike, would be as unpredictable.

    >>> round(effective_number(np.array([0.5, 0.25, 0.25, 0.0])), 3)
    2.828
    """
    positive = probabilities[probabilities > 0.0]
    return float(np.exp(-np.sum(positive * np.log(positive))))


class VarianceRatio:
    r"""Estimated variance of the aggregate over that of uniform sampling, :math:`\hat l(p) / \hat l(1/M)`.

    Both losses are estimated from the cohort that was drawn, for uniform sampling so off policy. One round
    says little: where the clients that matter were not drawn, the two are about the same. So each is summed
    over the rounds, older ones counting less by a factor of ``MEMORY`` a round, and the sums are divided.

    >>> ratio = VarianceRatio()
    >>> cohort = Cohort(0, 2, [0, 3], [1, 1], [0.5, 0.25], [1.0, 2.0])
    >>> ratio.update(cohort, np.array([0.5, 0.25]), np.array([4.0, 1.0]), num_available=4)
    >>> ratio.value
    0.6666666666666666
    """

    def __init__(self) -> None:
        self._drawn = self._uniform = 0.0

    @property
    def value(self) -> float:
        """The ratio; 1 before anything was heard."""
        return self._drawn / self._uniform if self._uniform > 0.0 else 1.0

    def update(
        self, cohort: Cohort, probabilities: FloatArray, feedback: FloatArray, num_available: int
    ) -> None:
        """Another round: who replied, the probabilities that they were drawn with, their feedback."""
        uniform = np.full(len(cohort), 1.0 / num_available)
        drawn = uniform if num_available <= cohort.cohort_size else probabilities  # then all take part
        self._uniform = MEMORY * self._uniform + estimated_loss(uniform, cohort, feedback)
        self._drawn = MEMORY * self._drawn + estimated_loss(drawn, cohort, feedback)

    def state(self) -> dict[str, Any]:
        """What a continued run needs."""
        return {"variance_ratio": np.array([self._drawn, self._uniform])}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""
        self._drawn, self._uniform = array(state, "variance_ratio", np.float64, (2,)).tolist()


def sampling_metrics(
    *,
    drawn: Cohort,
    replied: Cohort,
    probabilities: FloatArray,
    shares: FloatArray,
    ratio: VarianceRatio,
    met: int,
    num_clients: int,
) -> MetricRecord:
    """The record of a round.

    ``probabilities`` are those of all the available; ``shares`` (lambda) are of those that ``replied``, and
    ``met`` of all ``num_clients`` have replied at least once.
    """
    values = {
        "available-clients": len(probabilities),
        "distinct-clients": len(drawn),
        "replies": len(replied),
        "failures": len(drawn) - len(replied),
        "effective-clients": effective_number(probabilities),
        "variance-ratio": ratio.value,
        "largest-weight": float(drawn.weights.max(initial=0.0)),
        "total-weight": float(np.sum(shares * replied.weights)),
        "coverage": met / num_clients,
    }
    return MetricRecord({PREFIX + name: value for name, value in values.items()})
