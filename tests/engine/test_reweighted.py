"""The reweighted prior: exact beside very heavy clients, after them, and with hardly any unseen client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sortition import AvareSampler, EmpiricalBayesSampler, MABSSampler, VRBSampler
from sortition.engine import mixture
from sortition.engine.clients import Roster
from sortition.engine.reweighted import ReweightedPrior

EXACT = 1e-12


def MABS(**common: Any) -> MABSSampler:  # noqa: N802 - like a class
    return MABSSampler(num_rounds=1000, **common)


def unguarded(**common: Any) -> EmpiricalBayesSampler:
    return EmpiricalBayesSampler(guard=None, **common)


@pytest.mark.parametrize("mass", [1e9, 1e16, 1e100])
@pytest.mark.parametrize("build", [MABS, VRBSampler, AvareSampler, unguarded])
def test_a_heavy_newcomer_leaves_the_others_their_mass(build: Any, mass: float) -> None:
    sampler = build(num_clients=10, cohort_size=3)
    (heavy,) = sampler.add_clients([mass], client_weights=[mass])
    assert sampler.probabilities().sum() == pytest.approx(1.0, abs=EXACT)
    for available, norms in (([heavy], [1e-20]), ([0, 1, heavy], [1e3, 1e3, 1e-20])):
        sampler.observe(sampler.draw(available=available), norms)
        assert sampler.probabilities().sum() == pytest.approx(1.0, abs=EXACT)
    sampler.remove_clients([heavy])
    assert sampler.probabilities().sum() == pytest.approx(1.0, abs=EXACT)


def test_a_light_unseen_client_beside_one_with_no_mass_left() -> None:
    distribution = ReweightedPrior(Roster(2, np.array([1.0, 1e-9])), share=0.1)
    distribution.reweight(np.array([0]), np.array([-30.0]))
    assert distribution.everybody().sum() == pytest.approx(1.0, abs=EXACT)


def test_unseen_clients_are_counted_through_any_history() -> None:
    rng = np.random.default_rng(0)
    for masses in (None, 10.0 ** rng.uniform(-9.0, 9.0, size=30)):
        distribution = ReweightedPrior(Roster(30, masses), share=0.2)
        for _ in range(60):
            here = np.flatnonzero(distribution.everybody())
            distribution.reweight(
                rng.choice(here, size=2, replace=False), 20.0 * rng.normal(size=2), rng.normal()
            )
            if rng.random() < 0.3:
                distribution.add(10.0 ** rng.uniform(-9.0, 9.0, size=2))
            if rng.random() < 0.5:
                distribution.remove(
                    rng.choice(np.flatnonzero(distribution.everybody()), size=2, replace=False)
                )
            unseen = distribution.slots_of(np.arange(distribution.roster.ids)) < 0
            expected = distribution.roster.masses(None)[unseen].sum()
            assert sum(distribution._unseen) == pytest.approx(expected, rel=EXACT)
            assert distribution.everybody().sum() == pytest.approx(1.0, abs=EXACT)
        again = ReweightedPrior(distribution.roster, share=0.2)
        again.restore(distribution.state())
        assert again._unseen == distribution._unseen


def test_everything_falls_by_six_hundred_orders_of_magnitude() -> None:
    sampler, other = (AvareSampler(num_clients=10, cohort_size=10) for _ in range(2))
    for norm in (1e300, 1e-10, 1e-300, 1e300):
        sampler.observe(sampler.draw(available=range(10)), np.full(10, norm))
        assert sampler.probabilities() == pytest.approx(np.full(10, 0.1), rel=EXACT)
        other.load_state_dict(sampler.state_dict())
    sampler = AvareSampler(num_clients=4, cohort_size=1)
    for norm in (1e300, 1e-30):
        sampler.observe(sampler.draw(available=[0]), [norm])
    assert sampler.probabilities([0]) == pytest.approx(1.0 - 3.0 * sampler.floor())


@pytest.mark.parametrize("build", [MABS, VRBSampler])
@pytest.mark.parametrize("others", [[], [1, 2]])
def test_a_billion_clients_after_the_heaviest_has_left(build: Any, others: list[int]) -> None:
    """What is left of the learnt part is below any double: the prior remains, and then what is new."""
    sampler = build(num_clients=10**9, cohort_size=100)
    for norm in (1.0, 1e300):
        norms = [1.0] * len(others) + [norm]
        sampler.observe(sampler.draw(available=[*others, 7]), norms)
    sampler.remove_clients([7])
    assert sampler.probabilities([1, 2, 3]) == pytest.approx(np.full(3, 1e-9), rel=1e-6)
    for _ in range(3):
        cohort = sampler.draw()
        assert np.isfinite(cohort.weights).all()
        sampler.observe(cohort, np.ones(len(cohort)))
    assert np.isfinite(sampler.probabilities([1, 2, 3])).all()


def test_unseen_clients_with_tiny_prior_masses_are_drawn_as_often_as_they_should() -> None:
    """Some in the block, some with masses of their own, beside a very heavy client that was seen."""
    distribution = ReweightedPrior(Roster(6, None), share=1e-3)
    distribution.add(np.array([1e12, 1.0, 2.0]))  # 6, 7, 8
    distribution.remove(np.array([1]))
    distribution.reweight(np.array([0, 2, 6]), np.full(3, -60.0))
    expected = distribution.everybody()
    assert expected[[3, 4, 5, 7, 8]].sum() > 0.99
    rng = np.random.default_rng(1)
    draws, p = distribution.draw(rng.random((400, 2)))
    assert p == pytest.approx(expected[draws])
    assert np.abs(np.bincount(draws, minlength=9) / 400 - expected).max() < 4.0 * np.sqrt(0.25 / 400)
    for tries in (0, 3, 300):  # the same law, however many tries come before the search one by one
        uniforms = rng.random(20_000)
        found = [
            mixture.draw_unseen(
                u, distribution.roster.arrays, distribution._table.places, distribution._unseen, tries
            )
            for u in uniforms
        ]
        shares = np.bincount(found, minlength=9) / len(uniforms)
        assert shares == pytest.approx(np.array([0, 0, 0, 1, 1, 1, 0, 1, 2]) / 6.0, abs=0.015)
