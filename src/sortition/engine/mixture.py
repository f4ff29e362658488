r"""A mixture of experts over any number of clients: draws, look-ups, and slots for the clients seen.

Only clients that were seen take memory. All others, the *unseen*, share one ratio to the prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sortition.core.designs import Weighed
from sortition.core.errors import StateError
from sortition.core.experts import normalise_log_weights
from sortition.core.state import array, check
from sortition.core.types import Fields, FloatArray, IntArray
from sortition.engine import expert_trees, sumtree
from sortition.engine.clients import (
    EMPTY,
    PriorMasses,
    Roster,
    Table,
    another_uniform,
    draw_prior,
    mass_of,
    named_prior,
    put,
    slot_of,
    slots_of,
)
from sortition.engine.drawing import Distribution, tally
from sortition.engine.expert_trees import ExpertArrays, ExpertTrees
from sortition.engine.pivotal import ProbabilityLine
from sortition.engine.sumtree import SumTree, TreeArrays

MOST_TRIES = 10**4
"""After this many draws from the prior without an unseen client, the unseen are searched one by one."""
VANISHING = 1e-300
"""The least that a ratio or a mass may become where zero would mean something else."""
LARGEST_LOG_WEIGHT = 1e-6
"""The logarithm of a weight of one, with room for rounding."""


class Unseen(NamedTuple):
    """The clients never seen."""

    in_block: int
    """How many of them belong to the roster's block."""
    own_mass: float
    """The mass of the others."""


@njit(cache=True)
def mixed_ratio(
    ratios: FloatArray, weights: FloatArray, scales: FloatArray, bases: FloatArray, slot: int
) -> float:
    """The mixture's p / q of one client: a sum of E look-ups."""
    total = 0.0
    for e in range(weights.size):
        y = ratios[slot, e] if slot >= 0 and e < ratios.shape[1] else 0.0
        total += weights[e] * (scales[e] * y if y > 0.0 else bases[e])
    return total


@njit(cache=True)
def look_up(
    clients: IntArray,
    client_masses: FloatArray,
    total_mass: float,
    places: IntArray,
    ratios: FloatArray,
    experts: Fields,
) -> FloatArray:
    """The mixed probabilities of ``clients``."""
    log_weights, scales, bases = ExpertArrays(*experts)
    weights = np.exp(log_weights)
    slots = slots_of(places, clients)
    result = np.zeros(clients.size)
    for e in range(weights.size):
        if weights[e] == 0.0:
            continue
        weight, scale, base = weights[e], scales[e], bases[e]
        for i in range(clients.size):
            y = ratios[slots[i], e] if slots[i] >= 0 and e < ratios.shape[1] else 0.0
            result[i] += weight * (scale * y if y > 0.0 else base)
    return client_masses / total_mass * result


@njit(cache=True)
def draw_unseen(uniform: float, prior: PriorMasses, table: IntArray, unseen: Unseen, tries: int) -> int:
    """One unseen client, in proportion to the prior: draws from the prior until one is unseen.

    If ``tries`` draws fail, block or no block is chosen by the masses of the unseen. Draws from the block
    fail only for clients seen; if that fails ``tries`` times as well, or outside the block, the unseen are
    searched one by one.
    """
    for _ in range(tries):
        client = draw_prior(prior, uniform * prior.total)
        if slot_of(table, client) == EMPTY:
            return client
        uniform = another_uniform(uniform)
    point = uniform * (unseen.in_block + unseen.own_mass)
    if point < unseen.in_block:
        rank = int(point)
        for _ in range(tries):
            uniform = another_uniform(uniform)
            client = draw_prior(prior, uniform * prior.seats)
            if slot_of(table, client) == EMPTY:
                return client
        for seat in range(prior.seats):
            client = draw_prior(prior, float(seat))
            if slot_of(table, client) == EMPTY:
                if rank == 0:
                    break
                rank -= 1
        return client
    point -= unseen.in_block
    chosen = -1
    values = prior.own.values
    for i in range(values.size):
        if values[i] > 0.0 and slot_of(table, prior.block + i) == EMPTY:
            chosen = prior.block + i
            if point < values[i]:
                break
            point -= values[i]
    return chosen


