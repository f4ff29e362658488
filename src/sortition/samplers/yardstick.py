"""What the norms of late are like: one of each client, so that nobody counts for more by replying often."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import StateError
from sortition.core.state import array, check, count
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.samplers.outliers import Bounds, Fences, all_ordinary, among, bounds_of

REMEMBERED = 500
"""So many clients are remembered at most: those who replied last."""
OUTDATED = 5000
"""What a client said is forgotten after so many more replies of others."""

LOWEST_LOG = math.log(np.nextafter(0.0, 1.0))
LARGEST_LOG = math.log(np.finfo(float).max)


class Yardstick:
    r"""The last norm of each of the clients who replied last, and the bounds that follow from them.

    Norms of zero are no yardstick: they say nothing about how large a norm may be, and are passed over here.

    Where there are more clients than can be remembered, those who are drawn often are more likely to be among
    them: a client that a reply came from with probability r is among T of them with about min(1, r T), and
    counts for the inverse.
    """

    def __init__(self, fences: Fences) -> None:
        self._fences = fences
        self._clients = np.zeros(0, dtype=np.int64)  # in the order of their last replies
        self._logs = np.zeros(0)  # of their norms
        self._rates = np.zeros(0)  # how likely a reply was to be theirs
        self._before = np.zeros(0, dtype=np.int64)  # so many replies there had been before
        self.replies = 0
        """How many there were, all told."""
        self._bounds: Bounds | None = None  # once somebody asked

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def bounds(self) -> Bounds:
        """What the norms of late say; there must be one."""
        if self._bounds is None:
            self._bounds = bounds_of(self._logs, self._weights(), self._fences)
        return self._bounds

    @property
    def norm_bound(self) -> float:
        """What a norm may be; inf where there is nothing to judge it by."""
        return math.exp(min(self.bounds.clip, LARGEST_LOG)) if len(self) else math.inf

    @property
    def median(self) -> float:
        """The lower one; there must be a norm."""
        return math.exp(np.sort(self._logs)[(len(self) - 1) // 2])

    @property
    def expected_share(self) -> float:
        """What outliers may well hold if the norms are log-normal; 0 where nothing is known."""
        return self.bounds.expected_share if len(self) else 0.0

    def remember(self, cohort: Cohort, norms: FloatArray) -> None:
        """Take in the replies of a cohort."""
        above_zero = norms > 0.0
        if not above_zero.any():
            return
        clients = cohort.clients[above_zero]
        rates = cohort.counts[above_zero] / cohort.weights[above_zero] / len(clients)
        self.forget(np.sort(clients))
        outdated = int(np.searchsorted(self._before, self.replies - OUTDATED))
        self._clients = np.concatenate((self._clients, clients))
        self._logs = np.concatenate((self._logs, np.log(norms[above_zero])))
        self._rates = np.concatenate((self._rates, rates))
        self._before = np.concatenate((self._before, np.full(len(clients), self.replies)))
        self.replies += len(clients)
        self._keep(slice(max(outdated, len(self._clients) - REMEMBERED), None))

    def _keep(self, which: slice | BoolArray) -> None:
        self._clients, self._logs = self._clients[which], self._logs[which]
        self._rates, self._before = self._rates[which], self._before[which]
        self._bounds = None

    def outliers(self, cohort: Cohort, norms: FloatArray) -> IntArray:
        """Whose norm is above the outliers' bound, ascending: of those remembered and of a cohort."""
        largest = max(float(norms.max()), math.exp(min(self._logs.max(initial=-math.inf), LARGEST_LOG)))
        factor = min(self._fences.outlier_factor, self._fences.clip_factor)
        if largest == 0.0 or all_ordinary(math.log(largest), self._logs, self._weights(), factor):
            return np.zeros(0, dtype=np.int64)
        above = norms > math.exp(min(self.bounds.outlier, LARGEST_LOG))
        return np.union1d(cohort.clients[above], self._clients[self._logs > self.bounds.outlier])

    def forget(self, clients: IntArray) -> None:
        """What ``clients`` (ascending) said does not count any more."""
        self._keep(~among(self._clients, clients))

    def _weights(self) -> FloatArray:
        span = self.replies - int(self._before[0])
        return np.asarray(1.0 / np.minimum(span * self._rates, 1.0))

    def state(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "guard.clients": self._clients.copy(),
            "guard.logs": self._logs.copy(),
            "guard.rates": self._rates.copy(),
            "guard.before": self._before.copy(),
            "guard.replies": self.replies,
        }

    def restored(self, state: Mapping[str, Any]) -> Yardstick:
        """A yardstick with the memory of ``state``."""
        yardstick = Yardstick(self._fences)
        yardstick._clients = array(state, "guard.clients", np.int64, (None,))
        shape = (len(yardstick._clients),)
        yardstick._logs = array(state, "guard.logs", np.float64, shape)
        yardstick._rates = array(state, "guard.rates", np.float64, shape)
        yardstick._before = array(state, "guard.before", np.int64, shape)
        yardstick.replies = count(state, "guard.replies")
        logs, before, clients = yardstick._logs, yardstick._before, yardstick._clients
        check("guard.logs", logs, np.abs(logs) <= -LOWEST_LOG, "logarithms of doubles")
        in_order = (np.diff(before, prepend=0) >= 0) & (before < yardstick.replies)
        check("guard.before", before, in_order, f"ascending and below {yardstick.replies}")
        if len(np.unique(clients)) < len(clients) or (clients < 0).any():
            raise StateError("state must hold 'guard.clients', different ones, none negative, got others")
        rates = yardstick._rates
        check("guard.rates", rates, (rates > 0.0) & np.isfinite(rates), "finite and above 0")
        return yardstick
