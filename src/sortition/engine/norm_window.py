"""The last norms of the clients that replied recently, in order, and two robust bounds made from them.

One call of a kernel stores the replies of a cohort and computes the bounds: calls are most of a small round's
cost.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from sortition.core.guard_settings import LARGEST_LOG
from sortition.core.types import BoolArray, FloatArray, IntArray

REMEMBERED = 500
"""At most this many clients are remembered: those that replied last."""
OUTDATED = 5000
"""A client's norm is forgotten after this many more replies of others."""
FEW = 20
"""With fewer norms than this the third quartile stands for the ninth decile."""
THIRD_QUARTILE, NINTH_DECILE = 0.75, 0.9
NORMAL_DECILE = 1.2815515655446004
"""The ninth decile of the standard normal distribution."""
DIGITS = 1024
"""A power of two that is larger than most cohorts."""
LEAST_LOG = -744.0
"""The logarithm of about the least double."""
LEAST_NORM = math.exp(LEAST_LOG)
GAIN, LARGEST_CHANGE = 0.2, 2.0
"""All logarithms follow by this part of a cohort's median change, of which at most so much counts."""
UNCERTAINTY = 1.15
"""The deviation of the logarithms may be this multiple of what quantiles say."""

CLIENT, BEFORE = 0, 1
"""Rows of ``entries``: the client, and how many replies there had been before its own."""
LOG, RATE = 0, 1
"""Rows of ``values``: the logarithm of the norm, ascending, and how likely a reply was to be the client's."""
SIZE, REPLIES = 0, 1
"""Places in ``counters``: the clients in the window, and all replies above zero so far."""
OUTLIER, CLIP, DEVIATION = 0, 1, 2
"""Places in ``bounds``: two logarithms, and the deviation of the logarithms, at most."""


@njit(cache=True)
def _move(entries: IntArray, values: FloatArray, place: int, target: int) -> None:
    entries[CLIENT, target], entries[BEFORE, target] = entries[CLIENT, place], entries[BEFORE, place]
    values[LOG, target], values[RATE, target] = values[LOG, place], values[RATE, place]


@njit(cache=True)
def _keep(entries: IntArray, values: FloatArray, counters: IntArray, which: BoolArray) -> None:
    """Drop the other entries."""
    kept = 0
    for i in range(counters[SIZE]):
        _move(entries, values, i, kept)  # the next one takes its place if it is dropped: no branch to guess
        kept += which[i]
    counters[SIZE] = kept


@njit(cache=True)
def position_in(ascending: IntArray, client: int) -> int:
    """The place of ``client`` in ``ascending``, or -1."""
    place = int(np.searchsorted(ascending, client))
    return place if place < ascending.size and ascending[place] == client else -1


@njit(cache=True)
def _not_among(clients: IntArray, ascending: IntArray) -> BoolArray:
    """Which of ``clients`` are not in ``ascending``; those with other last digits need no search."""
    result, digits = np.ones(clients.size, dtype=np.bool_), np.zeros(DIGITS, dtype=np.bool_)
    for client in ascending:
        digits[client % DIGITS] = True
    for i in range(clients.size):
        if digits[clients[i] % DIGITS]:
            result[i] = position_in(ascending, clients[i]) < 0
    return result


@njit(cache=True)
def _smallest(numbers: IntArray, rank: int) -> int:
    """The number of that rank, by bisection: it has no branch to guess, and takes half as long as a sort."""
    low, high = numbers.min(), numbers.max()
    while low < high:
        middle, below = low + (high - low) // 2, 0  # a sum could overflow
        for number in numbers:
            below += number <= middle
        if below < rank:
            low = middle + 1
        else:
            high = middle
    return int(low)


@njit(cache=True)
def _store(
    entries: IntArray,
    values: FloatArray,
    counters: IntArray,
    clients: IntArray,
    norms: FloatArray,
    rates: FloatArray,
) -> None:
    """Put in norms above zero, ``REMEMBERED`` at most: in place of the clients' last, or of the oldest."""
    size, replies = counters[SIZE], counters[REPLIES] + clients.size
    before = entries[BEFORE, :size]
    keep = _not_among(entries[CLIENT, :size], np.sort(clients)) & (before >= replies - OUTDATED)
    excess = keep.sum() + clients.size - entries.shape[1]
    if excess > 0:
        keep &= before > _smallest(before[keep], excess)
    _keep(entries, values, counters, keep)
    old, new = counters[SIZE] - 1, clients.size - 1
    order, logs = np.argsort(norms), np.log(norms)
    for place in range(counters[SIZE] + clients.size - 1, -1, -1):  # merge, from the back
        if new < 0:
            break
        log = logs[order[new]]
        if old >= 0 and values[LOG, old] > log:
            _move(entries, values, old, place)
            old -= 1
        else:
            entries[CLIENT, place], entries[BEFORE, place] = (
                clients[order[new]],
                counters[REPLIES] + order[new],
            )
            values[LOG, place], values[RATE, place] = log, rates[order[new]]
            new -= 1
    counters[SIZE] += clients.size
    counters[REPLIES] = replies


