"""Means of what clients report, each counted by a weight, and the standard errors of these means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from sortition.core.types import FloatArray

ERROR = "-standard-error"
"""What comes behind the name of a metric in the name of its standard error."""

Reported = Mapping[str, Any]
"""The metrics that a client reports: numbers and lists of numbers by name."""


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
