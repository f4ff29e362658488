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
def test_what_is_beyond_belief_counts_like_the_median(number):
    """Also if a tenth of the clients report it; a size that is only too large counts for the bound."""
    honest = [5.0] * (number - number // 10)
    for size in (1e308, 1e7, 501.0):
        assert known([size] * (number // 10) + honest) == [5.0] * number
    assert known([499.0] * (number // 10) + honest) == [50.0] * (number // 10) + honest


@pytest.mark.parametrize(
    ("sizes", "counted"),
    [
        ([1e308] * 4, [LARGEST_SIZE] * 4),
        ([1e308, 3.0], [3.0, 3.0]),
        ([300.0, 3.0], [30.0, 3.0]),
        ([30.0, 3.0], [30.0, 3.0]),
        ([1e308, 0.0, 0.0], [LARGEST_SIZE, 0.0, 0.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e308], [LARGEST_SIZE]),
        ([390.0] + [4.0] * 199, [40.0] + [4.0] * 199),
    ],
)
def test_all_liars_two_clients_zeros_and_a_large_client(sizes, counted):
    assert known(sizes) == counted


@pytest.mark.parametrize("sizes", [[400, 200, 100] + [10] * 17, [5000] * 11 + [20] * 90, [800, 90, 10]])
def test_a_few_large_clients_are_not_bounded(sizes):
    assert known(sizes) == sizes


@pytest.mark.parametrize("number", [5, 10, 30, 100, 1000])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3])
def test_a_power_law_is_not_bounded(exponent, number):
    sizes = np.ceil(1e9 / np.arange(1, number + 1) ** exponent)
    assert known(sizes) == sizes.tolist()


@pytest.mark.parametrize("number", [30, 100, 1000, 10_000])
@pytest.mark.parametrize("deviation", [1.0, 2.0])
def test_log_normal_sizes_are_hardly_bounded(deviation, number):
    """In one of six federations of 30 the largest client counts for a little less; in large ones never."""
    rng = np.random.default_rng(5)
    lost = []
    for _ in range(50):
        sizes = np.exp(deviation * rng.normal(size=number))
        lost.append(1.0 - sum(known(sizes)) / sizes.sum())
    assert np.mean(np.array(lost) > 1e-12) <= (0.2 if number == 30 else 0.04)
    assert np.mean(lost) < 0.06


@pytest.mark.parametrize("deviation", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("number", [30, 1000])
def test_one_liar_never_gets_more_than_two_thirds(number, deviation):
    """Whatever it reports."""
    rng = np.random.default_rng(6)
    honest = np.exp(deviation * rng.normal(size=number - 1))
    for size in np.geomspace(1.0, 1e15, 200):
        counted = known([size, *honest])
        assert counted[0] <= 0.67 * sum(counted)


def test_max_examples_is_the_bound_if_it_is_given():
    assert known([1e308, 3.0, 7.0, 100.0], max_examples=50.0) == [50.0, 3.0, 7.0, 50.0]
    assert known([1e4, 3.0], max_examples=1e6) == [1e4, 3.0]
    for wrong in (0.0, -1.0, float("nan"), "many"):
        with pytest.raises(ConfigurationError, match="max_examples"):
            DataSizes(max_examples=wrong)


def test_a_size_that_was_given_is_not_bounded():
    assert known([1e9, 3.0, 7.0], given={"c0": 1e9}) == [1e9, 3.0, 7.0]
    assert known([1e9, 3.0, 7.0], given={"c0": 1e9}, max_examples=5.0) == [1e9, 3.0, 5.0]


def test_what_a_few_sizes_bound_counts_again_once_more_are_known(caplog):
    """Three first replies say little about a hundred clients: nobody is named for them."""
    record = DataSizes()
    record.join([f"c{place}" for place in range(100)])
    record.record(np.arange(3), np.array([1.0, 2.0, 50.0]), np.ones(3))
    assert record.known(np.arange(3)).tolist() == [1.0, 2.0, 20.0]
    record.record(np.arange(3, 10), np.full(7, 10.0), np.ones(7))
    assert record.known(np.arange(3)).tolist() == [1.0, 2.0, 50.0]
    assert not caplog.text


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
    assert strategy.state_dict()["sizes"][0] == 10.0
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
    state["reported_sizes"][3] = np.inf
    resumed = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=12)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["sizes"][3] == 10.0
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


class Changing(FakeGrid):
    """The last client reports ``changed`` from its third reply on; asked, all tell what they have."""

    changed = 0.0
    replies = 0

    def _handled(self, message, client):
        is_last = message.metadata.message_type == "train" and client is self.nodes[max(self.nodes)][1]
        self.replies += is_last
        client.examples = self.changed if is_last and self.replies > 2 else 5.0
        return super()._handled(message, client)


def changing(changed, asked, memory=False, rounds=40):
    """The size that the last of 12 clients counts for in the end."""
    grid = Changing(
        federation([Client(partition=m if asked else None, tells_size=asked) for m in range(12)]).nodes
    )
    grid.changed = changed
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4, memory=memory)
    result = strategy.start(grid, model(0.0), num_rounds=rounds)
    assert grid.replies > 3
    total = [each["sampling-total-weight"] for each in result.train_metrics_clientapp.values()]
    assert max(total) <= 2.0
    return strategy.state_dict()["sizes"][strategy.identities.index("name:client-11")]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("changed", [1e12, 40.0, 0.0])
def test_what_a_client_told_when_asked_wins_over_its_replies(changed, memory, caplog):
    assert changing(changed, asked=True, memory=memory) == 5.0
    (told,) = [each.getMessage() for each in caplog.records if "when it was asked" in each.getMessage()]
    assert "name:client-11 has told 5 examples" in told
    assert f"reports {changed:g} in its reply" in told
    assert "num_examples={'name:client-11': ...}" in told


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize(
    ("changed", "counted"),
    [(8.0, 8.0), (40.0, 40.0), (60.0, 50.0), (1e12, 5.0), (2.0, 2.0)],
)
def test_sizes_in_replies_may_grow_up_to_the_bound(changed, counted, memory, caplog):
    """A liar gains no more by it than by a lie in its first reply."""
    assert changing(changed, asked=False, memory=memory) == counted
    told = [each.getMessage() for each in caplog.records if "has reported 5 before" in each.getMessage()]
    assert len(told) == (changed > 10.0)
    assert "lowered" not in caplog.text


def test_what_was_told_is_known_after_a_restart():
    clients = [Client(partition=m, tells_size=True, examples=5.0) for m in range(4)]
    grid = federation(clients)
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4)
    one_round(strategy, grid, model(0.0))
    resumed = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4)
    resumed.load_state_dict(strategy.state_dict())
    for client in clients:
        client.examples = 20.0
    one_round(resumed, grid, model(0.0), 2)
    assert resumed.state_dict()["sizes"].tolist() == [5.0] * 4


