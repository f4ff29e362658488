"""The regret bounds on sequences made to hurt: measured regret never exceeds them (Theorems 6, 8 and 10)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sortition import AdaptiveOSMDSampler, DoublingOSMDSampler, OSMDSampler, Sampler
from sortition.core.rates import learning_rate
from sortition.core.theory import (
    adaptive_regret_bound,
    best_above_floor,
    doubling_regret_bound,
    osmd_regret_bound,
    total_variation,
)
from sortition.core.types import FloatArray
from sortition.core.variance import optimal_probabilities, variance_loss

M, K, ALPHA, T = 3, 2, 0.8, 400
Adversary = Callable[[int, FloatArray], FloatArray]
"""Round and the probabilities about to be used -> the feedback, at most 1."""


def least_likely(round_index: int, probabilities: FloatArray) -> FloatArray:
    """All the weight on whom the sampler neglects most: it sees the distribution first."""
    return np.eye(M)[np.argmin(probabilities)]


def in_turns(round_index: int, probabilities: FloatArray) -> FloatArray:
    """Another client in every round: the variation of the comparators is as large as it can be."""
    return np.eye(M)[round_index % M]


def betrayal(round_index: int, probabilities: FloatArray) -> FloatArray:
    """One client for the first half, and once it is trusted, another."""
    return np.eye(M)[0 if round_index < T // 2 else 1]


def noise(round_index: int, probabilities: FloatArray) -> FloatArray:
    """Heavy tails, cut at the bound."""
    return np.minimum(np.random.default_rng(round_index).pareto(0.5, M) * 1e-3, 1.0)


ADVERSARIES = [least_likely, in_turns, betrayal, noise]


def play(sampler: Sampler, adversary: Adversary) -> tuple[FloatArray, FloatArray]:
    """The feedback of every round, and l_t of the distribution that met it."""
    feedback, losses = np.empty((T, M)), np.empty(T)
    for round_index in range(T):
        probabilities = sampler.probabilities()
        feedback[round_index] = adversary(round_index, probabilities)
        losses[round_index] = variance_loss(probabilities, feedback[round_index], K)
        cohort = sampler.draw()
        sampler.observe(cohort, M * np.sqrt(feedback[round_index][cohort.clients]))  # a = norm^2 / M^2
    return feedback, losses


def regret(feedback: FloatArray, losses: FloatArray, comparators: FloatArray) -> float:
    best = [variance_loss(q, a, K) for q, a in zip(comparators, feedback, strict=True)]
    return float(np.sum(losses - best))


def common(seed: int) -> dict:
    return {"num_clients": M, "cohort_size": K, "exploration": ALPHA, "seed": seed, "guard": None}


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("variation", [0.0, 20.0])
def test_osmd(adversary, variation):
    """Theorem 6, for the best comparators above the floor and, with a projection error, for the best."""
    rate = learning_rate(M, K, T, ALPHA, feedback_bound=1.0, variation=variation)
    for seed in range(3):
        feedback, losses = play(OSMDSampler(learning_rate=rate, **common(seed)), adversary)
        everywhere = np.array([optimal_probabilities(a) for a in feedback])
        for comparators in (best_above_floor(feedback, ALPHA), everywhere):
            bound = osmd_regret_bound(
                comparators, feedback, cohort_size=K, exploration=ALPHA, learning_rate=rate
            )
            assert regret(feedback, losses, comparators) <= bound


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_adaptive_osmd(adversary):
    """Theorem 8."""
    for seed in range(3):
        sampler = AdaptiveOSMDSampler(num_rounds=T, feedback_bound=1.0, **common(seed))
        feedback, losses = play(sampler, adversary)
        comparators = best_above_floor(feedback, ALPHA)
        bound = adaptive_regret_bound(M, K, T, ALPHA, 1.0, total_variation(comparators))
        assert regret(feedback, losses, comparators) <= bound


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_doubling_osmd(adversary):
    """Theorem 10, which has every epoch start at the prior."""
    for seed in range(3):
        sampler = DoublingOSMDSampler(restart="prior", feedback_bound=1.0, **common(seed))
        feedback, losses = play(sampler, adversary)
        comparators = best_above_floor(feedback, ALPHA)
        bound = doubling_regret_bound(M, K, T, ALPHA, 1.0, total_variation(comparators))
        assert regret(feedback, losses, comparators) <= bound


def test_the_bound_can_be_exceeded():
    """The bound can be broken: a distribution that stays at the floor of the important client does it.

    With M = 2 and alpha = 0.9 the best comparator has 0.55, the worst distribution 0.45; the regret per round
    is 1/0.45 - 1/0.55 = 0.404, and the bound grows with the square root of T alone.
    """
    rounds = 20_000
    bound = adaptive_regret_bound(2, 1, rounds, 0.9, 1.0, variation=0.0)
    assert rounds * (1.0 / 0.45 - 1.0 / 0.55) > bound
