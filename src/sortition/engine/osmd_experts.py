r"""One round of OSMD for every expert: step, project, reweigh.

The kernels do what ``core.experts`` says, at a cost of :math:`O(E K \log n)` for n clients seen so far.
``docs/research/engine.md`` shows why that is exact.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from sortition.core.rates import initial_expert_weights
from sortition.core.simplex import LARGEST_STEP
from sortition.core.types import Fields, FloatArray, IntArray
from sortition.engine import expert_trees
from sortition.engine.clients import Roster, named_prior
from sortition.engine.expert_trees import ExpertArrays, ExpertTrees
from sortition.engine.mixture import ExpertMixture, see

LOG_LARGEST_STEP = np.log(LARGEST_STEP)
LARGEST_PLAIN_STEP = 200.0
"""Up to here a step is multiplied in as it is; beyond, the expert's ratios are rebased first."""
SMALLEST_SCALE = 1e-100


@njit(cache=True)
def advance(
    clients: IntArray,
    cohort_weights: FloatArray,
    log_feedback: FloatArray,
    cohort_size: int,
    log_rates: FloatArray,
    log_meta_rate: float,
    exploration: float,
    prior: Fields,
    places: IntArray,
    count: int,
    tree_fields: Fields,
    expert_fields: Fields,
) -> int:
    """One round of every expert and of their weights (Algorithm 5, lines 7 to 11); how many are seen now."""
    slots, count = see(clients, count, prior, places, tree_fields)
    total_mass = named_prior(prior).total
    trees, experts = ExpertTrees(*tree_fields), ExpertArrays(*expert_fields)
    log_weights, scales, bases = experts
    size = slots.size
    steps = np.empty((size, scales.size))
    losses = np.empty((size, scales.size))  # logarithms of the terms of the estimated losses
    log_probabilities = np.empty((size, scales.size))
    for i in range(size):
        log_share = np.log(cohort_weights[i]) + log_feedback[i] - np.log(cohort_size)
        log_prior = np.log(trees.masses[slots[i]] / total_mass)
        for e in range(scales.size):
            y = trees.ratios[slots[i], e]
            log_probabilities[i, e] = log_prior + np.log(scales[e] * y if y > 0.0 else bases[e])
            if log_share == -np.inf:  # no feedback, no step; its probability may be 0
                losses[i, e], steps[i, e] = -np.inf, 0.0
                continue
            losses[i, e] = log_share - log_probabilities[i, e]
            log_step = log_rates[e] + log_share - 2.0 * log_probabilities[i, e]
            steps[i, e] = np.exp(min(log_step, LOG_LARGEST_STEP))
    _reweigh(log_weights, log_meta_rate, losses)
    _raise(slots, steps, log_probabilities, exploration, total_mass, trees, experts)
    _project(exploration, total_mass, trees, experts)
    return count


@njit(cache=True)
def _reweigh(log_weights: FloatArray, log_meta_rate: float, terms: FloatArray) -> None:
    """Exponential weights, as in ``core.experts.reweigh_experts``."""
    experts = log_weights.size
    log_losses = np.empty(experts)
    for e in range(experts):
        top = terms[:, e].max()
        if top == -np.inf:
            return  # no feedback: a zero loss for everybody
        log_losses[e] = top + np.log(np.sum(np.exp(terms[:, e] - top)))
    best = log_losses.min()
    for e in range(experts):
        worse = np.expm1(log_losses[e] - best)
        if worse > 0.0:
            excess = np.exp(min(log_meta_rate + best + np.log(worse), LOG_LARGEST_STEP))
            log_weights[e] = max(log_weights[e] - excess, -LARGEST_STEP)
    log_weights -= log_weights.max()
    log_weights -= np.log(np.sum(np.exp(log_weights)))


@njit(cache=True)
def _raise(
    slots: IntArray,
    steps: FloatArray,
    log_probabilities: FloatArray,
    exploration: float,
    total_mass: float,
    trees: ExpertTrees,
    experts: ExpertArrays,
) -> None:
    """The entropic step: multiply the ratios of those drawn by exp(step)."""
    scales = experts.scales
    shifts = np.zeros(scales.size)
    rebased = False
    for e in range(scales.size):
        if steps[:, e].max() > LARGEST_PLAIN_STEP:
            shifts[e] = max((log_probabilities[:, e] + steps[:, e]).max(), 0.0)
            rebased = True
        elif scales[e] < SMALLEST_SCALE:
            rebased = True
    if rebased:
        _rebase(steps, log_probabilities, shifts, exploration, trees, experts)
    for i in range(slots.size):
        for e in range(scales.size):
            if steps[i, e] > 0.0:
                raised = np.exp(log_probabilities[i, e] + steps[i, e] - shifts[e])
                trees.ratios[slots[i], e] = raised * total_mass / (trees.masses[slots[i]] * scales[e])
    expert_trees.refresh(trees, slots)


