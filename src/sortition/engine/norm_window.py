"""The last norms of the clients that replied recently, three robust bounds made from them, and who is above.

One call of a kernel stores the replies of a cohort and judges them: calls are most of a small round's cost.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from sortition.core.types import BoolArray, FloatArray, IntArray

REMEMBERED = 500
"""At most this many clients are remembered: those that replied last."""
OUTDATED = 5000
"""A client's norm is forgotten after this many more replies of others."""
FEW = 20
"""With fewer norms than this the third quartile stands for the ninth decile."""
MANY = 50
"""So many first replies are judged together. With fewer norms than this the bound for updates is at most
``clip_factor`` times their median: a few liars can then be a tenth of all."""
FIRST_DECILE, THIRD_QUARTILE, NINTH_DECILE = 0.1, 0.75, 0.9
NORMAL_DECILE = 1.2815515655446004
"""The ninth decile of the standard normal distribution."""
MIXER = 0x1E3779B97F4A7C15
"""An odd number: that of all replies is multiplied by it (modulo 2^64), and chooses an order of the ids."""
DIGITS = 1024
"""A power of two that is larger than most cohorts."""
LEAST_LOG = -744.0
"""The logarithm of about the least double."""
LEAST_NORM = math.exp(LEAST_LOG)
UPDATE_FENCE = 1.0
"""The fence of the bound for updates."""
GAIN, LARGEST_CHANGE, LARGEST_TREND = 0.2, 2.0, 2.0
"""All logarithms follow by this part of a cohort's median change, of which at most so much counts. The trend
follows by the same part in the time in which the window is heard once, or in ``MANY`` replies if these are
more: what a few clients say is mostly noise. It is at most ``LARGEST_TREND`` a reply."""
ROUNDING = 1e-9
CERTAIN = 30.0
"""A client that should have replied this many times is in the window."""
SKEWED = 1.3
"""The deviation is at most this multiple of what the upper half says: small norms tell little of large."""
TAIL = 0.13
"""The deviation is raised by this times itself: the largest of a few norms may be far above the others."""

ENTRY = np.dtype([("client", np.int64), ("before", np.int64), ("log", np.float64), ("rate", np.float64)])
"""An entry of the window: a client, how many replies there had been before its own, the logarithm of its
norm, ascending, and how likely a reply was to be its own."""
OUTLIER = np.dtype([("client", np.int64), ("count", np.int64), ("log", np.float64)])
"""An outlier, in the order of the clients: the number of its norms since it is one, and the logarithm of
their root mean square."""
SETTINGS = ("outlier_factor", "outlier_fence", "clip_factor", "fence", "update_factor")
BOUNDS = np.dtype(
    [
        *((name, np.int64) for name in ("newcomers", "size", "replies")),
        *((name, np.float64) for name in (*SETTINGS, "trend", "outlier", "clip", "update", "deviation")),
    ]
)
"""One record: the id from which on clients are newcomers, the size of the window, all replies above zero so
far; the settings, factors as logarithms; the trend of all logarithms, a reply; then what is made of the
window: the bounds of outliers, of norms and of updates, and the raised deviation of the logarithms."""


@njit(cache=True)
def position_in(ascending: IntArray, client: int) -> int:
    """The place of ``client`` in ``ascending``, or -1."""
    place = int(np.searchsorted(ascending, client))
    return place if place < ascending.size and ascending[place] == client else -1


