"""Least squares and its data: against plain numpy, and against the authors' generator written out."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import ConfigurationError
from sortition.lab.problems.batches import batch_rows
from sortition.lab.problems.least_squares import (
    LeastSquares,
    authors_heterogeneous,
    diagonal,
    heterogeneous,
    one_coordinate,
)

M, N, D = 7, 9, 3


@pytest.fixture
def problem() -> LeastSquares:
    rng = np.random.default_rng(0)
    return LeastSquares(
        rng.normal(size=(M, N, D)), rng.normal(size=(M, N)), batch_size=4, local_batch_size=2, seed=5
    )


class TestLeastSquares:
    def test_loss_is_half_the_mean_square(self, problem):
        model = np.array([1.0, -2.0, 0.5])
        residuals = problem.features @ model - problem.targets
        assert problem.loss(model) == pytest.approx(np.mean(residuals**2) / 2.0)

    def test_all_samples_give_the_gradient_of_the_loss(self):
        rng = np.random.default_rng(1)
        problem = LeastSquares(
            rng.normal(size=(M, N, D)), rng.normal(size=(M, N)), batch_size=N, distinct=True
        )
        model, width = np.array([1.0, -2.0, 0.5]), 1e-6
        slopes = [
            (problem.loss(model + width * axis) - problem.loss(model - width * axis)) / (2 * width)
            for axis in np.eye(D)
        ]
        gradient = problem.client_weights @ problem.updates(model, np.arange(M), 3)
        assert gradient == pytest.approx(slopes, rel=1e-6)

    def test_updates_are_mini_batch_means(self, problem):
        """Against numpy, from the batch's own rows."""
        model, clients = np.array([1.0, -2.0, 0.5]), np.array([4, 1])
        uniforms = problem._round(6)[clients]
        rows = (uniforms * N).astype(int)
        for place, client in enumerate(clients):
            x, y = problem.features[client, rows[place]], problem.targets[client, rows[place]]
            expected = x.T @ (x @ model - y) / 4
            assert problem.updates(model, clients, 6)[place] == pytest.approx(expected)
            assert problem.batch_losses(model, clients, 6)[place] == pytest.approx(
                np.mean((x @ model - y) ** 2) / 2
            )

    def test_norms_of_all_are_those_of_the_updates(self, problem):
        model = np.array([1.0, -2.0, 0.5])
        norms = np.linalg.norm(problem.updates(model, np.arange(M), 2), axis=1)
        assert problem.all_norms(model, 2) == pytest.approx(norms)

    def test_a_client_does_the_same_whoever_else_is_drawn(self, problem):
        model = np.ones(D)
        alone = problem.updates(model, np.array([3]), 8)
        assert np.array_equal(problem.updates(model, np.array([0, 3, 5]), 8)[1], alone[0])
        assert not np.array_equal(problem.updates(model, np.array([3]), 9), alone)
        steps = [problem.local_gradients(model[None], np.array([3]), 8, step) for step in (0, 1)]
        assert not np.array_equal(*steps)

    def test_smoothness_is_the_largest_curvature(self, problem):
        for client, smoothness in enumerate(problem.smoothness()):
            assert smoothness == pytest.approx(np.linalg.norm(problem.features[client], ord=2) ** 2 / N)

    def test_wrong_shapes_are_named(self):
        with pytest.raises(ConfigurationError, match="features and targets"):
            LeastSquares(np.zeros((2, 3)), np.zeros(2))


def test_distinct_batches_are_uniform_subsets():
    """Floyd's algorithm: all 6 pairs of 4 samples are equally often drawn, none twice in one."""
    grid = (np.arange(60) + 0.5) / 60
    uniforms = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    rows = batch_rows(uniforms, np.full(len(uniforms), 4), True)
    pairs, counts = np.unique(np.sort(rows, axis=1), axis=0, return_counts=True)
    assert len(pairs) == 6
    assert np.all(counts == 600)


class TestData:
    @pytest.mark.parametrize("spread", [1.0, 10.0])
    def test_authors_data_are_those_of_their_generator(self, spread):
        """Row by row, as their code draws them, with numpy's legacy functions and one global seed."""
        np.random.seed(111)
        truth = np.random.normal(10, 3, 10)
        scales = np.exp(np.random.normal(0, spread, 100))
        scales = scales / np.max(scales) * 10
        sigma = np.array([25.0 ** (j / 9 - 1) for j in range(10)])
        features, targets = authors_heterogeneous(spread)
        for client in range(100):
            rows = np.array([np.random.normal(0, scales[client] * sigma) for _ in range(100)])
            noise = np.random.normal(0, 0.1, 100)
            assert features[client] == pytest.approx(rows, rel=1e-12)
            assert targets[client] == pytest.approx(rows @ truth + noise, rel=1e-10, abs=1e-10)

    def test_text_has_the_covariance_and_authors_the_deviation(self):
        """The client of the largest scale: s = 10."""
        for generate, power in ((heterogeneous, 0.5), (authors_heterogeneous, 1.0)):
            deviations = generate(3.0, 111)[0].std(axis=1)
            largest = deviations[np.argmax(deviations[:, -1])]
            assert largest == pytest.approx((10.0 * diagonal()) ** power, rel=0.25)

    def test_one_coordinate_each(self):
        features, targets = one_coordinate(3.0, seed=2)
        assert np.all(np.count_nonzero(features.any(axis=1), axis=1) == 1)
        values = features[features != 0.0]
        assert values.mean() == pytest.approx(1.0, abs=0.01)
        assert values.std() == pytest.approx(0.1, abs=0.01)
        assert np.all(np.isfinite(targets))
        smoothness = LeastSquares(features, targets).smoothness()
        assert smoothness.max() / smoothness.min() < 1.3  # p^IS is next to uniform

    def test_seed_determines_the_data(self):
        assert np.array_equal(heterogeneous(1.0, 5)[0], heterogeneous(1.0, 5)[0])
        assert not np.array_equal(heterogeneous(1.0, 5)[0], heterogeneous(1.0, 6)[0])
