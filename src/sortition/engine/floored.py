r"""The distribution of Avare: proportional to the last feedback, above a floor that shrinks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from sortition.core.errors import StateError
from sortition.core.state import array, check, number
from sortition.core.types import Fields, FloatArray, IntArray
from sortition.engine import expert_trees
from sortition.engine.clients import Roster
from sortition.engine.expert_trees import LEAST, MASS, MOST, SUM, ExpertTrees
from sortition.engine.mixture import VANISHING
from sortition.engine.reweighted import FURTHEST_LOG, ROUNDING, LogRatioMixture

SLACK = 1.0 - 1e-12
"""A client that is below the floor by rounding alone does not fall."""
FAR = 1.01
"""A floor that moves by more than this factor has jumped."""
ALONE = (0.0, -math.inf)
"""The logarithms of the experts' weights: one of them has all."""


@njit(cache=True)
def _settle(tree_fields: Fields, column: int, exploration: float, total_mass: float, floor: float) -> float:
    r"""The factor c with :math:`\sum_m w_m \max(\epsilon, c\,y_m) = W`, everybody on their side of the floor.

    The sum is convex and increasing in c, and each turn is a step of Newton's method on it: from the second
    turn on, c only falls, and those above the floor only cross downwards. 0 where nobody has any feedback,
    or where the floor takes all the mass: then all are below. And -1, with some still on the wrong side, if
    the y at the floor would be ``FAR`` from ``floor``, where it was last; never, if that is nan.
    """
    trees = ExpertTrees(*tree_fields)
    root, extremes = trees.nodes[-1, :, column], trees.extremes[-1, :, column]
    ones, limits = np.ones(trees.ratios.shape[1]), np.full(trees.ratios.shape[1], np.nan)
    if exploration >= 1.0:
        limits[column] = np.inf
        expert_trees.sweep(trees, limits, ones, limits, True)
        return 0.0
    turn = 0
    if not math.isnan(floor):  # those whose heights are new
        limits[column] = floor
        expert_trees.sweep(trees, limits, ones, limits, True)
    while True:
        if root[SUM] > 0.0:
            factor = (total_mass - exploration * (total_mass - root[MASS])) / root[SUM]
            threshold = SLACK * exploration / factor
            settled = extremes[LEAST] >= threshold and extremes[MOST] <= threshold
            if settled or (turn > 2 and threshold <= limits[column]):
                return float(factor)
        elif extremes[MOST] > 0.0:
            threshold = 0.5 * extremes[MOST]  # nobody is above yet: begin with the highest
        else:
            return 0.0
        if threshold > FAR * floor or FAR * threshold < floor:
            return -1.0
        limits[column] = threshold
        expert_trees.sweep(trees, limits, ones, limits, True)
        turn += 1


class FlooredProportional(LogRatioMixture):
    r"""Each client in proportion to its height h, but not below the floor, which may move at any time.

    With :math:`\epsilon` = ``exploration``, the floor's ratio to the prior q,

    .. math:: p_m = \max(\epsilon\,q_m,\; c\,h_m), \qquad \textstyle\sum_m p_m = 1

    Unseen clients have h = 0. A client below the floor keeps its height, and rises again when the floor or
    the others fall. Heights are given as logarithms; where all heights are 0, it is the prior. When clients
    join or leave, c and :math:`\epsilon` are multiplied by one factor until the next ``set_heights``.

    One height can move c by any factor, and many clients across the floor; the next one can move them back.
    So there are two experts with the same heights, of which one has all the weight. When the floor jumps, by
    more than 1%, the other one takes over, and follows; the first one stays behind. When the floor jumps
    back, it is there. A smaller move visits each client that crosses, there and back.

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
        super().__init__(roster, experts=2)
        self.experts.log_weights[:] = ALONE
        self.exploration, self._floors = 1.0, np.ones(2)  # these are ratios y

    def set_heights(self, clients: IntArray, log_heights: FloatArray, *, exploration: float) -> None:
        """Set the heights of ``clients``, and the floor for all."""
        self.exploration = exploration
        with np.errstate(divide="ignore"):
            per_mass = log_heights - np.log(self.roster.masses(clients))  # as ratios are
        self.set_logs(clients, per_mass)

    def settle(self) -> None:
        """Put every client on its side of the floor, and make all sum to one."""
        used, other = self._used, 1 - self._used
        for column, floor in ((used, self._floors[used]), (other, self._floors[other]), (other, math.nan)):
            factor = _settle(self._tree_fields, column, self.exploration, self.roster.total, floor)
            if factor >= 0.0:
                break
        scale, base = (factor, self.exploration) if factor > 0.0 else (1.0, 1.0)
        self._floors[column] = base / scale
        self._use(column, scale, base)

    @property
    def _used(self) -> int:
        """The expert that has all the weight."""
        return int(np.argmax(self.experts.log_weights))

    def _use(self, column: int, scale: float, base: float) -> None:
        """Give an expert all the weight."""
        log_weights, scales, bases = self.experts
        scales[:] = bases[:] = 1.0
        scales[column], bases[column] = scale, base
        log_weights[column], log_weights[1 - column] = ALONE

    def rescale(self) -> None:
        """As that of the base class, of the expert in use."""
        super().rescale()
        used = self._used
        self._use(used, self.experts.scales[used], self.experts.bases[used])

    def summed(self) -> float:
        """What the expert in use sums to."""
        return float(self._sums()[self._used])

    def state(self) -> dict[str, Any]:
        """That of the base class, with the floor."""
        return {**super().state(), "exploration": self.exploration, "floors": self._floors.copy()}

    def restore(self, state: Mapping[str, Any], *, experts: int = 2) -> None:
        """Take back what ``state`` gave."""
        exploration = number(state, "exploration", least=0.0)
        floors = array(state, "floors", np.float64, (experts,))
        check("floors", floors, np.isfinite(floors) & (floors >= 0.0), "finite and not negative")
        super().restore(state, experts=experts)
        heights, ratios = self._heights(np.arange(self.count)), np.abs(self.trees.ratios[: self.count])
        check("ratios", ratios, np.isclose(ratios, heights, ROUNDING, VANISHING), "what 'logs' say")
        if sorted(self.experts.log_weights) != sorted(ALONE):
            raise StateError("state has 'log_expert_weights' that are not 0 and -inf")
        self.exploration, self._floors = exploration, floors
        self._use(self._used, self.experts.scales[self._used], self.experts.bases[self._used])

    def _heights(self, slots: IntArray) -> FloatArray:
        """The heights of ``slots`` relative to the shift, for each expert."""
        heights = np.where(self.trees.masses[slots] > 0.0, np.exp(self._logs[slots] - self._shift), 0.0)
        return np.repeat(heights[:, None], 2, axis=1)

    def _write(self, slots: IntArray) -> None:
        """As heights below the floor: ``settle`` raises those above it."""
        self.set_ratios(slots, -self._heights(slots))

    def _vanishing(self) -> bool:
        highest = max(self.trees.extremes[-1, MOST, 0], self.trees.nodes[-1, SUM, 0])
        return bool(highest < math.exp(-FURTHEST_LOG))
