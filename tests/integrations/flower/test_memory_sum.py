"""With ``memory="clients"``: as with a memory on the server, and what is lost on a client does no harm."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

from sortition import ConfigurationError, StateError, UniformSampler
from sortition.core.designs import DESIGNS
from sortition.integrations.flower import AdaptiveSampling
from sortition.integrations.flower.memory_sum import RECORD
from tests.helpers import cohorts
from tests.integrations.flower.fake_grid import empty_context, federation, model, one_round, round_of, weights
from tests.integrations.flower.test_ledger import CrashError
from tests.integrations.flower.test_model_memory import (
    SIZES,
    START,
    P,
    Scripted,
    certain,
    clients,
    drift,
)
from tests.integrations.flower.test_resume import INNER, ROUNDS, through_a_file
from tests.integrations.flower.test_resume import clients as drifting_clients

FILLING = ((0, 1, 2, 3, 4), (0, 3, 4), (1, 2), (0, 2))
EVERYBODY = sum(size * drift(m, 5) for m, size in enumerate(SIZES)) / SIZES.sum()
ALL_P = np.append(0.8 * P, 0.2)


def holding(several):
    """The same clients, with the mod."""
    several = list(several)
    for client in several:
        client.context = empty_context()
    return several


def client(grid, m):
    return list(grid.nodes.values())[m][1]


def filled(grid, rounds=FILLING, **options):
    """A strategy whose clients hold something, some more of it than others."""
    sampler = Scripted(num_clients=len(grid.nodes), cohort_size=2)
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), sampler=sampler, memory="clients", **options)
    for server_round, drawn in enumerate(rounds, start=1):
        sampler.told = certain(*drawn)
        one_round(strategy, grid, model(*START), server_round)
    return strategy, sampler


def held(m, rounds=FILLING):
    """What client m holds after these rounds."""
    y = None
    for server_round, drawn in enumerate(rounds, start=1):
        if m in drawn:
            y = drift(m, server_round) if y is None else y + 0.5 * (drift(m, server_round) - y)
    return y


def mean_step(disturb, design="fixed_size", rounds=FILLING, chances=ALL_P):
    """The mean step of the next round over every cohort of two, and b of each; ``disturb`` comes before."""
    mean, used = np.zeros(2), []
    for probability, cohort in cohorts(design, chances, 2):
        grid = federation(holding(clients()))
        strategy, sampler = filled(grid, rounds)
        disturb(grid)
        sampler.told = cohort
        stepped, metrics = one_round(strategy, grid, model(*START), len(rounds) + 1)
        used.append(metrics["sampling-memory-coefficient"])
        mean += probability * (weights(stepped) - START)
    return mean, used


@pytest.mark.parametrize("design", DESIGNS)
def test_the_step_is_unbiased_over_every_cohort_whatever_the_clients_hold(design):
    mean, used = mean_step(lambda grid: None, design)
    assert 0.2 < used[0] == max(used) == min(used) < 1.0
    np.testing.assert_allclose(mean, EVERYBODY, rtol=1e-6)


class Listening(UniformSampler):
    """Draws the same clients whatever it hears."""

    def observe(self, cohort, norms):
        self.heard = np.nan_to_num(norms, nan=-1.0)
        super().observe(cohort, norms)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize("lost", [lambda m, t: None, lambda m, t: "crashes" if (m + t) % 5 == 0 else None])
def test_it_does_what_a_memory_on_the_server_does(inner, lost, design):
    """Models, b and norms are equal to the rounding of float32 in every round, while all are online."""
    runs = []
    for memory in (True, "clients"):
        sampler = Listening(num_clients=5, cohort_size=2, design=design, seed=3)
        strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), sampler=sampler, memory=memory)
        grid, arrays, seen = federation(holding(clients(lost=lost))), model(*START), []
        for server_round in range(1, 26):
            stepped, metrics = one_round(strategy, grid, arrays, server_round)
            arrays = arrays if stepped is None else stepped
            seen += [*weights(arrays), metrics["sampling-memory-coefficient"], *sampler.heard]
            assert metrics["sampling-memory-lost"] == metrics["sampling-resting-clients"] == 0
        runs.append(seen)
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-5, atol=1e-6)
    assert strategy._memory.coefficient > 0.2
    assert metrics["sampling-memory-bytes"] == 2 * 8


def test_sizes_may_change():
    """What is in the sum was multiplied by the old size, and is taken out with it."""
    mean, more = np.zeros(2), SIZES + np.array([3.0, 0.0, 9.0, 1.0, 4.0])
    for probability, cohort in cohorts("fixed_size", ALL_P, 2):
        grid = federation(holding(clients()))
        strategy, sampler = filled(grid)
        for m, size in enumerate(more):
            client(grid, m).examples = float(size)
        sampler.told = certain(0, 1, 2, 3, 4)  # all tell their new size, which counts from the next round on
        one_round(strategy, grid, model(*START), 5)
        sampler.told = cohort
        mean += probability * (weights(one_round(strategy, grid, model(*START), 6)[0]) - START)
    expected = sum(size * drift(m, 6) for m, size in enumerate(more)) / more.sum()
    np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_a_client_that_is_offline_counts_b_times_by_what_it_holds():
    """The mean over every cohort of the other four."""
    mean, used = mean_step(lambda grid: grid.nodes.pop(max(grid.nodes)), chances=P)
    b = used[0]
    online = sum(size * drift(m, 5) for m, size in enumerate(SIZES[:4]))
    expected = (online + b * SIZES[4] * held(4)) / (SIZES[:4].sum() + b * SIZES[4])
    np.testing.assert_allclose(mean, expected, rtol=1e-6)


# What is lost on a client


def start_anew(*lost):
    def restart(grid):
        for m in lost:
            client(grid, m).context = empty_context()

    return restart


@pytest.mark.parametrize("design", DESIGNS)
def test_if_all_clients_were_started_anew_the_step_is_unbiased_at_once(design):
    """As after a new ``flwr run``. Nobody is drawn by some cohorts of the independent design."""
    mean, used = mean_step(start_anew(*range(5)), design)
    drawn_none = 0.0
    if design == "independent":
        drawn_none = sum(p for p, cohort in cohorts(design, ALL_P, 2) if not len(cohort))
        total = sum(size * held(m) for m, size in enumerate(SIZES)) / SIZES.sum()
        mean = mean - drawn_none * max(used) * total
    assert drawn_none or max(used) == 0.0
    np.testing.assert_allclose(mean, EVERYBODY, rtol=1e-6)


def test_until_a_client_started_anew_is_drawn_the_step_has_b_times_its_part_too_much():
    """Exactly so for independent draws, in the rounds that do not draw it: the others are plain."""
    mean, used = mean_step(start_anew(1), "independent")
    included = sum(p for p, cohort in cohorts("independent", ALL_P, 2) if 1 in cohort.clients)
    assert 0.0 < included < 1.0
    bias = (1.0 - included) * max(used) * SIZES[1] * held(1) / SIZES.sum()
    np.testing.assert_allclose(mean, EVERYBODY + bias, rtol=1e-6)


def test_a_client_started_anew_makes_the_memory_begin_anew_and_all_is_unbiased_again():
    grid = federation(holding(clients()))
    strategy, sampler = filled(grid)
    start_anew(1)(grid)
    sampler.told = certain(1, 3)
    stepped, metrics = one_round(strategy, grid, model(*START), 5)
    assert metrics["sampling-memory-lost"] == 1
    assert metrics["sampling-memory-coefficient"] == 0.0  # the round itself is the plain one
    plain = 1.5 * (SIZES[1] * drift(1, 5) + SIZES[3] * drift(3, 5)) / SIZES.sum()
    np.testing.assert_allclose(weights(stepped) - START, plain, rtol=1e-9)
    y3 = held(3) + 0.5 * (drift(3, 5) - held(3))
    total = SIZES[1] * drift(1, 5) + SIZES[3] * y3  # of the others nothing is left
    np.testing.assert_allclose(strategy.state_dict()["client_memory.sum"], total, rtol=1e-6)

    mean = np.zeros(2)
    for probability, cohort in cohorts("fixed_size", ALL_P, 2):
        grid = federation(holding(clients()))
        strategy, sampler = filled(grid)
        start_anew(1)(grid)
        sampler.told = certain(1, 3)
        one_round(strategy, grid, model(*START), 5)
        sampler.told = cohort
        stepped, metrics = one_round(strategy, grid, model(*START), 6)
        assert metrics["sampling-memory-lost"] == 0
        assert metrics["sampling-memory-coefficient"] > 0.2
        mean += probability * (weights(stepped) - START)
    everybody = sum(size * drift(m, 6) for m, size in enumerate(SIZES)) / SIZES.sum()
    np.testing.assert_allclose(mean, everybody, rtol=1e-6)


@pytest.mark.parametrize("how", ["reply is lost", "crashes", "raises"])
def test_a_reply_that_is_lost_on_the_way_changes_nothing_in_the_sum(how):
    """The client has remembered its update, the server has not: its next message names the older one."""
    lost = lambda m, t: how if (m, t) in {(0, 3), (2, 4), (2, 5)} else None  # noqa: E731
    rounds = (*FILLING, (0, 2))
    grid = federation(holding(clients(lost=lost)))
    strategy, sampler = filled(grid, rounds)
    counted = [[m for m in drawn if lost(m, t) is None] for t, drawn in enumerate(rounds, start=1)]
    total = sum(size * held(m, counted) for m, size in enumerate(SIZES))
    np.testing.assert_allclose(strategy.state_dict()["client_memory.sum"], total, rtol=1e-6)
    sampler.told = certain(0, 2)
    assert one_round(strategy, grid, model(*START), 6)[1]["sampling-memory-lost"] == 0


def held_by(client, digest):
    return np.frombuffer(client.context.state.array_records[RECORD][digest].data, "<f4").astype(np.float64)


def spiking(spike):
    """Clients of which the first sends one huge update."""
    several = holding(clients())
    honest = several[0].train
    several[0].train = lambda arrays, t: {"w": arrays["w"] + spike} if t == 3 else honest(arrays, t)
    return several


@pytest.mark.parametrize(("spike", "begins_anew"), [(1e3, False), (1e12, True), (1e20, True), (-1e35, True)])
def test_one_huge_update_does_not_spoil_the_sum_for_good(spike, begins_anew, caplog):
    """In every round the sum is that of what the clients hold, to a millionth of its scale."""
    grid = federation(spiking(spike))
    strategy, sampler = filled(grid, rounds=(), clip_updates=False)
    for server_round in range(1, 250):
        sampler.told = certain(*((0, 1, 2), (2, 3, 4), (4, 0))[server_round % 3])
        one_round(strategy, grid, model(*START), server_round)
        parts = np.array(
            [
                counted.size * held_by(client(grid, m), counted.digest)
                for m, counted in strategy._memory._counted.items()
            ]
        )
        off = np.abs(strategy._memory._sum - parts.sum(axis=0)).max()
        assert off <= 1e-6 * np.abs(parts).max(axis=1).sum()
        if server_round == 120:
            state = through_a_file(strategy.state_dict())
            strategy, sampler = filled(grid, rounds=(), clip_updates=False)
            strategy.load_state_dict(state)
    assert len(strategy._memory._counted) == 5
    assert ("begins anew: rounding" in caplog.text) == begins_anew


# Clients that are not as they should be


def test_clients_without_the_mod_count_as_without_a_memory(caplog):
    several = clients()
    holding(several[:3])
    grid = federation(several)
    strategy, _ = filled(grid)
    assert strategy.state_dict()["client_memory.clients"].tolist() == [
        1,
        0,
        2,
    ]  # in the order of last replies
    total = sum(SIZES[m] * held(m) for m in range(3))
    np.testing.assert_allclose(strategy.state_dict()["client_memory.sum"], total, rtol=1e-6)
    assert "remember_updates" not in caplog.text  # at least one had it in each round


def test_if_no_client_has_the_mod_the_log_says_so_once(caplog):
    filled(federation(clients()))
    assert caplog.text.count("needs ClientApp(mods=[remember_updates])") == 1


def nonsense(record):
    (digest,) = record
    array = record[digest]
    return {
        "nothing": None,
        "another kind": ConfigRecord({"digest": digest}),
        "metrics": MetricRecord({"y": 1.0}),
        "another digest": ArrayRecord({"0" * 32: array}),
        "other numbers": ArrayRecord({digest: Array(array.dtype, array.shape, array.stype, bytes(8))}),
        "no numbers": ArrayRecord({digest: Array("object", (), "pickle", b"PK...")}),
        "too many": ArrayRecord({digest: array, "more": array}),
    }


NONSENSE = list(nonsense(ArrayRecord({"0" * 32: Array(np.zeros(2))})))


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_reply_with_a_wrong_memory_counts_as_a_plain_one(kind):
    grid = federation(holding(clients()))
    strategy, sampler = filled(grid)
    sampler.told = certain(1, 3)
    messages = strategy.configure_train(5, model(*START), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    (reply,) = [each for each in replies if each.content["metrics"]["num-examples"] == SIZES[1]]
    wrong = nonsense(reply.content[RECORD])[kind]
    del reply.content[RECORD]
    if wrong is not None:
        reply.content[RECORD] = wrong
    stepped, metrics = strategy.aggregate_train(5, replies)
    assert (metrics["sampling-memory-lost"], metrics["sampling-replies"]) == (1, 2)
    plain = 1.5 * (SIZES[1] * drift(1, 5) + SIZES[3] * drift(3, 5)) / SIZES.sum()
    np.testing.assert_allclose(weights(stepped) - START, plain, rtol=1e-9)
    assert strategy.state_dict()["client_memory.clients"].tolist() == [3]


def test_what_a_client_sends_is_not_believed_unless_it_is_what_the_server_counts():
    """A client can't take out of the sum what it has not put there."""
    grid = federation(holding(clients()))
    strategy, sampler = filled(grid, rounds=((0, 1),))
    sampler.told = certain(2)
    messages = strategy.configure_train(2, model(*START), ConfigRecord(), grid)
    (reply,) = grid.send_and_receive(messages)
    reply.content[RECORD] = ArrayRecord({"0" * 32: Array(np.full(2, 1e30, dtype=np.float32))})
    _, metrics = strategy.aggregate_train(2, [reply])
    assert metrics["sampling-memory-lost"] == 0
    assert strategy.state_dict()["client_memory.clients"].tolist() == [0, 1]


