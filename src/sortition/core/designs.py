r"""Designs: how a cohort is drawn from a distribution, and the weights that keep it unbiased.

A learner says what the probabilities are, a design says how to draw from them. Each design has two parts:
``weigh_*`` turns what was drawn into ``(clients, counts, probabilities, weights)``, sorted by client, with
weights that have mean one for every client; ``draw_*`` makes such a draw from a vector of probabilities.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from sortition.core.types import FloatArray, IntArray

Design: TypeAlias = Literal["with_replacement", "without_replacement", "independent", "fixed_size"]
DESIGNS: tuple[str, ...] = get_args(Design)
INCLUSION_DESIGNS = ("independent", "fixed_size")
"""Designs that draw each client at most once, with a known probability of being in."""
Weighed: TypeAlias = tuple[IntArray, IntArray, FloatArray, FloatArray]


class RoundGenerator:
    """The randomness of a run: that of a round depends on (seed, round) and on nothing else.

    Philox is counter based: the seed is its key, the round the upper half of its counter, so that no two
    rounds of a seed can overlap. It is set anew for a round, which is quicker than making it anew.

    >>> generator = RoundGenerator(seed=7)
    >>> first = generator.of_round(3).random()
    >>> second = generator.of_round(4).random()
    >>> first == generator.of_round(3).random() != second
    True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._bits = np.random.Philox(key=seed)
        self._generator = np.random.Generator(self._bits)
        self._start: Any = self._bits.state

    def of_round(self, round_index: int) -> np.random.Generator:
        """The generator of that round, at its start; good until the next call."""
        self._start["state"]["counter"][2] = round_index
        self._bits.state = self._start
        return self._generator


def weigh_with_replacement(draws: IntArray, probabilities: FloatArray, cohort_size: int) -> Weighed:
    r"""K draws from p, repeats allowed: ``weights = counts / (K p)``          (Equation 2).

    ``probabilities`` are those of the draws, aligned with ``draws``.

    >>> weigh_with_replacement(np.array([5, 2, 5]), np.array([0.5, 0.1, 0.5]), cohort_size=3)[3]
    array([3.33333333, 1.33333333])
    """
    clients, first, counts = np.unique(draws, return_index=True, return_counts=True)
    drawn = probabilities[first]
    return clients, counts.astype(np.int64), drawn, counts / (cohort_size * drawn)


def weigh_without_replacement(
    draws: IntArray, probabilities: FloatArray, cohort_size: int, never_drawn: float | None = None
) -> Weighed:
    r"""K draws one after another, each from those left (Appendix A.2, Algorithm 7).

    The j-th drawn client :math:`I_j` gets the weight

    .. math:: \frac{1 - \sum_{k<j} p_{I_k}}{K \, p_{I_j}} + \frac{K - j}{K}.

    ``never_drawn`` is the mass of all others. Where they have next to nothing it must be given, for then
    :math:`1 - \sum p` is all rounding.

    >>> weigh_without_replacement(np.array([0, 1]), np.array([0.5, 0.5]), cohort_size=2)[3]
    array([1.5, 0.5])
    """
    order = np.arange(1, len(draws) + 1)
    rest = max(1.0 - float(probabilities.sum()), 0.0) if never_drawn is None else never_drawn
    left = rest + np.cumsum(probabilities[::-1])[::-1]
    weights = left / (cohort_size * probabilities) + (cohort_size - order) / cohort_size
    by_client = np.argsort(draws)
    ones = np.ones(len(draws), dtype=np.int64)
    return draws[by_client], ones, probabilities[by_client], weights[by_client]


def weigh_by_inclusion(draws: IntArray, inclusion: FloatArray) -> Weighed:
    r"""Distinct clients, drawn with these inclusion probabilities: ``weights = 1 / inclusion``."""
    by_client = np.argsort(draws)
    drawn = inclusion[by_client]
    return draws[by_client], np.ones(len(draws), dtype=np.int64), drawn, 1.0 / drawn


def inclusion_probabilities(probabilities: FloatArray, cohort_size: int) -> FloatArray:
    r"""Inclusion probabilities :math:`\min(1, c\,p_m)` with c such that they add up to K.

    If no more than K clients have a positive probability, all of these are certain.

    >>> inclusion_probabilities(np.array([0.7, 0.2, 0.1]), cohort_size=2)
    array([1.        , 0.66666667, 0.33333333])
    """
    positive = np.count_nonzero(probabilities)
    if positive <= cohort_size:
        return np.sign(probabilities)
    descending = np.sort(probabilities)[::-1]
    rest = np.cumsum(descending[::-1])[::-1]  # rest[i]: the mass of all but the i largest
    certain = np.arange(cohort_size)
    # the smallest number of certain clients that leaves nobody else above one
    enough = (cohort_size - certain) * (descending[:cohort_size] / rest[:cohort_size]) <= 1.0
    number = int(np.argmax(enough))  # K - 1 at most: nobody has more than all that are left
    with np.errstate(over="ignore"):  # one over the mass that is left may be more than a double holds
        found: FloatArray = np.minimum(1.0, (cohort_size - number) * (probabilities / rest[number]))
    return found


