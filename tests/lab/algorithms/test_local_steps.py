"""FedAvg and SCAFFOLD: by hand where one step suffices, unbiased over every cohort, and what they report."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sortition import Cohort, ConfigurationError
from sortition.core.designs import DESIGNS
from sortition.lab.algorithms import FedAvg, FedSGD, Scaffold, ScaffoldState
from sortition.lab.problems import LeastSquares
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
        state = ScaffoldState.start(problem)
        assert not state.model.any()
        assert state.client_controls.shape == (M, D)


@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold])
@pytest.mark.parametrize("arguments", [(0.0, 1), (0.1, 0), (0.1, 1, -1.0), (math.inf, 2)])
def test_rejects_what_makes_no_sense(algorithm, arguments):
    with pytest.raises(ConfigurationError, match="got"):
        algorithm(*arguments)
