"""With ``memory=True``: exact whatever is remembered, to the bit after a crash, and less noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from sortition import ConfigurationError, StateError, UniformSampler
from sortition.core.cohort import Cohort
from sortition.core.designs import DESIGNS
from sortition.integrations.flower import AdaptiveSampling
from sortition.integrations.flower.model_memory import ClientUpdate, ModelMemory
from tests.helpers import cohorts
from tests.integrations.flower.fake_grid import Client, federation, model, one_round, weights
from tests.integrations.flower.test_ledger import CrashError
from tests.integrations.flower.test_ledger import start as start_with_ledger
from tests.integrations.flower.test_resume import INNER, ROUNDS, run, through_a_file

SIZES = np.array([1.0, 5.0, 2.0, 12.0, 7.0])
P = np.array([0.1, 0.2, 0.3, 0.4])
START = np.array([0.5, 3.0])


class Scripted(UniformSampler):
    """Draws the cohort that it is told to."""

    told: Cohort
    drawn = 0

    def draw(self, available=None):
        self.drawn += 1
        return replace(self.told, round_index=self.drawn, available=available)

    def observe(self, cohort, norms):
        self.heard = np.asarray(norms)


def drift(m, server_round):
    """The update of client m: it changes from round to round, but not altogether."""
    return np.array(
        [m - 1.5 + 0.3 * np.sin(5.0 * m * server_round), 2.0 - m + 0.2 * np.cos(m + server_round)]
    )


def clients(count=5, lost=lambda m, server_round: None):
    def client(m):
        return Client(
            examples=float(SIZES[m]),
            train=lambda arrays, server_round: {"w": arrays["w"] + drift(m, server_round)},
            fails=lambda server_round: lost(m, server_round),
        )

    return [client(m) for m in range(count)]


def certain(*drawn):
    """A cohort of these clients, with weights that mean nothing: they only fill the memory."""
    ones = np.ones(len(drawn))
    return Cohort(0, len(drawn), drawn, ones, ones, 1.5 * ones)


def filled(grid, rounds=((0, 1, 2, 3, 4), (0, 3, 4), (1, 2), (0, 2)), inner=None):
    """A strategy that has heard of some clients more often than of others."""
    sampler = Scripted(num_clients=len(grid.nodes), cohort_size=2)
    strategy = AdaptiveSampling(inner or FedAvg(fraction_evaluate=0.0), sampler=sampler, memory=True)
    arrays = model(*START)
    for server_round, drawn in enumerate(rounds, start=1):
        sampler.told = certain(*drawn)
        one_round(strategy, grid, arrays, server_round)
    return strategy, sampler


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("design", DESIGNS)
def test_the_step_is_unbiased_over_every_cohort_whatever_is_remembered(design, leaves):
    """The mean over every cohort of K = 2 is the step of all clients; one offline counts b times, by y."""
    sizes, chances = (SIZES[:4], P) if leaves else (SIZES, np.append(0.8 * P, 0.2))
    mean, used = np.zeros(2), []
    for probability, cohort in cohorts(design, chances, 2):
        grid = federation(clients())
        strategy, sampler = filled(grid)
        if leaves:
            del grid.nodes[max(grid.nodes)]
        sampler.told = cohort
        stepped, metrics = one_round(strategy, grid, model(*START), 5)
        used.append(metrics["sampling-memory-coefficient"])
        mean += probability * (weights(stepped) - START)
    assert 0.2 < used[0] == max(used) == min(used) < 1.0
    everybody, examples = sum(size * drift(m, 5) for m, size in enumerate(sizes)), sizes.sum()
    if leaves:
        remembered = strategy._memory._memory.remembered(4)  # times its size; float32
        everybody, examples = everybody + used[0] * remembered, examples + used[0] * SIZES[4]
    np.testing.assert_allclose(mean, everybody / examples, rtol=1e-9)


def test_the_examples_of_a_client_offline_are_those_in_what_is_remembered():
    """Client 1 has 4 examples and then 12; its y moves half of the way, and so do its examples: 8."""
    memory = ModelMemory(10**6)
    memory.make_room({"w": np.zeros(2)}, num_clients=2)
    for turn, size in enumerate((4.0, 12.0)):
        cohort = Cohort(turn, 2, [0, 1], *np.ones((3, 2)))
        updates = [ClientUpdate(np.ones(2), each, None) for each in (3.0, size)]
        memory = memory.combine(cohort, updates).memory
    alone = Cohort(2, 1, [0], [1], [0.5], [2.0], available=[0])
    state = memory.state()
    for one in (memory, ModelMemory(10**6).restored(state)):
        combined = one.combine(alone, [ClientUpdate(np.ones(2), 3.0, None)])
        b = combined.coefficient
        assert b > 0.5
        assert combined.offline_examples == pytest.approx(8.0 * b)
        assert combined.aggregate == pytest.approx(np.full(2, b * (3.0 + 8.0) + 2.0 * (3.0 - 3.0 * b)))
    (name,) = (name for name in state if name.endswith("examples"))
    for wrong in (np.array([3.0]), np.array([3.0, np.nan]), np.array([3.0, -1.0])):
        with pytest.raises(StateError, match="examples"):
            ModelMemory(10**6).restored({**state, name: wrong})


def test_it_is_unbiased_too_if_clients_have_more_examples_than_before():
    """The sizes that count are those known before the draw, as it is without a memory."""
    mean, more = np.zeros(2), SIZES + np.array([3.0, 0.0, 9.0, 1.0, 4.0])
    for probability, cohort in cohorts("fixed_size", np.append(0.8 * P, 0.2), 2):
        grid = federation(clients())
        strategy, sampler = filled(grid)
        for (_, client), size in zip(grid.nodes.values(), more, strict=True):
            client.examples = float(size)
        sampler.told = cohort
        mean += probability * (weights(one_round(strategy, grid, model(*START), 5)[0]) - START)
    everybody = sum(size * drift(m, 5) for m, size in enumerate(SIZES)) / SIZES.sum()
    np.testing.assert_allclose(mean, everybody, rtol=1e-9)


def test_the_sampler_hears_the_norms_of_the_residuals():
    grid = federation(clients())
    strategy, sampler = filled(grid, rounds=((0, 1, 2, 3, 4), (1, 2), (1, 2)))
    sampler.told = certain(1, 4)
    _, metrics = one_round(strategy, grid, model(*START), 4)
    b = metrics["sampling-memory-coefficient"]
    y1, y4 = drift(1, 1), drift(4, 1)
    for server_round in (2, 3):
        y1 = y1 + 0.5 * (drift(1, server_round) - y1)
    expected = [np.linalg.norm(drift(1, 4) - b * y1) * 5.0, np.linalg.norm(drift(4, 4) - b * y4) * 7.0]
    np.testing.assert_allclose(sampler.heard, np.array(expected) / SIZES.sum() * 5, rtol=1e-6)


def test_updates_that_stay_the_same_make_the_step_of_everybody():
    """The noise is gone once all have replied: 30 clients, 5 a round."""
    many = [
        Client(train=lambda arrays, _, m=m: {"w": arrays["w"] + np.sin(m + np.arange(2))}) for m in range(30)
    ]
    everybody = np.mean([np.sin(m + np.arange(2)) for m in range(30)], axis=0)

    def error(memory):
        strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=5, memory=memory)
        seen = [START]
        strategy.start(
            federation(many), model(*START), 80, evaluate_fn=lambda _, arrays: seen.append(weights(arrays))
        )
        return np.abs(np.diff(seen, axis=0)[-10:] - everybody).max()

    assert error(memory=True) < 1e-5 < 0.05 < error(memory=False)


@pytest.mark.parametrize("inner", [FedAvg, FedAdam, FedAvgM])
def test_the_first_round_is_that_without_a_memory_and_others_work_too(inner):
    """Nothing is remembered yet. Then with newcomers, and K distinct clients a round."""
    firsts = []
    for memory in (False, True):
        grid = federation(clients(4))
        strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), cohort_size=2, memory=memory)
        arrays, metrics = one_round(strategy, grid, model(*START))
        firsts.append(weights(arrays))
        grid.nodes[9999] = federation(clients(), first_node=9999 - 28).nodes[9999]  # a fifth client
        for server_round in range(2, 12):
            arrays, metrics = one_round(strategy, grid, arrays, server_round)
            assert metrics["sampling-distinct-clients"] == 2
        assert np.isfinite(weights(arrays)).all()
        assert ("sampling-memory-bytes" in metrics) == memory
    np.testing.assert_allclose(firsts[1], firsts[0], rtol=1e-14)
    assert metrics["sampling-memory-bytes"] == 5 * 2 * 4
    assert 0.0 < metrics["sampling-memory-coefficient"] <= 1.0


# Failures


def test_a_client_that_does_not_reply_stays_remembered_and_counts_by_its_memory():
    grid = federation(clients(lost=lambda m, t: "crashes" if (m, t) == (3, 5) else None))
    strategy, sampler = filled(grid)
    before = {m: strategy._memory._memory.remembered(m) for m in range(5)}
    sampler.told = certain(1, 3)
    stepped, metrics = one_round(strategy, grid, model(*START), 5)
    b = metrics["sampling-memory-coefficient"]
    expected = b * sum(before.values()) + 2 * 1.5 * (5.0 * drift(1, 5) - b * before[1])
    np.testing.assert_allclose(weights(stepped) - START, expected / SIZES.sum(), rtol=1e-9)
    assert np.isnan(sampler.heard).tolist() == [False, True]
    np.testing.assert_array_equal(strategy._memory._memory.remembered(3), before[3])


def test_a_round_without_a_reply_leaves_the_memory_as_it_is():
    grid = federation(clients(lost=lambda m, t: "times out" if t == 5 else None))
    strategy, sampler = filled(grid)
    before = strategy.state_dict()
    sampler.told = certain(0, 4)
    stepped, metrics = one_round(strategy, grid, model(*START), 5)
    assert stepped is None
    assert metrics["sampling-memory-coefficient"] == 0.0
    after = strategy.state_dict()
    for name in (name for name in before if name.startswith("memory.")):
        np.testing.assert_array_equal(after[name], before[name])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e300])
def test_an_update_that_is_not_finite_is_not_remembered(wrong):
    bad = Client(train=lambda arrays, _: {"w": arrays["w"] + wrong}, examples=1e9)
    grid = federation([*clients(4), bad])
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=5, memory=True)
    arrays, metrics = one_round(strategy, grid, model(*START))
    assert metrics["sampling-failures"] == 1
    assert metrics["sampling-memory-bytes"] == 4 * 2 * 4
    assert np.isfinite(weights(arrays)).all()


# Which arrays


def test_buffers_of_batch_normalisation_and_integers_are_aggregated_as_without_a_memory():
    start = {
        "conv.weight": np.zeros((2, 3), dtype=np.float32),
        "bn.weight": np.ones(2),
        "bn.running_mean": np.zeros(2),
        "bn.running_var": np.ones(2),
        "bn.num_batches_tracked": np.array(10),
        "mask": np.array([True, False]),
    }

    def train(m):
        moved = np.float32(m + 1)
        return lambda arrays, t: {
            key: (array + moved * (1 + (t % 2) * (key[0] == "b"))).astype(array.dtype)
            if array.dtype.kind != "b"
            else array
            for key, array in arrays.items()
        }

    results = []
    for memory in (True, False):
        sampler = Scripted(num_clients=3, cohort_size=2)
        strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), sampler=sampler, memory=memory)
        grid = federation([Client(train=train(m)) for m in range(3)])
        arrays = ArrayRecord({key: Array(value) for key, value in start.items()})
        for server_round, drawn in enumerate([(0, 1, 2), (0, 1), (0, 1), (1, 2)], start=1):
            sampler.told = certain(*drawn)
            arrays, _ = one_round(strategy, grid, arrays, server_round)
        results.append({key: array.numpy() for key, array in arrays.items()})
    assert {key: value.dtype for key, value in results[0].items()} == {k: v.dtype for k, v in start.items()}
    for key in ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked", "mask"):
        np.testing.assert_array_equal(results[0][key], results[1][key])
    for key in ("conv.weight", "bn.weight"):
        assert not np.allclose(results[0][key], results[1][key])
    state = AdaptiveSampling(FedAvg(), cohort_size=2, memory=True)
    one_round(state, federation([Client(train=train(m)) for m in range(3)]), arrays)
    assert state.state_dict()["memory.num_parameters"] == 8


# Stopping and resuming


@pytest.mark.parametrize("name", ["FedAvg", "FedAdam", "FedAvgM"])
@pytest.mark.parametrize("when", ["between", "within"])
def test_a_run_that_crashed_goes_on_to_the_bit(tmp_path, name, when):
    _, whole = start_with_ledger(tmp_path / "whole.db", name, memory=True)
    last = whole.train_metrics_clientapp[ROUNDS]
    assert last["sampling-memory-coefficient"] > 0.0
    for crash_at in range(1, ROUNDS + 1):
        path = tmp_path / f"{crash_at}.db"
        with pytest.raises(CrashError):
            start_with_ledger(path, name, crash_at, when, memory=True)
        _, result = start_with_ledger(path, name, memory=True)
        np.testing.assert_array_equal(weights(result.arrays), weights(whole.arrays))
        if result.train_metrics_clientapp:
            assert dict(result.train_metrics_clientapp[ROUNDS]) == dict(last)


@pytest.mark.parametrize("lost_round", [0, 3])
def test_resumed_from_a_state_it_goes_on_to_the_bit(lost_round):
    def build():
        return AdaptiveSampling(INNER["FedAdam"](), cohort_size=4, seed=5, memory=True)

    unbroken: dict = {}
    whole = run(build(), evaluated=unbroken, lost_round=lost_round)
    for stop in range(1, ROUNDS):
        resumed = build()
        resumed.load_state_dict(through_a_file(unbroken[stop][1]))
        result = run(resumed, first_node=5000 + stop, lost_round=lost_round)
        np.testing.assert_array_equal(weights(result.arrays), weights(whole.arrays))


def test_a_memory_may_begin_or_end_with_a_resumed_run():
    for before, after in ((False, True), (True, False)):
        strategy = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4, memory=before)
        run(strategy, 3)
        resumed = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4, memory=after)
        resumed.load_state_dict(strategy.state_dict())
        metrics = run(resumed).train_metrics_clientapp
        assert ("sampling-memory-bytes" in metrics[4]) == after
        if after:
            assert metrics[4]["sampling-memory-coefficient"] == 0.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"memory.sum": np.zeros(1)}, "sum"),
        ({"memory.kind": "Notes"}, "kind"),
        ({"memory.num_parameters": -1}, "num_parameters"),
        ({"memory.num_parameters": 0}, "parameters"),
    ],
)
def test_a_state_whose_memory_does_not_fit_is_refused(change, named):
    strategy = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4, memory=True)
    run(strategy, 2)
    fresh = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4, memory=True)
    with pytest.raises(StateError, match=named):
        fresh.load_state_dict({**strategy.state_dict(), **change})
    assert fresh.identities == ()


# What is refused


def test_too_many_bytes_are_an_error_with_the_figure_before_anything_is_drawn(tmp_path):
    strategy = AdaptiveSampling(
        FedAvg(), cohort_size=2, memory=True, memory_bytes=39, ledger=tmp_path / "run.db"
    )
    grid = federation(clients())
    with pytest.raises(ConfigurationError, match=r"memory_bytes is 39, .* 40 bytes"):
        strategy.configure_train(1, model(*START), ConfigRecord(), grid)
    assert not grid.sent
    assert not (tmp_path / "run.db").exists()


def test_clients_that_join_when_there_is_no_room_are_not_remembered():
    grid = federation(clients(4))
    strategy = AdaptiveSampling(
        FedAvg(fraction_evaluate=0.0), cohort_size=5, memory=True, memory_bytes=4 * 2 * 4
    )
    one_round(strategy, grid, model(*START))
    grid.nodes[9999] = federation(clients(), first_node=9999 - 28).nodes[9999]
    for server_round in (2, 3):
        _, metrics = one_round(strategy, grid, model(*START), server_round)
        assert metrics["sampling-replies"] == 5
        assert metrics["sampling-memory-bytes"] == 4 * 2 * 4


def test_settings_and_models_that_make_no_sense():
    with pytest.raises(ConfigurationError, match="memory"):
        AdaptiveSampling(FedAvg(), cohort_size=2, memory="yes")
    with pytest.raises(ConfigurationError, match="memory_bytes"):
        AdaptiveSampling(FedAvg(), cohort_size=2, memory=True, memory_bytes=0)
    strategy = AdaptiveSampling(FedAvg(), cohort_size=2, memory=True)
    grid = federation([Client(), Client()])
    buffers = ArrayRecord({"running_mean": Array(np.zeros(2)), "steps": Array(np.array(1))})
    with pytest.raises(ConfigurationError, match="initial_arrays"):
        one_round(strategy, grid, buffers)
    one_round(strategy, grid, model(1.0))
    with pytest.raises(ConfigurationError, match="initial_arrays"):
        one_round(strategy, grid, model(1.0, 2.0))
