"""Mixtures whose ratios are exponentials: logarithms are kept, and ratios are relative to a shift."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from sortition.core.errors import StateError
from sortition.core.experts import normalise_log_weights
from sortition.core.simplex import LARGEST_STEP
from sortition.core.state import array, check, number
from sortition.core.types import Fields, FloatArray, IntArray
from sortition.engine import expert_trees
from sortition.engine.clients import Roster, masses_of, named_prior, slots_of
from sortition.engine.drawing import LEAST_LEFT
from sortition.engine.expert_trees import ExpertArrays, ExpertTrees
from sortition.engine.limit import Found, limit_learnt
from sortition.engine.mixture import VANISHING, ExpertMixture, mark_seen, see
from sortition.engine.sumtree import TreeArrays

ROUNDING = 1e-6
"""How far a number of a state may be from what it is made of, relative to it."""
FURTHEST_LOG = 200.0
"""How far the largest logarithm may stand from the shift, either way, before all are shifted anew."""


class LogRatioMixture(ExpertMixture):
    """Keeps a logarithm for each client seen, so that a ratio can pass any bound.

    A subclass says in ``_write`` how ratios are made out of ``_logs`` and ``_shift``, in ``_vanishing``
    whether all of them have become so small that they might be lost, and in ``settle`` what makes them sum
    to one. That formula is for all clients; when clients join or leave it is not applied until the next
    feedback, and ``rescale`` keeps the proportions of the others.
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
        """Apply the formula to the ratios as they are now."""

    def _highest(self) -> float:
        """The largest logarithm there is."""
        return float(self._logs[: self.count].max(initial=-np.inf))

    def set_logs(self, clients: IntArray, logs: FloatArray) -> None:
        """Set the logarithms of ``clients``, and all ratios that depend on them."""
        slots = self.see(clients)
        self._make_room()
        self._logs[slots] = logs
        if float(np.max(logs)) - self._shift > FURTHEST_LOG:
            self._reshift()
        else:
            self._write(slots)
            if self._vanishing():  # at once, or the lost ratios would be missing for a round
                self._reshift()
        self.settle()

    def _make_room(self) -> None:
        missing = len(self.trees.ratios) - len(self._logs)
        if missing > 0:
            self._logs = np.concatenate((self._logs, np.full(missing, -np.inf)))

    def remove(self, clients: IntArray) -> None:
        """Remove ``clients``; the others keep their proportions."""
        slots = self.slots_of(clients)
        self._logs[slots[slots >= 0]] = -np.inf
        super().remove(clients)

    def raise_all(self, log_factor: float) -> None:
        """Add ``log_factor`` to every logarithm: no ratio changes."""
        self._logs += log_factor
        self._shift += log_factor

    def state(self) -> dict[str, Any]:
        """That of a mixture, with the logarithms."""
        return {**super().state(), "logs": self._logs[: self.count].copy(), "shift": self._shift}

    def restore(self, state: Mapping[str, Any], *, experts: int) -> None:
        """Take back what ``state`` gave."""
        shift = number(state, "shift", least=-LARGEST_STEP, most=LARGEST_STEP)
        seen = array(state, "seen_clients", np.int64, (None,))
        logs = array(state, "logs", np.float64, (len(seen),))
        right = (logs == -np.inf) | (np.abs(logs) <= LARGEST_STEP)
        check("logs", logs, right, f"at most {LARGEST_STEP:g} either way, or -inf for no feedback")
        super().restore(state, experts=experts)
        self._logs, self._shift = logs, shift
        if self._highest() - shift > FURTHEST_LOG + 1.0:
            raise StateError(f"state has 'logs' up to {self._highest()}, too far above 'shift', {shift}")

    def _reshift(self) -> None:
        highest = self._highest()
        if math.isfinite(highest):
            self._shift = highest
        self._write(np.arange(self.count))


@njit(cache=True)
def see_drawn(clients: IntArray, learnt: Fields) -> tuple[IntArray, int, int, float]:
    """The slots of ``clients``; how many are seen now, how many of the new ones have own masses, and the
    mass of those unseen. ``learnt`` is ``ReweightedPrior.learnt_fields``."""
    prior_fields, places, tree_fields, _, before, num_unseen, num_unseen_own, unseen_own, _, _ = learnt
    slots, count = see(clients, before, prior_fields, places, tree_fields)
    new_own = mark_seen(
        ExpertTrees(*tree_fields).clients[before:count], named_prior(prior_fields).block, unseen_own
    )
    num_unseen -= count - before
    mass = num_unseen - (num_unseen_own - new_own) + TreeArrays(*unseen_own).nodes[-1]
    return slots, count, new_own, mass if num_unseen else 0.0


