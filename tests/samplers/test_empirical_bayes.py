"""The default sampler: nothing to tune, nothing that the scale of the norms can change."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import EmpiricalBayesSampler, Sampler, default_sampler

M, K = 60, 6
LEVELS = np.exp(1.2 * np.random.default_rng(0).normal(size=M))
SIZES = np.random.default_rng(1).pareto(1.5, size=M) + 1.0
SIZES /= SIZES.sum()


def train(sampler: Sampler, rounds: int, scale: float = 1.0, decay: float = 1.0) -> np.ndarray:
    """Norms that stay in proportion, with noise that depends on the round alone."""
    for t in range(rounds):
        cohort = sampler.draw()
        noise = np.exp(0.2 * np.random.default_rng(t).normal(size=M))
        sampler.observe(cohort, scale * decay**t * (LEVELS * noise)[cohort.clients])
    return sampler.probabilities()


def optimum_ratio(p: np.ndarray) -> float:
    return float(np.sum(LEVELS**2 / p) / np.sum(LEVELS) ** 2)


def test_it_learns() -> None:
    uniform = optimum_ratio(np.full(M, 1.0 / M))
    learnt = optimum_ratio(train(default_sampler(M, K), 300))
    assert uniform > 2.0
    assert learnt < 1.15


def test_the_default_is_empirical_bayes() -> None:
    sampler = default_sampler(M, K, client_weights=SIZES, design="independent", seed=4)
    assert isinstance(sampler, EmpiricalBayesSampler)
    assert sampler.design == "independent"


def test_it_starts_from_the_data_sizes() -> None:
    sampler = default_sampler(M, K, client_weights=SIZES)
    assert sampler.probabilities() == pytest.approx(0.9 * SIZES + 0.1 / M)


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_the_scale_of_the_norms_changes_nothing(scale: float) -> None:
    """Scaling by a power of two is exact, so that the two runs agree in every draw."""
    factor = 2.0 ** round(np.log2(scale))
    assert train(default_sampler(M, K, SIZES), 150, scale=factor) == pytest.approx(
        train(default_sampler(M, K, SIZES), 150), rel=1e-9
    )


def test_a_common_decay_changes_little() -> None:
    """Norms that fall to a hundredth together: the distribution stays about as good."""
    steady = optimum_ratio(train(default_sampler(M, K), 300))
    falling = optimum_ratio(train(default_sampler(M, K), 300, decay=0.985))
    assert falling < 1.15 * steady


@pytest.mark.parametrize("seed", range(5))
def test_weights_are_bounded(seed: int) -> None:
    """A share of the draws always comes from the prior: no weight exceeds 1 / (K share prior)."""
    rng = np.random.default_rng(seed)
    sampler = default_sampler(M, K, client_weights=SIZES, seed=seed)
    prior = sampler.probabilities()
    least = sampler.constants.least_share
    for _ in range(200):
        cohort = sampler.draw()
        assert (cohort.probabilities >= least * prior[cohort.clients] * (1 - 1e-9)).all()
        sampler.observe(cohort, 10.0 ** rng.uniform(-30, 30, size=len(cohort)))


def test_nothing_to_learn_from_zeros() -> None:
    sampler = default_sampler(M, K)
    before = sampler.probabilities()
    cohort = sampler.draw()
    sampler.observe(cohort, np.zeros(len(cohort)))
    assert sampler.probabilities() == pytest.approx(before)
    assert optimum_ratio(train(sampler, 300)) < 1.2


def test_no_heterogeneity_costs_next_to_nothing() -> None:
    sampler = default_sampler(M, K)
    for t in range(300):
        cohort = sampler.draw()
        sampler.observe(cohort, np.exp(0.3 * np.random.default_rng(t).normal(size=len(cohort))))
    p = sampler.probabilities()
    assert np.mean(1.0 / (M * p)) < 1.03  # variance against uniform where all are alike


def test_a_client_that_leaves_does_not_change_what_is_known_of_the_others() -> None:
    """Feedback goes with lambda, which is rescaled when 99% of all data leave; nobody else has changed."""
    weights = np.full(20, 0.01 / 19)
    weights[0] = 0.99
    sampler = EmpiricalBayesSampler(num_clients=20, cohort_size=10, client_weights=weights)
    norms = np.linspace(1.0, 3.0, 20)
    for _ in range(200):
        cohort = sampler.draw()
        sampler.observe(cohort, norms[cohort.clients])
    sampler.remove_clients([0])
    cohort = sampler.draw()
    slots = sampler._reweighted.slots_of(cohort.clients)
    before = sampler._seen[slots, 0]
    sampler.observe(cohort, norms[cohort.clients])
    assert (slots >= 0).all()
    assert np.abs(sampler._seen[slots, 0] - before).max() < 0.5  # 9 if the scale were taken for news
