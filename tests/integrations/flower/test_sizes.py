"""What a reported number of examples may count for, and how stable a run is while sizes are unknown."""

from __future__ import annotations

import logging
from itertools import combinations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg

from sortition import ConfigurationError, UniformSampler
from sortition.integrations.flower import AdaptiveSampling
from sortition.integrations.flower.sizes import LARGEST_SIZE, DataSizes
from tests.integrations.flower.fake_grid import Client, FakeGrid, federation, model, one_round, weights


def known(sizes, **options):
    """The sizes after all have reported."""
    record = DataSizes(**options)
    names = [f"c{place}" for place in range(len(sizes))]
    record.join(names)
    record.record(np.arange(len(sizes)), np.array(sizes, dtype=float), np.ones(len(sizes)))
    return record.state()["sizes"].tolist()


@pytest.mark.parametrize("number", [10, 1000])
def test_one_liar_counts_for_ten_times_all_others(number):
    assert known([1e308] + [5.0] * (number - 1)) == [50.0 * (number - 1)] + [5.0] * (number - 1)


@pytest.mark.parametrize(
    ("sizes", "counted"),
    [
        ([1e308] * 4, [LARGEST_SIZE] * 4),
        ([1e308, 3.0], [30.0, 3.0]),
        ([30.0, 3.0], [30.0, 3.0]),
        ([1e308, 0.0, 0.0], [LARGEST_SIZE, 0.0, 0.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e308], [LARGEST_SIZE]),
        ([900.0] + [4.0] * 199, [900.0] + [4.0] * 199),
    ],
)
def test_all_liars_two_clients_zeros_and_a_large_client(sizes, counted):
    assert known(sizes) == counted


def test_max_examples_is_the_bound_if_it_is_given():
    assert known([1e308, 3.0, 7.0, 100.0], max_examples=50.0) == [50.0, 3.0, 7.0, 50.0]
    assert known([1e4, 3.0], max_examples=1e6) == [1e4, 3.0]
    for wrong in (0.0, -1.0, float("nan"), "many"):
        with pytest.raises(ConfigurationError, match="max_examples"):
            DataSizes(max_examples=wrong)


def test_a_size_that_was_given_is_not_bounded():
    assert known([1e9, 3.0, 7.0], given={"c0": 1e9}) == [1e9, 3.0, 7.0]
    assert known([1e9, 3.0, 7.0], given={"c0": 1e9}, max_examples=5.0) == [1e9, 3.0, 5.0]


def test_few_sizes_are_compared_only_if_they_are_all():
    """The first replies of many clients say little about the others."""
    record = DataSizes()
    record.join([f"c{place}" for place in range(100)])
    record.record(np.arange(3), np.array([1.0, 1.0, 5000.0]), np.ones(3))
    assert record.state()["sizes"][:3].tolist() == [1.0, 1.0, 5000.0]
    record.record(np.arange(3, 10), np.ones(7), np.ones(7))
    assert record.state()["sizes"][2] == 10 * 99.0  # as if the 90 others were like those that are known


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("number", [2, 12])
def test_a_liar_is_named_once_and_the_model_stays_finite(number, asked, caplog):
    """Whether it lies when it is asked, before the first round, or in its replies."""

    def client(place):
        size = 1e308 if place == 0 else 10.0
        return Client(target=4.0, examples=size, partition=place if asked else None, tells_size=asked)

    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2)
    grid = federation([client(place) for place in range(number)])
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = strategy.start(grid, model(0.0), num_rounds=30)
    told = [each.getMessage() for each in caplog.records if "name:client-0" in each.getMessage()]
    assert len(told) == 1
    assert "reports 1e+308 examples" in told[0]
    assert "num_examples={'name:client-0': ...}" in told[0]
    assert weights(result.arrays) == pytest.approx([4.0], abs=1e-3)
    assert strategy.state_dict()["sizes"][0] == 100.0 * (number - 1)
    if asked:
        assert all(
            each["sampling-total-weight"] <= 1.0 + 9.0 / np.sqrt(2.0) + 1e-9
            for each in result.train_metrics_clientapp.values()
        )


def test_sizes_of_a_resumed_state_are_bounded_as_well():
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=12)
    grid = federation([Client(examples=10.0) for _ in range(12)])
    one_round(strategy, grid, model(0.0))
    state = strategy.state_dict()
    state["sizes"][3] = np.inf
    resumed = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=12)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["sizes"][3] == 1100.0
    limited = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=12, max_examples=4.0)
    limited.load_state_dict(state)
    assert limited.state_dict()["sizes"].tolist() == [4.0] * 12


def test_names_that_match_nobody_are_told(caplog):
    grid = federation([Client() for _ in range(3)])
    sizes = {"name:client-0": 3.0, "client-1": 5.0, "name:client-9": 2.0}
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2, num_examples=sizes)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in (1, 2):
            one_round(strategy, grid, model(0.0), server_round)
    (told,) = [each.getMessage() for each in caplog.records if "num_examples" in each.getMessage()]
    assert "client-1, name:client-9" in told
    assert "name:client-0, name:client-1, name:client-2" in told  # those who are online


# Steps while sizes are unknown, and steps that are too long


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize("memory", [False, True])
def test_meeting_a_large_client_does_not_make_a_long_step(inner, memory):
    """200 clients, one of 900 examples, the others of 4: FedAvg never leaves the range of the targets."""
    clients = [
        Client(target=float(place % 2), examples=900.0 if place == 60 else 4.0) for place in range(200)
    ]
    strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), cohort_size=10, memory=memory)
    seen = []
    result = strategy.start(
        federation(clients), model(0.5), num_rounds=30, evaluate_fn=lambda _, arrays: seen.append(arrays)
    )
    total = [each["sampling-total-weight"] for each in result.train_metrics_clientapp.values()]
    assert total == pytest.approx([1.0] * 30)  # nobody has met all clients
    if inner is FedAvg and not memory:
        assert all(0.0 <= weights(arrays)[0] <= 1.0 for arrays in seen)
    assert all(-2.0 <= weights(arrays)[0] <= 3.0 for arrays in seen)