@njit(cache=True)
def draw(
    uniforms: FloatArray,
    prior_fields: Fields,
    places: IntArray,
    tree_fields: Fields,
    experts: Fields,
    unseen_fields: Fields,
) -> tuple[IntArray, FloatArray]:
    r"""Independent draws from the mixture, two uniforms each, and their probabilities.

    Let :math:`b_e` be the least ratio of expert e: that of its base, unless a raised client has less. With
    probability :math:`\sum_e \theta_e b_e` a draw comes from the prior; otherwise an expert is chosen by
    :math:`\theta_e (1 - b_e)`, and a client by what it has beyond :math:`b_e`: in the expert's tree, or, for
    the base, among the unseen.
    """
    prior, table, unseen = named_prior(prior_fields), places, Unseen(*unseen_fields)
    trees = ExpertTrees(*tree_fields)
    log_weights, scales, bases = ExpertArrays(*experts)
    weights = np.exp(log_weights)
    least, columns = bases.copy(), trees.ratios.shape[1]
    least[:columns] = np.minimum(bases[:columns], scales[:columns] * trees.extremes[-1, expert_trees.LEAST])
    in_base = weights * (bases - least) * ((unseen.in_block + unseen.own_mass) / prior.total)
    from_prior = np.sum(weights * least)
    draws = np.empty(uniforms.shape[0], dtype=np.int64)
    probabilities = np.empty(uniforms.shape[0])
    for i in range(uniforms.shape[0]):
        point = uniforms[i, 0] - from_prior
        slot, expert, of_base = EMPTY, 0, False
        if point >= 0.0:
            while expert < columns - 1 and point >= weights[expert] * (1.0 - least[expert]):
                point -= weights[expert] * (1.0 - least[expert])
                expert += 1
            of_base = point < in_base[expert]
            if not of_base:
                slot = expert_trees.find(trees, expert, scales[expert], least[expert], uniforms[i, 1])
        if slot >= 0:
            client, mass = trees.clients[slot], trees.masses[slot]
        else:
            if of_base:
                client = draw_unseen(uniforms[i, 1], prior, table, unseen, MOST_TRIES)
            else:
                client = draw_prior(prior, uniforms[i, 1] * prior.total)
                slot = slot_of(table, client)
            mass = mass_of(prior, client)
        draws[i] = client
        probabilities[i] = mass / prior.total * mixed_ratio(trees.ratios, weights, scales, bases, slot)
    return draws, probabilities


@njit(cache=True)
def draw_weighed(
    uniforms: FloatArray,
    prior: Fields,
    places: IntArray,
    trees: Fields,
    experts: Fields,
    unseen: Fields,
) -> Weighed:
    """The same draws as a cohort: the distinct clients, their counts, probabilities and weights."""
    draws, probabilities = draw(uniforms, prior, places, trees, experts, unseen)
    weighed: Weighed = tally(draws, probabilities)
    return weighed


@njit(cache=True)
def see(
    clients: IntArray, count: int, prior_fields: Fields, places: IntArray, tree_fields: Fields
) -> tuple[IntArray, int]:
    """The slots of ``clients``, and how many are seen now; an unseen client gets the next free slot."""
    prior, table, trees = named_prior(prior_fields), places, ExpertTrees(*tree_fields)
    found = np.empty(clients.size, dtype=np.int64)
    for i in range(clients.size):
        slot = slot_of(table, clients[i])
        if slot == EMPTY:
            slot = count
            count += 1
            put(table, clients[i], slot)
            trees.clients[slot] = clients[i]
            trees.masses[slot] = mass_of(prior, clients[i])
            if trees.other_masses.size:
                trees.other_masses[slot] = trees.masses[slot]
        found[i] = slot
    return found, count


@njit(cache=True)
def mark_seen(clients: IntArray, block: int, unseen_own: Fields) -> int:
    """Take ``clients`` out of the tree of the unseen with own masses; how many were in it."""
    tree, own = TreeArrays(*unseen_own), clients[clients >= block] - block
    for slot in own:
        tree.values[slot] = 0.0
    sumtree.refresh(tree, own)
    return own.size


class SlotTrees:
    """The trees over the slots, and which slots are set apart in them."""

    def __init__(self, clients: IntArray, masses: FloatArray, ratios: FloatArray) -> None:
        self.apart = np.zeros(0, dtype=np.int64)
        self._set(expert_trees.trees_over(clients, masses, ratios))

    def _set(self, trees: ExpertTrees) -> None:
        self.trees, self.others = trees, expert_trees.of_others(trees)
        self.fields: Fields = tuple(trees)
        self.other_fields: Fields = tuple(self.others)

    def set_apart(self, slots: IntArray) -> bool:
        """Sum up ``others`` without ``slots``, until others are set apart; False where one is -1."""
        if not self.trees.other_masses.size:
            self._set(expert_trees.ready_to_set_apart(self.trees))
        if slots.tobytes() != self.apart.tobytes():  # np.array_equal takes microseconds
            if not expert_trees.set_apart(self.fields, self.apart, slots):
                return False
            self.apart = slots
        return True