@njit(cache=True)
def _rebase(
    steps: FloatArray,
    log_probabilities: FloatArray,
    shifts: FloatArray,
    exploration: float,
    trees: ExpertTrees,
    experts: ExpertArrays,
) -> None:
    """Fold the scale, and exp(-shift), into the ratios of the experts that need it.

    After a huge step nearly everybody will fall to the floor. The mass of the drawn clients alone bounds the
    factor of the projection from above, so a client that is below the floor under that bound falls here.
    """
    _, scales, bases = experts
    factors = np.ones(scales.size)
    thresholds = np.zeros(scales.size)
    limits = np.zeros(scales.size)
    for e in range(scales.size):
        if shifts[e] > 0.0:
            drawn = np.sum(np.exp(log_probabilities[:, e] + steps[:, e] - shifts[e]))
            thresholds[e] = 0.5 * exploration * drawn
        if shifts[e] > 0.0 or scales[e] < SMALLEST_SCALE:
            factors[e] = scales[e] * np.exp(-shifts[e])
            limits[e] = np.inf
            bases[e] *= np.exp(-shifts[e])
            scales[e] = 1.0
    expert_trees.sweep(trees, limits, factors, thresholds, False)


@njit(cache=True)
def _project(exploration: float, total_mass: float, trees: ExpertTrees, experts: ExpertArrays) -> None:
    r"""Scale every expert's ratios so that they sum to one above the floor (Algorithm 2).

    With the base at :math:`r_0` the factor is :math:`c = W / (s \sum w y + r_0 W_0)`; where that takes the
    base below the floor, it is :math:`c = (W - \alpha W_0) / (s \sum w y)`. Clients that are below the floor
    then join the base, and the factor is computed anew.
    """
    _, scales, bases = experts
    root = trees.nodes[-1]
    thresholds = np.zeros(scales.size)
    factors = np.ones(scales.size)
    ones = np.ones(scales.size)
    while True:
        falling = False
        for e in range(scales.size):
            thresholds[e] = 0.0
            above = scales[e] * root[expert_trees.SUM, e]
            if above == 0.0:  # nobody is raised
                factors[e] = 1.0
                bases[e] = 1.0
                continue
            below = max(total_mass - root[expert_trees.MASS, e], 0.0)
            factors[e] = total_mass / (above + bases[e] * below)
            if factors[e] * bases[e] < exploration:
                factors[e] = (total_mass - exploration * below) / above
            threshold = exploration / (scales[e] * factors[e])
            if trees.extremes[-1, expert_trees.LEAST, e] < threshold:
                thresholds[e] = threshold
                falling = True
        if not falling:
            break
        expert_trees.sweep(trees, thresholds, ones, thresholds, False)
    for e in range(scales.size):
        scales[e] *= factors[e]
        bases[e] = max(bases[e] * factors[e], exploration)


class OSMDExperts(ExpertMixture):
    r"""E distributions above the floor and their weights: the state of Algorithm 5.

    Equal to ``core.experts`` to rounding error. The floor is ``exploration`` times the prior. When clients
    leave, the prior of the others grows, and with it their floor: a client on the floor may be just below it
    until the next round's projection.

    >>> experts = OSMDExperts(Roster(10**9, None), exploration=0.4, experts=2)
    >>> experts.advance(np.array([7]), np.array([1.0]), np.array([0.0]), 1, np.log([1e-19, 1e-18]), 0.0)
    >>> experts.look_up(np.array([7, 8])) * 1e9
    array([1.50844864, 1.        ])
    """

    def __init__(self, roster: Roster, *, exploration: float, experts: int) -> None:
        super().__init__(roster, experts=experts)
        self.exploration = exploration
        self.experts.log_weights[:] = np.log(initial_expert_weights(experts))

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
        before = self.count
        self.count = advance(
            clients,
            cohort_weights,
            log_feedback,
            cohort_size,
            log_rates,
            log_meta_rate,
            self.exploration,
            self.roster.fields,
            self._table.places,
            self.count,
            self._tree_fields,
            self.expert_fields,
        )
        if self._unseen_own.size:
            self._mark_seen(self.trees.clients[before : self.count])

    def restart(self, experts: int, *, at_mixture: bool) -> None:
        """Begin anew with ``experts`` of them, all at the mixture or at the prior (Algorithm 6, line 6)."""
        clients, masses, old = self.trees.clients, self.trees.masses, self.trees.ratios
        ratios, base = np.zeros(len(old)), 1.0
        if at_mixture:
            raised, bases = old > 0.0, self.experts.bases
            mixed = np.where(raised, old * self.experts.scales, bases) @ self.weights
            ratios, base = np.where(raised.any(axis=1), mixed, 0.0), float(self.weights @ bases)
        self._set_experts(np.log(initial_expert_weights(experts)), np.ones(experts), np.full(experts, base))
        self._build_trees(clients, masses, np.tile(ratios[:, None], experts))