@njit(cache=True)
def reweigh_drawn(
    slots: IntArray,
    new_logs: FloatArray,
    unseen_log: float,
    unseen_mass: float,
    share: float,
    learnt: Fields,
) -> bool:
    """``_reweigh`` of ``ReweightedPrior.learnt_fields``."""
    prior_fields, _, tree_fields, experts, _, _, _, _, logs, shift = learnt
    total = named_prior(prior_fields).total
    done: bool = _reweigh(
        slots, new_logs, logs, shift, unseen_log, unseen_mass, total, share, tree_fields, experts
    )
    return done


@njit(cache=True)
def _reweigh(
    slots: IntArray,
    new_logs: FloatArray,
    logs: FloatArray,
    shift: float,
    unseen_log: float,
    unseen_mass: float,
    total_mass: float,
    share: float,
    tree_fields: Fields,
    expert_fields: Fields,
) -> bool:
    """Set the logarithms of ``slots``, and make the first expert sum to one.

    False where all ratios need another shift; the logarithms are set then, and nothing else.
    """
    trees = ExpertTrees(*tree_fields)
    log_weights, scales, bases = ExpertArrays(*expert_fields)
    log_weights[0], log_weights[1] = np.log1p(-share), np.log(share)
    highest = unseen_log
    for i in range(slots.size):
        logs[slots[i]] = new_logs[i]
        highest = max(highest, new_logs[i])
    if highest - shift > FURTHEST_LOG:
        return False
    for i in range(slots.size):
        here = trees.masses[slots[i]] > 0.0
        trees.ratios[slots[i], 0] = max(np.exp(new_logs[i] - shift), VANISHING) if here else 0.0
    expert_trees.refresh(tree_fields, slots)
    unseen_ratio = np.exp(unseen_log - shift) if unseen_mass > 0.0 else 0.0
    mass = trees.nodes[-1, expert_trees.SUM, 0] + unseen_ratio * unseen_mass
    if mass < np.exp(-FURTHEST_LOG) * total_mass:  # at once, or the lost ratios would be missing for a round
        return False
    scales[0] = total_mass / mass
    bases[0] = unseen_ratio * scales[0]
    return True


@njit(cache=True)
def learnt_shares(own: FloatArray, slots: IntArray, ratios: FloatArray, experts: Fields) -> FloatArray:
    """What was learnt of clients with these priors and slots; -1 for the unseen."""
    _, scales, bases = ExpertArrays(*experts)
    q = np.empty(slots.size)
    for i in range(slots.size):
        y = ratios[slots[i], 0] if slots[i] >= 0 else 0.0
        q[i] = own[i] * (scales[0] * y if y > 0.0 else bases[0])
    return q


@njit(cache=True)
def limit_outliers(
    outliers: IntArray,
    weights: FloatArray,
    gain: float,
    deviation: float,
    prior_fields: Fields,
    places: IntArray,
    ratios: FloatArray,
    experts: Fields,
) -> tuple[float, Found]:
    """What all but the outliers hold of q, as the difference from one, and the limit of q by that."""
    prior = named_prior(prior_fields)
    own = masses_of(prior, outliers) / prior.total
    q = learnt_shares(own, slots_of(places, outliers), ratios, experts)
    left, prior_left = max(1.0 - q.sum(), 0.0), max(1.0 - own.sum(), 0.0)
    return left, limit_learnt(q, own, weights, gain, deviation, left, prior_left)


