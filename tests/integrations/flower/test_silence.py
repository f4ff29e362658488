"""Clients that do not reply are named and asked less often; one reply brings them back."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Error, Message, MessageType
from flwr.serverapp.strategy import FedAvg

from sortition import StateError, UniformSampler
from sortition.integrations.flower import AdaptiveSampling
from tests.integrations.flower.fake_grid import (
    CLIENT_APP_RAISED,
    Client,
    federation,
    model,
    one_round,
    weights,
)
from tests.integrations.flower.test_resume import through_a_file


def clients(number, silent, fall=1.0):
    """The first ones do not reply while ``silent(round)``; norms fall by a factor a round."""
    norms = 1.0 + np.arange(number) % 3

    def client(place):
        def train(arrays, server_round):
            return {"w": arrays["w"] + norms[place] * fall**server_round}

        return Client(
            train=train,
            fails=lambda server_round: "times out" if place in silent(server_round) else None,
        )

    return [client(place) for place in range(number)]


def sampling(kind, number, cohort_size):
    if kind == "default":
        return AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=cohort_size)
    sampler = UniformSampler(num_clients=number, cohort_size=cohort_size, design="fixed_size")
    return AdaptiveSampling(FedAvg(fraction_evaluate=0.0), sampler=sampler)


@pytest.mark.parametrize("kind", ["default", "uniform"])
@pytest.mark.parametrize("fall", [0.97, 0.9])
@pytest.mark.parametrize(("number", "cohort_size"), [(12, 3), (100, 10)])
def test_a_client_that_never_replies_costs_few_rounds(kind, fall, number, cohort_size):
    """Three silences, then one after rests of 2, 4, 8, 16 and 32 rounds: at most 11 in 150 rounds."""
    strategy = sampling(kind, number, cohort_size)
    grid = federation(clients(number, lambda server_round: {0}, fall))
    metrics = strategy.start(grid, model(0.0), num_rounds=150).train_metrics_clientapp
    assert 3 <= sum(each["sampling-failures"] > 0 for each in metrics.values()) <= 11
    resting = [each["sampling-resting-clients"] for each in metrics.values()]
    assert set(resting) == {0, 1}
    assert all(
        each["sampling-available-clients"] + each["sampling-resting-clients"] == number
        for each in metrics.values()
    )


def test_it_is_named_when_it_begins_to_rest_and_when_it_is_back(caplog):
    strategy = sampling("uniform", 12, 3)
    grid = federation(clients(12, lambda server_round: {0} if server_round <= 60 else set()))
    with caplog.at_level(logging.INFO, logger="flwr"):
        metrics = strategy.start(grid, model(0.0), num_rounds=150).train_metrics_clientapp
    told = [line for line in caplog.messages if "name:client-0" in line and "not in time" not in line]
    assert [each for each in told if "has sent no usable reply 3 times in a row" in each] == told[:1]
    assert [each for each in told if "has sent a usable reply again" in each] == told[1:]
    assert len(told) == 2
    assert max(each["sampling-resting-clients"] for each in list(metrics.values())[-40:]) == 0
    drawn = [line for line in caplog.messages if line.startswith("aggregate_train: drew")]
    resting = [each["sampling-resting-clients"] for each in metrics.values()]
    for line, number in zip(drawn, resting, strict=True):
        rest = " (1 more rest)" if number else ""
        assert f"drew 3 of {12 - number} clients online{rest}; " in line


def test_two_silences_are_no_reason_to_rest():
    strategy, grid = sampling("uniform", 4, 3), federation(clients(4, lambda server_round: {0, 1, 2, 3}))
    for server_round in (1, 2):
        one_round(strategy, grid, model(0.0), server_round)
    assert strategy.state_dict()["rest"].tolist() == [0, 0, 0, 0]
    one_round(strategy, grid, model(0.0), 3)
    assert set(strategy.state_dict()["rest"]) == {0, 2}


def test_a_cohort_is_filled_even_if_nearly_all_are_silent():
    strategy = sampling("default", 6, 4)
    grid = federation(clients(6, lambda server_round: {0, 1, 2, 3, 4}))
    metrics = strategy.start(grid, model(0.0), num_rounds=60).train_metrics_clientapp
    assert all(each["sampling-distinct-clients"] == 4 for each in metrics.values())
    assert all(each["sampling-replies"] == 1 for each in list(metrics.values())[-20:])


def test_clients_that_rest_do_so_after_a_resume():
    def build():
        return sampling("default", 12, 3)

    whole, saved = build(), {}

    def evaluate(server_round, arrays):
        saved[server_round] = whole.state_dict()

    def grid():
        return federation(clients(12, lambda server_round: {0, 5}))

    expected = whole.start(grid(), model(0.0), num_rounds=60, evaluate_fn=evaluate)
    stop = next(number for number in saved if number > 20 and saved[number]["rest"].max() > 8)
    resumed = build()
    resumed.load_state_dict(through_a_file(saved[stop]))
    result = resumed.start(grid(), model(0.0), num_rounds=60)
    np.testing.assert_array_equal(weights(result.arrays), weights(expected.arrays))
    for name in ("rest", "silent_times"):
        np.testing.assert_array_equal(resumed.state_dict()[name], whole.state_dict()[name])


@pytest.mark.parametrize(("name", "value"), [("rest", 33), ("rest", -1), ("silent_times", -1)])
def test_a_state_with_senseless_rests_is_refused(name, value):
    strategy = sampling("default", 4, 2)
    one_round(strategy, federation(clients(4, lambda server_round: set())), model(0.0))
    with pytest.raises(StateError, match=name):
        sampling("default", 4, 2).load_state_dict({**strategy.state_dict(), name: np.full(4, value)})


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_a_client_that_rests_is_not_asked_to_evaluate(fraction):
    """By default everybody evaluates: without rests, each round would wait until the timeout."""
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=fraction), cohort_size=4)
    grid = federation(clients(8, lambda server_round: {0}))
    result = strategy.start(grid, model(0.0), num_rounds=40)
    asked = [message for message in grid.sent if message.metadata.message_type == MessageType.EVALUATE]
    resting = [each["sampling-resting-clients"] for each in result.train_metrics_clientapp.values()]
    silent = [message for message in asked if message.metadata.dst_node_id == min(grid.nodes)]
    assert len(silent) <= 40 - sum(resting[1:]) <= 24
    assert len(asked) > 0.8 * 40 * int(7 * fraction)


@pytest.mark.parametrize("sampled", [None, 10])
def test_a_client_that_never_evaluates_is_asked_less_often(sampled, caplog):
    """It is rarely drawn to train, and then it replies: training alone does not show that it is silent."""
    several = [Client() for _ in range(20)]
    grid = federation(several)
    handled = grid._handled

    def silent(message, client):
        is_silent = client is several[3] and message.metadata.message_type == MessageType.EVALUATE
        return None if is_silent else handled(message, client)

    grid._handled = silent
    strategy = AdaptiveSampling(FedAvg(), cohort_size=2, evaluate_cohort_size=sampled)
    strategy.start(grid, model(0.0), num_rounds=40)
    node = sorted(grid.nodes)[3]
    asked = [message for message in grid.sent if message.metadata.message_type == MessageType.EVALUATE]
    times = sum(message.metadata.dst_node_id == node for message in asked)
    assert times == 7 if sampled is None else 3 <= times <= 7
    assert caplog.text.count("name:client-3 has not answered 3 times in a row") == 1


def test_an_evaluation_that_raises_an_error_is_an_answer(caplog):
    """As when the ClientApp can't evaluate: nobody rests for it."""
    grid = federation([Client() for _ in range(4)])
    handled = grid._handled

    def fails(message, client):
        if message.metadata.message_type == MessageType.EVALUATE:
            return Message(Error(CLIENT_APP_RAISED, "no evaluate function"), reply_to=message)
        return handled(message, client)

    grid._handled = fails
    AdaptiveSampling(FedAvg(), cohort_size=2).start(grid, model(0.0), num_rounds=5)
    assert "has not answered" not in caplog.text


