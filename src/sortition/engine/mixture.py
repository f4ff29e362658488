"""Kernels of a mixture of experts: draw from it, look probabilities up, give slots to those met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from sortition.core.designs import Weighed
from sortition.core.errors import StateError
from sortition.core.experts import normalise_log_weights
from sortition.core.state import array, check
from sortition.core.types import FloatArray, IntArray
from sortition.engine import expert_trees
from sortition.engine.clients import EMPTY, Masses, Places, Roster, Table, draw_prior, mass_of, put, slot_of
from sortition.engine.drawing import Distribution, tally
from sortition.engine.expert_trees import Trees
from sortition.engine.sumtree import level_starts

Experts: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]
"""Of every expert the logarithm of its weight, its scale, and the ratio of its base."""

Unseen: TypeAlias = tuple[int, float]
"""Those never met: how many of the block, the mass of the others. (0, 0) where nobody stands below them."""

MOST_TRIES = 10**4
"""So many draws from the prior may miss the strangers; then they are looked for one by one."""


@njit(cache=True)
def mixed_ratio(
    ratios: FloatArray, weights: FloatArray, scales: FloatArray, bases: FloatArray, slot: int
) -> float:
    """The mixture's p / q of one client: a sum of E look-ups."""
    total = 0.0
    for e in range(weights.size):
        y = ratios[slot, e] if slot >= 0 else 0.0
        total += weights[e] * (scales[e] * y if y > 0.0 else bases[e])
    return total


@njit(cache=True)
def look_up(
    clients: IntArray,
    client_masses: FloatArray,
    total_mass: float,
    table: Places,
    ratios: FloatArray,
    experts: Experts,
) -> FloatArray:
    """The mixed probabilities of ``clients``."""
    log_weights, scales, bases = experts
    weights = np.exp(log_weights)
    result = np.empty(clients.size)
    for i in range(clients.size):
        slot = slot_of(table, clients[i])
        result[i] = client_masses[i] / total_mass * mixed_ratio(ratios, weights, scales, bases, slot)
    return result


@njit(cache=True)
def _another(uniform: float) -> float:
    """A uniform made out of another one by scrambling its 53 bits (the finaliser of SplitMix64)."""
    bits = np.uint64(uniform * 2.0**53) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float(bits >> np.uint64(11)) / 2.0**53


@njit(cache=True)
def draw_unseen(
    uniform: float, total_mass: float, prior: Masses, table: Places, strangers: Unseen, tries: int
) -> int:
    """One of those never met, by their prior masses: draws from the prior until it is one of them.

    Where so many ``tries`` miss, block or no block is chosen by their masses: draws from the block miss only
    those met, and where hardly anybody else is left of it, or beyond it, they are looked for one by one.
    """
    for _ in range(tries):
        client = draw_prior(prior, uniform * total_mass)
        if slot_of(table, client) == EMPTY:
            return client
        uniform = _another(uniform)
    block, seats, _, _, values, _, _ = prior
    in_block, own_mass = strangers
    point = uniform * (in_block + own_mass)
    if point < in_block:
        rank = int(point)
        for _ in range(tries):
            uniform = _another(uniform)
            client = draw_prior(prior, uniform * seats)
            if slot_of(table, client) == EMPTY:
                return client
        for seat in range(seats):
            client = draw_prior(prior, float(seat))
            if slot_of(table, client) == EMPTY:
                if rank == 0:
                    break
                rank -= 1
        return client
    point -= in_block
    chosen = -1
    for i in range(values.size):
        if values[i] > 0.0 and slot_of(table, block + i) == EMPTY:
            chosen = block + i
            if point < values[i]:
                break
            point -= values[i]
    return chosen