def test_the_app_sees_neither_question_nor_memory():
    """Nor does the function that aggregates the metrics."""
    grid, seen = federation(holding(clients())), []
    handled = grid._handled
    grid._handled = lambda message, client: seen.append(set(message.content)) or handled(message, client)
    inner = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=lambda records, key: noted(records))

    def noted(records):
        seen.extend(set(record) for record in records)
        return MetricRecord()

    strategy = AdaptiveSampling(inner, cohort_size=5, memory="clients")
    for server_round in (1, 2):
        one_round(strategy, grid, model(*START), server_round)
    assert len(seen) == 1 + 20  # a query, and two rounds
    assert all(RECORD not in each for each in seen)
    assert all(
        message.metadata.dst_node_id in grid.nodes and len(set(message.content)) == 2 for message in grid.sent
    )


# Stopping and resuming


def start_with_ledger(path, name, grid, crash_at=None, when="between"):
    """A run on these clients, which outlive it. ``after`` the replies were made, but none has arrived."""
    strategy = AdaptiveSampling(INNER[name](), ledger=path, cohort_size=4, seed=5, memory="clients")
    send = type(grid).send_and_receive

    def crashing(messages, *, timeout=None):
        messages = list(messages)
        server_round = round_of(messages)
        if when == "within" and server_round == crash_at:
            raise CrashError
        replies = send(grid, messages, timeout=timeout)
        if when == "after" and server_round == crash_at:
            raise CrashError
        return replies

    def evaluate(server_round, arrays):
        if when == "between" and server_round == crash_at:
            raise CrashError

    grid.send_and_receive = crashing
    if crash_at is not None:  # no goodbye to the ledger
        strategy._pool.close = lambda: strategy._pool._run._abandon()
    return strategy.start(grid, model(0.0, 1.0), num_rounds=ROUNDS, evaluate_fn=evaluate)