@njit(cache=True)
def _change(
    entries: IntArray,
    values: FloatArray,
    size: int,
    clients: IntArray,
    norms: FloatArray,
    outliers: IntArray,
    bound: float,
) -> float:
    """By how much all norms have changed since they were heard, as far as one cohort can tell.

    It is a part of the median change of the logarithms of those that are heard again, are no outliers and
    are not above their ``bound`` now.
    """
    order = np.argsort(clients)
    ascending, changes, found = clients[order], np.empty(clients.size), 0
    again = ~_not_among(entries[CLIENT, :size], ascending)
    for i in range(size):
        if again[i] and position_in(outliers, entries[CLIENT, i]) < 0:
            log = math.log(norms[order[position_in(ascending, entries[CLIENT, i])]])
            changes[found] = log - values[LOG, i]
            found += log <= bound
    if found == 0:
        return 0.0
    return GAIN * min(max(float(np.median(changes[:found])), -LARGEST_CHANGE), LARGEST_CHANGE)


@njit(cache=True)
def quantiles(weights: FloatArray, first: float, second: float) -> tuple[int, int]:
    """The places up to which there are two shares of the weight, of which the first is smaller.

    >>> quantiles(np.array([2.0, 1.0, 1.0]), 0.5, 0.75)
    (0, 1)
    """
    # rounding must not carry a share that is met exactly to the next place
    total, cumulated, i = weights.sum(), weights[0], 0
    wanted = first * total * (1.0 - 1e-12)
    while cumulated < wanted and i < weights.size - 1:
        i += 1
        cumulated += weights[i]
    place, wanted = i, second * total * (1.0 - 1e-12)
    while cumulated < wanted and i < weights.size - 1:
        i += 1
        cumulated += weights[i]
    return place, i


@njit(cache=True)
def even_quantile(size: int, level: float) -> int:
    """The same place for equal weights."""
    return int(max(math.ceil(level * size * (1.0 - 1e-12)), 1)) - 1


@njit(cache=True)
def bounds_of(logs: FloatArray, weights: FloatArray, factors: FloatArray, bounds: FloatArray) -> None:
    r"""Compute the bounds by ascending ``logs`` with ``weights``, and by the logs alone; the smaller count.

    With a factor f and a fence e, of ``factors``, a bound is :math:`Q_9 \max(f, (Q_9 / Q_2)^e)`.

    With weights, a client that is drawn often counts no more than the others; but then a client that is
    hardly ever drawn counts for many. Neither may decide alone.
    """
    bounds[:] = np.inf
    level = NINTH_DECILE if logs.size >= FEW else THIRD_QUARTILE
    even = even_quantile(logs.size, 0.5), even_quantile(logs.size, level)
    for middle, high in (quantiles(weights, 0.5, level), even):
        spread = logs[high] - logs[middle]
        bounds[CLIP] = min(bounds[CLIP], logs[high] + max(factors[2], factors[3] * spread))
        outlier = logs[high] + max(factors[0], factors[1] * spread)
        if outlier < bounds[OUTLIER]:
            bounds[OUTLIER] = outlier
            # a third quartile says too little of the tail
            bounds[DEVIATION] = UNCERTAINTY * spread / NORMAL_DECILE if logs.size >= FEW else 0.0
    bounds[OUTLIER] = min(bounds[OUTLIER], bounds[CLIP])


@njit(cache=True)
def judge(
    entries: IntArray, values: FloatArray, counters: IntArray, factors: FloatArray, bounds: FloatArray
) -> None:
    """Compute the bounds; inf without a norm.

    A client that is drawn often is more likely to be in the window: with probability r for each reply it is
    among the last T with about min(1, r T), and counts for the inverse.
    """
    size = counters[SIZE]
    if size:
        span = counters[REPLIES] - entries[BEFORE, :size].min()
        weights = 1.0 / np.minimum(span * values[RATE, :size], 1.0)
        bounds_of(values[LOG, :size], weights, factors, bounds)
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
    """Take out ``clients`` (ascending)."""
    _keep(entries, values, counters, _not_among(entries[CLIENT, : counters[SIZE]], clients))
    judge(entries, values, counters, factors, bounds)


@njit(cache=True)
def all_below(clients: IntArray, end: int, norms: FloatArray, bound: float) -> bool:
    """Whether all clients are below ``end``, and no norm is above the bound."""
    for i in range(clients.size):  # noqa: SIM110 - numba has no generator expressions
        if clients[i] >= end or norms[i] > bound:
            return False
    return True


@njit(cache=True)
def _average(log_mean: float, log: float, count: int) -> float:
    """The logarithm of a root mean square of ``count`` numbers, of which the last is new."""
    top = max(log_mean, log)
    squares = (count - 1) * math.exp(2.0 * (log_mean - top)) + math.exp(2.0 * (log - top))
    return float(top + 0.5 * math.log(squares / count))


@njit(cache=True)
def _log_of(norm: float, clip: float) -> float:
    """The logarithm of a norm, which counts for at most the clip."""
    return min(math.log(max(norm, LEAST_NORM)), clip)


