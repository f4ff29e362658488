"""With a ledger a run survives a crash at any moment, and goes on as if nothing had happened."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.proto.node_pb2 import NodeInfo

from sortition import UniformSampler
from sortition.integrations.flower import AdaptiveSampling
from sortition.integrations.flower.pool import ClientPool
from sortition.ledger import read_run, verify_run
from tests.integrations.flower.fake_grid import federation, model, round_of, weights
from tests.integrations.flower.test_resume import INNER, ROUNDS, clients


class CrashError(Exception):
    """The program is gone."""


def newcomer(place):
    return clients()[place]


def start(ledger, name="FedAdam", crash_at=None, when="between", joins_at=4, **options):
    """A run whose twelfth client joins in round 4, and that may crash, between or within rounds."""
    options = {"cohort_size": 4, "seed": 5, **options}
    strategy = AdaptiveSampling(INNER[name](), ledger=ledger, **options)
    grid = federation(clients()[:11])
    late = (NodeInfo(node_id=9999, name="client-11"), newcomer(11))
    send = grid.send_and_receive

    def crashing(messages, *, timeout=None):
        messages = list(messages)
        if when == "within" and round_of(messages) == crash_at:
            raise CrashError
        return send(messages, timeout=timeout)

    def evaluate(server_round, arrays):
        if when == "between" and server_round == crash_at:
            raise CrashError

    def configure(server_round, *arguments):
        if server_round >= joins_at:
            grid.nodes[9999] = late
        return configure_train(server_round, *arguments)

    configure_train, strategy.configure_train = strategy.configure_train, configure
    grid.send_and_receive = crashing
    if crash_at is not None:  # no goodbye to the ledger
        strategy._pool.close = lambda: strategy._pool._run._abandon()
    return strategy, strategy.start(grid, model(0.0, 1.0), num_rounds=ROUNDS, evaluate_fn=evaluate)


@pytest.mark.parametrize("when", ["between", "within"])
@pytest.mark.parametrize("name", ["FedAvg", "FedAdam", "FedAvgM"])
def test_a_run_that_crashed_at_any_round_goes_on(tmp_path, name, when):
    _, whole = start(tmp_path / "whole.db", name)
    for crash_at in range(1, ROUNDS + 1):
        path = tmp_path / f"{when}-{crash_at}.db"
        with pytest.raises(CrashError):
            start(path, name, crash_at, when)
        strategy, result = start(path, name)
        np.testing.assert_allclose(weights(result.arrays), weights(whole.arrays), rtol=0, atol=1e-12)
        assert sorted(result.train_metrics_clientapp) == list(range(1, ROUNDS + 1))
        assert len(strategy.identities) == 12
        verify_run(path)
        with read_run(path) as record:
            assert list(record.client_names.values()) == list(strategy.identities)


def test_a_ledger_changes_nothing_about_the_run(tmp_path):
    _, recorded = start(tmp_path / "run.db")
    _, plain = start(None)
    np.testing.assert_array_equal(weights(recorded.arrays), weights(plain.arrays))


def test_every_round_is_in_the_record(tmp_path):
    strategy, _ = start(tmp_path / "run.db")
    with read_run(tmp_path / "run.db") as record:
        rounds = list(record.rounds())
    assert [each.cohort.round_index for each in rounds] == list(range(ROUNDS))
    assert all(np.isfinite(each.norms).all() for each in rounds)
    assert strategy.sampler.round_index == ROUNDS


def test_a_sampler_of_ones_own_in_a_ledger(tmp_path):
    def run(path, **options):
        sampler = UniformSampler(num_clients=11, cohort_size=4, seed=2)
        return start(path, cohort_size=None, seed=0, sampler=sampler, **options)[1]

    whole = run(tmp_path / "whole.db")
    with pytest.raises(CrashError):
        run(tmp_path / "run.db", crash_at=4, when="within")
    np.testing.assert_allclose(weights(run(tmp_path / "run.db").arrays), weights(whole.arrays), atol=1e-12)


def test_a_cohort_drawn_before_the_crash_may_hold_clients_that_are_offline_now(tmp_path):
    with pytest.raises(CrashError):
        start(tmp_path / "run.db", crash_at=3, when="within")
    with read_run(tmp_path / "run.db") as record:
        drawn = list(record.rounds())[-1].cohort.clients
    strategy = AdaptiveSampling(
        INNER["FedAdam"](), cohort_size=4, seed=5, ledger=tmp_path / "run.db", resume_timeout=0.0
    )
    grid = federation(clients()[:11])
    names = sorted(f"client-{place}" for place in range(11))
    gone = sorted(names, key=lambda name: int(name.split("-")[1]))  # ids follow the natural order of names
    lost = {node for node, (info, _) in grid.nodes.items() if info.name == strategy_name(gone, drawn[0])}
    for node in lost:
        del grid.nodes[node]
    result = strategy.start(grid, model(0.0, 1.0), num_rounds=4)
    assert result.train_metrics_clientapp[3]["sampling-failures"] == 1
    assert result.train_metrics_clientapp[4]["sampling-failures"] == 0


@pytest.mark.parametrize("polls", [1, 5])
def test_a_drawn_client_that_has_not_reconnected_is_waited_for(tmp_path, monkeypatch, caplog, polls):
    """The run then equals the unbroken one."""
    _, whole = start(tmp_path / "whole.db")
    with pytest.raises(CrashError):
        start(tmp_path / "run.db", crash_at=3, when="within")
    with read_run(tmp_path / "run.db") as record:
        drawn = list(record.rounds())[-1].cohort.clients
    grid, waits = federation(clients()[:11]), []
    name = strategy_name([f"client-{place}" for place in range(11)], drawn[0])
    (late,) = [node for node, (info, _) in grid.nodes.items() if info.name == name]
    info, client = grid.nodes.pop(late)

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == polls:  # the SuperNode is started again, as another node
            grid.nodes[5555] = (NodeInfo(node_id=5555, name=info.name), client)

    def evaluate(server_round, arrays):
        if server_round + 1 >= 4:
            grid.nodes[9999] = (NodeInfo(node_id=9999, name="client-11"), newcomer(11))

    monkeypatch.setattr("time.sleep", sleep)
    strategy = AdaptiveSampling(INNER["FedAdam"](), cohort_size=4, seed=5, ledger=tmp_path / "run.db")
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = strategy.start(grid, model(0.0, 1.0), num_rounds=ROUNDS, evaluate_fn=evaluate)
    assert len(waits) == polls
    (told,) = [each.getMessage() for each in caplog.records if "Drawn before the crash" in each.getMessage()]
    assert f"name:{name}" in told
    assert "120 seconds" in told
    assert result.train_metrics_clientapp[3]["sampling-failures"] == 0
    np.testing.assert_allclose(weights(result.arrays), weights(whole.arrays), rtol=0, atol=1e-12)


def test_one_that_does_not_come_back_is_named_and_counts_as_no_reply(tmp_path, monkeypatch, caplog):
    with pytest.raises(CrashError):
        start(tmp_path / "run.db", crash_at=3, when="within")
    with read_run(tmp_path / "run.db") as record:
        drawn = list(record.rounds())[-1].cohort.clients
    name = strategy_name([f"client-{place}" for place in range(11)], drawn[0])
    grid, clock = federation(clients()[:11]), [0.0]
    grid.nodes = {node: each for node, each in grid.nodes.items() if each[0].name != name}
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", lambda seconds: clock.append(clock.pop() + seconds))
    strategy = AdaptiveSampling(
        INNER["FedAdam"](), cohort_size=4, seed=5, ledger=tmp_path / "run.db", resume_timeout=30.0
    )
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = strategy.start(grid, model(0.0, 1.0), num_rounds=4)
    assert clock == [30.0]
    assert f"not online: name:{name}. No reply." in caplog.text
    assert result.train_metrics_clientapp[3]["sampling-failures"] == 1


def test_clients_known_by_node_ids_only_can_not_come_back_and_are_not_waited_for(
    tmp_path, monkeypatch, caplog
):
    def simulated(first_node):
        nodes = federation(clients()[:11], first_node=first_node)
        nodes.nodes = {node: (NodeInfo(node_id=node), client) for node, (_, client) in nodes.nodes.items()}
        return nodes

    def build():
        return AdaptiveSampling(INNER["FedAvg"](), cohort_size=4, ledger=tmp_path / "run.db")

    strategy = build()
    strategy.configure_train(1, model(0.0, 1.0), ConfigRecord(), simulated(100))
    strategy._pool._run._abandon()
    monkeypatch.setattr("time.sleep", never)
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = build().start(simulated(5000), model(0.0, 1.0), num_rounds=2)
    assert "not online: node:" in caplog.text
    assert result.train_metrics_clientapp[1]["sampling-replies"] == 0
    assert result.train_metrics_clientapp[2]["sampling-failures"] == 0


def test_newcomers_wait_for_a_cohort_that_was_drawn_before_the_crash(tmp_path):
    """Its weights and its total are those of the ten clients that it was drawn from, not of all twenty."""
    names = [f"client-{place}" for place in range(20)]

    def opened():
        pool = ClientPool(None, 4, dict.fromkeys(names, 10.0), 0, tmp_path / "run.db")
        pool.resume()
        return pool

    pool = opened()
    before = pool.draw(names[:10], {})
    pool._run._abandon()
    pool = opened()
    again = pool.draw(names, {})
    np.testing.assert_array_equal(again.cohort.clients, before.cohort.clients)
    np.testing.assert_array_equal(again.probabilities, before.probabilities)
    assert again.total_size == before.total_size == 100.0
    sizes = np.full(4, 10.0)
    weighed = pool.weigh(again, pool.count(again, sizes), np.ones(4), sizes, 0.0)
    assert weighed.replied.weights @ weighed.shares == pytest.approx(1.0)
    pool.observe(again, weighed, np.ones(4, dtype=bool), state=lambda: pool.state(with_sampler=False))
    assert pool.draw(names, {}).total_size == 200.0
    pool.close()


def strategy_name(names, client):
    """The name with this id: "client-10" is no number, so that the order is that of strings."""
    return sorted(names)[client]


def test_sizes_met_in_a_cohort_that_is_asked_again_outlive_another_crash(tmp_path):
    """Round 2 is lost; a newcomer is there when it is asked again; then the next crash, before round 3."""

    def end(path, crash_again):
        with pytest.raises(CrashError):
            start(path, crash_at=2, when="within")
        if crash_again:
            with pytest.raises(CrashError):
                start(path, crash_at=2, joins_at=2)
        return start(path, joins_at=2)

    strategy, result = end(tmp_path / "again.db", crash_again=True)
    once, expected = end(tmp_path / "once.db", crash_again=False)
    for name in ("sizes", "first_weights", "has_replied"):
        np.testing.assert_array_equal(strategy.state_dict()[name], once.state_dict()[name])
    for server_round, metrics in result.train_metrics_clientapp.items():
        assert dict(metrics) == pytest.approx(dict(expected.train_metrics_clientapp[server_round]))
    np.testing.assert_allclose(weights(result.arrays), weights(expected.arrays), rtol=0, atol=1e-12)


def test_a_cohort_that_was_left_behind_and_is_heard_late_takes_no_sizes_back(tmp_path):
    """By hand: round 0 is drawn and left, a newcomer joins, round 1 is heard, then a new start hears both."""

    def by_hand(grid, heard):
        strategy = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4, seed=5, ledger=tmp_path / "run.db")
        strategy._pool.resume()
        for answered in heard:
            messages = strategy.configure_train(1, model(0.0), ConfigRecord(), grid)
            if answered:
                strategy.aggregate_train(1, grid.send_and_receive(messages))
            grid.nodes[9999] = (NodeInfo(node_id=9999, name="client-11"), newcomer(11))
        state = strategy.state_dict()
        strategy._pool._run._abandon()
        return state

    grid = federation(clients()[:11])
    by_hand(grid, heard=[False, True])
    before = by_hand(grid, heard=[True])
    after = by_hand(grid, heard=[])
    for name in ("sizes", "first_weights", "has_replied"):
        np.testing.assert_array_equal(after[name], before[name])


def test_a_cohort_of_whom_nobody_is_left_is_a_round_without_a_reply(tmp_path, monkeypatch):
    """The inner strategy would wait for ever for nodes to send its messages to."""
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", never)
    with pytest.raises(CrashError):
        start(tmp_path / "run.db", crash_at=1, when="within")
    with read_run(tmp_path / "run.db") as record:
        (drawn,) = (each.cohort.clients for each in record.rounds())
    grid = federation(clients()[:11])
    gone = {strategy_name([f"client-{place}" for place in range(11)], client) for client in drawn}
    grid.nodes = {node: each for node, each in grid.nodes.items() if each[0].name not in gone}
    strategy = AdaptiveSampling(
        INNER["FedAdam"](), cohort_size=4, seed=5, ledger=tmp_path / "run.db", resume_timeout=0.0
    )
    result = strategy.start(grid, model(0.0, 1.0), num_rounds=2)
    assert result.train_metrics_clientapp[1]["sampling-replies"] == 0
    assert result.train_metrics_clientapp[2]["sampling-failures"] == 0


def never(seconds):
    raise AssertionError("nothing to wait for")