@njit(cache=True)
def _digits_of(clients: IntArray) -> BoolArray:
    """Which last digits ``clients`` have: who has others need not be searched among them."""
    digits = np.zeros(DIGITS, dtype=np.bool_)
    for client in clients:
        digits[client % DIGITS] = True
    return digits


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
def _mixed(numbers: IntArray) -> Any:
    """Each number's place in an order that looks random: the last step of the generator splitmix64."""
    x = numbers.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def _take_out(
    window: Any, bounds: Any, clients: IntArray, logs: FloatArray, outliers: Any, room: int
) -> float:
    """Take out ``clients`` and the oldest, until there is ``room``; by how much all norms have changed.

    That is the trend, and a part of the median change beyond it of the logarithms of the ``clients`` that
    were heard before, are no outliers and are not above the bound of outliers now. The trend leaves nothing
    of such changes in the long run.
    """
    order = np.argsort(clients)
    ascending, digits = clients[order], _digits_of(clients)
    changes, again, kept = np.empty(clients.size), 0, 0
    for i in range(bounds.size):
        client = window[i].client
        place = position_in(ascending, client) if digits[client % DIGITS] else -1
        window[kept] = window[i]  # the next one takes its place if it is dropped: no branch to guess
        kept += place < 0 and window[i].before >= bounds.replies - OUTDATED
        if place >= 0 and logs[order[place]] <= bounds.outlier and position_in(outliers.client, client) < 0:
            changes[again] = logs[order[place]] - window[i].log - bounds.trend * clients.size
            again += 1
    if kept > room:
        oldest, size, kept = _smallest(window[:kept].before, kept - room), kept, 0
        for i in range(size):
            window[kept] = window[i]
            kept += window[i].before > oldest
    change, bounds.size = 0.0, kept
    if again:
        median = float(np.median(changes[:again]))
        change = GAIN * min(max(median, -LARGEST_CHANGE), LARGEST_CHANGE)
        if abs(median) < LARGEST_CHANGE:  # a jump is no trend
            trend = bounds.trend + change / max(kept + clients.size, MANY)
            bounds.trend = min(max(trend, -LARGEST_TREND), LARGEST_TREND)
    return float(change + bounds.trend * clients.size)


@njit(cache=True)
def _store(
    window: Any, bounds: Any, outliers: Any, clients: IntArray, logs: FloatArray, rates: FloatArray
) -> None:
    """Put in the last norm of each of ``clients``, ``REMEMBERED`` at most; the others follow."""
    bounds.replies += clients.size
    if clients.size > REMEMBERED:  # some of them: by their ids, but in another order each time
        some = np.argsort(_mixed(clients + bounds.replies * MIXER))[:REMEMBERED]
        clients, logs, rates = clients[some], logs[some], rates[some]
    change = _take_out(window, bounds, clients, logs, outliers, REMEMBERED - clients.size)
    for i in range(bounds.size):
        window[i].log = min(max(window[i].log + change, LEAST_LOG), -LEAST_LOG)
    for i in range(outliers.size):
        outliers[i].log = min(max(outliers[i].log + change, LEAST_LOG), -LEAST_LOG)
    order, old = np.argsort(logs), bounds.size - 1
    bounds.size += clients.size
    for i in range(clients.size - 1, -1, -1):  # merge, from the back
        new = order[i]
        while old >= 0 and window[old].log > logs[new]:
            window[old + i + 1] = window[old]
            old -= 1
        entry = window[old + i + 1]
        entry.client, entry.before = clients[new], bounds.replies - clients.size + new
        entry.log, entry.rate = logs[new], rates[new]


@njit(cache=True)
def quantiles(weights: FloatArray, low: float, middle: float, high: float) -> tuple[int, int, int]:
    """The places up to which there are three shares of the weight, in ascending order.

    >>> quantiles(np.array([2.0, 1.0, 1.0]), 0.1, 0.5, 0.75)
    (0, 0, 1)
    """
    # rounding must not carry a share that is met exactly to the next place
    total, cumulated, places = weights.sum() * (1.0 - 1e-12), 0.0, [0, 0, 0]
    i = -1
    for k, share in enumerate((low, middle, high)):
        while cumulated < share * total and i < weights.size - 1:
            i += 1
            cumulated += weights[i]
        places[k] = i
    return places[0], places[1], places[2]