@njit(cache=True)
def _joining(
    entries: IntArray,
    values: FloatArray,
    counters: IntArray,
    bounds: FloatArray,
    clients: IntArray,
    norms: FloatArray,
    outliers: IntArray,
) -> tuple[IntArray, FloatArray]:
    """Those of a cohort and of the window above the bound that are no outliers yet, and their logarithms."""
    bound, clip = bounds[OUTLIER], bounds[CLIP]
    first = np.searchsorted(values[LOG, : counters[SIZE]], bound, side="right")
    older = entries[CLIENT, first : counters[SIZE]]
    joined, logs = np.empty(clients.size + older.size, dtype=np.int64), np.empty(clients.size + older.size)
    joining, surely_below = 0, math.exp(min(bound, LARGEST_LOG)) * (1.0 - 1e-9)
    for i in range(clients.size):
        if norms[i] < surely_below:  # most of them: a logarithm takes longer
            continue
        log = _log_of(norms[i], clip)
        if log > bound and position_in(outliers, clients[i]) < 0:
            joined[joining], logs[joining] = clients[i], log
            joining += 1
    for i in range(older.size):
        if position_in(outliers, older[i]) < 0 and not (clients == older[i]).any():
            joined[joining], logs[joining] = older[i], min(values[LOG, first + i], clip)
            joining += 1
    return joined[:joining], logs[:joining]


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
    outliers: IntArray,
    outlier_means: FloatArray,
    outlier_counts: IntArray,
) -> tuple[bool, bool]:
    """Store the replies of a cohort, and compute the bounds and the means of the outliers.

    Whether anybody is above the bound of outliers, and whether there are others now: ``note_outliers``.
    """
    above_zero = norms > 0.0
    if above_zero.any():
        rates = counts[above_zero] / weights[above_zero] / above_zero.sum()
        heard, told = clients[above_zero], norms[above_zero]
        counters[REPLIES] += max(heard.size - REMEMBERED, 0)
        heard, told, rates = heard[-REMEMBERED:], told[-REMEMBERED:], rates[-REMEMBERED:]
        size = counters[SIZE]
        change = _change(entries, values, size, heard, told, outliers, bounds[OUTLIER])
        for i in range(size):
            values[LOG, i] = min(max(values[LOG, i] + change, LEAST_LOG), -LEAST_LOG)
        for i in range(outlier_means.size):
            outlier_means[i] = min(max(outlier_means[i] + change, LEAST_LOG), -LEAST_LOG)
        _store(entries, values, counters, heard, told, rates)
        judge(entries, values, counters, factors, bounds)
    largest = math.log(norms.max()) if above_zero.any() else -np.inf
    if counters[SIZE]:
        largest = max(largest, values[LOG, counters[SIZE] - 1])
    anybody = bool(largest > bounds[OUTLIER])
    if outliers.size:
        new = _not_among(clients, outliers)
        for i in range(clients.size):
            if not new[i]:
                place = position_in(outliers, clients[i])
                outlier_counts[place] += 1
                log = _log_of(norms[i], bounds[CLIP])
                outlier_means[place] = _average(outlier_means[place], log, outlier_counts[place])
    others = not (outlier_means > bounds[OUTLIER]).all()
    if anybody and not others:
        joined, _ = _joining(entries, values, counters, bounds, clients, norms, outliers)
        others = joined.size > 0
    return anybody, others


@njit(cache=True)
def note_outliers(
    entries: IntArray,
    values: FloatArray,
    counters: IntArray,
    factors: FloatArray,
    bounds: FloatArray,
    clients: IntArray,
    norms: FloatArray,
    outliers: IntArray,
    means: FloatArray,
    counts: IntArray,
    hints: IntArray,
) -> tuple[IntArray, FloatArray, IntArray, IntArray]:
    """The outliers, ascending, and of each the logarithm of the root mean square of its norms since, and
    their number.

    The last of the arrays are ``hints`` for their look-up, -1 for those that join.
    Those of the window and of a cohort above the bound join. One leaves when its mean is below the bound, as
    that is now.
    """
    joined, logs = _joining(entries, values, counters, bounds, clients, norms, outliers)
    joining, bound = joined.size, bounds[OUTLIER]
    order = np.argsort(joined)
    room = outliers.size + joining
    new_outliers, new_counts = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    new_means, new_hints = np.empty(room), np.empty(room, dtype=np.int64)
    size = added = 0
    for old in range(outliers.size + 1):
        while added < joining and (old == outliers.size or joined[order[added]] < outliers[old]):
            new_outliers[size], new_means[size] = joined[order[added]], logs[order[added]]
            new_counts[size], new_hints[size] = 1, -1
            size, added = size + 1, added + 1
        if old < outliers.size and means[old] > bound:
            new_outliers[size], new_means[size] = outliers[old], means[old]
            new_counts[size], new_hints[size] = counts[old], hints[old]
            size += 1
    return new_outliers[:size], new_means[:size], new_counts[:size], new_hints[:size]
