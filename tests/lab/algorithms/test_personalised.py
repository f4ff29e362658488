"""The two-sampler scheme on a bilevel problem whose gradient finite differences can check (Appendix D.1)."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import AdaptiveOSMDSampler, Cohort
from sortition.lab.algorithms import Personalised
from sortition.lab.problems import PersonalisedLeastSquares
from tests.helpers import outcomes

M, K = 3, 2
P = np.array([0.2, 0.3, 0.5])


@pytest.fixture
def problem() -> PersonalisedLeastSquares:
    return PersonalisedLeastSquares(num_clients=M, seed=4)


def both_parts(problem: PersonalisedLeastSquares, model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    everybody = np.arange(problem.num_clients)
    return (
        problem.client_weights @ problem.direct_gradients(model, everybody, 0),
        problem.client_weights @ problem.response_gradients(model, everybody, 0),
    )


@pytest.mark.parametrize("seed", range(5))
def test_gradient_is_that_of_finite_differences(problem, seed):
    """Both parts together are the gradient of h, local answers included; the first alone is not."""
    model, width = np.random.default_rng(seed).normal(size=4), 1e-5
    slopes = [
        (problem.loss(model + width * axis) - problem.loss(model - width * axis)) / (2.0 * width)
        for axis in np.eye(4)
    ]
    direct, response = both_parts(problem, model)
    assert direct + response == pytest.approx(slopes, rel=1e-6, abs=1e-8)
    assert np.linalg.norm(response) > 1e-3


def test_responses_minimise_the_local_objective(problem):
    """The gradient of G_m in beta vanishes at the answer: (B'(A w + B beta - y)) / n + rho beta = 0."""
    model, everybody = np.ones(4), np.arange(M)
    for client, answer in enumerate(problem.responses(model, everybody)):
        b, a, y = problem._b_bar[client], problem._a_bar[client], problem._y_bar[client]
        slope = b.T @ (a @ model + b @ answer - y) / len(y) + problem.ridge * answer
        assert slope == pytest.approx(np.zeros(2), abs=1e-10)


def test_step_is_unbiased_for_two_independent_cohorts(problem):
    """Summed over every pair of cohorts: w - mu grad h."""
    model, mean = np.ones(4), np.zeros(4)
    for chance_1, first in outcomes("with_replacement", P, K):
        for chance_2, second in outcomes("without_replacement", P[::-1].copy(), K):
            cohorts = (Cohort(0, K, *first), Cohort(0, K, *second))
            mean += chance_1 * chance_2 * Personalised(0.3)(model, cohorts, problem, 0)[0]
    assert mean == pytest.approx(model - 0.3 * sum(both_parts(problem, model)))


def test_each_sampler_learns_from_its_own_part():
    """Trained with two samplers, the loss comes down, and the two distributions come apart."""
    problem = PersonalisedLeastSquares(num_clients=20, seed=1)
    samplers = [
        AdaptiveOSMDSampler(
            num_clients=20,
            cohort_size=4,
            num_rounds=300,
            client_weights=problem.client_weights,
            rate_scale=100.0,
            seed=seed,
        )
        for seed in (0, 1)
    ]
    algorithm, model = Personalised(0.02), problem.initial_model()
    start = problem.loss(model)
    for round_index in range(300):
        first, second = (sampler.draw() for sampler in samplers)
        model, norms = algorithm(model, (first, second), problem, round_index)
        samplers[0].observe(first, norms[0])
        samplers[1].observe(second, norms[1])
    assert problem.loss(model) < 0.5 * start
    assert np.abs(samplers[0].probabilities() - samplers[1].probabilities()).sum() > 0.01
