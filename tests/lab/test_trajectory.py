"""One run: the loop does what a user's own loop would do, and measures it correctly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from sortition import OptimalSampler, ProportionalSampler, UniformSampler
from sortition.lab.algorithms import FedSGD
from sortition.lab.problems import DigitsFederation
from sortition.lab.trajectory import run, variance_ratio
from tests.helpers import positive, simplex

ROUNDS = 12


@pytest.fixture(scope="module")
def problem():
    return DigitsFederation(num_clients=30, seed=2)


def settings(problem):
    return {"num_clients": 30, "cohort_size": 4, "client_weights": problem.client_weights, "seed": 9}


def test_the_loop_written_out(problem):
    trajectory = run(ProportionalSampler(**settings(problem)), problem, FedSGD(0.3), ROUNDS)
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
    ratios = run(OptimalSampler(**settings(problem)), problem, FedSGD(0.3), ROUNDS).variance_ratios
    assert ratios == pytest.approx(np.ones(ROUNDS))


def test_on_round_is_called_after_each_round(problem):
    calls = []
    run(UniformSampler(**settings(problem)), problem, FedSGD(0.3), 5, lambda: calls.append(1))
    assert len(calls) == 5


@given(probabilities=simplex(4), client_weights=simplex(4), norms=positive(4))
def test_no_distribution_beats_the_optimum(probabilities, client_weights, norms):
    assert variance_ratio(probabilities, client_weights, norms) >= 1.0 - 1e-12


def test_any_distribution_is_optimal_when_there_is_nothing_to_send():
    assert variance_ratio(np.array([0.9, 0.1]), np.array([0.5, 0.5]), np.zeros(2)) == 1.0
