"""The metrics of a round: the ``sampling-*`` ones, and means of what clients report with standard errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from sortition.core.cohort import Cohort
from sortition.core.state import array
from sortition.core.types import FloatArray
from sortition.core.variance import estimated_loss
from sortition.integrations.flower.model_memory import Combined
from sortition.integrations.flower.pool import DrawnCohort, WeighedReplies

DECAY = 0.95
OF_NORMS = ("sampling-variance-ratio", "sampling-clipped", "sampling-memory-coefficient")
"""Metrics that are made of the clients' norms, and so are left out if these are private."""
ERROR = "-standard-error"
"""What comes behind the name of a metric in the name of its standard error."""

Reported = Mapping[str, Any]
"""The metrics that a client reports: numbers and lists of numbers by name."""


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


# What clients report ---------------------------------------------------------------------------------


def metrics_of(content: RecordDict, without: str) -> dict[str, Any]:
    """All metrics in the reply of a client except for one."""
    return {
        name: value
        for record in content.metric_records.values()
        for name, value in record.items()
        if name != without
    }


def weighted_means(reported: Sequence[Reported], weights: FloatArray) -> MetricRecord:
    """The mean of each metric, over the clients that report it, in the shape in which most of them do.

    >>> dict(weighted_means([{"loss": 1.0}, {"loss": 4.0, "steps": 3}], np.array([2.0, 1.0])))
    {'loss': 2.0, 'steps': 3.0}
    """
    means = {}
    for name, values, places in _columns(reported):
        if weights[places].sum() > 0.0:
            shares = weights[places] / weights[places].sum()  # first, so that nothing overflows
            means[name] = _plain(np.tensordot(shares, values, axes=1))
    return MetricRecord(means)


def standard_errors(reported: Sequence[Reported], weights: FloatArray, inclusion: FloatArray) -> MetricRecord:
    r"""The standard error of each mean, if client m was drawn with probability ``inclusion``.

    The mean :math:`\bar x = \sum_m w_m x_m / \sum_m w_m` is a ratio of two sums over the r clients that
    replied. With :math:`z_m = w_m (x_m - \bar x) / \sum_i w_i` and :math:`c_m = 1 - \pi_m`, its variance is
    estimated by

    .. math:: \frac{r}{r - 1} \sum_m c_m \Bigl(z_m - \frac{\sum_i c_i z_i}{\sum_i c_i}\Bigr)^2,

    where r counts the clients that were not certain to be drawn (Deville 1999). For equal weights and equal
    inclusion probabilities it is unbiased. It is nan if a single reply was left to chance.
    """
    errors = {}
    for name, values, places in _columns(reported):
        total, chance = weights[places].sum(), 1.0 - inclusion[places]
        number = int(np.count_nonzero(chance))
        if not total > 0.0:
            continue
        if number == 0:
            errors[name] = _plain(np.zeros(values.shape[1:]))
        elif number == 1:
            errors[name] = _plain(np.full(values.shape[1:], np.nan))
        else:
            flat = values.reshape(len(values), -1)
            shares = weights[places] / total
            with np.errstate(over="ignore", invalid="ignore"):
                z = shares[:, None] * (flat - shares @ flat)
                z -= np.average(z, axis=0, weights=chance)
                variance = number / (number - 1) * np.sum(chance[:, None] * z**2, axis=0)
            errors[name] = _plain(np.sqrt(variance).reshape(values.shape[1:]))
    return MetricRecord({f"{name}{ERROR}": error for name, error in errors.items()})


def _columns(reported: Sequence[Reported]) -> Iterator[tuple[str, NDArray[np.float64], list[int]]]:
    """Of each metric the finite values in the shape that is most common, and the places of their clients."""
    for name in dict.fromkeys(name for metrics in reported for name in metrics):
        found = [(place, floats(metrics[name])) for place, metrics in enumerate(reported) if name in metrics]
        found = [(place, value) for place, value in found if np.all(np.isfinite(value))]
        if found:
            ((shape, _),) = Counter(value.shape for _, value in found).most_common(1)
            kept = [(place, value) for place, value in found if value.shape == shape]
            yield name, np.stack([value for _, value in kept]), [place for place, _ in kept]


def floats(reported: object) -> NDArray[np.float64]:
    """The numbers that a metric holds; a whole number beyond floats is infinite."""
    try:
        return np.asarray(reported, dtype=np.float64)
    except OverflowError:
        return np.asarray(np.inf)


def _plain(value: Any) -> Any:
    """A number or a list of numbers."""
    return np.asarray(value).tolist()
