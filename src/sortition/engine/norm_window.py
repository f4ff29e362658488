"""The last norms of the clients that replied recently, three robust bounds made from them, and who is above.

One call of a kernel stores the replies of a cohort and judges them: calls are most of a small round's cost.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from sortition.core.types import FloatArray, IntArray

REMEMBERED = 500
"""So many clients are remembered, those that replied last; more only if a cohort has more."""
OUTDATED = 5000
"""A client's norm is forgotten after this many more replies of others."""
FEW = 20
"""With fewer norms than this the third quartile stands for the ninth decile."""
MANY = 50
"""So many first replies are judged together. With fewer norms than this the bound for updates is at most
``clip_factor`` times their median: a few liars can then be a tenth of all."""
THIRD_QUARTILE, NINTH_DECILE = 0.75, 0.9
LEAST_LOG = -744.0
"""The logarithm of about the least double."""
LEAST_NORM = math.exp(LEAST_LOG)
GAIN, LARGEST_CHANGE, LARGEST_TREND = 0.2, 2.0, 2.0
"""All logarithms follow by this part of a cohort's median change, of which at most so much counts. The trend
follows by the same part in the time in which the window is heard once, or in ``MANY`` replies if these are
more: what a few clients say is mostly noise. It is at most ``LARGEST_TREND`` a reply."""
OLD = 0.15
"""A norm is old if its age, in replies since, is at least this part of the mean age in the window."""
ROUNDING = 1e-9
DEVIATION = 0.95
"""The deviation over the distance of the ninth decile from the median. It would be 0.78 for log-normal norms;
but the largest of a few may be far above the others."""

ENTRY = np.dtype([("client", np.int64), ("before", np.int64), ("log", np.float64), ("rate", np.float64)])
"""An entry of the window: a client, how many replies there had been before its own, the logarithm of its
norm, ascending, and how likely a reply was to be its own."""
OUTLIER = np.dtype([("client", np.int64), ("count", np.int64), ("log", np.float64)])
"""An outlier, in the order of the clients: the number of its norms since it is one, and the logarithm of
their root mean square."""
SETTINGS = ("outlier_factor", "outlier_fence", "clip_factor", "fence", "update_factor")
BOUNDS = np.dtype(
    [
        *((name, np.int64) for name in ("newcomers", "replies")),
        *((name, np.float64) for name in (*SETTINGS, "trend", "outlier", "clip", "update", "deviation")),
    ]
)
"""One record: the id from which on clients are newcomers, all replies above zero so far; the settings,
factors as logarithms; the trend of all logarithms, a reply; then what is made of the window: the bounds of
outliers, of norms and of updates, and the deviation of the logarithms."""


@njit(cache=True)
def position_in(ascending: IntArray, client: int) -> int:
    """The place of ``client`` in ``ascending``, or -1."""
    place = int(np.searchsorted(ascending, client))
    return place if place < ascending.size and ascending[place] == client else -1


@njit(cache=True)
def _follow(bounds: Any, changes: FloatArray, replies: int, size: int) -> float:
    """By how much all norms have changed beyond their trend: a part of the median of ``changes``.

    These are the changes of those that were heard again. The trend leaves nothing of them in the long run.
    """
    if not changes.size:
        return 0.0
    median = np.median(changes) - bounds.trend * replies
    change = GAIN * min(max(median, -LARGEST_CHANGE), LARGEST_CHANGE)
    if abs(median) < LARGEST_CHANGE:  # a jump is no trend
        trend = bounds.trend + change / max(size, MANY)
        bounds.trend = min(max(trend, -LARGEST_TREND), LARGEST_TREND)
    return float(change)


@njit(cache=True)
def _move(records: Any, change: float) -> None:
    """Add ``change`` to the logarithms; they stay those of doubles."""
    for i in range(records.size):
        records[i].log = min(max(records[i].log + change, LEAST_LOG), -LEAST_LOG)