@pytest.mark.parametrize("name", ["FedAvg", "FedAdam"])
@pytest.mark.parametrize("when", ["between", "within", "after"])
def test_a_server_that_crashed_goes_on_to_the_bit(tmp_path, name, when):
    whole = start_with_ledger(tmp_path / "whole.db", name, federation(holding(drifting_clients())))
    last = whole.train_metrics_clientapp[ROUNDS]
    assert last["sampling-memory-coefficient"] > 0.0
    for crash_at in range(1, ROUNDS + 1):
        path, grid = tmp_path / f"{crash_at}.db", federation(holding(drifting_clients()))
        with pytest.raises(CrashError):
            start_with_ledger(path, name, grid, crash_at, when)
        result = start_with_ledger(path, name, grid)
        np.testing.assert_array_equal(weights(result.arrays), weights(whole.arrays))
        if result.train_metrics_clientapp:
            assert dict(result.train_metrics_clientapp[ROUNDS]) == dict(last)


def test_a_state_goes_through_a_file_and_an_older_one_is_noticed():
    """What the clients hold has moved on since: the memory begins anew."""
    grid = federation(holding(clients()))
    strategy, _ = filled(grid)
    state = through_a_file(strategy.state_dict())
    for server_round, lost in ((5, 0), (7, 2)):
        resumed = AdaptiveSampling(
            FedAvg(fraction_evaluate=0.0),
            sampler=Scripted(num_clients=5, cohort_size=2),
            memory="clients",
        )
        resumed.load_state_dict(state)
        for name, value in resumed.state_dict().items():
            if name.startswith("client_memory."):
                np.testing.assert_array_equal(value, state[name])
        for later in (0, 1):
            resumed.sampler.told = certain(1, 3)
            _, metrics = one_round(resumed, grid, model(*START), server_round + later)
            assert metrics["sampling-memory-lost"] == (0 if later else lost)


