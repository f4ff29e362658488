r"""E trees side by side over the clients seen so far: for each expert, which clients are raised, and how far.

Write :math:`p_{e,m} = q_m r_{e,m}` with the prior q. For expert e a client is either *raised*, with
:math:`r_{e,m} = s_e y_{e,m}`, or it belongs to the *base*, where all share the ratio :math:`r_{e,0}`, the
smallest there is. ``ratios[slot, e]`` is :math:`y_{e,m} > 0` for the raised; for the base it is 0, or
:math:`-y_{e,m}` where a client is raised again once its :math:`y` is high enough (only Avare needs this).

Some clients can be *set apart*: there are second sums without them, which nothing cancels.

Each node holds the sum of :math:`w_m` over all clients below it. For every expert it holds the sum of
:math:`w_m y_{e,m}`, the sum of :math:`w_m` and the least :math:`y_{e,m}` over the raised clients below it,
and the most :math:`y_{e,m}` that is kept for clients of the base. The last experts may have no column: all
clients belong to their base.

The experts lie side by side in memory, so that one visit serves them all, and what a draw does not need lies
apart. As in ``sumtree``, nodes are always recomputed from their children.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from sortition.core.types import Fields, FloatArray, IntArray
from sortition.engine.sumtree import FAN, level_starts


class ExpertTrees(NamedTuple):
    """The trees of all experts, as kernels take them."""

    clients: IntArray
    """The client of each slot."""
    masses: FloatArray
    """Its prior mass; 0 if it has left."""
    ratios: FloatArray
    """Its ratios y, one column an expert."""
    totals: FloatArray
    """The prior mass below each node."""
    nodes: FloatArray
    """Sums of all nodes, from the lowest level to the root: node, SUM or MASS, expert."""
    extremes: FloatArray
    """The same with LEAST or MOST."""
    starts: IntArray
    """Where each level of nodes begins; the last entry counts the nodes."""
    other_masses: FloatArray
    """``masses`` with 0 for the clients that are set apart; empty as long as nobody was."""
    other_totals: FloatArray
    other_nodes: FloatArray


def trees_over(clients: IntArray, masses: FloatArray, ratios: FloatArray) -> ExpertTrees:
    """The trees above these slots; nobody is set apart."""
    starts, experts = level_starts(max(len(clients), 1)), ratios.shape[1]
    nodes, extremes = np.zeros((2, starts[-1], 2, experts))
    nobody = (np.zeros(0), np.zeros(0), np.zeros((0, 2, experts)))
    trees = ExpertTrees(clients, masses, ratios, np.zeros(starts[-1]), nodes, extremes, starts, *nobody)
    rebuild(trees)
    return trees


def ready_to_set_apart(trees: ExpertTrees) -> ExpertTrees:
    """The same trees with a second sum, of which nobody is set apart yet."""
    return trees._replace(
        other_masses=trees.masses.copy(), other_totals=trees.totals.copy(), other_nodes=trees.nodes.copy()
    )


def of_others(trees: ExpertTrees) -> ExpertTrees:
    """The trees in which clients that are set apart have no mass."""
    return trees._replace(masses=trees.other_masses, totals=trees.other_totals, nodes=trees.other_nodes)


class ExpertArrays(NamedTuple):
    """The experts, as kernels take them; changed in place."""

    log_weights: FloatArray
    """Logarithms of theta_e, the weights in the mixture."""
    scales: FloatArray
    """s_e: a raised client has the ratio s_e y."""
    bases: FloatArray
    """r_e,0: the ratio of all other clients."""


SUM, MASS = 0, 1
LEAST, MOST = 0, 1


@njit(cache=True)
def _add_up(
    masses: FloatArray,
    ratios: FloatArray,
    totals: FloatArray,
    nodes: FloatArray,
    starts: IntArray,
    level: int,
    positions: IntArray,
) -> None:
    """Recompute the sums of nodes of one level from their children."""
    offset, last = (starts[level - 1], starts[level]) if level > 0 else (0, masses.size)
    for position in positions:
        node, first = starts[level] + position, offset + FAN * position
        end, total = min(first + FAN, last), 0.0
        for child in range(first, end):
            total += totals[child] if level > 0 else masses[child]
        totals[node] = total
        for e in range(ratios.shape[1]):  # sums are plain numbers: to add to an array takes longer
            weighed, raised_mass = 0.0, 0.0
            if level > 0:
                for child in range(first, end):
                    weighed += nodes[child, SUM, e]
                    raised_mass += nodes[child, MASS, e]
            else:
                for slot in range(first, end):
                    y = ratios[slot, e]
                    weighed += masses[slot] * y if y > 0.0 else 0.0
                    raised_mass += masses[slot] if y > 0.0 else 0.0
            nodes[node, SUM, e], nodes[node, MASS, e] = weighed, raised_mass


@njit(cache=True)
def _find_extremes(
    ratios: FloatArray, extremes: FloatArray, starts: IntArray, level: int, positions: IntArray
) -> None:
    """Recompute the least and the most of nodes of one level from their children."""
    offset, last = (starts[level - 1], starts[level]) if level > 0 else (0, ratios.shape[0])
    for position in positions:
        node, first = starts[level] + position, offset + FAN * position
        end = min(first + FAN, last)
        for e in range(ratios.shape[1]):
            least, most = np.inf, 0.0
            if level > 0:
                for child in range(first, end):
                    least = min(least, extremes[child, LEAST, e])
                    most = max(most, extremes[child, MOST, e])
            else:
                for slot in range(first, end):
                    y = ratios[slot, e]
                    least = min(least, y if y > 0.0 else np.inf)
                    most = max(most, -y)
            extremes[node, LEAST, e], extremes[node, MOST, e] = least, most


@njit(cache=True)
def _recompute(tree_fields: Fields, level: int, positions: IntArray) -> None:
    """Recompute nodes of one level from their children."""
    _, masses, ratios, totals, nodes, extremes, starts, other_masses, other_totals, other_nodes = tree_fields
    _add_up(masses, ratios, totals, nodes, starts, level, positions)
    _find_extremes(ratios, extremes, starts, level, positions)
    if other_masses.size:
        _add_up(other_masses, ratios, other_totals, other_nodes, starts, level, positions)


@njit(cache=True)
def rebuild(tree_fields: Fields) -> None:
    """Recompute every node, the lowest level first: one pass over all slots."""
    starts = ExpertTrees(*tree_fields).starts
    for level in range(starts.size - 1):
        _recompute(tree_fields, level, np.arange(starts[level + 1] - starts[level]))


@njit(cache=True)
def refresh(tree_fields: Fields, slots: IntArray) -> None:
    """Recompute the nodes above ``slots``, each once where neighbours share it."""
    positions = np.sort(slots)
    for level in range(ExpertTrees(*tree_fields).starts.size - 1):
        kept = 0
        for i in range(positions.size):
            position = positions[i] // FAN
            if kept == 0 or positions[kept - 1] != position:
                positions[kept] = position
                kept += 1
        positions = positions[:kept]
        _recompute(tree_fields, level, positions)


@njit(cache=True)
def set_apart(tree_fields: Fields, before: IntArray, slots: IntArray) -> bool:
    """Set ``slots`` apart, instead of those ``before``; False, and nothing has changed, where one is -1."""
    trees = ExpertTrees(*tree_fields)
    masses, others = trees.masses, trees.other_masses
    for slot in slots:
        if slot < 0:
            return False
    changed, count = np.empty(before.size + slots.size, dtype=np.int64), 0
    for slot in slots:
        if others[slot] != 0.0:
            changed[count], count = slot, count + 1
        others[slot] = -1.0
    for slot in before:
        if others[slot] >= 0.0:
            others[slot] = masses[slot]
            changed[count], count = slot, count + 1
    for slot in slots:
        others[slot] = 0.0
    refresh(tree_fields, changed[:count])
    return True


@njit(cache=True)
def sweep(
    trees: ExpertTrees, limits: FloatArray, factors: FloatArray, thresholds: FloatArray, remember: bool
) -> None:
    """Multiply ratios by their expert's factor; a client that is then below its threshold falls to the base.

    Only nodes are entered that hold a raised client below their expert's limit, or a client of the base with
    a kept ratio above it; so a sweep costs what it changes, and never more than one pass over all slots.
    With ``remember``, a client that falls keeps its ratio, one with a kept ratio above the threshold rises,
    and factors are 1. An expert whose limit and threshold are nan stays as it is.
    """
    _, masses, ratios, _, _, extremes, starts, _, _, _ = trees
    experts = limits.size
    top = starts.size - 2
    entered = [0]  # positions of the nodes entered, level by level from the root
    ends = np.empty(top + 1, dtype=np.int64)
    ends[top] = 1
    begin = 0
    for level in range(top - 1, -1, -1):
        width = starts[level + 1] - starts[level]
        for i in range(begin, ends[level + 1]):
            first = FAN * entered[i]
            for position in range(first, min(first + FAN, width)):
                node = extremes[starts[level] + position]
                for e in range(experts):
                    if node[LEAST, e] < limits[e] or node[MOST, e] > limits[e]:
                        entered.append(position)
                        break
        begin = ends[level + 1]
        ends[level] = len(entered)
    for i in range(begin, len(entered)):
        first = FAN * entered[i]
        for slot in range(first, min(first + FAN, masses.size)):
            for e in range(experts):
                y = abs(ratios[slot, e]) * factors[e]
                if ratios[slot, e] > 0.0:
                    fallen = -y if remember else 0.0
                    ratios[slot, e] = fallen if y < thresholds[e] else y
                elif y > thresholds[e]:
                    ratios[slot, e] = y
    positions = np.array(entered)
    for level in range(top + 1):
        _recompute(trees, level, positions[ends[level + 1] if level < top else 0 : ends[level]])


@njit(cache=True)
def find(trees: ExpertTrees, expert: int, scale: float, base: float, fraction: float) -> int:
    r"""The slot at ``fraction`` of [0, 1) of what the raised clients have beyond the base, or -1 for none.

    A node weighs :math:`s \sum w y - r_0 \sum w`.
    """
    _, masses, ratios, _, nodes, _, starts, _, _, _ = trees
    root = nodes[-1]
    point = fraction * (scale * root[SUM, expert] - base * root[MASS, expert])
    position = 0
    for level in range(starts.size - 3, -2, -1):
        first = FAN * position
        width = starts[level + 1] - starts[level] if level >= 0 else masses.size
        position = -1
        for child in range(first, min(first + FAN, width)):
            if level >= 0:
                node = nodes[starts[level] + child]
                weight = scale * node[SUM, expert] - base * node[MASS, expert]
            else:
                y = ratios[child, expert]
                weight = masses[child] * (scale * y - base) if y > 0.0 else 0.0
            if weight > 0.0:
                position = child
                if point < weight:
                    break
                point -= weight
        if position < 0:
            return -1
    return position


@njit(cache=True)
def at_least(trees: ExpertTrees, expert: int, threshold: float) -> IntArray:
    """The slots with ``mass * y`` of at least ``threshold`` > 0: nodes that weigh less are not entered."""
    _, masses, ratios, _, nodes, _, starts, _, _, _ = trees
    found = [0]
    for level in range(starts.size - 3, -2, -1):
        below = [0 for _ in range(0)]
        width = starts[level + 1] - starts[level] if level >= 0 else masses.size
        for position in found:
            for child in range(FAN * position, min(FAN * position + FAN, width)):
                if level >= 0:
                    weight = nodes[starts[level] + child, SUM, expert]
                else:
                    weight = masses[child] * ratios[child, expert]
                if weight >= threshold:
                    below.append(child)
        found = below
    return np.array(found, dtype=np.int64)


class Mixture(NamedTuple):
    """What the experts add to a client's weight in their mixture; experts of weight 0 are left out."""

    experts: IntArray
    raised: FloatArray
    """What one unit of ratio weighs, for each of these experts, if a client is raised."""
    base: FloatArray
    """What a client weighs otherwise, for each unit of mass."""
    everybody: float
    """What every client weighs for each unit of mass, by the experts without a column."""


