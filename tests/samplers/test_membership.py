"""Joining and leaving in hard cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sortition import (
    AvareSampler,
    ConfigurationError,
    EmpiricalBayesSampler,
    FixedSampler,
    Guard,
    KVibSampler,
    MABSSampler,
    OptimalSampler,
    OSMDSampler,
    PortfolioSampler,
    ProportionalSampler,
    UniformSampler,
    VRBSampler,
)
from sortition.core.beliefs import LEAST_SHARE
from tests.helpers import SAMPLERS, same_cohort

M, K = 7, 3
NO_SHARE = Guard(clip_factor=1e300, outlier_factor=1e300)  # a share takes precedence over proportions


def portfolio(**common: Any) -> PortfolioSampler:
    experts = [build(**common) for build in (MABS, VRBSampler, AvareSampler, ProportionalSampler)]
    return PortfolioSampler(experts=experts, guard=NO_SHARE)


def MABS(**common: Any) -> MABSSampler:  # noqa: N802 - like a class
    return MABSSampler(num_rounds=40, **common)


EVERYBODY = {
    **SAMPLERS,
    "kvib": lambda **common: KVibSampler(num_rounds=40, exploration=0.4, **common),
    "empirical bayes": lambda **common: EmpiricalBayesSampler(guard=NO_SHARE, **common),
    "unguarded": lambda **common: EmpiricalBayesSampler(guard=None, **common),
    "portfolio": portfolio,
}


def learn(sampler: Any, rounds: int, rng: np.random.Generator, giant: bool = False) -> None:
    for _ in range(rounds):
        cohort = sampler.draw()
        norms = (1.0 + cohort.clients**2) * rng.exponential(size=len(cohort))
        if giant and len(norms):
            norms[-1] = 1e300
        sampler.observe(cohort, norms)


def assert_proportions(before: np.ndarray, after: np.ndarray, here: list[int], where: str) -> None:
    assert after.sum() == pytest.approx(1.0, rel=1e-12)
    factors = after[here] / before[here]
    assert factors == pytest.approx(np.full(len(here), factors[0]), rel=1e-12), where


@pytest.mark.parametrize("giant", [False, True])
@pytest.mark.parametrize("weights", [None, np.linspace(1, 7, M) / 28], ids=["alike", "skewed"])
@pytest.mark.parametrize("name", EVERYBODY)
def test_the_others_keep_their_proportions(name: str, weights: np.ndarray | None, giant: bool) -> None:
    """Exactly, after any joins and leaves; a state taken in between continues to the bit."""
    rng = np.random.default_rng(5)
    setting = {"num_clients": M, "cohort_size": K, "client_weights": weights}
    sampler, other = EVERYBODY[name](**setting), EVERYBODY[name](**setting)
    for rounds in (0, 1, 30):
        learn(sampler, rounds, rng, giant)
        here = np.flatnonzero(sampler.probabilities()).tolist()
        heaviest = int(np.argmax(sampler.probabilities()))
        for change in ("join", "leave", "leave", "join", "join"):
            before = sampler.probabilities()
            if change == "leave":
                leaving = heaviest if heaviest in here else here[0]
                here.remove(leaving)
                sampler.remove_clients([leaving])
                assert sampler.probabilities()[leaving] == 0.0
            else:
                sampler.add_clients(1 if rounds else [0.5, 0.1])
            assert_proportions(before, sampler.probabilities(), here, f"{change} after {rounds}")
            here = np.flatnonzero(sampler.probabilities()).tolist()
        other.load_state_dict(sampler.state_dict())
        assert np.array_equal(other.probabilities(), sampler.probabilities())
        cohort = sampler.draw()
        assert same_cohort(other.draw(), cohort)
        for one in (sampler, other):
            one.observe(cohort, np.ones(len(cohort)))
        assert np.array_equal(other.probabilities(), sampler.probabilities())


def test_an_oracle_keeps_the_proportions_of_what_was_revealed() -> None:
    sampler = OptimalSampler(num_clients=4, cohort_size=2)
    sampler.reveal([1.0, 2.0, 3.0, 4.0])
    sampler.remove_clients([3])
    assert sampler.probabilities() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0.0])
    sampler.add_clients(1)
    assert sampler.probabilities() == pytest.approx([1 / 7, 2 / 7, 3 / 7, 0.0, 1 / 7])


@pytest.mark.parametrize("build", [MABS, VRBSampler, AvareSampler, EmpiricalBayesSampler])
def test_the_formula_returns_with_the_next_feedback(build: Any) -> None:
    """Proportions are kept for as long as nothing new is learnt, and not longer: the floor is back then."""
    rng = np.random.default_rng(6)
    sampler = build(num_clients=50, cohort_size=5)
    learn(sampler, 60, rng)
    p = sampler.probabilities()
    sampler.remove_clients(np.argsort(p)[:30])  # those least drawn, among whom the prior's share is largest
    learn(sampler, 1, rng)
    if isinstance(sampler, AvareSampler):
        least = sampler.floor()
    else:
        share = LEAST_SHARE if isinstance(sampler, EmpiricalBayesSampler) else 0.4
        least = share / 20
    left = sampler.probabilities()
    assert left[left > 0.0].min() >= least * (1.0 - 1e-9)


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
def test_a_client_with_a_huge_norm_leaves_no_trace(build: type) -> None:
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
def test_the_last_client_with_a_weight_can_not_leave(sampler: UniformSampler) -> None:
    before = sampler.probabilities()
    with pytest.raises(ConfigurationError, match="clients"):
        sampler.remove_clients([0])
    assert sampler.num_clients == 3
    assert np.array_equal(sampler.probabilities(), before)
    assert sampler.client_weights() == pytest.approx([1.0, 0.0, 0.0])


@pytest.mark.parametrize("mass", [1e16, 1e100])
@pytest.mark.parametrize("name", EVERYBODY)
def test_a_client_that_joined_can_leave(name: str, mass: float) -> None:
    """A newcomer may outweigh the others by more than a double can tell, and the others are still there."""
    sampler = EVERYBODY[name](num_clients=M, cohort_size=K)
    before = sampler.probabilities()
    giant = sampler.add_clients([mass], client_weights=[mass])
    sampler.remove_clients(giant)
    assert sampler.probabilities()[:M] == pytest.approx(before, rel=1e-9)
    assert sampler.client_weights()[:M] == pytest.approx(np.full(M, 1 / M))


def test_all_clients_with_a_weight_can_not_leave_at_once() -> None:
    sampler = ProportionalSampler(num_clients=4, cohort_size=1, client_weights=[0.5, 0.5, 0, 0])
    newcomers = sampler.add_clients(2)
    sampler.remove_clients(newcomers)
    with pytest.raises(ConfigurationError, match="clients"):
        sampler.remove_clients([0, 1])
    sampler.remove_clients([0])


def test_a_portfolio_asks_its_experts_first() -> None:
    setting = {"num_clients": 5, "cohort_size": 3}
    experts = [UniformSampler(**setting), AvareSampler(**setting, design="without_replacement")]
    sampler = PortfolioSampler(experts=experts)
    with pytest.raises(ConfigurationError, match=r"clients.*3"):
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


def test_the_prior_of_a_newcomer_follows_its_weight() -> None:
    sampler = EmpiricalBayesSampler(num_clients=4, cohort_size=1, client_weights=[0.25] * 4)
    (big,) = sampler.add_clients(1, client_weights=[1.0])
    assert sampler.probabilities([big]) == pytest.approx([0.925 / 1.925])


@pytest.mark.parametrize("weights", [None, [0.25] * 4])
def test_a_prior_mass_alone_is_taken_as_it_is(weights: list[float] | None) -> None:
    for build in (EmpiricalBayesSampler, UniformSampler):
        sampler = build(num_clients=4, cohort_size=1, client_weights=weights)
        (big,) = sampler.add_clients([1.0])
        assert sampler.probabilities([big]) == pytest.approx([0.5])
        assert sampler.client_weights([big]) == pytest.approx([0.2])


def test_more_clients_than_ids() -> None:
    sampler = UniformSampler(num_clients=2**53 - 1, cohort_size=1)
    for newcomers in (2, [1.0, 1.0]):
        with pytest.raises(ConfigurationError, match="clients"):
            sampler.add_clients(newcomers)
    assert sampler.add_clients([1.0]).tolist() == [2**53 - 1]


def test_many_leave_at_once() -> None:
    sampler = UniformSampler(num_clients=10**6, cohort_size=5)
    sampler.remove_clients(np.arange(0, 10**6, 2))
    assert sampler.num_clients == 5 * 10**5
    assert (sampler.draw().clients % 2 == 1).all()