class ReweightedPrior(LogRatioMixture):
    r"""The prior q, mixed with q times :math:`x_m > 0`, where x is the same for all unseen clients.

    .. math:: p_m = \beta\,q_m + (1-\beta)\,\frac{q_m x_m}{\sum_i q_i x_i}

    These are two experts, with weights :math:`1-\beta` and :math:`\beta` = ``share``: what was learnt, and
    the prior, which has no column in the trees. When clients join or leave, these weights follow the rule of
    Bayes, so that the others keep their proportions; from the next ``reweight`` on they are ``share`` and the
    rest again.

    >>> distribution = ReweightedPrior(Roster(4, None), share=0.5)
    >>> distribution.reweight(np.array([2]), np.log([5.0]))
    >>> distribution.everybody()
    array([0.1875, 0.1875, 0.4375, 0.1875])
    """

    _columns_missing = 1

    def __init__(self, roster: Roster, *, share: float) -> None:
        super().__init__(roster, experts=2)
        self.share = share
        self._unseen_log = 0.0
        self._apply_share()

    @property
    def prior_share(self) -> float:
        """The share of the prior in the mixture as it is now."""
        return math.exp(self.experts.log_weights[1])

    def look_up_prior(self, clients: IntArray) -> FloatArray:
        """The second expert's probabilities."""
        return self.roster.shares(clients)

    def limit_learnt(self, clients: IntArray, weights: FloatArray, gain: float, deviation: float) -> Found:
        """The same as that of the base class, in one call of a kernel where nothing cancels."""
        fields = (self.roster.fields, self.places, self.trees.ratios, self.expert_fields)
        found: Found
        left, found = limit_outliers(clients, weights, gain, deviation, *fields)
        return found if left >= LEAST_LEFT else super().limit_learnt(clients, weights, gain, deviation)

    def with_prior_share(self, share: float, rest: float) -> ReweightedPrior:
        """This mixture, as it is now, with other shares, of the prior and of the rest."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        log_weights = np.array([math.log(part) if part > 0.0 else -math.inf for part in (rest, share)])
        other._set_experts(log_weights, self.experts.scales, self.experts.bases)
        return other

    def logs(self, clients: IntArray) -> FloatArray:
        """The logarithms of x."""
        slots = self.slots_of(clients)
        known = self._logs[slots] if len(self._logs) else self._unseen_log
        return np.where(slots >= 0, known, self._unseen_log)

    def reweight(self, clients: IntArray, logs: FloatArray, unseen_log: float = 0.0) -> None:
        """Set the logarithms of x of ``clients``, and that of all unseen clients."""
        self.reweight_slots(self.see(clients), logs, unseen_log)

    def reweight_slots(self, slots: IntArray, logs: FloatArray, unseen_log: float) -> None:
        """The same for clients that have slots."""
        self._unseen_log = unseen_log
        self._make_room()
        unseen_mass = sum(self._unseen) if self.num_unseen else 0.0
        if not _reweigh(
            slots,
            logs,
            self._logs,
            self._shift,
            unseen_log,
            unseen_mass,
            self.roster.total,
            self.share,
            self._tree_fields,
            self.expert_fields,
        ):
            self._reshift()
            self.settle()

    def learnt_fields(self, more: int) -> Fields:
        """All that a kernel needs to see up to ``more`` new clients and to reweight them, as it takes it."""
        self.reserve(more)
        self._make_room()
        return (
            self.roster.fields,
            self.places,
            self._tree_fields,
            self.expert_fields,
            self.count,
            self.num_unseen,
            self._unseen_own_count,
            tuple(self._unseen_own.arrays),
            self._logs,
            self._shift,
        )

    def take_over(self, count: int, new_own: int, share: float, unseen_log: float, done: bool) -> None:
        """Take over what a kernel has changed: see ``see_drawn`` and ``reweigh_drawn``."""
        self.count, self._unseen_own_count = count, self._unseen_own_count - new_own
        self.share, self._unseen_log = share, unseen_log
        if not done:
            self._reshift()
            self.settle()

    def settle(self) -> None:
        """Make the first expert sum to one."""
        _, scales, bases = self.experts
        scales[0] = self.roster.total / max(self._sum(), VANISHING)
        bases[0] = self._unseen_ratio() * scales[0]

    def rescale(self) -> None:
        """Make the first expert sum to one; the mixture keeps its proportions."""
        log_weights, scales, _ = self.experts
        log_scale, shift = math.log(scales[0]), self._shift
        if self._vanishing():
            self._reshift()
        self.settle()
        log_factor = math.log(scales[0]) - log_scale - (self._shift - shift)
        log_weights[:] = normalise_log_weights(log_weights - np.array([log_factor, 0.0]))

    def state(self) -> dict[str, Any]:
        """That of the base class, with the logarithm of the unseen and the share."""
        return {**super().state(), "unseen_log": self._unseen_log, "share": self.share}

    def restore(self, state: Mapping[str, Any], *, experts: int = 2) -> None:
        """Take back what ``state`` gave."""
        self._unseen_log = number(state, "unseen_log", least=-LARGEST_STEP, most=LARGEST_STEP)
        self.share = number(state, "share", least=0.0, most=1.0)
        super().restore(state, experts=experts)
        if not self.prior_share > 0.0:
            raise StateError("state has 'log_expert_weights' that leave nothing to the prior")
        _, scales, bases = self.experts
        if not abs(bases[0] - self._unseen_ratio() * scales[0]) <= ROUNDING * bases[0]:
            raise StateError(f"state has 'bases' = {bases[0]}, which is not what clients never drawn have")

    def _apply_share(self) -> None:
        with np.errstate(divide="ignore"):
            self.experts.log_weights[:] = np.log([1.0 - self.share, self.share])

    def _unseen_ratio(self) -> float:
        """The first expert's ratio of the unseen, before its scale; 0 once everybody is seen."""
        return math.exp(self._unseen_log - self._shift) if self.num_unseen else 0.0

    def _sum(self) -> float:
        """What the first expert sums to, before its scale."""
        in_block, own_mass = self._unseen
        return float(self.trees.nodes[-1, expert_trees.SUM, 0] + self._unseen_ratio() * (in_block + own_mass))

    def _write(self, slots: IntArray) -> None:
        factors = np.maximum(np.exp(self._logs[slots] - self._shift), VANISHING)
        ratios = np.where(self.trees.masses[slots] > 0.0, factors, 0.0)
        self.set_ratios(slots, ratios[:, None])

    def _vanishing(self) -> bool:
        return self._sum() < math.exp(-FURTHEST_LOG) * self.roster.total

    def _highest(self) -> float:
        return max(super()._highest(), self._unseen_log)