@njit(cache=True)
def _merged(one: Any, other: Any) -> Any:
    """Both, ascending."""
    found: Any = np.empty(one.size + other.size, dtype=ENTRY)
    i = j = 0
    for place in range(found.size):
        if j == other.size or (i < one.size and one[i].log <= other[j].log):
            found[place] = one[i]
            i += 1
        else:
            found[place] = other[j]
            j += 1
    return found


@njit(cache=True)
def _stored(
    bounds: Any, window: Any, outliers: Any, clients: IntArray, logs: FloatArray, rates: FloatArray
) -> Any:
    """The window with the last norms of ``clients``, without the oldest; what is remembered follows.

    What all norms do is said by those that are heard again, were no outliers and are not above their bound;
    by the old ones alone, if there are any. Everything follows the trend. Outliers and the old norms of the
    window also follow the change beyond it; young norms may have come after that change.
    """
    bounds.replies += clients.size
    order = np.argsort(clients)
    ascending, stay, size = clients[order], np.empty(window.size, dtype=np.int64), 0
    changes, aged, again = np.empty(clients.size), np.empty(clients.size, dtype=np.bool_), 0
    since = bounds.replies - OLD * (bounds.replies - window.before.mean()) if window.size else 0.0
    for i in range(window.size):
        entry = window[i]
        place = position_in(ascending, entry.client)
        if place < 0 and entry.before >= bounds.replies - OUTDATED:
            stay[size] = i
            size += 1
        if place >= 0:
            log = logs[order[place]]
            changes[again], aged[again] = log - entry.log, entry.before <= since
            again += log <= bounds.outlier and position_in(outliers.client, entry.client) < 0
    changes, aged = changes[:again], aged[:again]
    too_many, oldest = min(size + clients.size - REMEMBERED, size), 0
    if too_many > 0:
        oldest = np.partition(window.before[stay[:size]], too_many - 1)[too_many - 1] + 1
    told = changes[aged] if aged.any() else changes  # those who stay away must not silence the others
    change = _follow(bounds, told, clients.size, size - max(too_many, 0) + clients.size)
    trend = bounds.trend * clients.size
    old, olds, young, youngs = np.empty(size, dtype=ENTRY), 0, np.empty(size, dtype=ENTRY), 0
    for i in stay[:size]:
        if oldest <= window[i].before <= since:
            old[olds] = window[i]
            olds += 1
        elif window[i].before >= oldest:
            young[youngs] = window[i]
            youngs += 1
    _move(old[:olds], trend + change)
    _move(young[:youngs], trend)
    _move(outliers, trend + change)
    order, new = np.argsort(logs), np.empty(clients.size, dtype=ENTRY)
    for i in range(clients.size):
        entry, which = new[i], order[i]
        entry.client, entry.before = clients[which], bounds.replies - clients.size + which
        entry.log, entry.rate = logs[which], rates[which]
    return _merged(_merged(old[:olds], young[:youngs]), new)


@njit(cache=True)
def quantile(ascending: FloatArray, cumulated: FloatArray, share: float) -> float:
    """The least number up to which there is this share of the weight.

    >>> quantile(np.array([7.0, 8.0, 9.0]), np.cumsum(np.array([2.0, 1.0, 1.0])), 0.75)
    8.0
    """
    # rounding must not carry a share that is met exactly to the next place
    return float(ascending[np.searchsorted(cumulated, share * cumulated[-1] * (1.0 - 1e-12))])