class ExpertMixture(Distribution):
    r"""E distributions :math:`p_{e,m} = q_m r_{e,m}` and their weights, with the roster as the prior q.

    A client that was seen has a slot. Its ratio is ``scales[e] * ratios[slot, e]`` if it is raised, and
    otherwise ``bases[e]``, as for all clients without a slot. A subclass says what the ratios mean: it
    changes them and then makes every expert sum to one.
    """

    experts: ExpertArrays
    _columns_missing = 0
    """How many of the last experts have no column in the trees: for them nobody is raised."""
    _remembers = False
    """Whether clients of the base may keep a ratio, as a negative number."""

    def __init__(self, roster: Roster, *, experts: int) -> None:
        self.roster = roster
        self.count = 0
        self._seen_and_left = 0
        self._table = Table()
        self._set_experts(np.full(experts, -np.log(experts)), np.ones(experts), np.ones(experts))
        nobody = np.zeros((0, experts - self._columns_missing))
        self._build_trees(np.zeros(0, dtype=np.int64), np.zeros(0), nobody)
        self._count_unseen()

    @property
    def weights(self) -> FloatArray:
        """theta_e, the experts' weights in the mixture."""
        return np.asarray(np.exp(self.experts.log_weights))

    # Drawing -----------------------------------------------------------------------------------------

    def draw(self, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Independent draws from the mixture, two uniforms each, and their probabilities."""
        drawn: tuple[IntArray, FloatArray] = draw(uniforms, *self._fields())
        return drawn

    def draw_weighed(self, uniforms: FloatArray) -> Weighed:
        """The same draws as a cohort, in one call of a kernel: calls are most of a small round's cost."""
        weighed: Weighed = draw_weighed(uniforms, *self._fields())
        return weighed

    def _fields(self) -> tuple[Fields, IntArray, Fields, Fields, Fields]:
        trees, experts = self._tree_fields, self.expert_fields
        return self.roster.fields, self._table.places, trees, experts, tuple(self._unseen)

    def look_up(self, clients: IntArray) -> FloatArray:
        """The mixed probabilities of ``clients``."""
        return self._look_up(clients, self.expert_fields)

    def _look_up(self, clients: IntArray, experts: Fields) -> FloatArray:
        masses, total, places = self.roster.masses(clients), self.roster.total, self._table.places
        found: FloatArray = look_up(clients, masses, total, places, self.trees.ratios, experts)
        return found

    def line(self) -> ProbabilityLine:
        """All probabilities, laid end to end."""
        return self._line(self._tree_fields)

    def line_without(self, clients: IntArray) -> ProbabilityLine | None:
        """The same without ``clients``, which must have been seen."""
        return self._line(self._slots.other_fields) if self._slots.set_apart(self.slots_of(clients)) else None

    def _line(self, trees: Fields) -> ProbabilityLine:
        in_block, own = self.num_unseen - self._unseen_own_count, tuple(self._unseen_own.arrays)
        return ProbabilityLine(
            self.roster.fields, self._table.places, trees, self.expert_fields, in_block, own
        )

    def everybody(self) -> FloatArray:
        """The mixed probabilities of all ids: the one call whose cost grows with their number."""
        return self.look_up(np.arange(self.roster.ids))

    def heavy(self, threshold: float) -> IntArray:
        r"""A superset of the clients with :math:`p_m \ge` ``threshold``, unseen clients of the block aside.

        The mixture is at most its largest expert, and a client of an expert's base has ``bases[e]`` times its
        prior.
        """
        scales, bases = self.experts.scales, self.experts.bases
        found = [self.roster.heavy(threshold * self.roster.total / bases.max())]
        for e in range(self.trees.ratios.shape[1]):
            if scales[e] == 0.0 or self.weights[e] == 0.0:  # nobody is raised, or it does not count
                continue
            mass = threshold * self.roster.total / scales[e]
            slots = expert_trees.at_least(self.trees, e, mass)
            found.append(self.trees.clients[slots])
        return np.unique(np.concatenate(found))

    def summed(self) -> float:
        """What the expert sums to that is furthest from one."""
        sums = self._sums()
        return float(sums[np.argmax(np.abs(sums - 1.0))])

    def _sums(self) -> FloatArray:
        """What each expert sums to."""
        root, (_, scales, bases), unseen = self._root(self.trees), self.experts, self._unseen
        seen_in_base = np.maximum(self.trees.totals[-1] - root[expert_trees.MASS], 0.0)
        in_base = seen_in_base + unseen.in_block + unseen.own_mass  # no difference that a huge mass cancels
        with np.errstate(over="ignore"):  # then it is inf, and no distribution
            return np.asarray((scales * root[expert_trees.SUM] + bases * in_base) / self.roster.total)

    def share_of_seen(self) -> float:
        """The mixed probability of all clients seen so far together."""
        unseen_mass = self.roster.total - float(self.trees.masses[: self.count].sum())
        return 1.0 - float(self.weights @ self.experts.bases) * max(unseen_mass, 0.0) / self.roster.total

    def share_above_base(self) -> float:
        """How much of the mixture is not the prior any more: what the raised have beyond the base."""
        return 1.0 - float(self.weights @ self.experts.bases)

    def block_probability(self) -> float:
        """The probability of an unseen client of the roster's block; 0 if there is no block."""
        if not self.roster.seats:
            return 0.0
        return float(self.weights @ self.experts.bases) / self.roster.total

    def sum_without(self, clients: IntArray) -> float:
        """The mixed probability of everybody else: ``clients`` are set apart."""
        slots, own_tree = self._table.slots_of(clients), self._unseen_own
        unseen = clients[slots < 0]
        own = unseen[unseen >= self.roster.block] - self.roster.block
        in_block = self._unseen.in_block - np.count_nonzero(
            self.roster.present(unseen[unseen < self.roster.block])
        )
        own_masses = own_tree.values[own]
        if len(own):
            own_tree.set(own, np.zeros(len(own)))
        own_mass = self._unseen.own_mass
        if len(own):
            own_tree.set(own, own_masses)
        self._slots.set_apart(slots[slots >= 0])
        others, (log_weights, scales, bases) = self._slots.others, self.experts
        root = self._root(others)
        in_base = others.totals[-1] - root[expert_trees.MASS] + in_block + own_mass
        left = np.exp(log_weights) @ (scales * root[expert_trees.SUM] + bases * in_base)
        return float(left) / self.roster.total

    # Joining and leaving -----------------------------------------------------------------------------

    def add(self, masses: FloatArray) -> IntArray:
        """Add newcomers, all of them to the base; the others keep their proportions."""
        self._unseen_own.extend(masses)
        self._unseen_own_count += len(masses)
        newcomers = self.roster.add(masses)
        self.rescale()
        return newcomers

    def remove(self, clients: IntArray) -> None:
        """Remove ``clients``; the others keep their proportions."""
        slots = self._table.slots_of(clients)
        self._mark_seen(clients[slots < 0])
        self.roster.remove(clients)
        slots = slots[slots >= 0]
        self._seen_and_left += len(slots)
        self.trees.masses[slots] = 0.0
        if self.trees.other_masses.size:
            self.trees.other_masses[slots] = 0.0
        self.set_ratios(slots, np.zeros((len(slots), self.trees.ratios.shape[1])))
        self.rescale()

    def rescale(self) -> None:
        """Make every expert sum to one, by one factor for all its clients; the mixture keeps its proportions.

        What an expert gains by the factor, it loses in weight, by the rule of Bayes: among the clients that
        stay, the mixture is the old one, restricted.
        """
        log_weights, scales, bases = self.experts
        root = self._root(self.trees)
        base_mass = np.maximum(self.roster.total - root[expert_trees.MASS], 0.0)
        mass = np.maximum(scales * root[expert_trees.SUM] + bases * base_mass, VANISHING)
        factor = self.roster.total / mass
        scales *= factor
        bases *= factor
        log_weights[:] = normalise_log_weights(log_weights - np.log(factor))

    # Slots -------------------------------------------------------------------------------------------

    @property
    def trees(self) -> ExpertTrees:
        """The clients seen and their ratios, by slot."""
        return self._slots.trees

    @property
    def places(self) -> IntArray:
        """The hash table from clients to slots."""
        return self._table.places

    @property
    def _tree_fields(self) -> Fields:
        return self._slots.fields

    def _root(self, trees: ExpertTrees) -> FloatArray:
        """The sums of all clients seen, for every expert: see ``expert_trees``."""
        return np.pad(trees.nodes[-1], ((0, 0), (0, self._columns_missing)))

    @property
    def num_unseen(self) -> int:
        """How many clients were never seen."""
        return self.roster.count - (self.count - self._seen_and_left)

    def slots_of(self, clients: IntArray) -> IntArray:
        """The slots of ``clients``, -1 for the unseen."""
        return self._table.slots_of(clients)

    def see(self, clients: IntArray) -> IntArray:
        """The slots of ``clients``; an unseen client gets a new one."""
        self.reserve(len(clients))
        slots: IntArray
        places, before = self._table.places, self.count
        slots, self.count = see(clients, before, self.roster.fields, places, self._tree_fields)
        self._mark_seen(self.trees.clients[before : self.count])
        return slots

    @property
    def _unseen(self) -> Unseen:
        return Unseen(self.num_unseen - self._unseen_own_count, self._unseen_own.total)

    def _count_unseen(self) -> None:
        """Count them anew. Their mass is no difference of sums, which a very large mass would cancel."""
        roster = self.roster
        self._unseen_own = SumTree(roster.own.values)
        self._unseen_own_count = int(np.count_nonzero(roster.present(np.arange(roster.block, roster.ids))))
        seen = self.trees.clients[: self.count]
        self._mark_seen(seen[roster.present(seen)])

    def _mark_seen(self, clients: IntArray) -> None:
        """Count ``clients`` as unseen no more; those of the block need no count of their own."""
        if self._unseen_own.size and len(clients):
            own = tuple(self._unseen_own.arrays)
            self._unseen_own_count -= mark_seen(clients, self.roster.block, own)

    def set_ratios(self, slots: IntArray, ratios: FloatArray) -> None:
        """Change the ratios of ``slots``, one row a slot."""
        self.trees.ratios[slots] = ratios
        expert_trees.refresh(self._tree_fields, slots)

    def reserve(self, more: int) -> None:
        """Make room for ``more`` clients; the room doubles."""
        self._table.count = self.count
        self._table.reserve(more)
        clients, masses, ratios = self.trees.clients, self.trees.masses, self.trees.ratios
        room = len(clients)
        if self.count + more <= room:
            return
        added = max(self.count + more, 2 * room) - room
        self._build_trees(
            np.concatenate((clients, np.zeros(added, dtype=np.int64))),
            np.concatenate((masses, np.zeros(added))),
            np.concatenate((ratios, np.zeros((added, ratios.shape[1])))),
        )

    def _build_trees(self, clients: IntArray, masses: FloatArray, ratios: FloatArray) -> None:
        """Build the trees anew, above these slots; copies of the mixture share them."""
        self._slots = SlotTrees(clients, masses, ratios)

    def _set_experts(self, log_weights: FloatArray, scales: FloatArray, bases: FloatArray) -> None:
        self.experts = ExpertArrays(log_weights, scales, bases)
        self.expert_fields = tuple(self.experts)

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The clients seen, in the order of their slots, their ratios, and the experts."""
        return {
            "seen_clients": self.trees.clients[: self.count].copy(),
            "ratios": self.trees.ratios[: self.count].copy(),
            "log_expert_weights": self.experts.log_weights.copy(),
            "scales": self.experts.scales.copy(),
            "bases": self.experts.bases.copy(),
        }

    def restore(self, state: Mapping[str, Any], *, experts: int) -> None:
        """Take back what ``state`` gave, after the roster; on a StateError nothing has changed."""
        clients = array(state, "seen_clients", np.int64, (None,))
        if len(np.unique(clients)) != len(clients) or np.any((clients < 0) | (clients >= self.roster.ids)):
            raise StateError("state has seen_clients that do not exist, or one of them twice")
        ratios = array(state, "ratios", np.float64, (len(clients), experts - self._columns_missing))
        log_weights, scales, bases = (
            array(state, name, np.float64, (experts,)) for name in ("log_expert_weights", "scales", "bases")
        )
        here = self.roster.present(clients)[:, None]
        right = np.isfinite(ratios) & ((ratios >= 0.0) | self._remembers) & (here | (ratios == 0.0))
        check("ratios", ratios, right, "finite, not negative, and 0 of those that left")
        for name, factors in (("scales", scales), ("bases", bases)):
            check(name, factors, np.isfinite(factors) & (factors >= 0.0), "finite and not negative")
        check("log_expert_weights", log_weights, log_weights <= LARGEST_LOG_WEIGHT, "at most 0")
        total = float(np.exp(log_weights).sum())
        if not abs(total - 1.0) < 1e-6:
            raise StateError(f"state has 'log_expert_weights' whose weights sum to {total!r}, not to 1")
        self.count = len(clients)
        self._seen_and_left = int(np.count_nonzero(~self.roster.present(clients)))
        self._table = Table()
        self._table.put_all(clients, np.arange(self.count))
        self._set_experts(log_weights, scales, bases)
        self._build_trees(clients, self.roster.masses(clients), ratios)
        self._count_unseen()