@njit(cache=True)
def weigh(trees: ExpertTrees, mixture: Mixture, level: int, first: int, weights: FloatArray) -> int:
    """What nodes of a level weigh in the mixture, from ``first`` on; how many there are, at most ``weights``.

    At level -1 these are the clients of slots. One call for several: a call takes longer than a sum.
    """
    _, masses, ratios, totals, nodes, _, starts, _, _, _ = trees
    experts, raised, base, everybody = mixture
    offset = starts[level] if level >= 0 else 0
    width = starts[level + 1] - offset if level >= 0 else masses.size
    count: int = min(weights.size, width - first)
    for i in range(count):
        place = offset + first + i
        if level >= 0:
            weight = everybody * totals[place]
            for k in range(experts.size):
                outside = totals[place] - nodes[place, MASS, experts[k]]
                weight += raised[k] * nodes[place, SUM, experts[k]] + base[k] * outside
        else:
            weight = everybody
            for k in range(experts.size):
                y = ratios[place, experts[k]]
                weight += raised[k] * y if y > 0.0 else base[k]
            weight *= masses[place]
        weights[i] = weight
    return count


@njit(cache=True)
def locate(
    trees: ExpertTrees, mixture: Mixture, points: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    r"""The slots at ``points``, when slots are laid end to end by their weights; their starts and weights.

    A client weighs :math:`w_m (v + \sum_e` (``raised[e]`` :math:`y_{e,m}` or, in the base, ``base[e]``)),
    with v = ``everybody``. All points go down level by level: neighbours share a node, and the memory fetches
    several nodes at a time, as no branch has to wait for what is in them.
    """
    _, masses, ratios, totals, nodes, _, level_begins, _, _, _ = trees
    experts, raised, base, everybody = mixture
    slots, starts = np.zeros(points.size, dtype=np.int64), np.zeros(points.size)
    weights, children, ends = np.empty(points.size), np.empty(FAN), np.empty(FAN)
    for level in range(level_begins.size - 3, -2, -1):
        offset = level_begins[level] if level >= 0 else 0
        width = level_begins[level + 1] - offset if level >= 0 else masses.size
        for i in range(points.size):  # touch them, so that the memory fetches many at once
            place = offset + FAN * slots[i]
            if level >= 0:
                weights[i] = totals[place] + nodes[place, SUM, 0]
            else:
                weights[i] = masses[place] + ratios[place, 0]
        entered = -1
        for i in range(points.size):
            if slots[i] != entered:  # as in ``weigh``, whose call would take longer
                entered, first, end = slots[i], offset + FAN * slots[i], 0.0
                count = min(FAN, width - FAN * entered)
                ends[:] = np.inf
                for j in range(count):
                    place = first + j
                    if level >= 0:
                        weight = everybody * totals[place]
                        for k in range(experts.size):
                            outside = totals[place] - nodes[place, MASS, experts[k]]
                            weight += raised[k] * nodes[place, SUM, experts[k]] + base[k] * outside
                    else:
                        weight = everybody
                        for k in range(experts.size):
                            y = ratios[place, experts[k]]
                            weight += raised[k] * y if y > 0.0 else base[k]
                        weight *= masses[place]
                    end += weight
                    children[j], ends[j] = weight, end
            point, chosen = points[i] - starts[i], 0
            for j in range(FAN):
                chosen += ends[j] <= point
            if chosen == count:  # beyond the end, by rounding
                while chosen > 0 and (chosen == count or children[chosen] == 0.0):
                    chosen -= 1
            slots[i], weights[i] = FAN * entered + chosen, children[chosen]
            starts[i] += ends[chosen - 1] if chosen else 0.0
    return slots, starts, weights


@njit(cache=True)
def weight_before(trees: ExpertTrees, mixture: Mixture, slot: int) -> float:
    """The weight of all slots before ``slot``."""
    total, position, before = 0.0, slot, np.empty(FAN)
    for level in range(-1, trees.starts.size - 2):
        first = FAN * (position // FAN)
        weigh(trees, mixture, level, first, before)
        total += before[: position - first].sum()
        position //= FAN
    return total


@njit(cache=True)
def mixed_at_least(trees: ExpertTrees, mixture: Mixture, threshold: float) -> IntArray:
    """The slots that weigh at least ``threshold`` > 0 in the mixture, ascending."""
    found, children = [0], np.empty(FAN)
    for level in range(trees.starts.size - 3, -2, -1):
        below = [0 for _ in range(0)]
        for position in found:
            for j in range(weigh(trees, mixture, level, FAN * position, children)):
                if children[j] >= threshold:
                    below.append(FAN * position + j)  # noqa: PERF401 - numba compiles this to faster code
        found = below
    return np.array(found, dtype=np.int64)
