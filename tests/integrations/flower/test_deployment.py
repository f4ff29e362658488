"""A real deployment on loopback: TLS, registered node keys, three SuperNodes, one of them killed and back.

It takes a minute until the SuperLink gives up a SuperNode that no longer sends heartbeats. Only then does the
round that waits for it go on, with an error in the SuperLink's own name, and only then can it come back.
"""

from __future__ import annotations

import pytest

from tests.integrations.flower.credentials import write_certificates, write_node_key
from tests.integrations.flower.processes import flower, free_port

MOST_ROUNDS = 20
TIMEOUT = 90.0
VICTIM = 1
EXAMPLES = (1, 2, 3)


@pytest.fixture
def programs(tmp_path):
    with flower(tmp_path / "flwr") as running:
        yield running


def test_a_supernode_is_killed_in_a_round_and_comes_back(programs):
    port = free_port()
    ca, certificate, key = write_certificates(programs.home / "tls")
    programs.connection(port, certificate=ca)
    programs.start(
        *("flower-superlink", "--port", str(port), "--enable-supernode-auth"),
        *("--ssl-ca-certfile", str(ca), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
        "--disable-runtime-dependency-installation",
        log="superlink.log",
    )
    programs.wait(lambda: "startup complete" in programs.logs(), 30, "the SuperLink")

    private_keys = []
    for partition in range(3):
        private, public = write_node_key(programs.home / f"node-{partition}")
        name = ["--name", "clinic-0"] if partition == 0 else []  # the others go by their keys
        programs.call("flwr", "supernode", "register", str(public), "here", *name)
        private_keys.append(private)

    def supernode(partition):
        return programs.start(
            *("flower-supernode", "--superlink", f"127.0.0.1:{port}", "--root-certificates", str(ca)),
            *("--auth-supernode-private-key", str(private_keys[partition])),
            *("--port", str(free_port()), "--node-config", f"partition-id={partition} num-partitions=3"),
            log=f"supernode-{partition}.log",
        )

    nodes = [supernode(partition) for partition in range(3)]
    programs.run_probe(rounds=MOST_ROUNDS, cohort_size=3, least_clients=2, timeout=TIMEOUT, pause=1.0)

    def training(server_round):
        return (programs.notes / f"training-{VICTIM}-{server_round}").exists()

    programs.wait(lambda: len(programs.rounds()) >= 1, 60, "the first round")
    programs.wait(lambda: any(training(t) for t in (2, 3)), 30, "the victim to train")
    killed_in = max(t for t in range(1, MOST_ROUNDS) if training(t))
    programs.kill(nodes[VICTIM])
    programs.wait(lambda: len(programs.rounds()) >= killed_in, TIMEOUT, "the round it was killed in")
    supernode(VICTIM)

    def is_back():
        return any(VICTIM in line["partitions"] for line in programs.rounds()[killed_in:])

    programs.wait(is_back, 60, "the victim to be back")
    (programs.notes / "enough").touch()
    programs.wait((programs.notes / "done").exists, 30, "the last round")

    rounds = programs.rounds()
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))  # training went on
    first = rounds[0]["identities"]
    kinds = [identity.partition(":")[0] for identity in rounds[-1]["identities"]]
    assert sorted(kinds) == ["key", "key", "name"]
    for line in rounds:
        assert line["identities"][: len(first)] == first  # nobody became somebody else
        assert len(line["identities"]) <= 3
        heard = [EXAMPLES[partition] for partition in line.get("partitions", [])]
        assert heard, f"nobody replied within {TIMEOUT} s"
        weight = line["sampling-distinct-clients"] / len(heard)
        assert line["sampling-replies"] + line["sampling-failures"] == line["sampling-distinct-clients"]
        assert line["weighted-examples"] == pytest.approx(heard)  # all take part: the weight is 1
        if line["sampling-distinct-clients"] == 3 and line["sampling-coverage"] == 1.0:
            assert line["sampling-total-weight"] == pytest.approx(weight * sum(heard) / 6)
            if len(heard) == 3:
                assert line["sampling-total-weight"] == pytest.approx(1.0)
    lost = rounds[killed_in - 1]
    assert VICTIM not in lost["partitions"]
    assert lost["sampling-failures"] == 1
    assert "Error: Node Unavailable" in programs.logs(last=10**7)
    assert VICTIM in rounds[-1]["partitions"]
    assert rounds[-1]["sampling-total-weight"] == pytest.approx(1.0)
    assert rounds[-1]["identities"] == lost["identities"]  # the same client, with its history