@njit(cache=True)
def draw(
    uniforms: FloatArray,
    total_mass: float,
    prior: Masses,
    table: Places,
    ids: IntArray,
    trees: Trees,
    experts: Experts,
    strangers: Unseen,
) -> tuple[IntArray, FloatArray]:
    r"""Independent draws from the mixture, two uniforms each, and their probabilities.

    Let :math:`b_e` be the least ratio of expert e: that of its base, unless somebody raised has less. With
    probability :math:`\sum_e \theta_e b_e` a draw comes from the prior; otherwise an expert is chosen by
    :math:`\theta_e (1 - b_e)`, and a client by what it has beyond :math:`b_e`: in the expert's tree, or, for
    the base, among the strangers.
    """
    ratios, masses, nodes, _ = trees
    log_weights, scales, bases = experts
    weights = np.exp(log_weights)
    root = nodes[-1]
    least = np.minimum(bases, scales * root[expert_trees.LEAST])
    in_base = weights * (bases - least) * ((strangers[0] + strangers[1]) / total_mass)
    from_prior = np.sum(weights * least)
    draws = np.empty(uniforms.shape[0], dtype=np.int64)
    probabilities = np.empty(uniforms.shape[0])
    for i in range(uniforms.shape[0]):
        point = uniforms[i, 0] - from_prior
        slot, expert, of_base = EMPTY, 0, False
        if point >= 0.0:
            while expert < weights.size - 1 and point >= weights[expert] * (1.0 - least[expert]):
                point -= weights[expert] * (1.0 - least[expert])
                expert += 1
            of_base = point < in_base[expert]
            if not of_base:
                slot = expert_trees.find(trees, expert, scales[expert], least[expert], uniforms[i, 1])
        if slot >= 0:
            client, mass = ids[slot], masses[slot]
        else:
            if of_base:
                client = draw_unseen(uniforms[i, 1], total_mass, prior, table, strangers, MOST_TRIES)
            else:
                client = draw_prior(prior, uniforms[i, 1] * total_mass)
                slot = slot_of(table, client)
            mass = mass_of(prior, client)
        draws[i] = client
        probabilities[i] = mass / total_mass * mixed_ratio(ratios, weights, scales, bases, slot)
    return draws, probabilities


@njit(cache=True)
def draw_weighed(
    uniforms: FloatArray,
    total_mass: float,
    prior: Masses,
    table: Places,
    ids: IntArray,
    trees: Trees,
    experts: Experts,
    strangers: Unseen,
) -> Weighed:
    """The same draws as a cohort: the distinct clients, their counts, probabilities and weights."""
    draws, probabilities = draw(uniforms, total_mass, prior, table, ids, trees, experts, strangers)
    weighed: Weighed = tally(draws, probabilities)
    return weighed


@njit(cache=True)
def meet(
    clients: IntArray,
    count: int,
    prior: Masses,
    table: Places,
    ids: IntArray,
    masses: FloatArray,
) -> tuple[IntArray, int]:
    """The slots of ``clients``, those not met before getting the next free ones, and how many are met now."""
    found = np.empty(clients.size, dtype=np.int64)
    for i in range(clients.size):
        slot = slot_of(table, clients[i])
        if slot == EMPTY:
            slot = count
            count += 1
            put(table, clients[i], slot)
            ids[slot] = clients[i]
            masses[slot] = mass_of(prior, clients[i])
        found[i] = slot
    return found, count


VANISHING = 1e-300
"""The least that a ratio or a mass may become where zero would mean something else."""
LARGEST_LOG_WEIGHT = 1e-6
"""The logarithm of a weight of one, but for rounding."""


