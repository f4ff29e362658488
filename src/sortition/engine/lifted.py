r"""Distributions that give each client met a factor of its own: those of MABS, VRB and empirical Bayes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.state import array, scalar
from sortition.core.types import FloatArray, IntArray
from sortition.engine import forest
from sortition.engine.crowd import Crowd
from sortition.engine.roster import Roster

LARGEST_LOG = 200.0
"""How far the largest logarithm may stand from the shift, either way, before all are shifted anew."""
VANISHING = 1e-300
"""The least factor of a client met: zero would make it a stranger again."""


class Lifted(Crowd):
    r"""The prior q, mixed with q times :math:`x_m > 0`, where x is the same for all who were not met.

    .. math:: p_m = \beta\,q_m + (1-\beta)\,\frac{q_m x_m}{\sum_i q_i x_i}

    These are two experts, with weights :math:`\beta` = ``share`` and :math:`1-\beta`. The logarithms of x are
    kept, so that x can pass any bound: the ratios are :math:`x_m e^{-\mathrm{shift}}`.

    >>> lifted = Lifted(Roster(4, None), share=0.5)
    >>> lifted.lift(np.array([2]), np.log([5.0]))
    >>> lifted.everybody()
    array([0.1875, 0.1875, 0.4375, 0.1875])
    """

    def __init__(self, roster: Roster, *, share: float) -> None:
        super().__init__(roster, experts=2)
        self.share = share
        self._stranger_log = 0.0
        self._logs = np.zeros(0)
        self._shift = 0.0

    @property
    def share(self) -> float:
        """What always comes from the prior."""
        return float(np.exp(self.log_weights[0]))

    @share.setter
    def share(self, share: float) -> None:
        with np.errstate(divide="ignore"):
            self.log_weights = np.log([share, 1.0 - share])

    def logs(self, clients: IntArray) -> FloatArray:
        """The logarithms of x."""
        slots = self.slots_of(clients)
        known = self._logs[slots] if len(self._logs) else self._stranger_log
        return np.where(slots >= 0, known, self._stranger_log)

    def lift(self, clients: IntArray, logs: FloatArray, stranger_log: float = 0.0) -> None:
        """Set the logarithms of x of ``clients``, and that of all who were not met."""
        self._stranger_log = stranger_log
        slots = self.meet(clients)
        if len(self._logs) < len(self.ratios):
            self._logs = np.concatenate((self._logs, np.zeros(len(self.ratios) - len(self._logs))))
        self._logs[slots] = logs
        if max(np.max(logs), stranger_log) - self._shift > LARGEST_LOG or self._all_far_below():
            self._shift = float(max(self._logs[: self.count].max(), stranger_log))
            slots = np.arange(self.count)
        lifted = np.zeros((len(slots), 2))
        factors = np.maximum(np.exp(self._logs[slots] - self._shift), VANISHING)
        lifted[:, 1] = np.where(self._masses[slots] > 0.0, factors, 0.0)
        self.put(slots, lifted)
        self.normalise()

    def _all_far_below(self) -> bool:
        """Whether all factors were so small, last time, that they might vanish."""
        return bool(self.scales[1] > math.exp(LARGEST_LOG))

    def normalise(self) -> None:
        """Make the second expert sum to one."""
        unit = np.exp(self._stranger_log - self._shift)
        base_mass = max(self.roster.total - self.root[forest.MASS, 1], 0.0)
        self.scales[1] = self.roster.total / (self.root[forest.SUM, 1] + unit * base_mass)
        self.bases[1] = unit * self.scales[1]

    def state(self) -> dict[str, Any]:
        """That of a crowd, with the logarithms."""
        own = {"logs": self._logs[: self.count].copy(), "shift": self._shift}
        return {**super().state(), **own, "stranger_log": self._stranger_log}

    def restore(self, state: Mapping[str, Any], *, experts: int = 2) -> None:
        """Take back what ``state`` gave."""
        shift, stranger_log = float(scalar(state, "shift")), float(scalar(state, "stranger_log"))
        logs = array(state, "logs", np.float64, (len(array(state, "met_clients", np.int64, (None,))),))
        super().restore(state, experts=2)
        self._logs, self._shift, self._stranger_log = logs, shift, stranger_log
