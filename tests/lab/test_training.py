"""The training loop does what a user's own loop would do; every contestant runs in it, in every design."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from sortition import OptimalSampler, ProportionalSampler, UniformSampler
from sortition.core.designs import DESIGNS
from sortition.lab.algorithms import FedSGD
from sortition.lab.contestants import CONTESTANTS, INDEPENDENT_ONLY, ORACLES, Trial
from sortition.lab.problems.softmax import SoftmaxFederation, digits_federation
from sortition.lab.training import train, training_rounds, variance_ratio
from tests.helpers import positive, simplex

ROUNDS = 12


@pytest.fixture(scope="module")
def problem():
    return digits_federation(num_clients=30, seed=2)


@pytest.fixture(scope="module")
def small_problem():
    return digits_federation(num_clients=20)


def settings(problem):
    return {"num_clients": 30, "cohort_size": 4, "client_weights": problem.client_weights, "seed": 9}


def test_the_loop_written_out(problem):
    trajectory = train(ProportionalSampler(**settings(problem)), problem, FedSGD(0.3), ROUNDS)
    sampler, model = ProportionalSampler(**settings(problem)), problem.initial_model()
    for round_index in range(ROUNDS):
        a = (problem.client_weights * problem.all_norms(model, round_index)) ** 2
        expected_ratio = np.sum(a / problem.client_weights) / np.sum(np.sqrt(a)) ** 2
        assert trajectory.variance_ratios[round_index] == pytest.approx(expected_ratio)
        cohort = sampler.draw()
        step = np.zeros_like(model)
        for client, weight in zip(cohort.clients, cohort.weights, strict=True):
            update = problem.updates(model, np.array([client]), round_index)[0]
            step += problem.client_weights[client] * weight * update
        model = model - 0.3 * step
        sampler.observe(cohort, np.ones(len(cohort)))
        assert trajectory.losses[round_index] == pytest.approx(problem.loss(model))


def test_the_oracle_is_optimal_in_every_round(problem):
    ratios = train(OptimalSampler(**settings(problem)), problem, FedSGD(0.3), ROUNDS).variance_ratios
    assert ratios == pytest.approx(np.ones(ROUNDS))


def test_on_round_is_called_after_each_round(problem):
    calls = []
    train(UniformSampler(**settings(problem)), problem, FedSGD(0.3), 5, lambda: calls.append(1))
    assert len(calls) == 5


@given(probabilities=simplex(4), client_weights=simplex(4), norms=positive(4))
def test_no_distribution_beats_the_optimum(probabilities, client_weights, norms):
    assert variance_ratio(probabilities, client_weights, norms) >= 1.0 - 1e-12


def test_any_distribution_is_optimal_when_there_is_nothing_to_send():
    assert variance_ratio(np.array([0.9, 0.1]), np.array([0.5, 0.5]), np.zeros(2)) == 1.0


def test_norms_and_distribution_are_recorded_only_where_asked_for(problem):
    def recorded(sampler, every):
        rounds = list(training_rounds(sampler, problem, FedSGD(0.3), 5, measure_every=every))
        return [(done.norms is not None, done.probabilities is not None) for done in rounds]

    both, neither, norms_alone = (True, True), (False, False), (True, False)
    uniform, oracle = UniformSampler(**settings(problem)), OptimalSampler(**settings(problem))
    assert recorded(uniform, 2) == [both, neither, both, neither, both]
    assert recorded(uniform, 0) == 5 * [neither]
    assert recorded(oracle, 0) == 5 * [norms_alone]


def trial_of(problem: SoftmaxFederation, **changes) -> Trial:
    settings = {
        "client_weights": problem.client_weights,
        "cohort_size": 4,
        "num_rounds": 20,
        "feedback_bound": 0.1,
        "design": "with_replacement",
        "seed": 1,
    }
    return Trial(**{**settings, **changes})


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("name", CONTESTANTS)
def test_runs_in_every_design(name, design, small_problem):
    sampler = CONTESTANTS[name](trial_of(small_problem, design=design))
    trajectory = train(sampler, small_problem, FedSGD(0.1), 20)
    assert sampler.design == ("independent" if name in INDEPENDENT_ONLY else design)
    assert np.isfinite(trajectory.losses).all()
    assert (trajectory.variance_ratios >= 1.0 - 1e-12).all()


def test_only_those_that_do_not_learn_stay_where_they_were(small_problem):
    moved = set()
    for name, contestant in CONTESTANTS.items():
        sampler = contestant(trial_of(small_problem))
        before = sampler.probabilities()
        train(sampler, small_problem, FedSGD(0.1), 20)
        if not np.allclose(sampler.probabilities(), before, rtol=1e-9):
            moved.add(name)
    assert set(CONTESTANTS) - moved == {"uniform", "proportional"}


def test_larger_rates_move_further(small_problem):
    def distance(name):
        sampler = CONTESTANTS[name](trial_of(small_problem))
        train(sampler, small_problem, FedSGD(0.1), 20)
        return np.abs(sampler.probabilities() - 1 / 20).sum()

    assert distance("adaptive-osmd-x100") > distance("adaptive-osmd") > 0


def test_the_oracles_come_last():
    assert set(list(CONTESTANTS)[-2:]) == ORACLES
