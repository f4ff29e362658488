"""The algorithms: by hand where one step suffices, unbiased over every cohort, and what they report."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sortition import AdaptiveOSMDSampler, Cohort, ConfigurationError
from sortition.core.designs import DESIGNS, weigh_with_replacement
from sortition.lab.algorithms import FedAvg, FedSGD, Personalised, Scaffold, ScaffoldState
from sortition.lab.problems.least_squares import LeastSquares, PersonalisedLeastSquares
from sortition.lab.problems.softmax import SoftmaxFederation, digits_federation
from tests.helpers import outcomes

M, K, N, D, ROUND = 4, 2, 6, 3, 5
P = np.array([0.1, 0.2, 0.3, 0.4])


@pytest.fixture
def problem() -> LeastSquares:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(M, N, D))
    return LeastSquares(features, rng.normal(size=(M, N)), batch_size=N, local_batch_size=2, seed=3)


@pytest.fixture
def model() -> np.ndarray:
    return np.array([0.5, -1.0, 2.0])


def naive_training(problem: LeastSquares, model: np.ndarray, client: int, steps: int, rate: float, shift=0.0):
    """Algorithm 4, lines 7 to 10, for one client at a time."""
    own = model.copy()
    for step in range(steps):
        own = own - rate * (problem.local_gradients(own[None], np.array([client]), ROUND, step)[0] + shift)
    return own


class TestFedAvg:
    def test_whole_cohort_at_once_is_one_client_at_a_time(self, problem, model):
        updates = FedAvg(0.05, local_steps=4).updates(model, np.array([2, 0, 3]), problem, ROUND)
        for row, client in zip(updates, (2, 0, 3), strict=True):
            assert row == pytest.approx(model - naive_training(problem, model, client, 4, 0.05))

    @pytest.mark.parametrize("design", DESIGNS)
    def test_round_is_unbiased(self, design, problem, model):
        """E[w^{t+1}] = w^t - mu sum_m lambda_m g_m (Equation 15), summed over every cohort there is."""
        algorithm = FedAvg(0.05, local_steps=3, step_size=0.7)
        mean = np.zeros(D)
        for probability, weighed in outcomes(design, P, K):
            mean += probability * algorithm(model, Cohort(ROUND, K, *weighed), problem, ROUND)[0]
        updates = algorithm.updates(model, np.arange(M), problem, ROUND)
        assert mean == pytest.approx(model - 0.7 * problem.client_weights @ updates)

    def test_feedback_is_that_of_the_summed_gradients(self, problem, model):
        """a = lambda^2 / B ||sum_b grad||^2 = lambda^2 ||g||^2 / (mu_l^2 B) (Algorithm 4, line 13)."""
        cohort = Cohort(ROUND, 1, clients=[1], counts=[1], probabilities=[0.5], weights=[2.0])
        norms = FedAvg(0.05, local_steps=4)(model, cohort, problem, ROUND)[1]
        own, total = model.copy(), np.zeros(D)
        for step in range(4):
            gradient = problem.local_gradients(own[None], np.array([1]), ROUND, step)[0]
            total, own = total + gradient, own - 0.05 * gradient
        assert norms[0] == pytest.approx(np.linalg.norm(total) / math.sqrt(4))

    def test_one_step_of_all_samples_is_mini_batch_sgd_in_direction(self, model):
        """With one local step on all of one sample, FedAvg at mu mu_l is FedSGD at that step, norms too."""
        rng = np.random.default_rng(2)
        problem = LeastSquares(rng.normal(size=(M, 1, D)), rng.normal(size=(M, 1)), batch_size=1)
        cohort = Cohort(ROUND, K, clients=[0, 2], counts=[1, 1], probabilities=[0.1, 0.3], weights=[5.0, 1.7])
        one = FedAvg(0.05, local_steps=1, step_size=2.0)(model, cohort, problem, ROUND)
        other = FedSGD(0.1)(model, cohort, problem, ROUND)
        assert one[0] == pytest.approx(other[0])
        assert one[1] == pytest.approx(other[1])


class TestScaffold:
    def state(self, problem, model) -> ScaffoldState:
        controls = np.random.default_rng(4).normal(size=(M, D))
        return ScaffoldState(model, problem.client_weights @ controls, controls)

    def test_one_round_by_hand(self, problem, model):
        state = self.state(problem, model)
        cohort = Cohort(ROUND, 1, clients=[2], counts=[1], probabilities=[0.25], weights=[4.0])
        following, norms = Scaffold(0.05, local_steps=3, step_size=0.5)(state, cohort, problem, ROUND)
        shift = state.server_control - state.client_controls[2]
        trained = naive_training(problem, model, 2, 3, 0.05, shift)
        control = -shift + (model - trained) / (3 * 0.05)  # c_m - c + (x - y) / (B mu_l)
        assert norms == pytest.approx([np.linalg.norm(trained - model)])
        assert following.model == pytest.approx(model + 0.5 * 0.25 * 4.0 * (trained - model))
        assert following.client_controls[2] == pytest.approx(control)
        assert np.array_equal(following.client_controls[[0, 1, 3]], state.client_controls[[0, 1, 3]])
        assert following.server_control == pytest.approx(problem.client_weights @ following.client_controls)

    def test_state_before_is_left_alone(self, problem, model):
        state = self.state(problem, model)
        before = state.client_controls.copy()
        cohort = Cohort(ROUND, 1, clients=[2], counts=[1], probabilities=[0.25], weights=[4.0])
        Scaffold(0.05, local_steps=3)(state, cohort, problem, ROUND)
        assert np.array_equal(state.client_controls, before)
        assert np.array_equal(state.model, model)

    @pytest.mark.parametrize("design", DESIGNS)
    def test_model_step_is_unbiased(self, design, problem, model):
        algorithm, state = Scaffold(0.05, local_steps=2), self.state(problem, model)
        mean = np.zeros(D)
        for probability, weighed in outcomes(design, P, K):
            mean += probability * algorithm(state, Cohort(ROUND, K, *weighed), problem, ROUND)[0].model
        updates = algorithm.updates(state, np.arange(M), problem, ROUND)
        assert mean == pytest.approx(model - problem.client_weights @ updates)

    def test_without_controls_it_is_fedavg(self, problem, model):
        state = ScaffoldState(model, np.zeros(D), np.zeros((M, D)))
        clients = np.array([0, 3])
        one = Scaffold(0.05, local_steps=4).updates(state, clients, problem, ROUND)
        assert one == pytest.approx(FedAvg(0.05, local_steps=4).updates(model, clients, problem, ROUND))

    def test_start_is_at_zero(self, problem):
        state = Scaffold(0.05, local_steps=2).start(problem)
        assert not state.model.any()
        assert state.client_controls.shape == (M, D)


@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("local_step_size", (0.0, 1)),
        ("local_steps", (0.1, 0)),
        ("step_size", (0.1, 1, -1.0)),
        ("local_step_size", (math.inf, 2)),
    ],
)
def test_bad_settings_are_named(algorithm, name, arguments):
    with pytest.raises(ConfigurationError, match=name):
        algorithm(*arguments)


@pytest.mark.parametrize(
    "algorithm", [FedSGD(0.1), FedAvg(0.05, local_steps=3), Scaffold(0.05, local_steps=3)]
)
def test_all_norms_are_what_each_client_would_report(algorithm, problem):
    """With a cohort of everybody, the reported norms are those of all clients."""
    state = algorithm.start(problem)
    everybody = Cohort(ROUND, M, np.arange(M), np.ones(M), np.full(M, 1 / M), np.ones(M))
    _, reported = algorithm(state, everybody, problem, ROUND)
    assert algorithm.all_norms(state, problem, ROUND) == pytest.approx(reported)


class TestFedSGD:
    """The mean over every possible cohort is the step of full participation."""

    @pytest.fixture
    def problem(self) -> SoftmaxFederation:
        return digits_federation(num_clients=M, seed=5)

    @pytest.fixture
    def model(self, problem) -> np.ndarray:
        return np.random.default_rng(0).normal(size=len(problem.initial_model()))

    @pytest.mark.parametrize("design", DESIGNS)
    def test_round_is_unbiased(self, design, problem, model):
        """E[w^{t+1}] = w^t - mu sum_m lambda_m g_m, summed over every cohort there is."""
        mean, total = np.zeros_like(model), 0.0
        for probability, weighed in outcomes(design, P, K):
            cohort = Cohort(ROUND, K, *weighed)
            mean += probability * FedSGD(0.7)(model, cohort, problem, ROUND)[0]
            total += probability
        gradient = problem.client_weights @ problem.updates(model, np.arange(M), ROUND)
        assert total == pytest.approx(1.0)
        assert np.linalg.norm(gradient) > 0.1
        assert mean == pytest.approx(model - 0.7 * gradient, rel=1e-10, abs=1e-12)

    def test_one_round_by_hand(self, problem, model):
        """Equation 12 to the letter: (1/K) sum over the draws of lambda_m / p_m g_m, client 3 drawn twice."""
        draws, cohort_size = [3, 1, 3], 3
        cohort = Cohort(
            ROUND, cohort_size, *weigh_with_replacement(np.array(draws), P[np.array(draws)], cohort_size)
        )
        step = np.zeros_like(model)
        for client in draws:
            update = problem.updates(model, np.array([client]), ROUND)[0]
            step += problem.client_weights[client] / P[client] * update / cohort_size
        after, norms = FedSGD(0.7)(model, cohort, problem, ROUND)
        assert after == pytest.approx(model - 0.7 * step)
        assert norms == pytest.approx(problem.all_norms(model, ROUND)[[1, 3]])

    def test_round_is_pure(self, problem, model):
        before = model.copy()
        cohort = Cohort(ROUND, K, [0, 2], [1, 1], [0.5, 0.5], [1.0, 1.0])
        first = FedSGD(0.7)(model, cohort, problem, ROUND)
        again = FedSGD(0.7)(model, cohort, problem, ROUND)
        assert np.array_equal(model, before)
        assert np.array_equal(first[0], again[0])
        assert np.array_equal(first[1], again[1])

    def test_mini_batches_are_those_of_the_round_given(self, problem, model):
        cohort = Cohort(ROUND, K, [0, 1, 2, 3], [1] * 4, [0.5] * 4, [1.0] * 4)
        _, norms = FedSGD(0.7)(model, cohort, problem, 8)
        assert norms == pytest.approx(problem.all_norms(model, 8))

    @pytest.mark.parametrize("step_size", [0.0, -1.0, float("nan"), float("inf")])
    def test_bad_step_size_is_named(self, step_size):
        with pytest.raises(ConfigurationError, match="step_size"):
            FedSGD(step_size)


def both_parts(problem: PersonalisedLeastSquares, model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    everybody = np.arange(problem.num_clients)
    return (
        problem.client_weights @ problem.direct_gradients(model, everybody, 0),
        problem.client_weights @ problem.response_gradients(model, everybody, 0),
    )


class TestPersonalised:
    """Two samplers on a bilevel problem whose gradient finite differences can check (Appendix D.1)."""

    @pytest.fixture
    def problem(self) -> PersonalisedLeastSquares:
        return PersonalisedLeastSquares(num_clients=3, seed=4)

    @pytest.mark.parametrize("seed", range(5))
    def test_gradient_is_that_of_finite_differences(self, problem, seed):
        """Both parts together are the gradient of h, local answers included; the first alone is not."""
        model, width = np.random.default_rng(seed).normal(size=4), 1e-5
        slopes = [
            (problem.loss(model + width * axis) - problem.loss(model - width * axis)) / (2.0 * width)
            for axis in np.eye(4)
        ]
        direct, response = both_parts(problem, model)
        assert direct + response == pytest.approx(slopes, rel=1e-6, abs=1e-8)
        assert np.linalg.norm(response) > 1e-3

    def test_responses_minimise_the_local_objective(self, problem):
        """The gradient of G_m in beta vanishes at the answer: (B'(A w + B beta - y)) / n + rho beta = 0."""
        model, everybody = np.ones(4), np.arange(3)
        for client, answer in enumerate(problem.responses(model, everybody)):
            b, a, y = problem._b_bar[client], problem._a_bar[client], problem._y_bar[client]
            slope = b.T @ (a @ model + b @ answer - y) / len(y) + problem.ridge * answer
            assert slope == pytest.approx(np.zeros(2), abs=1e-10)

    def test_step_is_unbiased_for_two_independent_cohorts(self, problem):
        """Summed over every pair of cohorts: w - mu grad h."""
        three = np.array([0.2, 0.3, 0.5])
        model, mean = np.ones(4), np.zeros(4)
        for chance_1, first in outcomes("with_replacement", three, K):
            for chance_2, second in outcomes("without_replacement", three[::-1].copy(), K):
                cohorts = (Cohort(0, K, *first), Cohort(0, K, *second))
                mean += chance_1 * chance_2 * Personalised(0.3)(model, cohorts, problem, 0)[0]
        assert mean == pytest.approx(model - 0.3 * sum(both_parts(problem, model)))

    def test_each_sampler_learns_from_its_own_part(self):
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