class Told(UniformSampler):
    """Draws the clients that it is told to, as if uniformly."""

    def draw(self, available=None):
        cohort = super().draw(available)
        object.__setattr__(cohort, "clients", np.array(self.told))
        return cohort

    def observe(self, cohort, norms):
        """It learns nothing."""


def test_the_bias_of_the_weighted_mean_is_that_of_a_ratio():
    """To second order it is the covariance of the sum of weights with what it divides."""
    sizes, targets = np.array([12.0, 9.0, 10.0, 11.0, 8.0, 10.0]), np.array([2.0, 1.0, 0.0, 3.0, -1.0, 1.0])
    steps = []
    for told in combinations(range(6), 3):
        sampler = Told(num_clients=6, cohort_size=3, design="fixed_size")
        sampler.told = told
        strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), sampler=sampler)
        grid = federation([Client(t, s) for t, s in zip(targets, sizes, strict=True)])
        steps.append(weights(one_round(strategy, grid, model(0.0))[0])[0])
    mean = np.average(targets, weights=sizes) / 2
    drawn = np.array(list(combinations(range(6), 3)))
    numerator, denominator = (sizes * targets / 2)[drawn].sum(axis=1), sizes[drawn].sum(axis=1)
    second_order = -np.cov(numerator - mean * denominator, denominator, bias=True)[0, 1]
    expected = second_order / denominator.mean() ** 2
    assert np.mean(steps) - mean == pytest.approx(expected, rel=0.1)
    assert abs(expected) > 1e-3


def test_a_step_counts_for_a_few_times_all_clients_at_most(caplog):
    """Nine of ten examples are with one client, which is drawn in one round of ten."""
    clients = [Client(1.0, 90.0 if place == 0 else 10.0 / 39.0) for place in range(40)]
    sizes = {f"name:client-{place}": client.examples for place, client in enumerate(clients)}
    sampler = UniformSampler(num_clients=40, cohort_size=4, design="fixed_size")
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), sampler=sampler, num_examples=sizes)
    seen = set()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in range(1, 61):
            arrays, metrics = one_round(strategy, federation(clients), model(0.0), server_round)
            assert weights(arrays)[0] == pytest.approx(0.5 * metrics["sampling-total-weight"])
            seen.add(round(metrics["sampling-total-weight"], 6))
    assert seen == {round(4 * 10.0 * 0.1 / 39.0, 6), 5.5}  # four small ones; 1 + 9 / 2
    (told,) = [each.getMessage() for each in caplog.records if "lowered to 5.5 times" in each.getMessage()]
    assert "would count 9.1 times" in told
    assert "cohort_size" in told


@pytest.mark.parametrize("cohort_size", [1, 3, 10])
@pytest.mark.parametrize("norms", ["equal", "unequal", "large clients have small ones"])
def test_the_default_sampler_never_needs_that_bound_in_an_honest_run(norms, cohort_size):
    rng = np.random.default_rng(4)
    sizes = np.ceil(np.exp(2.0 * rng.normal(size=60)) * 20)
    lengths = {
        "equal": np.ones(60),
        "unequal": np.exp(2.0 * rng.normal(size=60)),
        "large clients have small ones": np.where(sizes > np.quantile(sizes, 0.9), 0.01, 1.0),
    }[norms]
    trains = [lambda arrays, _, s=s: {"w": arrays["w"] + s} for s in lengths]
    clients = [Client(examples=size, train=train) for size, train in zip(sizes, trains, strict=True)]
    given = {f"name:client-{place}": float(size) for place, size in enumerate(sizes)}
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=cohort_size, num_examples=given)
    result = strategy.start(federation(clients), model(0.0), num_rounds=60)
    largest = max(each["sampling-total-weight"] for each in result.train_metrics_clientapp.values())
    assert largest < 0.9 * (1 + 9 / np.sqrt(cohort_size))


@pytest.mark.parametrize("memory", [False, True])
def test_another_size_than_before_counts_from_the_next_round_on(memory, caplog):
    """The last of 12 tells 5 examples when asked, and a million million in its replies."""

    class Lying(FakeGrid):
        def _handled(self, message, client):
            client.examples = 5.0
            if message.metadata.message_type == "train" and client.partition == 11:
                client.examples = 1e12
            return super()._handled(message, client)

    nodes = federation([Client(partition=place, tells_size=True) for place in range(12)]).nodes
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4, memory=memory)
    grid, liar, total = Lying(nodes), max(nodes), []
    while liar not in {message.metadata.dst_node_id for message in grid.sent}:
        _, metrics = one_round(strategy, grid, model(0.0), len(total) + 1)
        total.append(metrics["sampling-total-weight"])
    assert total == pytest.approx([1.0] * len(total), abs=0.5)
    assert strategy.state_dict()["sizes"][strategy.identities.index("name:client-11")] == 550.0
    for server_round in range(len(total) + 1, len(total) + 20):  # the sampler knows of it
        _, metrics = one_round(strategy, grid, model(0.0), server_round)
        assert metrics["sampling-total-weight"] <= 2.0
    assert "counted with 550: 10 times what all others have together. If" in caplog.text
    assert "lowered" not in caplog.text
