"""The digits federation: its split, its gradients, and that all of it hangs on the seed."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import ConfigurationError
from sortition.lab.problems import DigitsFederation
from sortition.lab.problems.digits import NUM_IMAGES, skewed_sizes


@pytest.fixture(scope="module")
def federation() -> DigitsFederation:
    return DigitsFederation(num_clients=100, batch_size=5, seed=3)


def some_model(federation: DigitsFederation, seed: int = 0) -> np.ndarray:
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
        federation = DigitsFederation(num_clients=num_clients)
        assert federation.client_sizes.min() >= 1
        assert federation.client_sizes.sum() == len(federation.labels) <= NUM_IMAGES
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
        with pytest.raises(ConfigurationError, match=f"{argument} must .* got {value}"):
            DigitsFederation(**{argument: value})


class TestGradients:
    def test_loss_is_the_mean_cross_entropy(self, federation):
        model = some_model(federation)
        expected = cross_entropy(model, federation._features, federation.labels)
        assert federation.loss(model) == pytest.approx(expected)

    def test_weighted_updates_are_the_gradient_of_the_loss(self):
        """With one image a client the mini-batch is all its data: sum lambda_m g_m = grad F, exactly."""
        federation = DigitsFederation(num_clients=NUM_IMAGES)
        model = some_model(federation)
        gradient = federation.client_weights @ federation.updates(model, np.arange(NUM_IMAGES), 0)
        for seed in range(5):
            direction = some_model(federation, seed=10 + seed)
            assert gradient @ direction == pytest.approx(
                slope(federation.loss, model, direction), rel=1e-6, abs=1e-8
            )

    @pytest.mark.parametrize("size", [1, 5, 30, 100])
    def test_update_is_the_gradient_over_the_mini_batch(self, size):
        """Batches of 8: smaller clients use as many draws as they have images."""
        federation = DigitsFederation(num_clients=100, batch_size=8, seed=3)
        client = int(np.flatnonzero(federation.client_sizes == size)[0])
        batch = federation._batches(4)[client][: min(8, size)]
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
            batches = federation._batches(round_index)
            assert (batches >= first[:, None]).all()
            assert (batches < (first + federation.client_sizes)[:, None]).all()

    def test_batches_reach_every_image_of_a_client(self, federation):
        client = int(np.flatnonzero(federation.client_sizes == 30)[0])
        seen = np.unique([federation._batches(round_index)[client] for round_index in range(200)])
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
        again = DigitsFederation(num_clients=100, batch_size=5, seed=3)
        model = some_model(federation)
        assert again.loss(model) == federation.loss(model)
        assert np.array_equal(again.all_norms(model, 2), federation.all_norms(model, 2))

    def test_seed_and_round_matter(self, federation):
        other = DigitsFederation(num_clients=100, batch_size=5, seed=4)
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
        DigitsFederation(num_clients=10).all_norms(some_model(federation), 0)
        assert np.random.random() == expected
