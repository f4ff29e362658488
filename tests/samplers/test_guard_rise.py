"""How fast a client can rise: what the guard promises, whatever is reported, in time or late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition import AvareSampler, EmpiricalBayesSampler, Guard, KVibSampler, PortfolioSampler
from sortition.core.types import FloatArray, IntArray
from sortition.samplers.base import BaseSampler
from tests.helpers import LEARNERS, SAMPLERS, norms_for, same_cohort

M, K = 12, 4


def portfolio(guard: Guard, seed: int = 0, **common: Any) -> PortfolioSampler:
    experts = [kind(**common, guard=None) for kind in (AvareSampler, EmpiricalBayesSampler)]
    return PortfolioSampler(experts=experts, guard=guard, seed=seed)


BUILD: dict[str, Any] = {
    **{name: SAMPLERS[name] for name in LEARNERS},
    "empirical-bayes": EmpiricalBayesSampler,
    "k-vib": lambda **common: KVibSampler(num_rounds=40, **common),
    "portfolio": portfolio,
}
LIES = np.array([0.0, 1e-300, 1e-6, 1e-3, 1.0, 2.0, 10.0, 1e3, 1e6, 1e300, np.nan])


def feedback(clients: IntArray, liars_only: bool, rng: np.random.Generator) -> FloatArray:
    """Anything at all from anybody; or clients 0 and 1, with the heaviest lie or none beside honest ones."""
    if not liars_only:
        return rng.choice(LIES, len(clients))
    return np.where(clients < 2, rng.choice([1.0, 1e6]), 1.0)


def missing(sampler: BaseSampler) -> float:
    """By what ceilings had to be raised: all who can be drawn have one, and they sum to less than one."""
    watch = sampler._defences._watch
    assert watch is not None
    clients, ceilings = watch._all_ceilings(sampler.distribution, sampler._weights_of)
    p = sampler.distribution.everybody()
    possible = p[clients] > 0.0
    return 1.0 if np.delete(p, clients).any() else 1.0 / min(1.0, float(ceilings[possible].sum()))


@pytest.mark.parametrize("rise", [1.3, 10.0])
@pytest.mark.parametrize("name", BUILD)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    concentration=st.sampled_from([0.3, 1.0, None]),
    share=st.sampled_from([0.02, 0.2, 0.5, 1.0]),
    trial=st.sampled_from([0, 10, 50]),
    liars_only=st.booleans(),
    changing=st.booleans(),
)
def test_no_report_raises_its_sender_by_more_than_the_stated_factor(
    name: str,
    rise: float,
    seed: int,
    concentration: float | None,
    share: float,
    trial: int,
    liars_only: bool,
    changing: bool,
) -> None:
    """p(after) <= rise * p(before) for all who were heard: by each feedback, and by all between two draws.

    Whatever the client weights, the share of outliers, who joins or leaves, and how late it comes.
    """
    rng = np.random.default_rng(seed)
    weights = None if concentration is None else rng.dirichlet(np.full(M, concentration)) + 1e-6
    guard = Guard(largest_rise=rise, outliers_share=share, trial_replies=trial)
    sampler = BUILD[name](
        num_clients=M,
        cohort_size=K,
        guard=guard,
        seed=seed,
        client_weights=None if weights is None else weights / weights.sum(),
    )
    late = []
    for _ in range(40):
        if changing and rng.random() < 0.1:
            sampler.add_clients(rng.dirichlet([1.0, 1.0]), client_weights=rng.random(2) + 0.01)
            sampler.remove_clients([rng.choice(np.flatnonzero(sampler.probabilities() > 0.0)[2:])])
        late.append(sampler.draw())
        at_first: dict[int, float] = {}
        for _ in range(int(rng.integers(0, len(late) + 1))):
            cohort = late.pop(int(rng.integers(len(late))))
            norms = feedback(cohort.clients, liars_only, rng)
            before = sampler.probabilities()
            sampler.observe(cohort, norms)
            after = sampler.probabilities()
            assert after.sum() == pytest.approx(1.0, abs=1e-9)
            heard = cohort.clients[~np.isnan(norms)]
            room = missing(sampler) * (1.0 + 1e-9)
            assert np.all(after[heard] <= rise * before[heard] * room)
            for client in heard.tolist():
                at_first.setdefault(client, before[client])
            assert all(after[client] <= rise * p * room for client, p in at_first.items())


@pytest.mark.parametrize("name", ["osmd", "avare", "empirical-bayes"])
def test_a_ceiling_rises_by_the_factor_until_it_is_not_needed(name: str) -> None:
    """What a client asks for it gets in the end, if it keeps asking: the rise delays, the clip decides."""
    guard = Guard(largest_rise=1.2, clip_factor=1e6)
    guarded, plain = (BUILD[name](num_clients=M, cohort_size=K, guard=g, seed=1) for g in (guard, None))
    for sampler in (guarded, plain):
        for _ in range(100):
            cohort = sampler.draw()
            sampler.observe(cohort, np.where(cohort.clients == 5, 8.0, 1.0))
    assert guarded.probabilities([5])[0] == pytest.approx(plain.probabilities([5])[0], rel=0.3)


SLOW = Guard(largest_rise=1.3, clip_factor=1e6, outlier_factor=1e5)


def test_ceilings_go_up_once_between_two_draws() -> None:
    """However many late replies of others come in between, a liar that has fallen silent gets one factor."""
    sampler = AvareSampler(num_clients=1000, cohort_size=50, guard=SLOW, seed=0)
    cohort = sampler.draw()
    liar = cohort.clients[0]
    sampler.observe(cohort, np.where(cohort.clients == liar, 1e6, 1.0))
    for _ in range(3):
        late = [sampler.draw() for _ in range(4)]
        before = sampler.probabilities([liar])[0]
        for cohort in late:
            sampler.observe(cohort, np.where(cohort.clients == liar, np.nan, 1.0))
        assert sampler.probabilities([liar])[0] == pytest.approx(1.3 * before)


def test_late_reports_between_two_draws_count_as_one() -> None:
    sampler = AvareSampler(num_clients=M, cohort_size=M, design="without_replacement", guard=SLOW, seed=0)
    cohorts = [sampler.draw() for _ in range(5)]
    before = sampler.probabilities([3])[0]
    for cohort in cohorts:
        sampler.observe(cohort, np.where(cohort.clients == 3, 1e6, 1.0))
    assert sampler.probabilities([3])[0] == pytest.approx(1.3 * before)
    sampler.observe(sampler.draw(), np.ones(M))


def test_a_run_is_resumed_between_two_late_reports() -> None:
    whole, resumed = (AvareSampler(num_clients=M, cohort_size=K, guard=SLOW, seed=1) for _ in range(2))
    cohorts = [whole.draw() for _ in range(6)]
    for cohort in cohorts[:3]:
        whole.observe(cohort, np.where(cohort.clients < 4, 1e6, 1.0))
    resumed.load_state_dict(whole.state_dict())
    for sampler in (whole, resumed):
        for cohort in cohorts[3:]:
            sampler.observe(cohort, np.where(cohort.clients < 4, 1e6, norms_for(cohort)))
    assert np.array_equal(whole.probabilities(), resumed.probabilities())
    assert same_cohort(whole.draw(), resumed.draw())