def test_a_state_of_version_0_2_0_can_be_loaded():
    grid = federation([Client(examples=5.0) for _ in range(4)])
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4)
    one_round(strategy, grid, model(0.0))
    state = strategy.state_dict()
    for name in ("reported_sizes", "answered_sizes", "inner_settings", "memory_kind"):
        del state[name]
    resumed = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["sizes"].tolist() == [5.0] * 4


def test_a_client_that_told_0_counts_once_it_has_data():
    record = DataSizes()
    record.join(["a", "b"], {"a": 0.0, "b": 7.0})
    record.record(np.arange(2), np.array([4.0, 9.0]), np.ones(2))
    assert record.known(np.arange(2)).tolist() == [4.0, 7.0]


@pytest.mark.parametrize("asked", [True, False])
def test_a_reply_without_a_size_is_used_if_the_size_is_known(asked):
    """From the answer to the query, or from the server."""

    class Sizeless(FakeGrid):
        def _handled(self, message, client):
            reply = super()._handled(message, client)
            if message.metadata.message_type == "train":
                del reply.content["metrics"]["num-examples"]
            return reply

    clients = [
        Client(4.0, examples=3.0, partition=0, tells_size=asked),
        Client(0.0, 1.0, partition=1, tells_size=asked),
    ]
    given = None if asked else {"name:client-0": 3.0, "name:client-1": 1.0}
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2, num_examples=given)
    arrays, metrics = one_round(strategy, Sizeless(federation(clients).nodes), model(0.0))
    assert metrics["sampling-refused"] == 0
    assert weights(arrays) == pytest.approx([1.5])  # half of the way to 3