def test_a_client_that_rests_evaluates_if_inner_needs_it():
    """It would wait for the eighth client for ever."""
    strategy = AdaptiveSampling(FedAvg(min_evaluate_nodes=8), cohort_size=4)
    grid = federation(clients(8, lambda server_round: {0}))
    strategy.start(grid, model(0.0), num_rounds=12)
    asked = [message for message in grid.sent if message.metadata.message_type == MessageType.EVALUATE]
    assert len(asked) == 12 * 8


def test_a_refused_evaluation_is_named_once(caplog):
    several = [Client() for _ in range(4)]
    several[1].extra = {"loss": 10**400}  # no float holds it
    strategy = AdaptiveSampling(FedAvg(), cohort_size=4, evaluate_cohort_size=4)
    result = strategy.start(federation(several), model(0.0), num_rounds=3)
    assert result.evaluate_metrics_clientapp[3]["sampling-failures"] == 1
    assert result.train_metrics_clientapp[3]["loss"] == pytest.approx(1.0)
    assert caplog.text.count("What name:client-1 returned for evaluation counts as no reply") == 1


@pytest.mark.parametrize("loss", [1.7e308, -1.7e308])
def test_means_of_huge_metrics_are_finite(loss):
    several = [Client(extra={"loss": loss}, examples=1.0 + place) for place in range(4)]
    strategy = AdaptiveSampling(FedAvg(), cohort_size=3, evaluate_cohort_size=3)
    result = strategy.start(federation(several), model(0.0), num_rounds=2)
    for metrics in (result.train_metrics_clientapp[2], result.evaluate_metrics_clientapp[2]):
        assert metrics["loss"] == pytest.approx(loss)
