"""The experts of the OSMD samplers, at a cost that does not grow with the number of clients."""

from __future__ import annotations

import numpy as np

from sortition.core.rates import initial_expert_weights
from sortition.core.types import FloatArray, IntArray
from sortition.engine import osmd
from sortition.engine.crowd import Crowd
from sortition.engine.roster import Roster


class Ensemble(Crowd):
    r"""E distributions above the floor and their weights: the state of Algorithm 5.

    Equal to ``core.experts`` to rounding error. The floor is ``exploration`` times the prior. When clients
    leave, the prior of the others grows, and with it their floor: one that stood on it may be just below
    until the next round's projection.

    >>> ensemble = Ensemble(Roster(10**9, None), exploration=0.4, experts=2)
    >>> ensemble.advance(np.array([7]), np.array([1.0]), np.array([0.0]), 1, np.log([1e-19, 1e-18]), 0.0)
    >>> ensemble.look_up(np.array([7, 8])) * 1e9
    array([1.50844864, 1.        ])
    """

    def __init__(self, roster: Roster, *, exploration: float, experts: int) -> None:
        super().__init__(roster, experts=experts)
        self.exploration = exploration
        self.log_weights = np.log(initial_expert_weights(experts))

    def advance(
        self,
        clients: IntArray,
        cohort_weights: FloatArray,
        log_feedback: FloatArray,
        cohort_size: int,
        log_rates: FloatArray,
        log_meta_rate: float,
    ) -> None:
        """One round of every expert and of their weights (Algorithm 5, lines 7 to 11)."""
        self.reserve(len(clients))
        self.count = osmd.advance(
            clients,
            cohort_weights,
            log_feedback,
            cohort_size,
            log_rates,
            log_meta_rate,
            self.exploration,
            self.roster.total,
            self.roster.of_all,
            self._table.places,
            self._ids,
            self.count,
            self.trees,
            self.experts,
        )

    def restart(self, experts: int, *, at_mixture: bool) -> None:
        """Begin anew with ``experts`` of them, all at the mixture or at the prior (Algorithm 6, line 6)."""
        ratios, base = np.zeros(len(self.ratios)), 1.0
        if at_mixture:
            raised = self.ratios > 0.0
            mixed = np.where(raised, self.ratios * self.scales, self.bases) @ self.weights
            ratios, base = np.where(raised.any(axis=1), mixed, 0.0), float(self.weights @ self.bases)
        self.log_weights = np.log(initial_expert_weights(experts))
        self.scales = np.ones(experts)
        self.bases = np.full(experts, base)
        self._plant(np.tile(ratios[:, None], experts))
