"""A Flower run's ledger can be diagnosed: its feedback is (share times norm) squared, joins included."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.proto.node_pb2 import NodeInfo

from sortition import diagnose
from sortition.integrations.flower import AdaptiveSampling
from sortition.lab.diagnosis.recorded_run import drawn_rounds
from sortition.ledger import read_run
from tests.integrations.flower.fake_grid import federation, model
from tests.integrations.flower.test_resume import INNER, clients


@pytest.mark.parametrize("sizes", ["unknown", "known"])
def test_the_scale_is_that_of_the_aggregate(tmp_path, sizes):
    """What the pool calls feedback comes out of the ledger, round by round; client 11 joins in round 4."""
    everybody = clients()
    given = {str(place): client.examples for place, client in enumerate(everybody)}
    options = {"num_examples": given} if sizes == "known" else {}
    strategy = AdaptiveSampling(
        INNER["FedAvg"](), ledger=tmp_path / "run.db", cohort_size=4, seed=5, **options
    )
    grid = federation(everybody[:11])
    expected = []
    observe, configure = strategy._pool.observe, strategy.configure_train

    def observing(drawn, weighed, usable, state):
        expected.append(weighed.feedback)
        observe(drawn, weighed, usable, state)

    def configuring(server_round, *arguments):
        if server_round == 4:
            grid.nodes[9999] = (NodeInfo(node_id=9999, name="client-11"), everybody[11])
        return configure(server_round, *arguments)

    strategy._pool.observe, strategy.configure_train = observing, configuring
    strategy.start(grid, model(0.0, 1.0), num_rounds=12)
    with read_run(tmp_path / "run.db") as record:
        found = [one.feedback for one in drawn_rounds(record, 4)]
    assert len(found) == len(expected) == 12
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert diagnose(tmp_path / "run.db").noise.num_clients == 12


def test_sizes_that_replies_told_are_those_of_a_query(tmp_path):
    """Sampling by size is a choice, and its estimate is that of the sizes, whoever told them when."""
    everybody = clients()
    sizes = np.array([client.examples for client in everybody], dtype=float)
    strategy = AdaptiveSampling(INNER["FedAvg"](), ledger=tmp_path / "run.db", cohort_size=4, seed=5)
    strategy.start(federation(everybody, shuffle=None), model(0.0, 1.0), num_rounds=20)
    found = diagnose(tmp_path / "run.db")
    assert "proportional" in found.noise.sampling
    assert not any("same weight" in fact for fact in found.facts)
    with read_run(tmp_path / "run.db") as record:
        state = record.last_attachments()["flower"]
        rounds = list(drawn_rounds(record, 4, state["sizes"]))
    assert sorted(state["sizes"]) == sorted(sizes)
    for one in rounds:
        np.testing.assert_allclose(one.size_shares, state["sizes"][one.clients] / sizes.sum(), rtol=1e-12)
        np.testing.assert_allclose(one.sizes / sizes.sum(), one.size_shares, rtol=1e-12)


def test_a_size_that_is_not_known_yet_counts_as_the_mean(tmp_path):
    strategy = AdaptiveSampling(INNER["FedAvg"](), ledger=tmp_path / "run.db", cohort_size=2, seed=5)
    strategy.start(federation(clients()), model(0.0, 1.0), num_rounds=2)
    with read_run(tmp_path / "run.db") as record:
        unknown = int(np.isnan(record.last_attachments()["flower"]["sizes"]).sum())
    found = diagnose(tmp_path / "run.db")
    assert unknown >= 8
    assert f"{unknown} clients have not told their sizes" in repr(found)


@pytest.mark.parametrize("memory", [True, "clients", False])
def test_a_memory_is_seen(tmp_path, memory):
    strategy = AdaptiveSampling(
        INNER["FedAvg"](), ledger=tmp_path / "run.db", cohort_size=4, seed=5, memory=memory
    )
    strategy.start(federation(clients()), model(0.0, 1.0), num_rounds=2)
    assert diagnose(tmp_path / "run.db").verdict == ("can't tell" if memory else "can't tell yet")
