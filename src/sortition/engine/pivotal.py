r"""Cohorts of exactly K distinct clients: ordered pivotal sampling, by 2K look-ups on a line.

``core.designs.draw_fixed_size`` plays one duel after another over all clients. The same can be had from a few
look-ups. Take out the clients that are certain. Lay the others end to end on a line of length k, each as long
as its inclusion probability :math:`\pi_m < 1`. Let :math:`x_i` be the client that lies across the point i,
:math:`a_i` of it before and :math:`b_i` behind. In turn i = 1, ..., k, one client is taken:

- the duels between i - 1 and the start of :math:`x_i` leave one *candidate*: each client there in proportion
  to its length, where the length :math:`b_{i-1}` belongs to the client that is *held* from the turn before;
- with probability :math:`(1 - \pi_{x_i}) / (1 - b_i)` the candidate is taken and :math:`x_i` is held;
  otherwise :math:`x_i` is taken and the candidate is held. In the last turn the candidate is taken.

The unseen clients of the roster's block are one stretch of the line. All have one length, so a segment drawn
there may belong to any of them: distinct ones are chosen at random.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import njit

from sortition.core.designs import Weighed
from sortition.core.types import Fields, FloatArray, IntArray
from sortition.engine import expert_trees, sumtree
from sortition.engine.clients import (
    EMPTY,
    PriorMasses,
    Roster,
    another_uniform,
    draw_prior,
    masses_of,
    named_prior,
    slot_of,
)
from sortition.engine.expert_trees import ExpertArrays, ExpertTrees, Mixture
from sortition.engine.limit import NO_LIMIT
from sortition.engine.sumtree import SumTree, TreeArrays

LEAST_LEFT = 1e-6
"""If the certain clients leave less mass than this to the others, rounding would count."""
ROUNDING = 1e-12
"""A point stays away from a border by this: sums of lengths are not more exact."""
NOBODY = np.zeros(0, dtype=np.int64)
NOTHING = np.zeros(0)
MOST_TRIES = 1000
"""After this many draws from the block without a new unseen client, all of them are listed."""


class ProbabilityLine(NamedTuple):
    """Everybody's probabilities, laid end to end, as Python hands them to the kernel.

    First come the clients seen, in the order of their slots, then the unseen with own masses, then the unseen
    of the block.
    """

    prior: Fields
    places: IntArray
    trees: Fields
    experts: Fields
    in_block: int
    """How many unseen clients there are in the block."""
    own: Fields
    """The sum tree of the unseen clients with own masses."""
    limit: Fields = tuple(NO_LIMIT)
    """A ``Limit``: what everybody has of what was learnt, and of the prior; but *listed* clients,
    ascending, have shares of their own of what was learnt."""
    listed_are_out: bool = False
    """Whether the line is without the listed clients; otherwise their segments are left out."""


def line_of_masses(prior: Fields, in_block: int, own: Fields) -> ProbabilityLine:
    """The line of a distribution that is proportional to the masses of a roster."""
    return ProbabilityLine(prior, _NO_PLACES, _no_trees(), _ONE_EXPERT, in_block, own)


def line_of_vector(probabilities: FloatArray) -> ProbabilityLine:
    """The line of a vector of probabilities, which sum to one."""
    return line_of_masses(_one_client(), 0, tuple(SumTree(probabilities).arrays))


_NO_PLACES = np.full((2, 2), EMPTY, dtype=np.int64)
_ONE_EXPERT: Fields = tuple(ExpertArrays(np.zeros(1), np.ones(1), np.ones(1)))


@cache  # no kernel is called at an import: the first call of one takes 0.4 s
def _one_client() -> Fields:
    return Roster(1, np.ones(1)).fields


@cache
def _no_trees() -> Fields:
    return tuple(expert_trees.trees_over(NOBODY, NOTHING, np.zeros((0, 1))))


class Segments(NamedTuple):
    """A line inside the kernel: all lengths are probabilities."""

    prior: PriorMasses
    table: IntArray
    trees: ExpertTrees
    mixture: Mixture
    own: TreeArrays
    unseen_ratio: float
    """What an unseen client weighs for each unit of mass."""
    seen: float
    """The length of all clients seen."""
    in_own: float
    """The length of the unseen with own masses."""
    in_block: int


@njit(cache=True)
def _segments(
    prior_fields: Fields,
    places: IntArray,
    tree_fields: Fields,
    expert_fields: Fields,
    in_block: int,
    own_fields: Fields,
    scale: float,
    from_prior: float,
) -> Segments:
    prior, trees, own = named_prior(prior_fields), ExpertTrees(*tree_fields), TreeArrays(*own_fields)
    log_weights, scales, bases = ExpertArrays(*expert_fields)
    unit, columns = np.exp(log_weights) / prior.total, trees.ratios.shape[1]
    everybody = (unit[columns:] * bases[columns:]).sum() + from_prior * unit[:columns].sum()
    some = np.flatnonzero(unit[:columns])
    unit = scale * unit[some]
    mixture = Mixture(some, unit * scales[some], unit * bases[some], everybody)
    ratio = mixture.base.sum() + everybody
    seen = np.empty(1)
    expert_trees.weigh(trees, mixture, trees.starts.size - 2, 0, seen)
    in_own = ratio * own.nodes[-1]
    return Segments(prior, places, trees, mixture, own, ratio, seen[0], in_own, in_block)


@njit(cache=True)
def _listed_probabilities(
    line: Segments, expert_fields: Fields, listed: IntArray, learnt: FloatArray
) -> FloatArray:
    """The probabilities of listed clients: what was ``learnt``, mixed with the prior."""
    prior_share = np.exp(ExpertArrays(*expert_fields).log_weights[line.trees.ratios.shape[1] :]).sum()
    if prior_share == 0.0:  # the line of a vector has no masses to look up
        return learnt
    own = masses_of(line.prior, listed) / line.prior.total
    result: FloatArray = prior_share * own + (1.0 - prior_share) * learnt
    return result


@njit(cache=True)
def _locate(line: Segments, points: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """The clients at ``points`` (-1, -2, ... in the block), where their segments start, and their lengths."""
    ratio, in_own, in_block = line.unseen_ratio, line.in_own, line.in_block
    if in_block == 0 and in_own == 0.0:  # nobody is unseen
        slots, starts, lengths = expert_trees.locate(line.trees, line.mixture, points)
        return line.trees.clients[slots], starts, lengths
    clients, starts, lengths = (
        np.empty(points.size, dtype=np.int64),
        np.empty(points.size),
        np.empty(points.size),
    )
    among_seen = np.flatnonzero(points < line.seen)
    if among_seen.size:
        slots, begins, weights = expert_trees.locate(line.trees, line.mixture, points[among_seen])
        clients[among_seen] = line.trees.clients[slots]
        starts[among_seen], lengths[among_seen] = begins, weights
    for i in range(points.size):
        beyond = points[i] - line.seen
        if beyond < 0.0:
            continue
        if beyond < in_own or in_block == 0:
            slot = sumtree.find(line.own, beyond / ratio)
            clients[i] = line.prior.block + slot
            starts[i] = line.seen + ratio * sumtree.sum_before(line.own, slot)
            lengths[i] = ratio * line.own.values[slot]
        else:
            rank = min(int((beyond - in_own) / ratio), in_block - 1)
            clients[i], starts[i], lengths[i] = -1 - rank, line.seen + in_own + ratio * rank, ratio
    return clients, starts, lengths


@njit(cache=True)
def _span_of(line: Segments, client: int) -> tuple[float, float]:
    """Where the segment of ``client`` starts, and how long it is; -1 for an unseen client of the block."""
    slot = slot_of(line.table, client)
    if slot != EMPTY:
        length = np.empty(1)
        expert_trees.weigh(line.trees, line.mixture, -1, slot, length)
        return expert_trees.weight_before(line.trees, line.mixture, slot), length[0]
    if client < line.prior.block:
        return -1.0, 0.0
    slot = client - line.prior.block
    start = line.seen + line.unseen_ratio * sumtree.sum_before(line.own, slot)
    return start, line.unseen_ratio * line.own.values[slot]


@njit(cache=True)
def _at_least(line: Segments, threshold: float, listed: IntArray) -> IntArray:
    """The clients with at least ``threshold``, ``listed`` ones and the block aside."""
    found = line.trees.clients[expert_trees.mixed_at_least(line.trees, line.mixture, threshold)]
    if line.in_own > 0.0:
        own = sumtree.at_least(line.own, threshold / line.unseen_ratio)
        found = np.concatenate((found, line.prior.block + own))
    if listed.size and found.size:
        place = np.minimum(np.searchsorted(listed, found), listed.size - 1)
        found = found[listed[place] != found]
    return found


class Shortened(NamedTuple):
    """What is left of a line without some clients, as long as the number of turns."""

    possible: bool
    """Whether all clients that are left out could be found."""
    scale: float
    """c: a length is c times a probability."""
    out_starts: FloatArray
    """Where clients were left out of the segments, in what is left of them."""
    out_lengths: FloatArray
    """How much was left out before each of them, and in all."""
    end: float
    """Where the segments end. Behind come the listed clients."""
    listed: IntArray
    listed_ends: FloatArray


@njit(cache=True)
def _shortened(
    line: Segments,
    certain: IntArray,
    listed: IntArray,
    listed_probabilities: FloatArray,
    listed_are_out: bool,
    scale: float,
    turns: int,
) -> Shortened:
    """The line without ``certain`` clients; the ``listed`` ones with their own probabilities at its end."""
    out = certain if listed_are_out else np.concatenate((certain, listed))
    starts, lengths = np.empty(out.size), np.empty(out.size)
    for j in range(out.size):
        starts[j], lengths[j] = _span_of(line, out[j])
    possible = out.size == 0 or starts.min() >= 0.0
    order = np.argsort(starts)
    out_lengths = np.zeros(out.size + 1)
    out_lengths[1:] = np.cumsum(lengths[order])
    out_starts = starts[order] - out_lengths[:-1]
    for j in range(1, out.size):
        if out_starts[j] < out_starts[j - 1] + ROUNDING:  # neighbours, with nothing in between
            out_starts[j] = out_starts[j - 1]
    uncertain = np.flatnonzero(scale * listed_probabilities < 1.0)
    ends = np.cumsum(scale * listed_probabilities[uncertain])
    end = turns - (ends[-1] if ends.size else 0.0)
    return Shortened(possible, scale, out_starts, out_lengths, end, listed[uncertain], ends)


@njit(cache=True)
def _look_up(
    line: Segments, shortened: Shortened, points: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """The clients at ``points`` of a shortened line, where their segments start, and how long they are."""
    _, scale, out_starts, out_lengths, end, listed, listed_ends = shortened
    left = line.seen + line.in_own + line.unseen_ratio * line.in_block - out_lengths[-1]
    places, passed = np.empty(points.size), np.empty(points.size)
    for i in range(points.size):
        place = min(points[i] / scale, left - ROUNDING)
        before = np.searchsorted(out_starts, place, side="right")
        # a border is not met exactly: nobody who was left out may be found there
        if before < out_starts.size:
            place = min(place, out_starts[before] - ROUNDING)
        if before > 0:
            place = max(place, out_starts[before - 1] + ROUNDING)
        passed[i] = out_lengths[before]
        places[i] = place + passed[i]
    clients, starts, lengths = _locate(line, places)
    for i in range(points.size):
        starts[i], lengths[i] = (starts[i] - passed[i]) * scale, min(lengths[i] * scale, 1.0)
    if listed.size:
        for place in np.flatnonzero(points >= end):
            which = min(np.searchsorted(listed_ends, points[place] - end, side="right"), listed.size - 1)
            begin = listed_ends[which - 1] if which else 0.0
            clients[place], starts[place] = listed[which], end + begin
            lengths[place] = listed_ends[which] - begin
    return clients, starts, lengths


@njit(cache=True)
def _play(line: Segments, shortened: Shortened, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
    """The clients taken, one in each turn, and their inclusion probabilities."""
    turns = uniforms.shape[0]
    across, starts, lengths = _look_up(line, shortened, np.arange(1.0, turns))
    points, behind = np.empty(turns), 0.0
    from_held = np.zeros(turns, dtype=np.bool_)
    for i in range(turns):
        room = 1.0 if i == turns - 1 else min(max(starts[i] - i, 0.0), 1.0)  # 1 - a
        points[i] = i + uniforms[i, 0] * room
        from_held[i] = points[i] < i + behind
        behind = 0.0 if i == turns - 1 else min(max(starts[i] + lengths[i] - (i + 1), 0.0), lengths[i])  # b
    candidates, _, candidate_lengths = _look_up(line, shortened, points)
    taken, inclusion = np.empty(turns, dtype=np.int64), np.empty(turns)
    held, held_length = np.int64(0), 0.0
    for i in range(turns):
        candidate, length = candidates[i], candidate_lengths[i]
        if from_held[i]:
            candidate, length = held, held_length
        taken[i], inclusion[i] = candidate, length
        if i == turns - 1:
            break
        behind = min(max(starts[i] + lengths[i] - (i + 1), 0.0), lengths[i])
        if uniforms[i, 1] * (1.0 - behind) < 1.0 - lengths[i]:
            held, held_length = across[i], lengths[i]
        else:
            taken[i], inclusion[i] = across[i], lengths[i]
            held, held_length = candidate, length
    return taken, inclusion


@njit(cache=True)
def _name_unseen(draws: IntArray, line: Segments, uniform: float) -> None:
    """Put distinct unseen clients of the block, chosen at random, in the place of negative numbers."""
    chosen = set(draws)
    for i in range(draws.size):
        tries = 0
        while draws[i] < 0:
            uniform = another_uniform(uniform)
            client = draw_prior(line.prior, uniform * line.prior.seats)
            if tries == MOST_TRIES:
                left = [draw_prior(line.prior, float(seat)) for seat in range(line.prior.seats)]
                left = [one for one in left if slot_of(line.table, one) == EMPTY and one not in chosen]
                client = left[int(another_uniform(uniform) * len(left))]
            if slot_of(line.table, client) == EMPTY and client not in chosen:
                chosen.add(client)
                draws[i] = client
            tries += 1


@njit(cache=True)
def draw_fixed_size(
    uniforms: FloatArray,
    prior: Fields,
    places: IntArray,
    trees: Fields,
    experts: Fields,
    in_block: int,
    own: Fields,
    limit: Fields,
    listed_are_out: bool,
) -> tuple[bool, Weighed]:
    """A cohort with as many clients as there are rows of two uniforms.

    False where the certain clients leave next to nothing to the others, where a whole block is certain, or
    where a point fell on the border of two segments, within rounding.
    """
    size = uniforms.shape[0]
    scale, from_prior, listed, learnt = limit
    line = _segments(prior, places, trees, experts, in_block, own, scale, from_prior)
    listed_probabilities = _listed_probabilities(line, experts, listed, learnt)
    nothing = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))

    total = line.seen + line.in_own + line.unseen_ratio * line.in_block  # one, up to rounding
    for i in range(listed.size):
        total += listed_probabilities[i] - (0.0 if listed_are_out else _span_of(line, listed[i])[1])

    # c with the sum of min(1, c p) = K, and the clients with c p >= 1
    c = size / total
    while True:
        if line.in_block and c * line.unseen_ratio >= 1.0:
            return False, nothing
        certain = _at_least(line, 1.0 / c, listed)
        certain_listed = np.flatnonzero(c * listed_probabilities >= 1.0)
        left = total - listed_probabilities[certain_listed].sum()
        for client in certain:
            left -= _span_of(line, client)[1]
        number = certain.size + certain_listed.size
        if number == size:
            break
        if left < LEAST_LEFT or number > size:
            return False, nothing
        better = (size - number) / left
        if not better > c * (1.0 + 1e-12):
            break
        c = better

    shortened = _shortened(line, certain, listed, listed_probabilities, listed_are_out, c, size - number)
    if not shortened.possible:
        return False, nothing
    draws = np.empty(size, dtype=np.int64)
    inclusion = np.ones(size)
    draws[: certain.size] = certain
    draws[certain.size : number] = listed[certain_listed]
    draws[number:], inclusion[number:] = _play(line, shortened, uniforms[: size - number])
    if draws.min() < 0:
        _name_unseen(draws, line, uniforms[0, 0])
    order = np.argsort(draws)
    draws, inclusion = draws[order], inclusion[order]
    for i in range(1, size):
        if draws[i] == draws[i - 1]:
            return False, nothing
    return True, (draws, np.ones(size, dtype=np.int64), inclusion, 1.0 / inclusion)