def test_the_kind_of_memory_may_change_in_a_resumed_run():
    for before, after in ((False, "clients"), (True, "clients"), ("clients", True), ("clients", False)):
        grid = federation(holding(clients()))
        strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2, memory=before)
        strategy.start(grid, model(*START), 4)
        resumed = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2, memory=after)
        resumed.load_state_dict(strategy.state_dict())
        metrics = resumed.start(grid, model(*START), 6).train_metrics_clientapp
        assert metrics[5].get("sampling-memory-coefficient") == (0.0 if after else None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sum": np.zeros(2, dtype=np.float32)}, "sum"),
        ({"sum": np.array([np.nan, 0.0])}, "sum"),
        ({"sizes": -np.ones(5)}, "sizes"),
        ({"largest_entries": np.full(5, np.inf)}, "largest_entries"),
        ({"rounding": -1.0}, "rounding"),
        ({"digests": np.zeros((5, 3), dtype=np.uint8)}, "digests"),
        ({"clients": np.zeros(4, dtype=np.int64)}, "sizes"),
        ({"denominator": -1.0}, "denominator"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, named):
    strategy, _ = filled(federation(holding(clients())))
    fresh, _ = filled(federation(holding(clients())), rounds=())
    state = {**strategy.state_dict(), **{f"client_memory.{name}": value for name, value in change.items()}}
    with pytest.raises(StateError, match=named):
        fresh.load_state_dict(state)
    assert fresh.identities == ()


def test_another_model_is_refused():
    strategy, _ = filled(federation(holding(clients())))
    with pytest.raises(ConfigurationError, match="initial_arrays"):
        one_round(strategy, federation(holding(clients())), model(1.0), 5)
