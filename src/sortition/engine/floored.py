r"""The distribution of Avare: proportional to the last feedback, above a floor that shrinks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from sortition.core.state import number
from sortition.core.types import Fields, FloatArray, IntArray
from sortition.engine import expert_trees
from sortition.engine.clients import Roster
from sortition.engine.expert_trees import LEAST, MASS, MOST, SUM, ExpertTrees
from sortition.engine.reweighted import FURTHEST_LOG, LogRatioMixture

SLACK = 1.0 - 1e-12
"""A client that is below the floor by rounding alone does not fall."""


@njit(cache=True)
def _settle(tree_fields: Fields, exploration: float, total_mass: float) -> float:
    r"""The factor c with :math:`\sum_m w_m \max(\epsilon, c\,y_m) = W`, everybody on their side of the floor.

    The sum is convex and increasing in c, and each turn is a step of Newton's method on it: from the second
    turn on, c only falls, and those above the floor only cross downwards. 0 where nobody has any feedback,
    or where the floor takes all the mass: then all are below.
    """
    trees = ExpertTrees(*tree_fields)
    root, extremes = trees.nodes[-1], trees.extremes[-1]
    ones, limits = np.ones(1), np.empty(1)
    if exploration >= 1.0:
        limits[0] = np.inf
        expert_trees.sweep(trees, limits, ones, limits, True)
        return 0.0
    turn = 0
    while True:
        if root[SUM, 0] > 0.0:
            factor = (total_mass - exploration * (total_mass - root[MASS, 0])) / root[SUM, 0]
            threshold = SLACK * exploration / factor
            settled = extremes[LEAST, 0] >= threshold and extremes[MOST, 0] <= threshold
            if settled or (turn > 2 and threshold <= limits[0]):
                return float(factor)
        elif extremes[MOST, 0] > 0.0:
            threshold = 0.5 * extremes[MOST, 0]  # nobody is above yet: begin with the highest
        else:
            return 0.0
        limits[0] = threshold
        expert_trees.sweep(trees, limits, ones, limits, True)
        turn += 1


class FlooredProportional(LogRatioMixture):
    r"""Each client in proportion to its height h, but not below the floor, which may move at any time.

    With :math:`\epsilon` = ``exploration``, the floor's ratio to the prior q,

    .. math:: p_m = \max(\epsilon\,q_m,\; c\,h_m), \qquad \textstyle\sum_m p_m = 1

    Unseen clients have h = 0. A client below the floor keeps its height, and rises again when the floor or
    the others fall. Heights are given as logarithms; where all heights are 0, it is the prior. When clients
    join or leave, c and :math:`\epsilon` are multiplied by one factor until the next ``set_heights``.

    >>> distribution = FlooredProportional(Roster(4, None))
    >>> distribution.set_heights(np.array([0, 1]), np.log([1.0, 8.0]), exploration=0.4)
    >>> distribution.everybody()
    array([0.1, 0.7, 0.1, 0.1])
    >>> distribution.set_heights(np.array([1]), np.log([2.0]), exploration=0.2)
    >>> distribution.everybody()
    array([0.3 , 0.6 , 0.05, 0.05])
    """

    _remembers = True

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster, experts=1)
        self.exploration = 1.0

    def set_heights(self, clients: IntArray, log_heights: FloatArray, *, exploration: float) -> None:
        """Set the heights of ``clients``, and the floor for all."""
        self.exploration = exploration
        with np.errstate(divide="ignore"):
            per_mass = log_heights - np.log(self.roster.masses(clients))  # as ratios are
        self.set_logs(clients, per_mass)

    def settle(self) -> None:
        """Put every client on its side of the floor, and make all sum to one."""
        factor = _settle(self._tree_fields, self.exploration, self.roster.total)
        self.experts.scales[0] = factor
        self.experts.bases[0] = self.exploration if factor > 0.0 else 1.0

    def state(self) -> dict[str, Any]:
        """That of the base class, with the floor."""
        return {**super().state(), "exploration": self.exploration}

    def restore(self, state: Mapping[str, Any], *, experts: int = 1) -> None:
        """Take back what ``state`` gave."""
        exploration = number(state, "exploration", least=0.0)
        super().restore(state, experts=experts)
        self.exploration = exploration

    def _write(self, slots: IntArray) -> None:
        """As heights below the floor: ``settle`` raises those above it."""
        heights = np.where(self.trees.masses[slots] > 0.0, np.exp(self._logs[slots] - self._shift), 0.0)
        self.set_ratios(slots, -heights[:, None])

    def _vanishing(self) -> bool:
        highest = max(self.trees.extremes[-1, MOST, 0], self.trees.nodes[-1, SUM, 0])
        return bool(highest < math.exp(-FURTHEST_LOG))
