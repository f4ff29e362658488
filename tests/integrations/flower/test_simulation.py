"""A real simulation on Ray: 50 nodes, an app that was never made for us."""

from __future__ import annotations

import numpy as np
import pytest

from tests.integrations.flower.processes import flower, free_port


@pytest.fixture
def programs(tmp_path):
    with flower(tmp_path / "flwr") as running:
        yield running


def test_fifty_nodes_on_ray(programs):
    port = free_port()
    programs.connection(port)
    programs.start(
        *("flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation"),
        *("--port", str(port)),
        log="superlink.log",
    )
    programs.wait(lambda: f":{port}" in programs.logs(), 30, "the SuperLink")
    programs.run_probe(
        *("--federation-config", "num-supernodes=50 init-args-num-cpus=2 client-resources-num-cpus=1"),
        rounds=5,
        cohort_size=10,
    )
    programs.wait((programs.notes / "done").exists, 80, "five rounds")
    rounds = programs.rounds()
    assert [line["round"] for line in rounds] == [1, 2, 3, 4, 5]
    met: set[int] = set()
    for line in rounds:
        assert line["sampling-available-clients"] == len(line["identities"]) == 50
        assert all(identity.startswith("node:") for identity in line["identities"])
        assert line["sampling-replies"] == len(line["partitions"]) > 0
        assert line["sampling-replies"] + line["sampling-failures"] == line["sampling-distinct-clients"] <= 10
        assert not any(partition % 7 == 6 for partition in line["partitions"])  # those that always fail
        assert line["types"] == ["float32", "int64"]
        assert sum(line["probabilities"]) == pytest.approx(1.0)
        assert np.isfinite(line["model"]).all()
        met |= set(line["partitions"])
        assert line["sampling-coverage"] == pytest.approx(len(met) / 50)
    assert rounds[-1]["sampling-effective-clients"] < 50.0
