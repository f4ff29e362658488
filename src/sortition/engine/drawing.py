r"""Designs at the engine's cost: any cohort from independent draws, look-ups and the heaviest few.

These equal ``core.designs`` in distribution, without a vector of all probabilities.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numba import njit

from sortition.core import designs
from sortition.core.designs import (
    Design,
    Weighed,
    weigh_by_inclusion,
    weigh_without_replacement,
)
from sortition.core.types import FloatArray, IntArray
from sortition.engine.limit import Found, limit_learnt
from sortition.engine.pivotal import ProbabilityLine, draw_fixed_size, line_of_vector

DENSE_CLIENTS = 64
"""With at most this many clients per member of the cohort, independent draws toss a coin for everybody."""
MOST_DRAWS = 100
"""With more draws a member than this, and more than there are clients, the whole vector is drawn from."""
LEAST_UNCERTAIN = 1e-6
"""If the certain clients leave less mass than this to the others, coins are tossed for everybody."""
LEAST_LEFT = 0.01
"""If the others hold less mass than this, it is no difference from one: that would cancel."""


class Distribution(Protocol):
    """What a design needs to know of a distribution. Ours inherit from it."""

    def draw(self, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Independent draws, one for each row of two uniforms, and their probabilities."""

    def draw_weighed(self, uniforms: FloatArray) -> Weighed:
        """The same draws as a cohort: ``core.designs.weigh_with_replacement``."""
        weighed: Weighed = tally(*self.draw(uniforms))
        return weighed

    def look_up(self, clients: IntArray) -> FloatArray:
        """The probabilities of ``clients``."""

    def limit_learnt(self, clients: IntArray, weights: FloatArray, gain: float, deviation: float) -> Found:
        """``engine.limit`` of what was learnt of ``clients``, free of cancellation; see ``prior_share``."""
        learnt, prior = self.with_prior_share(0.0, 1.0), self.with_prior_share(1.0, 0.0)
        left, prior_left = learnt.mass_without(clients), prior.mass_without(clients)
        q, own = learnt.look_up(clients), prior.look_up(clients)
        found: Found = limit_learnt(q, own, weights, gain, deviation, left, prior_left)
        return found

    def everybody(self) -> FloatArray:
        """The probabilities of all ids."""

    def line(self) -> ProbabilityLine:
        """All probabilities, laid end to end; from their vector, unless a subclass is quicker."""
        return line_of_vector(self.everybody())

    def line_without(self, clients: IntArray) -> ProbabilityLine | None:
        """The same without ``clients``; None where it can't be had at once."""
        return None

    def heavy(self, threshold: float) -> IntArray:
        """A superset of the clients with at least ``threshold``, except the unseen of the roster's block."""

    def block_probability(self) -> float:
        """The probability of an unseen client of the roster's block; 0 if there is none."""

    def summed(self) -> float:
        """What all probabilities sum to, by what it holds: one, unless that came from a wrong state."""
        return float(self.everybody().sum())

    def add(self, masses: FloatArray) -> IntArray:
        """Add newcomers with these prior masses, and return their ids."""

    def remove(self, clients: IntArray) -> None:
        """Remove ``clients``; the others keep their proportions."""

    def look_up_prior(self, clients: IntArray) -> FloatArray:
        """The prior of ``clients``."""
        return self.look_up(clients)

    @property
    def prior_share(self) -> float | None:
        """The share of the prior, if this is a mixture of the prior with what was learnt."""
        return None

    def with_prior_share(self, share: float, rest: float) -> Distribution:
        """The same mixture with other shares, of the prior and of the rest; itself, if it is no such one."""
        return self

    def mass_without(self, clients: IntArray) -> float:
        """The probability of everybody except ``clients``, free of cancellation."""
        left = 1.0 - float(self.look_up(clients).sum())
        return left if left >= LEAST_LEFT else self.sum_without(clients)

    def sum_without(self, clients: IntArray) -> float:
        """The same as a sum over the others, from their vector, unless a subclass is quicker."""
        others = self.everybody()
        others[clients] = 0.0
        return float(others.sum())


@njit(cache=True)
def tally(draws: IntArray, probabilities: FloatArray) -> Weighed:
    """``core.designs.weigh_with_replacement``, compiled: the distinct draws, ascending, and their weights."""
    order = np.argsort(draws)
    clients, counts = np.empty_like(draws), np.empty_like(draws)
    drawn, weights = np.empty_like(probabilities), np.empty_like(probabilities)
    size = 0
    for i in order:
        if size == 0 or clients[size - 1] != draws[i]:
            clients[size], counts[size], drawn[size] = draws[i], 0, probabilities[i]
            size += 1
        counts[size - 1] += 1
    for i in range(size):
        weights[i] = counts[i] / (draws.size * drawn[i])
    return clients[:size], counts[:size], drawn[:size], weights[:size]


