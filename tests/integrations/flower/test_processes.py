"""Flower's real programs: a simulation on Ray, and a deployment with TLS on loopback."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

import numpy as np
import pytest

from sortition.ledger import read_run
from tests.integrations.flower.processes import HANGS, flower, free_port, write_certificates, write_node_key

VICTIM = 1
EXAMPLES = (1, 2, 3)


@pytest.fixture
def programs(tmp_path):
    with flower(tmp_path / "flwr") as running:
        yield running


def deployment(programs):
    """A SuperLink with TLS and three registered keys; returns what starts the SuperNode of a partition."""
    if [int(part) for part in version("flwr").split(".")[:2]] < [1, 41]:
        pytest.skip("SuperNodes of this Flower connect to a port of their own; these commands are of 1.41")
    port = free_port()
    ca, certificate, key = write_certificates(programs.home / f"tls-{port}")
    programs.connection(port, certificate=ca)
    programs.start(
        *("flower-superlink", "--port", str(port), "--enable-supernode-auth"),
        *("--ssl-ca-certfile", str(ca), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
        "--disable-runtime-dependency-installation",
        log=f"superlink-{port}.log",
    )
    programs.wait(
        lambda: "startup complete" in (programs.home / f"superlink-{port}.log").read_text(), "the SuperLink"
    )
    keys = [programs.home / f"node-{partition}" for partition in range(3)]
    for partition, path in enumerate(keys):
        private, public = (path, path.with_suffix(".pub")) if path.exists() else write_node_key(path)
        keys[partition] = private
        name = ["--name", "clinic-0"] if partition == 0 else []  # the others go by their keys
        programs.call("flwr", "supernode", "register", str(public), "here", *name)

    def supernode(partition):
        return programs.start(
            *("flower-supernode", "--superlink", f"127.0.0.1:{port}", "--root-certificates", str(ca)),
            *("--auth-supernode-private-key", str(keys[partition])),
            *("--port", str(free_port()), "--node-config", f"partition-id={partition} num-partitions=3"),
            log=f"supernode-{partition}.log",
        )

    return supernode


def test_a_cohort_that_was_open_at_a_crash_waits_for_who_is_not_back_yet(programs):
    """All programs are killed while a client trains. It is the last one to come back, and replies."""
    programs.environment["PROBE_ANSWERS"] = "1"
    settings = {"rounds": 4, "cohort_size": 3, "ledger": str(programs.home / "run.db")}
    supernode = deployment(programs)
    for partition in range(3):
        supernode(partition)
    programs.run_probe(**settings, least_clients=3, pause=0.2)
    programs.wait(programs.rounds, "a round")
    hold = programs.notes / f"hold-{VICTIM}"
    hold.touch()
    programs.wait(lambda: list(programs.notes.glob(f"waiting-{VICTIM}-*")), "the victim to train")
    programs.kill_all()
    hold.unlink()
    open_round = len(programs.rounds()) + 1

    supernode = deployment(programs)
    for partition in {0, 1, 2} - {VICTIM}:
        supernode(partition)
    programs.run_probe(**settings, least_clients=2)
    programs.wait(lambda: "not online yet: key:" in programs.logs(last=10**7), "the cohort to be asked again")
    assert len(programs.rounds()) == open_round - 1
    supernode(VICTIM)
    programs.wait((programs.notes / "done").exists, "the last round")
    line = programs.rounds()[open_round - 1]
    assert line["round"] == open_round
    assert sorted(line["partitions"]) == [0, 1, 2]
    assert json.loads((programs.notes / "result.json").read_text())["train"] == [1, 2, 3, 4]


def test_a_supernode_is_killed_in_a_round_and_comes_back(programs):
    """Registered node keys, three SuperNodes. The second one waits in its training until it is killed.

    It takes a minute until the SuperLink gives up a SuperNode that no longer sends heartbeats. Only then does
    the round go on, with an error in the SuperLink's own name, and only then can the SuperNode come back. The
    clients hold a memory. That of the second one is gone when it is back, which is noticed once.
    """
    programs.environment |= {"PROBE_MEMORY": "clients", "PROBE_ANSWERS": "1"}
    supernode = deployment(programs)

    nodes = [supernode(partition) for partition in range(3)]
    programs.run_probe(
        rounds=10**6, cohort_size=3, least_clients=2, timeout=HANGS, pause=1.0, memory="clients"
    )

    def waiting():
        return list(programs.notes.glob(f"waiting-{VICTIM}-*"))

    def has_replied(since=0):
        return any(VICTIM in line["partitions"] for line in programs.rounds()[since:])

    programs.wait(has_replied, "the victim to reply")
    hold = programs.notes / f"hold-{VICTIM}"
    hold.touch()
    programs.wait(waiting, "the victim to train")
    (note,) = waiting()
    killed_in = int(note.name.split("-")[-1])
    programs.kill(nodes[VICTIM])
    hold.unlink()
    programs.wait(lambda: len(programs.rounds()) >= killed_in, "the round it was killed in")
    supernode(VICTIM)

    programs.wait(lambda: has_replied(killed_in), "the victim to be back")
    rounds_then = len(programs.rounds())
    programs.wait(lambda: len(programs.rounds()) > rounds_then, "one more round")
    (programs.notes / "enough").touch()
    programs.wait((programs.notes / "done").exists, "the last round")

    rounds = programs.rounds()
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))  # training went on
    first = rounds[0]["identities"]
    kinds = [identity.partition(":")[0] for identity in rounds[-1]["identities"]]
    assert sorted(kinds) == ["key", "key", "name"]
    for line in rounds:
        assert line["identities"][: len(first)] == first  # nobody became somebody else
        assert len(line["identities"]) <= 3
        heard = [EXAMPLES[partition] for partition in line.get("partitions", [])]
        assert heard, "nobody replied"
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
    back = next(line for line in rounds[killed_in:] if VICTIM in line["partitions"])
    assert [line["round"] for line in rounds if line["sampling-memory-lost"]] == [back["round"]]
    assert back["sampling-memory-coefficient"] == 0.0  # this round is done without a memory
    assert rounds[-1]["sampling-memory-coefficient"] > 0.0
    asked = [path.name.split("-")[1] for path in programs.notes.glob("asked-*")]
    assert sorted(asked) == ["0", "1", "2"]  # for their sizes, and not again after a restart


@pytest.mark.parametrize("memory", ["none", "server", "clients"])
def test_fifty_nodes_on_ray(programs, memory):
    """Every seventh client raises an error, and three of seven return garbage."""
    programs.environment["PROBE_MEMORY"] = memory
    programs.environment["PROBE_GARBAGE"] = "1"
    port = free_port()
    programs.connection(port)
    programs.start(
        *("flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation"),
        *("--port", str(port)),
        log="superlink.log",
    )
    programs.wait(lambda: f":{port}" in programs.logs(), "the SuperLink")
    programs.run_probe(
        *("--federation-config", "num-supernodes=50 init-args-num-cpus=2 client-resources-num-cpus=1"),
        rounds=5,
        cohort_size=10,
        memory=memory,
    )
    programs.wait((programs.notes / "done").exists, "five rounds")
    rounds = programs.rounds()
    assert [line["round"] for line in rounds] == [1, 2, 3, 4, 5]
    replied: set[int] = set()
    for line in rounds:
        assert (
            line["sampling-available-clients"] + line["sampling-resting-clients"]
            == len(line["identities"])
            == 50
        )
        assert all(identity.startswith("node:") for identity in line["identities"])
        assert line["sampling-replies"] == len(line["partitions"]) > 0
        assert line["sampling-replies"] + line["sampling-failures"] == line["sampling-distinct-clients"] == 10
        assert not any(partition % 7 > 2 for partition in line["partitions"])  # those that can't be used
        assert line["sampling-refused"] <= line["sampling-failures"]
        assert line["types"] == ["float32", "int64"]
        assert sum(line["probabilities"]) == pytest.approx(1.0)
        assert np.isfinite(line["model"]).all()
        replied |= set(line["partitions"])
        in_bytes = {"none": None, "server": 12 * len(replied), "clients": 24}
        assert line.get("sampling-memory-bytes") == in_bytes[memory]
        assert line.get("sampling-memory-lost", 0) == 0
        assert line["sampling-coverage"] == pytest.approx(len(replied) / 50)
    assert rounds[-1]["sampling-effective-clients"] < 50.0
    programs.wait(lambda: "counts as no reply" in programs.logs(last=10**7), "the log, which comes later")
    log = programs.logs(last=10**7)
    assert log.count("The ClientApp has no query function") == log.count("@app.query()") == 1
    assert "No query function registered" not in log  # neither Flower's tracebacks
    assert sum(line["sampling-refused"] for line in rounds) > 0


def test_secure_aggregation_on_ray(programs):
    """Flower's SecAgg+ in a real simulation. All three nodes train, so each round's model is known."""
    programs.environment["PROBE_SECURE"] = "1"
    port = free_port()
    programs.connection(port)
    programs.start(
        *("flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation"),
        *("--port", str(port)),
        log="superlink.log",
    )
    programs.wait(lambda: f":{port}" in programs.logs(), "the SuperLink")
    programs.run_probe(
        *("--federation-config", "num-supernodes=3 init-args-num-cpus=2 client-resources-num-cpus=1"),
        rounds=3,
        cohort_size=3,
        secure=True,
    )
    programs.wait((programs.notes / "done").exists, "three rounds")
    rounds = programs.rounds()
    assert [line["round"] for line in rounds] == [1, 2, 3]
    model = 0.0
    for line in rounds:
        assert sorted(line["partitions"]) == [0, 1, 2]
        model += sum(n * 0.5 * (p - model) for p, n in enumerate(EXAMPLES)) / sum(EXAMPLES)
        assert line["model"] == pytest.approx([model] * 3, abs=3 * line["round"] * 2 * 8.0 / 2**22)
        assert line["types"] == ["float32", "int64"]


def test_a_simulation_that_is_killed_goes_on_with_all_rounds(programs):
    """SIGKILL to SuperLink, ServerApp and Ray at once, in mid-round; then all of it is started anew.

    The nodes of the second simulation have other ids. They are the same clients by what they answer.
    """
    programs.environment["PROBE_ANSWERS"] = "1"
    ledger = programs.home / "run.db"

    def simulate():
        port = free_port()
        programs.connection(port)
        programs.start(
            *("flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation"),
            *("--port", str(port)),
            log="superlink.log",
        )
        programs.wait(lambda: f":{port}" in programs.logs(), "the SuperLink")
        programs.run_probe(
            *("--federation-config", "num-supernodes=20 init-args-num-cpus=2 client-resources-num-cpus=1"),
            rounds=5,
            cohort_size=4,
            evaluators=6,
            ledger=str(ledger),
            pause=0.2,
        )

    simulate()
    programs.wait(lambda: len(programs.rounds()) >= 2, "two rounds")
    programs.kill_all()
    noted = programs.rounds()[-1]["round"]  # the next one may be complete, and just not noted
    simulate()
    programs.wait((programs.notes / "done").exists, "the last round")

    result = json.loads((programs.notes / "result.json").read_text())
    assert result["train"] == [1, 2, 3, 4, 5]
    assert list(result["evaluate"]) == ["1", "2", "3", "4", "5"]
    calls = [json.loads(line) for line in (programs.notes / "on_round.jsonl").read_text().splitlines()]
    numbers = [call["round"] for call in calls]
    assert sorted(set(numbers)) == [1, 2, 3, 4, 5]
    assert len(numbers) <= 6  # one may have been called when it was killed, and is called again
    (resumed_after,) = re.findall(r"Resuming after round (\d) of 5", programs.logs(last=10**7))
    assert int(resumed_after) in (noted, noted + 1)
    for call in calls:
        assert call["evaluate/sampling-replies"] == 6
        assert call["evaluate/loss-standard-error"] > 0.0
    with read_run(ledger) as record:
        names = record.client_names
    assert sorted(names.values()) == sorted(f"partition-id:{place}" for place in range(20))
    assert "partition-id:" in programs.call("sortition", "runs", "show", str(ledger))