def draw_with_replacement(
    probabilities: FloatArray, cohort_size: int, generator: np.random.Generator
) -> Weighed:
    """Draw K times from ``probabilities``, which sum to one."""
    cumulative = np.cumsum(probabilities)
    points = generator.random(cohort_size) * cumulative[-1]
    draws = np.searchsorted(cumulative, points, side="right")
    return weigh_with_replacement(draws, probabilities[draws], cohort_size)


def draw_without_replacement(
    probabilities: FloatArray, cohort_size: int, generator: np.random.Generator
) -> Weighed:
    """Draw K times, each time from those left.

    Exponential clocks with rates p ring in just this order, so the first K to ring are the draws.
    """
    with np.errstate(divide="ignore"):
        times = generator.standard_exponential(len(probabilities)) / probabilities
    size = min(cohort_size, np.count_nonzero(probabilities))
    draws = np.argsort(times, kind="stable")[:size]
    never_drawn = probabilities.copy()
    never_drawn[draws] = 0.0
    return weigh_without_replacement(draws, probabilities[draws], cohort_size, float(never_drawn.sum()))


def draw_independent(probabilities: FloatArray, cohort_size: int, generator: np.random.Generator) -> Weighed:
    """Toss one coin a client; the cohort's size is K on average."""
    inclusion = inclusion_probabilities(probabilities, cohort_size)
    draws = np.flatnonzero(generator.random(len(probabilities)) < inclusion)
    return weigh_by_inclusion(draws, inclusion[draws])


def draw_fixed_size(probabilities: FloatArray, cohort_size: int, generator: np.random.Generator) -> Weighed:
    r"""Draw exactly K distinct clients with inclusion probabilities :math:`\pi_m = \min(1, c\,p_m)`.

    Ordered pivotal sampling (Deville and Tille 1998; Chauvet 2012). Two clients at a time, in their order,
    play for what they have left, a and b, of their inclusion probabilities. If :math:`a + b < 1`, one gets
    :math:`a + b` and the other is out; otherwise one is in and the other keeps :math:`a + b - 1`. The winner
    is drawn so that nobody's expectation changes. Neighbours are rarely drawn together, so the variance of
    the aggregate is at most that of draws with replacement, whatever the updates are (Chauvet and
    Ruiz-Gazen 2017; with certain clients it is at most K / c times that, by the same theorem).

    >>> draw_fixed_size(np.array([0.7, 0.2, 0.1]), 2, np.random.default_rng(0))[2]
    array([1.        , 0.66666667])
    """
    inclusion = inclusion_probabilities(probabilities, cohort_size)
    taken = np.flatnonzero(inclusion == 1.0).tolist()
    held, a = -1, 0.0
    for client in np.flatnonzero((inclusion > 0.0) & (inclusion < 1.0)).tolist():
        b, u = float(inclusion[client]), generator.random()
        if a + b < 1.0:
            held, a = (held if u * (a + b) < a else client), a + b
        else:
            winner, held = (held, client) if u * (2.0 - a - b) < 1.0 - b else (client, held)
            taken.append(winner)
            a = a + b - 1.0
    if len(taken) < min(cohort_size, int(np.count_nonzero(inclusion))):
        taken.append(held)  # it has the one that is left, up to rounding
    draws = np.array(taken, dtype=np.int64)
    return weigh_by_inclusion(draws, inclusion[draws])


def draw_dense(
    design: Design, probabilities: FloatArray, cohort_size: int, generator: np.random.Generator
) -> Weighed:
    """Draw by ``design`` from a vector of probabilities that sum to one."""
    draw = {
        "with_replacement": draw_with_replacement,
        "without_replacement": draw_without_replacement,
        "independent": draw_independent,
        "fixed_size": draw_fixed_size,
    }[design]
    return draw(probabilities, cohort_size, generator)


def restrict(probabilities: FloatArray) -> FloatArray:
    r"""The probabilities of those available, rescaled (Appendix D.2).

    .. math:: \tilde p_m = \frac{p_m}{\sum_{i \in I} p_i}

    Where all of them are 0 the available are taken uniformly.

    >>> restrict(np.array([0.1, 0.3]))
    array([0.25, 0.75])
    """
    total = probabilities.sum()
    if total == 0.0:
        return np.full(len(probabilities), 1.0 / len(probabilities))
    return np.asarray(probabilities / total, dtype=float)
