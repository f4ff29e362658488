"""Who doesn't answer, or answers with nonsense: the round goes on without."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from sortition import UniformSampler
from sortition.integrations.flower import AdaptiveSampling
from tests.integrations.flower.fake_grid import Client, federation, model, weights
from tests.integrations.flower.test_rounds import SIZES, TARGETS, Scripted, adaptive, clients, one_round


@pytest.mark.parametrize("failure", ["raises", "crashes", "times out"])
def test_a_failure_is_no_reply_of_that_client_and_of_nobody_else(failure):
    silent = 2
    failing = [Client(t, s) for t, s in zip(TARGETS, SIZES, strict=True)]
    failing[silent].fails = lambda server_round: failure
    sampler = Scripted(num_clients=4, cohort_size=3).told([0, 2, 3])
    sizes = {f"name:client-{m}": size for m, size in enumerate(SIZES)}
    strategy = adaptive(sampler=sampler, num_examples=sizes)
    arrays, metrics = one_round(strategy, federation(failing), model(0.0))
    assert np.isnan(sampler.heard).tolist() == [False, True, False]
    raised = np.array([1 / 0.3, 1 / 1.2]) * 3 / 2
    expected = np.sum(np.array([1.0, 12.0]) / 20.0 * raised * 0.5 * np.array([4.0, 1.0]))
    assert weights(arrays) == pytest.approx([expected])
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (2, 1)


def test_all_three_failures_at_once():
    kinds = ["raises", "crashes", "times out", None]
    grid = federation(
        [Client(t, s, fails=lambda _, k=k: k) for t, s, k in zip(TARGETS, SIZES, kinds, strict=True)]
    )
    sampler = Scripted(num_clients=4, cohort_size=4).told([0, 1, 2, 3])
    one_round(adaptive(sampler=sampler), grid, model(0.0))
    assert np.isnan(sampler.heard).tolist() == [True, True, True, False]


@pytest.mark.parametrize("inner", [FedAvg, FedAdam, FedAvgM])
def test_a_round_without_a_reply_changes_nothing_and_training_goes_on(inner):
    """Round 3 of four is lost."""

    def lost(server_round):
        return "crashes" if server_round == 3 else None

    grid = federation([Client(t, s, fails=lost) for t, s in zip(TARGETS, SIZES, strict=True)])
    sampler = UniformSampler(num_clients=4, cohort_size=4)
    strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), sampler=sampler)
    arrays = [model(0.0)]
    for server_round in range(1, 5):
        before = sampler.probabilities()
        stepped, metrics = one_round(strategy, grid, arrays[-1], server_round)
        if server_round == 3:
            assert stepped is None
            assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (0, 4)
            np.testing.assert_array_equal(sampler.probabilities(), before)
        else:
            assert not np.array_equal(weights(stepped), weights(arrays[-1]))
            arrays.append(stepped)


def test_the_last_model_is_the_result_even_if_no_round_had_a_reply():
    grid = federation([Client(fails=lambda _: "times out"), Client(fails=lambda _: "raises")])
    result = adaptive(cohort_size=2).start(grid, model(7.0), num_rounds=2)
    assert weights(result.arrays).tolist() == [7.0]
    assert result.train_metrics_clientapp[2]["sampling-failures"] == 2


def test_an_update_that_is_not_finite_is_no_reply():
    clients = [Client(2.0), Client(train=lambda model, _: {"w": model["w"] + np.inf}), Client(4.0)]
    arrays, metrics = one_round(adaptive(cohort_size=3), federation(clients), model(0.0))
    assert np.isfinite(weights(arrays)).all()
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (2, 1)


@pytest.mark.parametrize("counter", [np.nan, np.inf])
def test_an_integer_array_that_comes_back_not_finite_is_no_reply(counter):
    start = ArrayRecord({"w": Array(np.zeros(1)), "batches": Array(np.array([10]))})

    def train(arrays, _):
        return {"w": arrays["w"] + 1.0, "batches": np.array([counter])}

    grid = federation([Client(2.0), Client(train=train), Client(4.0)])
    arrays, metrics = one_round(adaptive(cohort_size=3), grid, start)
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (2, 1)
    assert 0 <= arrays["batches"].numpy()[0] <= 10


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
def test_a_round_in_which_nobody_is_drawn_is_one_without_a_reply(inner, monkeypatch):
    """Independent draws can come out empty; the inner strategy would wait for nodes for ever."""

    def never(seconds):
        raise AssertionError("nothing to wait for")

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", never)
    sampler = UniformSampler(num_clients=4, cohort_size=1, design="independent")
    strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), sampler=sampler)
    result = strategy.start(federation(clients()), model(0.0), num_rounds=20)
    drawn = [each["sampling-distinct-clients"] for each in result.train_metrics_clientapp.values()]
    assert len(drawn) == 20
    assert min(drawn) == 0 < max(drawn)


def test_a_reply_to_no_message_of_the_round_is_ignored():
    """Late replies of round 1, while nobody replies to round 2."""
    silent = [Client(fails=lambda server_round: "times out" if server_round == 2 else None) for _ in range(4)]
    grid, strategy = federation(silent), adaptive(cohort_size=4)
    stale = grid.send_and_receive(strategy.configure_train(1, model(0.0), ConfigRecord(), grid), timeout=1.0)
    assert len(stale) == 4
    messages = strategy.configure_train(2, model(0.0), ConfigRecord(), grid)
    arrays, metrics = strategy.aggregate_train(2, [*stale, *grid.send_and_receive(messages, timeout=1.0)])
    assert arrays is None
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (0, 4)
