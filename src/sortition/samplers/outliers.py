r"""What is too large: bounds from the quantiles of honest norms, and who may hold how much beyond them.

With :math:`Q` a high quantile of the norms, :math:`Q_2` their median, f a factor and e a fence,

.. math:: B(f, e) = Q \cdot \max\big(f,\; (Q/Q_2)^e\big)

is a factor that is stated or, where honest clients themselves differ by more, a fence like Tukey's, in
logarithms. Q leaves a tenth of the norms above it, or a quarter while there are few: fewer colluders than
that can't make it theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sortition.core.types import BoolArray, FloatArray, IntArray

FEW = 20
"""With fewer norms the third quartile is taken, else the ninth decile."""
THIRD_QUARTILE = (0.75, 0.6744897501960817)
NINTH_DECILE = (0.9, 1.2815515655446004)
"""The level of the high quantile, and where the standard normal distribution has it."""
UNCERTAINTY = 1.25
"""The deviation is at most so many times what quantiles say: with a hundred clients, in 92 of 100 cases."""


@dataclass(frozen=True, slots=True)
class Fences:
    """The factors and the fences of the two bounds: who is an outlier, and what a norm counts for."""

    outlier_factor: float
    outlier_fence: float
    clip_factor: float
    clip_fence: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the norms of late say; the bounds are logarithms."""

    outlier: float
    clip: float
    expected_share: float
    r"""What clients above ``outlier`` may well hold of the best distribution if the norms are log-normal.

    With s the deviation of their logarithms, those that exceed the median by x hold :math:`\Phi(s - x/s)`.
    """


def bounds_of(logs: FloatArray, weights: FloatArray, fences: Fences) -> Bounds:
    """The bounds by the logarithms of norms and their weights, and by the logarithms alone.

    The smaller ones count. By the weights, those of ``yardstick.py``, whoever is drawn often counts no more
    than the others; but a client that is hardly ever drawn then counts for many, and that must not decide
    either.

    >>> fences = Fences(outlier_factor=3, outlier_fence=1, clip_factor=10, clip_fence=2)
    >>> found = bounds_of(np.log(np.full(9, 2.0)), np.ones(9), fences)
    >>> round(math.exp(found.outlier), 9), round(math.exp(found.clip), 9), found.expected_share
    (6.0, 20.0, 0.0)
    """
    both = [_bounds_by(logs, by, fences) for by in (weights, np.ones(len(logs)))]
    least = min(both, key=lambda bounds: bounds.outlier)
    clip = min(bounds.clip for bounds in both)
    return Bounds(min(least.outlier, clip), clip, least.expected_share)


def all_ordinary(largest: float, logs: FloatArray, weights: FloatArray, factor: float) -> bool:
    """Whether a log-norm is at most log ``factor`` above the high quantiles: quicker than the quantiles."""
    level = level_for(len(logs))[0] * (1.0 - 1e-9)
    below = logs < largest - math.log(factor)
    return bool(np.count_nonzero(below) < level * len(logs) and weights @ below < level * weights.sum())


def level_for(count: int) -> tuple[float, float]:
    """Which high quantile so many norms allow."""
    return THIRD_QUARTILE if count < FEW else NINTH_DECILE


def median_and_quantile(values: FloatArray, weights: FloatArray, level: float) -> tuple[float, float]:
    """The smallest of ``values`` up to which there is half of the weight, and the share ``level`` of it.

    >>> median_and_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 1.0]), 0.75)
    (1.0, 2.0)
    """
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order])
    # rounding must not carry a share that is met exactly to the next value
    places = np.searchsorted(cumulated, np.array([0.5, level]) * cumulated[-1] * (1.0 - 1e-12))
    median, high = values[order[places]].tolist()
    return median, high


def levelled(p: FloatArray, weights: FloatArray, share: float) -> FloatArray:
    """``p`` with the highest ratios to ``weights`` cut down to one level, so that ``share`` is the sum.

    ``share`` must be at most the sum of ``p``, and the weights above 0.

    >>> levelled(np.array([0.4, 0.4, 0.1]), np.array([0.2, 0.4, 0.2]), share=0.6)
    array([0.16666667, 0.33333333, 0.1       ])
    """
    ratios = p / weights
    order = np.argsort(ratios)
    keeping = np.concatenate(
        ([0.0], np.cumsum(p[order])[:-1])
    )  # those before, if the level is below m's ratio
    cut = np.cumsum(weights[order][::-1])[::-1]
    levels = (share - keeping) / cut
    first = int(np.argmax(levels <= ratios[order]))
    return np.asarray(np.minimum(p, levels[first] * weights))


def among(clients: IntArray, ascending: IntArray) -> BoolArray:
    """Which of ``clients`` are in ``ascending``.

    >>> among(np.array([4, 1]), np.array([1, 2])).tolist()
    [False, True]
    """
    if not len(ascending):
        return np.zeros(len(clients), dtype=bool)
    places = np.minimum(np.searchsorted(ascending, clients), len(ascending) - 1)
    return np.asarray(ascending[places] == clients)


def _bounds_by(logs: FloatArray, weights: FloatArray, fences: Fences) -> Bounds:
    level, z = level_for(len(logs))
    median, high = median_and_quantile(logs, weights, level)
    spread = high - median
    outlier = high + max(math.log(fences.outlier_factor), fences.outlier_fence * spread)
    clip = high + max(math.log(fences.clip_factor), fences.clip_fence * spread)
    deviation = UNCERTAINTY * spread / z
    expected = 0.0
    if deviation > 0.0 and len(logs) >= FEW:  # a third quartile says too little of the tail
        expected = 0.5 * math.erfc(((outlier - median) / deviation - deviation) / math.sqrt(2.0))
    return Bounds(outlier, clip, expected)
