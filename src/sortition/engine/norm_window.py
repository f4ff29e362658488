"""The last norms of the clients that replied recently, in order, and two robust bounds made from them.

One call of a kernel stores the replies of a cohort and computes the bounds: calls are most of a small round's
cost.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from sortition.core.types import FloatArray, IntArray

REMEMBERED = 500
"""At most this many clients are remembered: those that replied last."""
OUTDATED = 5000
"""A client's norm is forgotten after this many more replies of others."""
FEW = 50
"""With fewer norms than this the median stands for the ninth decile."""
HIGH = 0.9

CLIENT, BEFORE = 0, 1
"""Rows of ``entries``: the client, and how many replies there had been before its own."""
LOG, RATE = 0, 1
"""Rows of ``values``: the logarithm of the norm, ascending, and how likely a reply was to be this client's."""
SIZE, REPLIES = 0, 1
"""Places in ``counters``: the clients in the window, and all replies above zero so far."""
OUTLIER, CLIP = 0, 1
"""Places in ``bounds``: logarithms, inf before the first norm."""


@njit(cache=True)
def _drop(entries: IntArray, values: FloatArray, counters: IntArray, place: int) -> None:
    """Take out one entry."""
    size = counters[SIZE] - 1
    for i in range(place, size):
        entries[CLIENT, i], entries[BEFORE, i] = entries[CLIENT, i + 1], entries[BEFORE, i + 1]
        values[LOG, i], values[RATE, i] = values[LOG, i + 1], values[RATE, i + 1]
    counters[SIZE] = size


@njit(cache=True)
def _store(
    entries: IntArray, values: FloatArray, counters: IntArray, client: int, log: float, rate: float
) -> None:
    """Put in one entry: in place of the client's last one, or of the oldest if there is no room."""
    size = counters[SIZE]
    known, oldest = -1, 0
    for i in range(size):
        if entries[CLIENT, i] == client:
            known = i
            break
        if entries[BEFORE, i] < entries[BEFORE, oldest]:
            oldest = i
    if known < 0 and size == entries.shape[1]:
        known = oldest
    if known >= 0:
        _drop(entries, values, counters, known)
        size -= 1
    place = size
    while place > 0 and values[LOG, place - 1] > log:
        entries[CLIENT, place], entries[BEFORE, place] = entries[CLIENT, place - 1], entries[BEFORE, place - 1]
        values[LOG, place], values[RATE, place] = values[LOG, place - 1], values[RATE, place - 1]
        place -= 1
    entries[CLIENT, place], entries[BEFORE, place] = client, counters[REPLIES]
    values[LOG, place], values[RATE, place] = log, rate
    counters[SIZE] = size + 1


@njit(cache=True)
def quantile(logs: FloatArray, weights: FloatArray, level: float) -> float:
    """The smallest of the ascending ``logs`` up to which there is the share ``level`` of the weight.

    >>> quantile(np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 1.0]), 0.75)
    2.0
    """
    # rounding must not carry a share that is met exactly to the next value
    wanted, cumulated, i = level * weights.sum() * (1.0 - 1e-12), weights[0], 0
    while cumulated < wanted and i < logs.size - 1:
        i += 1
        cumulated += weights[i]
    return float(logs[i])


@njit(cache=True)
def bounds_of(logs: FloatArray, weights: FloatArray, factors: FloatArray) -> tuple[float, float]:
    r"""The bounds for outliers and for the clip, by ascending ``logs``: the smaller with and without weights.

    With a factor f and a fence e, of ``factors``, the logarithm of :math:`Q_9 \max(f, (Q_9 / Q_2)^e)`.
    """
    outlier, clip = np.inf, np.inf
    for by in (weights, np.ones(logs.size)):
        median = quantile(logs, by, 0.5)
        high = quantile(logs, by, HIGH) if logs.size >= FEW else median
        clip = min(clip, high + max(factors[2], factors[3] * (high - median)))
        outlier = min(outlier, high + max(factors[0], factors[1] * (high - median)))
    return min(outlier, clip), clip


@njit(cache=True)
def judge(
    entries: IntArray, values: FloatArray, counters: IntArray, factors: FloatArray, bounds: FloatArray
) -> None:
    """Compute the bounds.

    A client that is drawn often is more likely to be in the window: with probability r for each reply it is
    among the last T with about min(1, r T), and counts for the inverse.
    """
    size = counters[SIZE]
    if size:
        span = counters[REPLIES] - entries[BEFORE, :size].min()
        weights = 1.0 / np.minimum(span * values[RATE, :size], 1.0)
        bounds[OUTLIER], bounds[CLIP] = bounds_of(values[LOG, :size], weights, factors)
    else:
        bounds[:] = np.inf


@njit(cache=True)
def forget(
    entries: IntArray,
    values: FloatArray,
    counters: IntArray,
    factors: FloatArray,
    bounds: FloatArray,
    clients: IntArray,
) -> None:
    """Take out ``clients``."""
    for client in clients:
        for i in range(counters[SIZE]):
            if entries[CLIENT, i] == client:
                _drop(entries, values, counters, i)
                break
    judge(entries, values, counters, factors, bounds)


@njit(cache=True)
def remember(
    entries: IntArray,
    values: FloatArray,
    counters: IntArray,
    factors: FloatArray,
    bounds: FloatArray,
    clients: IntArray,
    counts: IntArray,
    weights: FloatArray,
    norms: FloatArray,
) -> bool:
    """Store the replies of a cohort and compute the bounds; whether anybody is above that of outliers."""
    above_zero, largest = 0, 0.0
    for norm in norms:
        above_zero += norm > 0.0
        largest = max(largest, norm)
    if above_zero:
        for i in range(norms.size):
            if norms[i] > 0.0:
                rate = counts[i] / weights[i] / above_zero
                _store(entries, values, counters, clients[i], math.log(norms[i]), rate)
        counters[REPLIES] += above_zero
        for i in range(counters[SIZE] - 1, -1, -1):
            if entries[BEFORE, i] < counters[REPLIES] - OUTDATED:
                _drop(entries, values, counters, i)
        judge(entries, values, counters, factors, bounds)
    top = values[LOG, counters[SIZE] - 1] if counters[SIZE] else -np.inf
    return max(top, math.log(largest) if above_zero else -np.inf) > bounds[OUTLIER]
