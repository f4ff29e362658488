"""Clients that do not reply, or send what can't be used, are asked less often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.state import array, check
from sortition.core.types import BoolArray, IntArray

LEAST_SILENT = 3
"""A client that has sent no usable reply this many times in a row rests."""
LONGEST_REST = 32
"""Rounds that a client rests at most. Then it is tried again."""


class Silence:
    """How often in a row each client has sent no usable reply, and how many rounds it rests for that.

    A client rests 2 rounds after its third silence in a row, then 4, 8, 16 and 32. While it rests, it is
    treated as if it were offline. One usable reply brings it back.

    >>> silence = Silence()
    >>> silence.join(3)
    >>> for _ in range(3):
    ...     silence.record(np.array([0, 1]), np.array([True, False]))
    (array([], dtype=int64), array([], dtype=int64))
    (array([], dtype=int64), array([], dtype=int64))
    (array([1]), array([], dtype=int64))
    >>> silence.awake(np.arange(3), least=2)
    array([0, 2])
    >>> silence.awake(np.arange(3), least=3)
    array([0, 1, 2])
    """

    def __init__(self) -> None:
        self._times: IntArray = np.zeros(0, dtype=np.int64)  # silent in a row
        self._rest: IntArray = np.zeros(0, dtype=np.int64)  # rounds left

    def join(self, newcomers: int) -> None:
        """Append clients."""
        self._times, self._rest = (
            np.concatenate([each, np.zeros(newcomers, dtype=np.int64)]) for each in (self._times, self._rest)
        )

    def awake(self, clients: IntArray, least: int, other: Silence | None = None) -> IntArray:
        """The clients that rest neither here nor in ``other``; if too few, those with the shortest rests."""
        rest = self._rest[clients]
        if other is not None:
            rest = np.maximum(rest, other._rest[clients])
        number = max(np.count_nonzero(rest == 0), least)
        return np.sort(clients[np.argsort(rest, kind="stable")[:number]])

    def resting(self, clients: IntArray) -> int:
        """How many of ``clients`` rest."""
        return int(np.count_nonzero(self._rest[clients]))

    def record(self, clients: IntArray, heard: BoolArray) -> tuple[IntArray, IntArray]:
        """End a round in which ``clients`` were asked. Returns those that begin to rest, and those back."""
        np.maximum(self._rest - 1, 0, out=self._rest)
        back = clients[heard & (self._times[clients] >= LEAST_SILENT)]
        self._times[clients] = np.where(heard, 0, self._times[clients] + 1)
        times = self._times[clients]
        longest = LONGEST_REST.bit_length() - 1
        self._rest[clients] = np.where(
            times >= LEAST_SILENT, 2 ** np.clip(times - LEAST_SILENT + 1, 0, longest), 0
        )
        return clients[times == LEAST_SILENT], back

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        return {"silent_times": self._times.copy(), "rest": self._rest.copy()}

    def restored(self, state: Mapping[str, Any], num_clients: int) -> Silence:
        """The one that is in ``state``."""
        restored = Silence()
        restored._times = array(state, "silent_times", np.int64, (num_clients,))
        restored._rest = array(state, "rest", np.int64, (num_clients,))
        check("silent_times", restored._times, restored._times >= 0, "not negative")
        right = (restored._rest >= 0) & (restored._rest <= LONGEST_REST)
        check("rest", restored._rest, right, f"from 0 to {LONGEST_REST}")
        return restored