class ExpertMixture(Distribution):
    r"""E distributions :math:`p_{e,m} = q_m r_{e,m}` and their weights, with the roster as the prior q.

    A client that was met has a slot; its ratio is ``scales[e] * ratios[slot, e]`` where it is raised, and
    ``bases[e]``, like that of everybody else, where it is not. What the ratios mean is up to the subclass,
    which changes them and then sees to it that every expert sums to one.
    """

    def __init__(self, roster: Roster, *, experts: int) -> None:
        self.roster = roster
        self.count = 0
        self._seen_and_left = 0
        self._table = Table()
        self._ids = np.zeros(0, dtype=np.int64)
        self._masses = np.zeros(0)
        self.log_weights = np.full(experts, -np.log(experts))
        self.scales = np.ones(experts)
        self.bases = np.ones(experts)
        self._unseen: Unseen = (0, 0.0)
        self._plant(np.zeros((0, experts)))

    @property
    def trees(self) -> expert_trees.Trees:
        """The clients met, as kernels take them."""
        return self.ratios, self._masses, self._nodes, self._starts

    @property
    def experts(self) -> Experts:
        """The experts, as kernels take them."""
        return self.log_weights, self.scales, self.bases

    @property
    def _all(
        self,
    ) -> tuple[float, Masses, Places, IntArray, expert_trees.Trees, Experts, Unseen]:
        roster, places = self.roster, self._table.places
        return roster.total, roster.of_all, places, self._ids, self.trees, self.experts, self._unseen

    @property
    def weights(self) -> FloatArray:
        """theta_e, the experts' weights in the mixture."""
        return np.asarray(np.exp(self.log_weights))

    # Drawing -----------------------------------------------------------------------------------------

    def draw(self, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Independent draws from the mixture, two uniforms each, and their probabilities."""
        drawn: tuple[IntArray, FloatArray] = draw(uniforms, *self._all)
        return drawn

    def draw_weighed(self, uniforms: FloatArray) -> Weighed:
        """The same draws as a cohort, in one call of a kernel: a small round is mostly calls."""
        weighed: Weighed = draw_weighed(uniforms, *self._all)
        return weighed

    def look_up(self, clients: IntArray) -> FloatArray:
        """The mixed probabilities of ``clients``."""
        return np.asarray(
            look_up(
                clients,
                self.roster.masses(clients),
                self.roster.total,
                self._table.places,
                self.ratios,
                self.experts,
            )
        )

    def everybody(self) -> FloatArray:
        """The mixed probabilities of all ids: the one call whose cost grows with their number."""
        return self.look_up(np.arange(self.roster.ids))

    def heavy(self, threshold: float) -> IntArray:
        r"""Clients among whom are all with :math:`p_m \ge` ``threshold``, except those of the roster's block.

        The mixture is at most its largest expert, and a client of an expert's base has ``bases[e]`` times its
        prior.
        """
        found = [self.roster.heavy(threshold * self.roster.total / self.bases.max())]
        for e in np.flatnonzero(self.scales > 0.0).tolist():  # where it is 0, nobody is raised
            mass = threshold * self.roster.total / self.scales[e]
            slots = expert_trees.at_least(self.trees, e, mass)
            found.append(self._ids[slots])
        return np.unique(np.concatenate(found))

    def share_of_seen(self) -> float:
        """The mixed probability of all clients met so far together."""
        strangers = self.roster.total - float(self._masses[: self.count].sum())
        return 1.0 - float(self.weights @ self.bases) * max(strangers, 0.0) / self.roster.total

    def share_above_base(self) -> float:
        """How much of the mixture is not the prior any more: what the raised have beyond the base."""
        return 1.0 - float(self.weights @ self.bases)

    def block_probability(self) -> float:
        """The probability of a member of the roster's block who was not met; 0 if there is no block."""
        return float(self.weights @ self.bases) / self.roster.total if self.roster.seats else 0.0

    # Joining and leaving -----------------------------------------------------------------------------

    def add(self, masses: FloatArray) -> IntArray:
        """Let newcomers in: each is one more client of the base; the others keep their proportions."""
        newcomers = self.roster.add(masses)
        self.rescale()
        return newcomers

    def remove(self, clients: IntArray) -> None:
        """Let ``clients`` go: the others keep their proportions."""
        self.roster.remove(clients)
        slots = self._table.slots_of(clients)
        slots = slots[slots >= 0]
        self._seen_and_left += len(slots)
        self._masses[slots] = 0.0
        self.put(slots, np.zeros((len(slots), len(self.scales))))
        self.rescale()

    def rescale(self) -> None:
        """Make every expert sum to one, by one factor for all its clients; the mixture keeps its proportions.

        What an expert gains by the factor, it loses in weight, by the rule of Bayes: among those who were
        there before and still are, the mixture is the old one, restricted.
        """
        root = self.root
        base_mass = np.maximum(self.roster.total - root[expert_trees.MASS], 0.0)
        mass = np.maximum(self.scales * root[expert_trees.SUM] + self.bases * base_mass, VANISHING)
        factor = self.roster.total / mass
        self.scales *= factor
        self.bases *= factor
        self.log_weights = normalise_log_weights(self.log_weights - np.log(factor))

    # Slots -------------------------------------------------------------------------------------------

    @property
    def root(self) -> FloatArray:
        """The statistics of all clients met: see ``forest``."""
        return np.asarray(self._nodes[-1])

    @property
    def strangers(self) -> int:
        """How many clients were never met."""
        return self.roster.count - (self.count - self._seen_and_left)

    def slots_of(self, clients: IntArray) -> IntArray:
        """The slots of ``clients``, -1 for who was not met."""
        return self._table.slots_of(clients)

    def meet(self, clients: IntArray) -> IntArray:
        """The slots of ``clients``; those not met before get new ones."""
        self.reserve(len(clients))
        met: IntArray
        met, self.count = meet(
            clients,
            self.count,
            self.roster.of_all,
            self._table.places,
            self._ids,
            self._masses,
        )
        return met

    def put(self, slots: IntArray, ratios: FloatArray) -> None:
        """Change the ratios of ``slots``, one row a slot."""
        self.ratios[slots] = ratios
        expert_trees.refresh(self.trees, slots)

    def state(self) -> dict[str, Any]:
        """The clients met, in the order of their slots, their ratios, and the experts."""
        return {
            "seen_clients": self._ids[: self.count].copy(),
            "ratios": self.ratios[: self.count].copy(),
            "log_expert_weights": self.log_weights.copy(),
            "scales": self.scales.copy(),
            "bases": self.bases.copy(),
        }

    def restore(self, state: Mapping[str, Any], *, experts: int) -> None:
        """Take back what ``state`` gave, after the roster; on a StateError nothing has changed."""
        ids = array(state, "seen_clients", np.int64, (None,))
        if len(np.unique(ids)) != len(ids) or np.any((ids < 0) | (ids >= self.roster.ids)):
            raise StateError("state must hold seen_clients who exist, once each, got others")
        ratios = array(state, "ratios", np.float64, (len(ids), experts))
        log_weights, scales, bases = (
            array(state, name, np.float64, (experts,)) for name in ("log_expert_weights", "scales", "bases")
        )
        check("ratios", ratios, np.isfinite(ratios), "finite")
        for name, factors in (("scales", scales), ("bases", bases)):
            check(name, factors, np.isfinite(factors) & (factors >= 0.0), "finite and not negative")
        check("log_expert_weights", log_weights, log_weights <= LARGEST_LOG_WEIGHT, "at most 0")
        total = float(np.exp(log_weights).sum())
        if not abs(total - 1.0) < 1e-6:
            raise StateError(f"state must hold 'log_expert_weights' of weights that sum to 1, got {total!r}")
        self.count = len(ids)
        self._seen_and_left = int(np.count_nonzero(~self.roster.present(ids)))
        self._table = Table()
        self._table.put_all(ids, np.arange(self.count))
        self._ids, self._masses = ids, self.roster.masses(ids)
        self.log_weights, self.scales, self.bases = log_weights, scales, bases
        self._plant(ratios)

    def reserve(self, more: int) -> None:
        """Make room for ``more`` clients to be met; the room doubles."""
        self._table.count = self.count
        self._table.reserve(more)
        room = len(self._ids)
        if self.count + more <= room:
            return
        added = max(self.count + more, 2 * room) - room
        self._ids = np.concatenate((self._ids, np.zeros(added, dtype=np.int64)))
        self._masses = np.concatenate((self._masses, np.zeros(added)))
        self._plant(np.concatenate((self.ratios, np.zeros((added, self.ratios.shape[1])))))

    def _plant(self, ratios: FloatArray) -> None:
        """Take ``ratios`` for all slots and grow the trees above them."""
        self.ratios = ratios
        self._starts = level_starts(max(len(self._ids), 1))
        self._nodes = np.zeros((self._starts[-1], expert_trees.STATISTICS, ratios.shape[1]))
        expert_trees.rebuild(self.trees)
