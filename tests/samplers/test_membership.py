"""Joining and leaving in hard cases: whatever happens, the sampler stays whole."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import (
    AvareSampler,
    ConfigurationError,
    EmpiricalBayesSampler,
    FixedSampler,
    MABSSampler,
    OSMDSampler,
    PortfolioSampler,
    ProportionalSampler,
    UniformSampler,
)


@pytest.mark.parametrize("norms", [[1.0, 1.9], [1.0, 1.83], [1.0, 1.0], [0.0, 3.0]])
def test_avare_at_a_floor_that_leaves_nothing(norms: list[float]) -> None:
    """With the floor at 1/M everybody stands on it; rounding once sent a client up and down for ever."""
    sampler = AvareSampler(num_clients=2, cohort_size=2, floor_offset=1.0)
    for values in ([1.0, 1.0], norms, norms[::-1]):
        sampler.observe(sampler.draw(available=[0, 1]), values)
        assert sampler.probabilities().sum() == pytest.approx(1.0)
    fixed = AvareSampler(num_clients=3, cohort_size=2, smallest_floor=1 / 3)
    for _ in range(20):
        cohort = fixed.draw()
        fixed.observe(cohort, 1.0 + cohort.clients)
        assert fixed.probabilities() == pytest.approx(np.full(3, 1 / 3))


@pytest.mark.parametrize("seed", range(10))
def test_avare_after_growth(seed: int) -> None:
    rng = np.random.default_rng(1)
    sampler = AvareSampler(num_clients=10, cohort_size=2, seed=seed)
    sampler.observe(cohort := sampler.draw(), rng.exponential(size=len(cohort)))
    sampler.add_clients(5)
    for _ in range(30):
        sampler.observe(cohort := sampler.draw(), rng.exponential(size=len(cohort)))
        assert sampler.probabilities().sum() == pytest.approx(1.0)
        assert sampler.probabilities().min() >= sampler.floor() * (1.0 - 1e-9)


def test_avare_compares_norms_across_a_change_of_number() -> None:
    """lambda is 1/M: what was seen before four clients joined must count like what is seen after."""
    sampler = AvareSampler(num_clients=4, cohort_size=4, floor_offset=1e6)
    sampler.observe(sampler.draw(available=range(4)), np.ones(4))
    sampler.add_clients(4)
    sampler.observe(sampler.draw(available=[0, 1]), np.ones(2))
    p = sampler.probabilities()
    assert p[:4] == pytest.approx(np.full(4, p[0]))


@pytest.mark.parametrize("build", [MABSSampler, EmpiricalBayesSampler, AvareSampler])
def test_a_giant_that_leaves_takes_nothing_along(build: type) -> None:
    """The others are then told apart by what they themselves have sent."""
    extra = {"num_rounds": 10, "feedback_bound": 1.0} if build is MABSSampler else {}
    sampler = build(num_clients=8, cohort_size=3, **extra)
    sampler.observe(sampler.draw(available=[0, 1, 2]), [1.0, 2.0, 1e300])
    sampler.remove_clients([2])
    for _ in range(3):
        cohort = sampler.draw()
        sampler.observe(cohort, np.ones(len(cohort)))
    p = sampler.probabilities()
    assert p.sum() == pytest.approx(1.0)
    assert p[2] == 0.0
    if build is MABSSampler:  # its steps are tiny here: nearly uniform
        assert np.delete(p, 2) == pytest.approx(np.full(7, 1 / 7), rel=0.05)


@pytest.mark.parametrize(
    "sampler",
    [
        UniformSampler(num_clients=3, cohort_size=1, client_weights=[1, 0, 0]),
        FixedSampler(num_clients=3, cohort_size=1, client_weights=[1, 0, 0], probabilities=[1, 0, 0]),
        ProportionalSampler(num_clients=3, cohort_size=1, client_weights=[1, 0, 0]),
        OSMDSampler(
            num_clients=3, cohort_size=1, client_weights=[1, 0, 0], prior=[1, 0, 0], learning_rate=0.1
        ),
    ],
)
def test_the_last_who_counts_can_not_leave(sampler: UniformSampler) -> None:
    before = sampler.probabilities()
    with pytest.raises(ConfigurationError, match="behind"):
        sampler.remove_clients([0])
    assert sampler.num_clients == 3
    assert np.array_equal(sampler.probabilities(), before)
    assert sampler.client_weights() == pytest.approx([1.0, 0.0, 0.0])


def test_a_portfolio_asks_its_experts_first() -> None:
    setting = {"num_clients": 5, "cohort_size": 3}
    experts = [UniformSampler(**setting), AvareSampler(**setting, design="without_replacement")]
    sampler = PortfolioSampler(experts=experts)
    with pytest.raises(ConfigurationError, match="at least 3 others"):
        sampler.remove_clients([0, 1, 2])
    assert sampler.num_clients == 5
    assert sampler.client_weights() == pytest.approx(np.full(5, 0.2))


def test_a_portfolio_survives_a_client_without_weight() -> None:
    """One expert may draw a client that another one never would, where it has no weight."""
    setting = {"num_clients": 3, "cohort_size": 2, "client_weights": [0.5, 0.5, 0.0]}
    sampler = PortfolioSampler(experts=[UniformSampler(**setting), ProportionalSampler(**setting)])
    for _ in range(50):
        cohort = sampler.draw()
        sampler.observe(cohort, np.ones(len(cohort)))
    assert np.isfinite(sampler.expert_weights).all()
    assert sampler.probabilities().sum() == pytest.approx(1.0)


def test_masses_that_no_sum_can_hold() -> None:
    sampler = UniformSampler(num_clients=10**9, cohort_size=1)
    for bad in ([1e300], [0.0], [float("nan")], [[1.0]], []):
        with pytest.raises(ConfigurationError, match="clients"):
            sampler.add_clients(bad)
    with pytest.raises(ConfigurationError, match="client_weights"):
        sampler.add_clients(2, client_weights=[1e308, 1e308])
    assert sampler.num_clients == 10**9


def test_the_prior_of_a_newcomer_goes_by_its_weight() -> None:
    sampler = EmpiricalBayesSampler(num_clients=4, cohort_size=1, client_weights=[0.25] * 4)
    (big,) = sampler.add_clients(1, client_weights=[1.0])
    assert sampler.probabilities([big]) == pytest.approx([0.925 / 1.925])


def test_many_leave_at_once() -> None:
    sampler = UniformSampler(num_clients=10**6, cohort_size=5)
    sampler.remove_clients(np.arange(0, 10**6, 2))
    assert sampler.num_clients == 5 * 10**5
    assert (sampler.draw().clients % 2 == 1).all()
