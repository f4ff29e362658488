"""Mini-batch SGD: the mean over every possible cohort is the step of full participation."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import Cohort, ConfigurationError
from sortition.core.designs import DESIGNS, weigh_with_replacement
from sortition.lab.algorithms import FedSGD
from sortition.lab.problems import DigitsFederation
from tests.helpers import outcomes

M, K, ROUND, STEP = 4, 2, 3, 0.7
P = np.array([0.1, 0.2, 0.3, 0.4])


@pytest.fixture(scope="module")
def problem() -> DigitsFederation:
    return DigitsFederation(num_clients=M, seed=5)


@pytest.fixture(scope="module")
def model(problem) -> np.ndarray:
    return np.random.default_rng(0).normal(size=len(problem.initial_model()))


@pytest.mark.parametrize("design", DESIGNS)
def test_round_is_unbiased(design, problem, model):
    """E[w^{t+1}] = w^t - mu sum_m lambda_m g_m, summed over every cohort there is."""
    mean, total = np.zeros_like(model), 0.0
    for probability, weighed in outcomes(design, P, K):
        cohort = Cohort(ROUND, K, *weighed)
        mean += probability * FedSGD(STEP)(model, cohort, problem, ROUND)[0]
        total += probability
    gradient = problem.client_weights @ problem.updates(model, np.arange(M), ROUND)
    assert total == pytest.approx(1.0)
    assert np.linalg.norm(gradient) > 0.1
    assert mean == pytest.approx(model - STEP * gradient, rel=1e-10, abs=1e-12)


def test_one_round_by_hand(problem, model):
    """Equation 12 to the letter: (1/K) sum over the draws of lambda_m / p_m g_m, client 3 drawn twice."""
    draws, cohort_size = [3, 1, 3], 3
    cohort = Cohort(
        ROUND, cohort_size, *weigh_with_replacement(np.array(draws), P[np.array(draws)], cohort_size)
    )
    step = np.zeros_like(model)
    for client in draws:
        update = problem.updates(model, np.array([client]), ROUND)[0]
        step += problem.client_weights[client] / P[client] * update / cohort_size
    after, norms = FedSGD(STEP)(model, cohort, problem, ROUND)
    assert after == pytest.approx(model - STEP * step)
    assert norms == pytest.approx(problem.all_norms(model, ROUND)[[1, 3]])


def test_round_is_pure(problem, model):
    before = model.copy()
    cohort = Cohort(ROUND, K, [0, 2], [1, 1], [0.5, 0.5], [1.0, 1.0])
    first = FedSGD(STEP)(model, cohort, problem, ROUND)
    again = FedSGD(STEP)(model, cohort, problem, ROUND)
    assert np.array_equal(model, before)
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])


def test_mini_batches_are_those_of_the_round_given(problem, model):
    cohort = Cohort(ROUND, K, [0, 1, 2, 3], [1] * 4, [0.5] * 4, [1.0] * 4)
    _, norms = FedSGD(STEP)(model, cohort, problem, 8)
    assert norms == pytest.approx(problem.all_norms(model, 8))


@pytest.mark.parametrize("step_size", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_step_size_is_named(step_size):
    with pytest.raises(ConfigurationError, match=f"step_size must be positive and finite, got {step_size}"):
        FedSGD(step_size)
