"""Kernels of a mixture of experts: draw from it, look probabilities up, give slots to those met."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit

from sortition.core.designs import Weighed
from sortition.core.types import FloatArray, IntArray
from sortition.engine import forest
from sortition.engine.drawing import tally
from sortition.engine.forest import Trees
from sortition.engine.roster import Masses, draw_prior, mass_of
from sortition.engine.table import EMPTY, Places, put, slot_of

Experts: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]
"""Of every expert the logarithm of its weight, its scale, and the ratio of its base."""

Strangers: TypeAlias = tuple[int, float]
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
def draw_stranger(
    uniform: float, total_mass: float, prior: Masses, table: Places, strangers: Strangers, tries: int
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
    strangers: Strangers,
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
    least = np.minimum(bases, scales * root[forest.LEAST])
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
                slot = forest.find(trees, expert, scales[expert], least[expert], uniforms[i, 1])
        if slot >= 0:
            client, mass = ids[slot], masses[slot]
        else:
            if of_base:
                client = draw_stranger(uniforms[i, 1], total_mass, prior, table, strangers, MOST_TRIES)
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
    strangers: Strangers,
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