def draw_cohort(
    design: Design,
    distribution: Distribution,
    num_clients: int,
    cohort_size: int,
    generator: np.random.Generator,
) -> Weighed:
    """Draw by ``design`` from all the ``num_clients`` clients of ``distribution``.

    A design without a line here is drawn from the whole vector: rightly, but visiting every client.
    """
    if design == "with_replacement":
        return distribution.draw_weighed(generator.random((cohort_size, 2)))
    if design == "without_replacement":
        return _draw_without_replacement(distribution, num_clients, cohort_size, generator)
    if design == "fixed_size":
        drawn = _draw_fixed_size(distribution.line(), cohort_size, generator)
        return drawn or designs.draw_fixed_size(distribution.everybody(), cohort_size, generator)
    if num_clients > DENSE_CLIENTS * cohort_size and design == "independent":
        return _draw_independent(distribution, num_clients, cohort_size, generator)
    return designs.draw_dense(design, distribution.everybody(), cohort_size, generator)


def draw_dense(
    design: Design, probabilities: FloatArray, cohort_size: int, generator: np.random.Generator
) -> Weighed:
    """Draw by ``design`` from a vector of probabilities that sum to one."""
    if design == "fixed_size":
        return _draw_fixed_size(line_of_vector(probabilities), cohort_size, generator) or designs.draw_dense(
            design, probabilities, cohort_size, generator
        )
    return designs.draw_dense(design, probabilities, cohort_size, generator)


def _draw_without_replacement(
    distribution: Distribution, num_clients: int, cohort_size: int, generator: np.random.Generator
) -> Weighed:
    """A draw from the remaining clients is a draw from all, repeated until it gives one of them."""
    clients, probabilities = np.zeros(0, dtype=np.int64), np.zeros(0)
    tries, most = cohort_size, max(MOST_DRAWS * cohort_size, num_clients)
    while len(clients) < cohort_size and tries <= most:
        new, new_probabilities = distribution.draw(generator.random((tries, 2)))
        clients = np.concatenate((clients, new))
        probabilities = np.concatenate((probabilities, new_probabilities))
        first = np.sort(np.unique(clients, return_index=True)[1])
        clients, probabilities = clients[first], probabilities[first]
        tries *= 2
    if len(clients) < cohort_size:  # nearly all the mass is drawn: finish with the whole vector of the others
        left = distribution.everybody().copy()
        left[clients] = 0.0
        with np.errstate(divide="ignore"):
            times = generator.standard_exponential(len(left)) / left
        missing = min(cohort_size - len(clients), int(np.count_nonzero(left)))
        rest = np.argsort(times, kind="stable")[:missing]
        clients = np.concatenate((clients, rest))
        probabilities = np.concatenate((probabilities, left[rest]))
    clients, probabilities = clients[:cohort_size], probabilities[:cohort_size]
    never_drawn = distribution.mass_without(clients)
    return weigh_without_replacement(clients, probabilities, cohort_size, never_drawn)


def _draw_independent(
    distribution: Distribution, num_clients: int, cohort_size: int, generator: np.random.Generator
) -> Weighed:
    r"""One coin a client without tossing a coin for each: the heavy ones by coin, the light ones by thinning.

    With inclusion probability :math:`\pi = c\,p \le 1/2`, let the client ring Poisson(2 ln 2 :math:`\pi`)
    times: the rings of all are a Poisson number of independent draws from p. One that has rung at all is
    taken with probability :math:`\pi / (1 - e^{-2 \ln 2\,\pi}) \le 1`, which makes :math:`\pi` in all.
    """
    split = _split(distribution, num_clients, cohort_size)
    if split is None:
        return designs.draw_independent(distribution.everybody(), cohort_size, generator)
    scale, heavy, heavy_inclusion = split
    taken = generator.random(len(heavy)) < heavy_inclusion
    rate = 2.0 * np.log(2.0)
    rings = generator.poisson(rate * scale)
    draws, probabilities = distribution.draw(generator.random((rings, 2)))
    light, first = np.unique(draws, return_index=True)
    inclusion = scale * probabilities[first]
    coins = generator.random(len(light)) * -np.expm1(-rate * inclusion) < inclusion
    coins &= ~np.isin(light, heavy)
    return weigh_by_inclusion(
        np.concatenate((heavy[taken], light[coins])),
        np.concatenate((heavy_inclusion[taken], inclusion[coins])),
    )


def _draw_fixed_size(
    line: ProbabilityLine, cohort_size: int, generator: np.random.Generator
) -> Weighed | None:
    weighed: Weighed
    drawn, weighed = draw_fixed_size(generator.random((cohort_size, 2)), *line)
    return weighed if drawn else None


def _split(
    distribution: Distribution, num_clients: int, cohort_size: int
) -> tuple[float, IntArray, FloatArray] | None:
    r"""The scale c with :math:`\sum \min(1, c\,p) = K`, and the clients with :math:`c\,p > 1/2`.

    None where the certain ones leave next to nothing for the others, or where a whole block is heavy.
    """
    scale = float(cohort_size)
    while True:
        heavy = distribution.heavy(0.5 / scale)
        p = distribution.look_up(heavy)
        certain = p * scale >= 1.0
        left = 1.0 - p[certain].sum()
        if left < LEAST_UNCERTAIN or distribution.block_probability() * scale > 0.5:
            return None
        better = (cohort_size - np.count_nonzero(certain)) / left
        if better > max(MOST_DRAWS * cohort_size, num_clients):
            return None
        if not better > scale * (1.0 + 1e-12):
            keep = p * scale > 0.5
            return scale, heavy[keep], np.minimum(1.0, scale * p[keep])
        scale = better
