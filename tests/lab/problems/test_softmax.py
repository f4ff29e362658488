"""Softmax federations: their data, their gradients, and that all of it depends on the seed alone."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import ConfigurationError
from sortition.lab.problems.softmax import (
    AUTHORS_SIZES,
    NUM_DIGITS,
    SoftmaxFederation,
    client_sizes,
    digits_federation,
    gaussian_federation,
    image_federation,
    skewed_sizes,
)


@pytest.fixture(scope="module")
def federation() -> SoftmaxFederation:
    return digits_federation(num_clients=100, batch_size=5, seed=3)


def some_model(federation: SoftmaxFederation, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 0.3, len(federation.initial_model()))


def cross_entropy(model: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    """The mean of phi, written down without care for speed or overflow."""
    weights = model.reshape(-1, 10)
    losses = []
    for x, y in zip(features, labels, strict=True):
        scores = np.exp(weights.T @ x)
        losses.append(-np.log(scores[y] / scores.sum()))
    return float(np.mean(losses))


def slope(function, model: np.ndarray, direction: np.ndarray, step: float = 1e-5) -> float:
    return (function(model + step * direction) - function(model - step * direction)) / (2 * step)


class TestSplit:
    def test_paper_sizes(self):
        sizes, counts = np.unique(skewed_sizes(100), return_counts=True)
        assert dict(zip(sizes.tolist(), counts.tolist(), strict=True)) == {1: 65, 5: 20, 30: 10, 100: 5}

    @pytest.mark.parametrize("num_clients", [2, 7, 186, 187, 500, 1796, 1797])
    def test_every_client_has_an_image_and_no_image_two_clients(self, num_clients):
        federation = digits_federation(num_clients=num_clients)
        assert federation.client_sizes.min() >= 1
        assert federation.client_sizes.sum() == len(federation.labels) <= NUM_DIGITS
        held = [federation.client_labels(client) for client in range(num_clients)]
        assert np.array_equal(np.concatenate(held), federation.labels)

    def test_images_are_distinct(self, federation):
        assert len(np.unique(federation._features, axis=0)) == len(federation.labels)

    def test_most_clients_hold_one_or_two_digits(self, federation):
        digits = [len(set(federation.client_labels(client).tolist())) for client in range(100)]
        assert max(digits) <= 3
        assert np.mean(np.array(digits) <= 2) > 0.95
        assert set(federation.labels.tolist()) == set(range(10))

    def test_client_weights_are_shares_of_the_data(self, federation):
        assert federation.client_weights.sum() == pytest.approx(1.0)
        assert federation.client_weights == pytest.approx(federation.client_sizes / len(federation.labels))

    @pytest.mark.parametrize(
        ("argument", "value"), [("num_clients", 1), ("num_clients", 1798), ("batch_size", 0), ("seed", -1)]
    )
    def test_bad_arguments_are_named(self, argument, value):
        with pytest.raises(ConfigurationError, match=argument):
            digits_federation(**{argument: value})


class TestGradients:
    def test_loss_is_the_mean_cross_entropy(self, federation):
        model = some_model(federation)
        expected = cross_entropy(model, federation._features, federation.labels)
        assert federation.loss(model) == pytest.approx(expected)

    def test_weighted_updates_are_the_gradient_of_the_loss(self):
        """With one image a client the mini-batch is all its data: sum lambda_m g_m = grad F, exactly."""
        federation = digits_federation(num_clients=NUM_DIGITS)
        model = some_model(federation)
        gradient = federation.client_weights @ federation.updates(model, np.arange(NUM_DIGITS), 0)
        for seed in range(5):
            direction = some_model(federation, seed=10 + seed)
            assert gradient @ direction == pytest.approx(
                slope(federation.loss, model, direction), rel=1e-6, abs=1e-8
            )

    @pytest.mark.parametrize("size", [1, 5, 30, 100])
    def test_update_is_the_gradient_over_the_mini_batch(self, size):
        """Batches of 8: smaller clients use as many draws as they have images."""
        federation = digits_federation(num_clients=100, batch_size=8, seed=3)
        client = int(np.flatnonzero(federation.client_sizes == size)[0])
        batch = federation.batch_rows(np.array([client]), 4)[0, : min(8, size)]
        features, labels = federation._features[batch], federation.labels[batch]
        model, direction = some_model(federation), some_model(federation, seed=1)
        update = federation.updates(model, np.array([client]), 4)[0]
        assert update @ direction == pytest.approx(
            slope(lambda w: cross_entropy(w, features, labels), model, direction), rel=1e-6, abs=1e-8
        )

    def test_large_scores_do_not_overflow(self, federation):
        model = 1e4 * some_model(federation)
        assert np.isfinite(federation.loss(model))
        assert np.isfinite(federation.all_norms(model, 0)).all()


class TestMiniBatches:
    def test_batches_stay_within_the_client(self, federation):
        first = np.cumsum(federation.client_sizes) - federation.client_sizes
        for round_index in range(50):
            batches = federation.batch_rows(np.arange(100), round_index)
            assert (batches >= first[:, None]).all()
            assert (batches < (first + federation.client_sizes)[:, None]).all()

    def test_batches_reach_every_image_of_a_client(self, federation):
        client = int(np.flatnonzero(federation.client_sizes == 30)[0])
        seen = np.unique(
            [federation.batch_rows(np.array([client]), round_index) for round_index in range(200)]
        )
        assert len(seen) == 30

    def test_vectorised_is_one_by_one(self, federation):
        model, clients = some_model(federation), np.array([17, 3, 99, 3])
        together = federation.updates(model, clients, 6)
        alone = [federation.updates(model, np.array([client]), 6)[0] for client in clients]
        assert together == pytest.approx(np.array(alone), rel=1e-12, abs=1e-15)

    def test_all_norms_are_the_norms_of_the_updates_of_the_round(self, federation):
        model = some_model(federation)
        updates = [federation.updates(model, np.array([client]), 6)[0] for client in range(100)]
        expected = [np.sqrt(np.sum(update**2)) for update in updates]
        assert federation.all_norms(model, 6) == pytest.approx(np.array(expected))

    def test_no_client_is_no_rows(self, federation):
        empty = federation.updates(some_model(federation), np.array([], dtype=np.int64), 0)
        assert empty.shape == (0, 650)


class TestDeterminism:
    def test_seed_determines_everything(self, federation):
        again = digits_federation(num_clients=100, batch_size=5, seed=3)
        model = some_model(federation)
        assert again.loss(model) == federation.loss(model)
        assert np.array_equal(again.all_norms(model, 2), federation.all_norms(model, 2))

    def test_seed_and_round_matter(self, federation):
        other = digits_federation(num_clients=100, batch_size=5, seed=4)
        model = some_model(federation)
        assert not np.array_equal(other.client_sizes, federation.client_sizes)
        assert not np.allclose(federation.all_norms(model, 2), federation.all_norms(model, 3))

    def test_a_round_does_not_depend_on_what_was_asked_before(self, federation):
        model = some_model(federation)
        before = federation.all_norms(model, 9)
        federation.updates(model, np.array([5, 6]), 9)
        federation.all_norms(model, 1)
        assert np.array_equal(federation.all_norms(model, 9), before)

    def test_global_random_state_is_left_alone(self, federation):
        np.random.seed(1)
        expected = np.random.random()
        np.random.seed(1)
        digits_federation(num_clients=10).all_norms(some_model(federation), 0)
        assert np.random.random() == expected


def made_up(count: int = 700, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of 4 x 4 whose brightest corner tells the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    images = rng.integers(0, 60, (count, 4, 4)).astype(np.uint8)
    images.reshape(count, 16)[np.arange(count), labels] = 250
    return images, labels


class TestImages:
    @pytest.fixture
    def federation(self) -> SoftmaxFederation:
        return image_federation(*made_up(), num_clients=40, seed=2)

    def test_sizes_of_the_text_and_of_the_authors(self):
        assert client_sizes(500).sum() == 4825
        assert client_sizes(500, AUTHORS_SIZES).sum() == 5325

    def test_validation_shrinks_where_images_are_few(self):
        # 40 clients: 26 x 1 + 8 x 5 + 4 x 30 + 2 x 100 = 386 images
        for images, each in ((800, 10), (500, 2)):
            federation = image_federation(*made_up(images), num_clients=40)
            hits = 40 * each * federation.accuracy(np.ones(160))  # all ties: the first class is predicted
            assert hits == pytest.approx(round(hits))
            assert 0 < hits < 40 * each
        with pytest.raises(ConfigurationError, match="images"):
            image_federation(*made_up(400), num_clients=40)

    def test_gradient_is_that_of_finite_differences(self, federation):
        """Of a client with one image, whose mini-batch is all it has."""
        client = int(np.flatnonzero(federation.client_sizes == 1)[0])
        model = np.random.default_rng(1).normal(size=federation.initial_model().size)
        gradient = federation.updates(model, np.array([client]), 0)[0]
        width = 1e-2
        for place in (0, 37, 159):
            axis = width * np.eye(len(model))[place]
            ahead, behind = (
                federation.client_losses(model + s * axis, np.array([client]))[0] for s in (1, -1)
            )
            assert gradient[place] == pytest.approx((ahead - behind) / (2 * width), abs=2e-3)

    def test_norms_without_gradients(self, federation):
        model = np.random.default_rng(1).normal(size=federation.initial_model().size)
        norms = np.linalg.norm(federation.updates(model, np.arange(40), 3), axis=1)
        assert federation.all_norms(model, 3) == pytest.approx(norms, rel=1e-3, abs=1e-5)

    def test_loss_weighs_clients_by_size(self, federation):
        model = np.random.default_rng(1).normal(size=federation.initial_model().size)
        assert federation.loss(model) == pytest.approx(
            float(federation.client_weights @ federation.client_losses(model, np.arange(40))), rel=1e-5
        )

    def test_it_can_be_learnt(self, federation):
        model = federation.initial_model()
        for round_index in range(200):
            updates = federation.updates(model, np.arange(40), round_index)
            model = model - 1.0 * federation.client_weights @ updates
        assert federation.loss(model) < 0.5
        assert federation.accuracy(model) > 0.9


class TestGaussianClasses:
    def test_sizes_and_labels(self):
        federation = gaussian_federation(concentration=0.1, tail=1.2, seed=3)
        assert federation.client_sizes.min() >= 10
        assert federation.client_sizes.max() <= 2000
        labels = [len(set(federation.client_labels(client).tolist())) for client in range(100)]
        assert np.mean(labels) < 5

    def test_softmax_gradients_are_those_of_the_loss(self):
        """The mean update over many rounds is the gradient, and finite differences know it too."""
        problem = gaussian_federation(concentration=0.3, tail=3.0, num_clients=5, seed=2)
        model = 0.1 * np.random.default_rng(0).normal(size=len(problem.initial_model()))
        direction = np.random.default_rng(1).normal(size=len(model))
        rounds = 4000
        along = [
            problem.client_weights @ (problem.updates(model, np.arange(5), t) @ direction)
            for t in range(rounds)
        ]
        difference = (problem.loss(model + 1e-5 * direction) - problem.loss(model - 1e-5 * direction)) / 2e-5
        assert abs(np.mean(along) - difference) < 5 * np.std(along) / np.sqrt(rounds)

    def test_local_gradients_at_one_model_are_those_of_updates(self):
        """On the same rows: each client at its own model, which here is the same for all."""
        problem = gaussian_federation(concentration=0.3, tail=1.5, seed=1)
        model = np.random.default_rng(0).normal(size=len(problem.initial_model()))
        clients = np.array([3, 50, 99])
        rows = problem.batch_rows(clients, 5)
        together = problem._gradients(model, clients, rows, None)
        apart = problem._gradients(np.tile(model, (3, 1)), clients, rows, None)
        assert apart == pytest.approx(together)

    def test_accuracy_needs_held_out_data(self):
        problem = gaussian_federation(concentration=0.3, tail=1.5)
        with pytest.raises(ConfigurationError, match="held-out"):
            problem.accuracy(problem.initial_model())
