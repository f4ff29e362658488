"""The ``sampling-*`` metrics that each round reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from sortition.core.cohort import Cohort
from sortition.core.state import array
from sortition.core.types import FloatArray
from sortition.core.variance import estimated_loss
from sortition.integrations.flower.model_memory import Combined
from sortition.integrations.flower.pool import DrawnCohort, WeighedReplies

DECAY = 0.95
OF_NORMS = ("sampling-variance-ratio", "sampling-clipped", "sampling-memory-coefficient")
"""Metrics that are made of the clients' norms, and so are left out if these are private."""


class VarianceRatio:
    r"""Estimated variance of the aggregate over that of uniform sampling, :math:`\hat l(p) / \hat l(1/M)`.

    Both losses are estimated from the clients that were drawn, so the one of uniform sampling is an
    off-policy estimate. One round says little: if no important client was drawn, both losses are about
    equal. So each loss is summed over the rounds, with weights that fall by the factor ``DECAY`` a round, and
    the ratio is that of the sums.

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
        """The ratio; 1 before the first reply."""
        return self._drawn / self._uniform if self._uniform > 0.0 else 1.0

    def update(
        self, replied: Cohort, probabilities: FloatArray, feedback: FloatArray, num_available: int
    ) -> None:
        """Add a round: the clients that replied, the probabilities they were drawn with, their feedback."""
        uniform = np.full(len(replied), 1.0 / num_available)
        all_take_part = num_available <= replied.cohort_size
        drawn = uniform if all_take_part else probabilities
        self._uniform = DECAY * self._uniform + estimated_loss(uniform, replied, feedback)
        self._drawn = DECAY * self._drawn + estimated_loss(drawn, replied, feedback)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        return {"variance_ratio": np.array([self._drawn, self._uniform])}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self._drawn, self._uniform = array(state, "variance_ratio", np.float64, (2,)).tolist()


def effective_number(probabilities: FloatArray) -> float:
    r"""exp of the entropy: the number of clients that, drawn uniformly, would be as hard to predict.

    >>> round(effective_number(np.array([0.5, 0.25, 0.25, 0.0])), 3)
    2.828
    """
    positive = probabilities[probabilities > 0.0]
    return float(np.exp(-np.sum(positive * np.log(positive))))


def sampling_metrics(
    drawn: DrawnCohort, weighed: WeighedReplies, variance_ratio: float, num_clients: int
) -> MetricRecord:
    """The metrics of a round; ``num_clients`` were ever seen."""
    cohort, replied = drawn.cohort, weighed.replied
    return MetricRecord(
        {
            "sampling-available-clients": len(drawn.available),
            "sampling-resting-clients": drawn.resting,
            "sampling-distinct-clients": len(cohort),
            "sampling-replies": len(replied),
            "sampling-failures": len(cohort) - len(replied),
            "sampling-effective-clients": effective_number(drawn.probabilities),
            "sampling-variance-ratio": variance_ratio,
            "sampling-largest-weight": float(cohort.weights.max(initial=0.0)),
            "sampling-total-weight": weighed.total_weight,
            "sampling-coverage": weighed.num_replied / num_clients,
        }
    )


def evaluation_metrics(num_available: int, num_drawn: int, num_replies: int) -> MetricRecord:
    """The metrics of a sampled evaluation that say how many clients it is based on."""
    return MetricRecord(
        {
            "sampling-available-clients": num_available,
            "sampling-distinct-clients": num_drawn,
            "sampling-replies": num_replies,
            "sampling-failures": num_drawn - num_replies,
        }
    )


def memory_metrics(combined: Combined | None, num_bytes: int) -> MetricRecord:
    """The metrics of the memory: b of this round, the bytes of what is remembered after it, the losses."""
    return MetricRecord(
        {
            "sampling-memory-coefficient": 0.0 if combined is None else combined.coefficient,
            "sampling-memory-bytes": num_bytes,
            "sampling-memory-lost": 0 if combined is None else combined.lost,
        }
    )