@njit(cache=True)
def _bounds_of(bounds: Any, logs: FloatArray, weights: FloatArray) -> None:
    r"""Compute the bounds by ascending ``logs`` with ``weights``, and by the logs alone; the smaller count.

    With a factor f and a fence e a bound is :math:`Q_9 \max(f, (Q_9 / Q_2)^e)`.

    With weights, a client that is drawn often counts no more than the others; but then a client that is
    hardly ever drawn counts for many. Neither may decide alone.
    """
    bounds.outlier = bounds.clip = bounds.update = np.inf
    level = NINTH_DECILE if logs.size >= FEW else THIRD_QUARTILE
    for one in (weights, np.ones(logs.size)):
        low, middle, high = quantiles(one, FIRST_DECILE, 0.5, level)
        spread = logs[high] - logs[middle]
        bounds.clip = min(bounds.clip, logs[high] + max(bounds.clip_factor, bounds.fence * spread))
        bounds.update = min(bounds.update, logs[high] + max(bounds.update_factor, UPDATE_FENCE * spread))
        outlier = logs[high] + max(bounds.outlier_factor, bounds.outlier_fence * spread)
        if outlier < bounds.outlier:
            bounds.outlier = outlier
            deviation = min(0.5 * (logs[high] - logs[low]), SKEWED * spread) / NORMAL_DECILE
            # a third quartile says too little of the tail
            bounds.deviation = deviation * (1.0 + TAIL * deviation) if logs.size >= FEW else 0.0
    bounds.update = min(bounds.update, bounds.clip)
    if logs.size < MANY:
        bounds.update = min(bounds.update, logs[(logs.size - 1) // 2] + bounds.clip_factor)


@njit(cache=True)
def judge_alone(bounds_array: Any, logs: FloatArray) -> None:
    """Compute the bounds by ``logs``, all of one weight."""
    bounds = bounds_array[0]
    _bounds_of(bounds, np.sort(logs), np.ones(logs.size))


@njit(cache=True)
def judge(bounds_array: Any, window: Any) -> None:
    """Compute the bounds by the window; inf without a norm.

    A client that is drawn often is more likely to be in the window: with probability r for each reply it is
    among the last T with 1 - exp(-r T), and counts for the inverse.
    """
    bounds = bounds_array[0]
    if bounds.size:
        entries = window[: bounds.size]
        span = bounds.replies - entries.before.min()
        weights = np.ones(bounds.size)
        for i in range(bounds.size):
            expected = span * entries[i].rate
            if expected < CERTAIN:
                weights[i] = -1.0 / math.expm1(-expected)
        _bounds_of(bounds, entries.log, weights)
    else:
        bounds.outlier = bounds.clip = bounds.update = np.inf
        bounds.deviation = 0.0


@njit(cache=True)
def _average(log_mean: float, log: float, count: int) -> float:
    """The logarithm of a root mean square of ``count`` numbers, of which the last is new."""
    top = max(log_mean, log)
    squares = (count - 1) * math.exp(2.0 * (log_mean - top)) + math.exp(2.0 * (log - top))
    return float(top + 0.5 * math.log(squares / count))


@njit(cache=True)
def _outliers_now(bounds: Any, window: Any, outliers: Any, clients: IntArray, logs: FloatArray) -> Any:
    """Who is an outlier: of those before, who has a mean of at least the bound; else who is above it, of a
    cohort and of who else is in the window."""
    found: Any = np.empty(outliers.size + clients.size + bounds.size, dtype=OUTLIER)
    count = 0
    for i in range(outliers.size):
        found[count] = outliers[i]
        count += outliers[i].log >= bounds.outlier - ROUNDING  # a clipped norm may be just the bound
    for i in range(clients.size + bounds.size):
        heard = i < clients.size
        client = clients[i] if heard else window[i - clients.size].client
        log = logs[i] if heard else window[i - clients.size].log
        if log <= bounds.outlier or position_in(outliers.client, client) >= 0:
            continue
        if heard or not (clients == client).any():
            found[count].client, found[count].count, found[count].log = client, 1, min(log, bounds.clip)
            count += 1
    return found[np.argsort(found[:count].client)]


@njit(cache=True)
def remember(
    bounds_array: Any,
    window: Any,
    outliers: Any,
    clients: IntArray,
    counts: IntArray,
    weights: FloatArray,
    norms: FloatArray,
) -> tuple[bool, bool, Any]:
    """Store the replies of a cohort, and compute the bounds and the means of the outliers.

    Whether norms are to be clipped; whether there are other outliers now, and these.
    """
    bounds, above_zero = bounds_array[0], norms > 0.0
    logs = np.log(np.maximum(norms, LEAST_NORM))
    if above_zero.any():
        rates = counts[above_zero] / weights[above_zero] / above_zero.sum()
        _store(window, bounds, outliers, clients[above_zero], logs[above_zero], rates)
        judge(bounds_array, window)
    clip = False
    for i in range(clients.size):
        clip |= logs[i] > (bounds.clip if clients[i] < bounds.newcomers else bounds.outlier)
        place = position_in(outliers.client, clients[i]) if outliers.size else -1
        if place >= 0:
            one = outliers[place]
            one.count += 1
            one.log = _average(one.log, min(logs[i], bounds.clip), one.count)
    now: Any = _outliers_now(bounds, window, outliers, clients, logs)
    return clip, not np.array_equal(now.client, outliers.client), now
