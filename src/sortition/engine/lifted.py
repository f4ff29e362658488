r"""Distributions that lift the clients met above the rest: those of MABS and VRB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.state import array, scalar
from sortition.core.types import FloatArray, IntArray
from sortition.engine import forest
from sortition.engine.crowd import Crowd
from sortition.engine.roster import Roster

LARGEST_LOG = 200.0
"""How far a logarithm may stand above the shift before all are shifted anew."""


class Lifted(Crowd):
    r"""The prior q, mixed with q times :math:`x_m \ge 1` where x is 1 for all who were not met.

    .. math:: p_m = \beta\,q_m + (1-\beta)\,\frac{q_m x_m}{\sum_i q_i x_i}

    These are two experts with fixed weights, :math:`\beta` and :math:`1-\beta`. The logarithms of x are kept,
    so that x can pass any bound: the ratios are :math:`x_m e^{-\mathrm{shift}}`.

    >>> lifted = Lifted(Roster(4, None), share=0.5)
    >>> lifted.lift(np.array([2]), np.log([5.0]))
    >>> lifted.everybody()
    array([0.1875, 0.1875, 0.4375, 0.1875])
    """

    def __init__(self, roster: Roster, *, share: float) -> None:
        super().__init__(roster, experts=2)
        with np.errstate(divide="ignore"):
            self.log_weights = np.log([share, 1.0 - share])
        self._logs = np.zeros(0)
        self._shift = 0.0

    def logs(self, clients: IntArray) -> FloatArray:
        """The logarithms of x, 0 for who was not met."""
        slots = self.slots_of(clients)
        return np.where(slots >= 0, self._logs[slots] if len(self._logs) else 0.0, 0.0)

    def lift(self, clients: IntArray, logs: FloatArray) -> None:
        """Set the logarithms of x of ``clients``, all at least 0."""
        slots = self.meet(clients)
        if len(self._logs) < len(self.ratios):
            self._logs = np.concatenate((self._logs, np.zeros(len(self.ratios) - len(self._logs))))
        self._logs[slots] = logs
        if np.max(logs) - self._shift > LARGEST_LOG:
            self._shift = float(np.max(logs))
            slots = np.arange(self.count)
        lifted = np.zeros((len(slots), 2))
        lifted[:, 1] = np.where(self._masses[slots] > 0.0, np.exp(self._logs[slots] - self._shift), 0.0)
        self.put(slots, lifted)
        self.normalise()

    def normalise(self) -> None:
        """Make the second expert sum to one."""
        unit = np.exp(-self._shift)
        base_mass = max(self.roster.total - self.root[forest.MASS, 1], 0.0)
        self.scales[1] = self.roster.total / (self.root[forest.SUM, 1] + unit * base_mass)
        self.bases[1] = unit * self.scales[1]

    def state(self) -> dict[str, Any]:
        """That of a crowd, with the logarithms."""
        return {**super().state(), "logs": self._logs[: self.count].copy(), "shift": self._shift}

    def restore(self, state: Mapping[str, Any], *, experts: int = 2) -> None:
        """Take back what ``state`` gave."""
        shift = float(scalar(state, "shift"))
        logs = array(state, "logs", np.float64, (len(array(state, "met_clients", np.int64, (None,))),))
        super().restore(state, experts=2)
        self._logs, self._shift = logs, shift
