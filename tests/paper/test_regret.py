"""The regret bounds at work: OSMD at the rates of the theory keeps them, and uniform sampling does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sortition import AdaptiveOSMDSampler, OSMDSampler, Sampler, UniformSampler
from sortition.core.rates import learning_rate
from sortition.core.theory import adaptive_regret_bound, osmd_regret_bound
from sortition.core.variance import dynamic_regret, variance_loss
from tests.helpers import UNGUARDED

M, K, ALPHA = 2, 1, 0.75
FEEDBACK = np.array([1.0, 0.0])  # only the first client's update is not zero: A_max = 1
NORMS = np.sqrt(FEEDBACK) * M  # a = lambda^2 ||g||^2 with lambda = 1 / M
COMPARATOR = np.array([0.625, 0.375])  # the best fixed distribution above the floor alpha / M = 0.375


def regret_of(sampler: Sampler, num_rounds: int) -> float:
    losses = np.empty(num_rounds)
    for t in range(num_rounds):
        losses[t] = variance_loss(sampler.probabilities(), FEEDBACK, K)
        cohort = sampler.draw()
        sampler.observe(cohort, NORMS[cohort.clients])
    best = variance_loss(COMPARATOR, FEEDBACK, K)
    return float(dynamic_regret(losses, np.full(num_rounds, best))[-1])


def test_osmd_keeps_the_bounds_of_theorem_6_and_corollary_7() -> None:
    """At the best rate: M^3 A / (K alpha^3) sqrt(T / 2 log M) (Equation 21), and twice that (Theorem 6).

    8 / 0.421875 * sqrt(4000 * 0.346574) = 706.0; uniform sampling loses 1 / 0.5 - 1 / 0.625 = 0.4 a round,
    which is more than twice that.
    """
    T = 4000
    corollary_7 = M**3 / (K * ALPHA**3) * math.sqrt(T * 0.5 * math.log(M))
    assert corollary_7 == pytest.approx(706.0, abs=0.1)
    rate = learning_rate(M, K, T, ALPHA, feedback_bound=1.0, variation=0.0)
    theorem_6 = osmd_regret_bound(
        np.tile(COMPARATOR, (T, 1)),
        np.tile(FEEDBACK, (T, 1)),
        cohort_size=K,
        exploration=ALPHA,
        learning_rate=rate,
    )
    assert theorem_6 == pytest.approx(2 * corollary_7)
    assert regret_of(UniformSampler(num_clients=M, cohort_size=K), 100) == pytest.approx(0.4 * 100)
    assert theorem_6 < 0.4 * T
    osmd = OSMDSampler(
        num_clients=M, cohort_size=K, learning_rate=rate, exploration=ALPHA, seed=1, **UNGUARDED
    )
    assert 0.0 <= regret_of(osmd, T) <= corollary_7


def test_adaptive_osmd_keeps_the_bound_of_theorem_8() -> None:
    """3 * 1222.8 + 2.6667 * 38.730 * 5.6052 = 4247.3; uniform sampling loses 0.4 a round, 4800 in all."""
    T = 12_000
    bound = adaptive_regret_bound(M, K, T, ALPHA, feedback_bound=1.0, variation=0.0)
    assert bound == pytest.approx(4247.3, abs=0.5)
    assert bound < 0.4 * T
    sampler = AdaptiveOSMDSampler(
        num_clients=M, cohort_size=K, num_rounds=T, exploration=ALPHA, feedback_bound=1.0, seed=1, **UNGUARDED
    )
    assert 0.0 <= regret_of(sampler, T) <= bound
