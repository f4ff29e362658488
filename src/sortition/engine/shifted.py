"""Crowds whose ratios are exponentials: logarithms are kept, and ratios are relative to a shift."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.state import array, check, number
from sortition.core.types import FloatArray, IntArray
from sortition.engine.crowd import Crowd
from sortition.engine.roster import Roster

FURTHEST_LOG = 200.0
"""How far the largest logarithm may stand from the shift, either way, before all are shifted anew."""


class ShiftedCrowd(Crowd):
    """Keeps a logarithm for each client met, so that a ratio can pass any bound.

    A subclass says in ``_write`` how ratios are made out of ``_logs`` and ``_shift``, in ``_vanishing``
    whether all of them have become so small that they might be lost, and in ``settle`` what makes them sum
    to one. That is a formula of all clients; when clients come and go it rests until the next feedback, and
    ``rescale`` lets the others keep their proportions.
    """

    def __init__(self, roster: Roster, *, experts: int) -> None:
        super().__init__(roster, experts=experts)
        self._logs = np.zeros(0)
        self._shift = 0.0

    @abstractmethod
    def _write(self, slots: IntArray) -> None:
        """Make the ratios of ``slots`` out of their logarithms."""

    @abstractmethod
    def _vanishing(self) -> bool:
        """Whether all ratios are below exp(-FURTHEST_LOG)."""

    @abstractmethod
    def settle(self) -> None:
        """Let the formula apply to the ratios as they are now."""

    def _highest(self) -> float:
        """The largest logarithm there is."""
        return float(self._logs[: self.count].max(initial=-np.inf))

    def note(self, clients: IntArray, logs: FloatArray) -> None:
        """Set the logarithms of ``clients``, and all ratios that depend on them."""
        slots = self.meet(clients)
        missing = len(self.ratios) - len(self._logs)
        if missing > 0:
            self._logs = np.concatenate((self._logs, np.full(missing, -np.inf)))
        self._logs[slots] = logs
        if self._highest_of(logs) - self._shift > FURTHEST_LOG:
            self._reshift()
        else:
            self._write(slots)
            if self._vanishing():  # now, or what was lost would be so for a round
                self._reshift()
        self.settle()

    def remove(self, clients: IntArray) -> None:
        """Let ``clients`` go; the others keep their proportions."""
        slots = self.slots_of(clients)
        self._logs[slots[slots >= 0]] = -np.inf
        super().remove(clients)

    def raise_all(self, log_factor: float) -> None:
        """Add ``log_factor`` to every logarithm: no ratio changes."""
        self._logs += log_factor
        self._shift += log_factor

    def state(self) -> dict[str, Any]:
        """That of a crowd, with the logarithms."""
        return {**super().state(), "logs": self._logs[: self.count].copy(), "shift": self._shift}

    def restore(self, state: Mapping[str, Any], *, experts: int) -> None:
        """Take back what ``state`` gave."""
        shift = number(state, "shift")
        met = array(state, "met_clients", np.int64, (None,))
        logs = array(state, "logs", np.float64, (len(met),))
        check("logs", logs, logs < np.inf, "finite, or -inf for no feedback")
        super().restore(state, experts=experts)
        self._logs, self._shift = logs, shift

    def _highest_of(self, logs: FloatArray) -> float:
        return float(np.max(logs))

    def _reshift(self) -> None:
        highest = self._highest()
        if math.isfinite(highest):
            self._shift = highest
        self._write(np.arange(self.count))