@njit(cache=True)
def judge(bounds_array: Any, logs: FloatArray, weights: FloatArray) -> None:
    r"""Compute the bounds by ascending ``logs`` with ``weights``, and by the logs alone; the smaller count.

    With a factor f and a fence e a bound is :math:`Q_9 \max(f, (Q_9 / Q_2)^e)`; inf without a norm.

    With weights, a client that is drawn often counts no more than the others; but then a client that is
    hardly ever drawn counts for many. Neither may decide alone.
    """
    bounds = bounds_array[0]
    bounds.outlier = bounds.clip = bounds.update = np.inf
    bounds.deviation, level = (np.inf, NINTH_DECILE) if logs.size >= FEW else (0.0, THIRD_QUARTILE)
    if not logs.size:
        return
    for one in (weights, np.ones(logs.size)):
        cumulated = np.cumsum(one)
        high = quantile(logs, cumulated, level)
        spread = high - quantile(logs, cumulated, 0.5)
        bounds.outlier = min(bounds.outlier, high + max(bounds.outlier_factor, bounds.outlier_fence * spread))
        bounds.clip = min(bounds.clip, high + max(bounds.clip_factor, bounds.fence * spread))
        bounds.update = min(bounds.update, high + max(bounds.update_factor, spread))
        bounds.deviation = min(bounds.deviation, DEVIATION * spread)  # a third quartile says too little
    bounds.update = min(bounds.update, bounds.clip)
    if logs.size < MANY:
        bounds.update = min(bounds.update, logs[(logs.size - 1) // 2] + bounds.clip_factor)


@njit(cache=True)
def judge_window(bounds_array: Any, window: Any) -> None:
    """Compute the bounds by the window.

    A client that is drawn often is more likely to be in the window: with probability r for each reply it is
    among the last T with 1 - exp(-r T), and counts for the inverse.
    """
    span = bounds_array[0].replies - (window.before.min() if window.size else 0)
    judge(bounds_array, window.log.copy(), -1.0 / np.expm1(-span * window.rate))


@njit(cache=True)
def _average(log_mean: float, log: float, count: int) -> float:
    """The logarithm of a root mean square of ``count`` numbers, of which the last is new."""
    top = max(log_mean, log)
    squares = (count - 1) * math.exp(2.0 * (log_mean - top)) + math.exp(2.0 * (log - top))
    return float(top + 0.5 * math.log(squares / count))


@njit(cache=True)
def _outliers_now(bounds: Any, window: Any, outliers: Any) -> tuple[Any, bool]:
    """Who is an outlier, and whether they are others than before.

    Of those before, who has a mean of at least the bound; of the others in the window, who is above it.
    """
    found: Any = np.empty(outliers.size + window.size, dtype=OUTLIER)
    count = 0
    for i in range(outliers.size):
        found[count] = outliers[i]
        count += outliers[i].log >= bounds.outlier - ROUNDING  # a clipped norm may be just the bound
    stay, i = count, window.size - 1
    while i >= 0 and window[i].log > bounds.outlier:
        if position_in(outliers.client, window[i].client) < 0:
            new = found[count]
            new.client, new.count, new.log = window[i].client, 1, min(window[i].log, bounds.clip)
            count += 1
        i -= 1
    if count == stay == outliers.size:
        return outliers, False
    return found[np.argsort(found[:count].client)], True


@njit(cache=True)
def remember(
    bounds_array: Any,
    window: Any,
    outliers: Any,
    clients: IntArray,
    counts: IntArray,
    weights: FloatArray,
    norms: FloatArray,
) -> tuple[Any, Any, bool, bool]:
    """The window and the outliers with the replies of a cohort; bounds and means are changed in place.

    And whether there are other outliers now, and whether a norm is to be clipped.
    """
    bounds, above_zero, logs = bounds_array[0], norms > 0.0, np.log(np.maximum(norms, LEAST_NORM))
    if above_zero.any():
        rates = counts[above_zero] / weights[above_zero] / above_zero.sum()
        window = _stored(bounds, window, outliers, clients[above_zero], logs[above_zero], rates)
        judge_window(bounds_array, window)
    for i in range(clients.size if outliers.size else 0):
        place = position_in(outliers.client, clients[i])
        if place >= 0:
            one = outliers[place]
            one.count += 1
            one.log = _average(one.log, min(logs[i], bounds.clip), one.count)
    now, others = _outliers_now(bounds, window, outliers)
    clip = logs.max() > (bounds.clip if clients.max() < bounds.newcomers else bounds.outlier)
    return window, now, others, clip
