"""The meta-algorithm over any samplers; Adaptive-OSMD is the case whose experts are OSMD."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    ConfigurationError,
    EmpiricalBayesSampler,
    FixedSampler,
    NormPrivacy,
    OSMDSampler,
    PortfolioSampler,
    ProportionalSampler,
    UniformSampler,
)
from sortition.core.designs import DESIGNS
from sortition.core.rates import expert_rates, meta_rate
from sortition.testing import check_sampler

M, K, T, ALPHA, BOUND = 20, 4, 50, 0.4, 1.0 / 400


def osmd_portfolio(seed: int = 0) -> PortfolioSampler:
    rates = expert_rates(M, K, T, ALPHA, BOUND)
    experts = [
        OSMDSampler(num_clients=M, cohort_size=K, learning_rate=rate, exploration=ALPHA) for rate in rates
    ]
    return PortfolioSampler(experts=experts, meta_rate=meta_rate(M, K, T, ALPHA, BOUND), seed=seed)


def test_adaptive_osmd_is_the_special_case() -> None:
    """Same cohorts, same feedback: the same distribution to 1e-10, round after round."""
    adaptive = AdaptiveOSMDSampler(
        num_clients=M, cohort_size=K, num_rounds=T, exploration=ALPHA, feedback_bound=BOUND
    )
    portfolio = osmd_portfolio()
    rng = np.random.default_rng(0)
    for _ in range(100):
        cohort = adaptive.draw()
        norms = np.exp(rng.normal(size=len(cohort)))
        adaptive.observe(cohort, norms)
        portfolio.learn(cohort, 2.0 * np.log(norms / M))
        assert portfolio.probabilities() == pytest.approx(adaptive.probabilities(), rel=1e-10)
        assert portfolio.expert_weights == pytest.approx(adaptive.expert_weights, rel=1e-10)
    assert adaptive.probabilities().max() > 1.2 / M  # it has moved, or this would show little


@pytest.mark.parametrize("design", DESIGNS)
def test_promises(design: str) -> None:
    def make(seed: int) -> PortfolioSampler:
        setting = {"num_clients": 8, "cohort_size": 3}
        experts = [
            AvareSampler(**setting),
            OSMDSampler(learning_rate=0.05, **setting),
            ProportionalSampler(**setting),
        ]
        return PortfolioSampler(experts=experts, design=design, seed=seed)

    check_sampler(make)


def test_it_follows_the_better_expert_whatever_the_scale() -> None:
    levels = np.linspace(0.1, 10.0, M)
    for scale in (1e-12, 1.0, 1e12):
        good = FixedSampler(num_clients=M, cohort_size=K, probabilities=levels / levels.sum())
        bad = FixedSampler(num_clients=M, cohort_size=K, probabilities=(levels / levels.sum())[::-1])
        sampler = PortfolioSampler(experts=[bad, UniformSampler(num_clients=M, cohort_size=K), good])
        for _ in range(150):
            cohort = sampler.draw()
            sampler.observe(cohort, scale * levels[cohort.clients])
        assert sampler.expert_weights[2] > 0.95


def test_joining_and_leaving() -> None:
    sampler = osmd_portfolio()
    cohort = sampler.draw()
    sampler.observe(cohort, np.ones(len(cohort)))
    assert sampler.add_clients(2).tolist() == [M, M + 1]
    sampler.remove_clients([0])
    assert sampler.num_clients == M + 1
    p = sampler.probabilities()
    assert p[0] == 0.0
    assert p.sum() == pytest.approx(1.0)


def test_experts_must_agree() -> None:
    with pytest.raises(ConfigurationError, match=r"experts.*num_clients"):
        PortfolioSampler(
            experts=[
                UniformSampler(num_clients=5, cohort_size=2),
                UniformSampler(num_clients=6, cohort_size=2),
            ]
        )
    with pytest.raises(ConfigurationError, match="experts"):
        PortfolioSampler(experts=[])
    one = UniformSampler(num_clients=5, cohort_size=2)
    with pytest.raises(ConfigurationError, match=r"experts.*expert 1, UniformSampler"):
        PortfolioSampler(experts=[one, one])


@pytest.mark.parametrize("change", ["drawn", "learnt", "loaded", "joined", "left", "another's"])
def test_experts_must_be_new(change: str) -> None:
    """Otherwise the portfolio would not know which clients there are, or what its experts have learnt."""
    setting = {"num_clients": 5, "cohort_size": 2}
    used, other = AvareSampler(**setting), AvareSampler(**setting)
    cohort = other.draw()
    if change == "drawn":
        used.draw()
    elif change == "learnt":
        used.learn(cohort, np.zeros(len(cohort)))
    elif change == "loaded":
        used.load_state_dict(AvareSampler(**setting).state_dict())
    elif change == "joined":
        used.add_clients(1)
    elif change == "left":
        used.remove_clients([2])
    else:
        first = PortfolioSampler(experts=[used])
        first.observe(cohort := first.draw(), np.ones(len(cohort)))
    with pytest.raises(ConfigurationError, match=r"experts.*expert 1, AvareSampler"):
        PortfolioSampler(experts=[UniformSampler(**setting), used])


def test_a_portfolio_is_guarded_as_a_whole() -> None:
    """One client of fifty lies by a million: the guard is on by default, whatever the experts have."""
    held = {}
    for name, options in (("guarded", {}), ("not", {"guard": None})):
        setting = {"num_clients": 50, "cohort_size": 5}
        experts = [AvareSampler(**setting), EmpiricalBayesSampler(**setting, guard=None)]
        sampler = PortfolioSampler(experts=experts, **options)
        for _ in range(100):
            cohort = sampler.draw()
            sampler.observe(cohort, np.where(cohort.clients == 9, 1e6, 1.0))
        held[name] = sampler.probabilities([9]).item()
        assert [suspect.client for suspect in sampler.suspects()] == ([9] if name == "guarded" else [])
    assert held["guarded"] <= 0.5 * (1.0 + 1e-9)
    assert held["not"] > 0.55


def test_privacy_is_the_portfolios() -> None:
    """Privacy of an expert would do nothing: the portfolio gives it the norms."""
    common = {"num_clients": M, "cohort_size": K}
    private = AvareSampler(**common, privacy=NormPrivacy(norm_bound=1.0, noise_multiplier=1.0))
    with pytest.raises(ConfigurationError, match=r"experts.*privacy.*expert 1, AvareSampler"):
        PortfolioSampler(experts=[UniformSampler(**common), private])
    with pytest.raises(ConfigurationError, match="experts"):
        PortfolioSampler(experts=private)  # type: ignore[arg-type]


def test_settings_are_its_own() -> None:
    """A ledger builds it again from them, whatever the caller has done with its list since."""
    weights = np.full(M, 1.0 / M)
    experts = [UniformSampler(num_clients=M, cohort_size=K, client_weights=weights)]
    sampler = PortfolioSampler(experts=experts)
    experts.clear()
    weights[0] = 5.0
    (expert,) = sampler.settings["experts"]
    assert np.array_equal(expert.settings["client_weights"], np.full(M, 1.0 / M))
