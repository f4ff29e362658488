"""Clients keep their identity, and with it their history, whatever happens to their nodes."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import FedAvg

from sortition import ConfigurationError, UniformSampler
from sortition.integrations.flower import AdaptiveSampling, reported_identity
from tests.integrations.flower.fake_grid import Client, FakeGrid, model, one_round, superlink_error

PEM = b"-----BEGIN PUBLIC KEY-----\n%d\n-----END PUBLIC KEY-----\n"


def strategy(**options):
    return AdaptiveSampling(FedAvg(fraction_evaluate=0.0), **{"cohort_size": 2, **options})


def info(node_id, **options):
    return NodeInfo(node_id=node_id, **options)


def test_by_registered_name_then_by_key_then_by_asking():
    grid = FakeGrid(
        {
            10: (info(10, name="clinic", public_key=PEM % 1), Client(partition=7)),
            20: (info(20, public_key=PEM % 2), Client(partition=8)),
            30: (info(30, public_key=b"random bytes of a simulated node"), Client(partition=9)),
        }
    )
    adaptive = strategy()
    one_round(adaptive, grid, model(0.0))
    kinds = [identity.partition(":")[0] for identity in adaptive.identities]
    assert kinds == ["key", "name", "partition-id"]
    assert adaptive.identities[1:] == ("name:clinic", "partition-id:9")
    assert grid.queries == 3


def test_the_client_is_asked_once_and_not_in_every_round():
    grid = simulated([3, 0, 10, 2])
    adaptive = strategy()
    for server_round in (1, 2, 3):
        one_round(adaptive, grid, model(0.0), server_round)
    assert grid.queries == 4


def simulated(partitions, first_node=50, **options):
    """A simulation: random bytes for keys, no names."""
    nodes = {
        first_node + place: (
            info(first_node + place, public_key=bytes([place] * 32)),
            Client(partition=partition, **options),
        )
        for place, partition in enumerate(partitions)
    }
    return FakeGrid(nodes)


def test_ids_of_the_sampler_follow_the_partitions_in_the_order_of_numbers():
    adaptive = strategy()
    one_round(adaptive, simulated([3, 0, 10, 2]), model(0.0))
    assert adaptive.identities == ("partition-id:0", "partition-id:2", "partition-id:3", "partition-id:10")


def test_another_simulation_of_the_same_clients_draws_the_same_ones():
    """Node ids are random in each run, partitions are not."""
    drawn = []
    for first_node in (50, 9000):
        partitions = list(range(20)) if first_node == 50 else list(range(20))[::-1]
        grid, adaptive = simulated(partitions, first_node), strategy(cohort_size=5, seed=4)
        for server_round in range(1, 6):
            one_round(adaptive, grid, model(0.0), server_round)
        trained = [message for message in grid.sent if message.metadata.message_type == "train"]
        drawn.append([grid.nodes[message.metadata.dst_node_id][1].partition for message in trained])
    assert sorted(drawn[0]) == sorted(drawn[1])


FAILS = "<class 'KeyError'>:<'partition-id'>"
"""The error of a query function that fails."""


@pytest.mark.parametrize(
    ("error", "queries"),
    [(FAILS, 5), (Client.query_error, 1), (f"ClientAppException: {Client.query_error}", 1)],
)
def test_an_app_that_answers_no_queries_works_by_node_ids_and_is_asked_once_or_a_few_times(
    error, queries, caplog
):
    grid = simulated([None] * 30, query_error=error)
    adaptive = strategy()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in (1, 2):
            assert one_round(adaptive, grid, model(0.0), server_round)[0] is not None
    assert grid.queries == queries
    assert ("@app.query()" in caplog.text) == (queries == 1)  # what to add
    assert adaptive.identities == tuple(f"node:{node_id}" for node_id in sorted(grid.get_node_ids()))
    assert ("30 of 30" in caplog.text) == (queries == 5)  # one warning for one cause


@pytest.mark.parametrize("failing", [1, 4])
def test_the_first_ones_that_fail_leave_the_others_their_names(failing, caplog):
    grid, adaptive = simulated([None] * failing + list(range(20)), query_error=FAILS), strategy()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        one_round(adaptive, grid, model(0.0))
    assert adaptive.identities == (
        *(f"node:{50 + place}" for place in range(failing)),
        *(f"partition-id:{place}" for place in range(20)),
    )
    assert f"{failing} of {failing + 20}" in caplog.text


def test_two_that_are_there_alone_and_fail_leave_those_who_join_their_names():
    grid, adaptive = simulated([None, None], query_error=FAILS), strategy()
    one_round(adaptive, grid, model(0.0))
    grid.nodes |= simulated([1, 2], first_node=90).nodes
    one_round(adaptive, grid, model(0.0), 2)
    assert adaptive.identities == ("node:50", "node:51", "partition-id:1", "partition-id:2")


def test_an_app_that_answers_no_queries_is_found_out_also_if_its_nodes_come_one_by_one():
    grid, adaptive = simulated([None, None], query_error=FAILS), strategy()
    for server_round in range(1, 9):
        one_round(adaptive, grid, model(0.0), server_round)
        grid.nodes |= simulated([None], first_node=60 + server_round, query_error=FAILS).nodes
    assert grid.queries == 5
    assert len(adaptive.identities) == 9


def test_a_size_reported_with_the_identity_counts_from_the_start():
    clients = [Client(8.0 * p, [10, 30][p], partition=p, tells_size=True) for p in range(2)]
    nodes = {5 + p: (info(5 + p), client) for p, client in enumerate(clients)}
    adaptive = strategy(cohort_size=None, sampler=UniformSampler(num_clients=2, cohort_size=1))
    _, metrics = one_round(adaptive, FakeGrid(nodes), model(0.0))
    (drawn,) = np.flatnonzero(adaptive._pool._has_replied)
    assert metrics["sampling-total-weight"] == pytest.approx(2 * [0.25, 0.75][drawn])


def registered(sizes, first_node=1):
    """Registered SuperNodes whose ClientApp answers queries."""
    return {
        first_node + place: (
            info(first_node + place, name=f"c{first_node + place}"),
            Client(examples=size, partition=place, tells_size=True),
        )
        for place, size in enumerate(sizes)
    }


def test_registered_nodes_are_asked_for_their_sizes_unless_these_are_known():
    grid = FakeGrid(registered([10.0, 30.0, 60.0]))
    adaptive = strategy(cohort_size=1, num_examples={"name:c1": 20.0})
    one_round(adaptive, grid, model(0.0))
    assert adaptive.identities == ("name:c1", "name:c2", "name:c3")  # and not what they report
    assert adaptive.state_dict()["sizes"].tolist() == [20.0, 30.0, 60.0]
    assert grid.queries == 2
    grid.nodes |= registered([50.0], first_node=9)
    restarted(grid, 3, 33)
    one_round(adaptive, grid, model(0.0), 2)
    assert adaptive.state_dict()["sizes"].tolist() == [20.0, 30.0, 60.0, 50.0]
    assert grid.queries == 3  # the newcomer; the size of the one that was restarted is known


def test_sizes_in_a_resumed_run_need_not_be_asked_for():
    before, grid = strategy(cohort_size=1), FakeGrid(registered([10.0, 30.0, 60.0]))
    one_round(before, grid, model(0.0))
    after = strategy(cohort_size=1)
    after.load_state_dict(before.state_dict())
    one_round(after, grid, model(0.0))
    assert grid.queries == 3


def test_sizes_that_were_unknown_before_a_restart_are_learnt_from_queries():
    before, grid = strategy(cohort_size=1), FakeGrid(registered([10.0, 30.0, 60.0]))
    for _, client in grid.nodes.values():
        client.partition = None
    one_round(before, grid, model(0.0))
    assert np.isnan(before.state_dict()["sizes"]).sum() == 2
    after = strategy(cohort_size=1)
    after.load_state_dict(before.state_dict())
    one_round(after, FakeGrid(registered([10.0, 30.0, 60.0])), model(0.0))
    assert after.state_dict()["sizes"].tolist() == [10.0, 30.0, 60.0]


def test_a_registered_node_that_does_not_answer_is_asked_once_and_takes_part(caplog):
    grid = Silent(registered([10.0, 30.0, 60.0]))
    grid.silent = frozenset({1, 2, 3})
    adaptive = strategy(cohort_size=3)
    for server_round in (1, 2, 3):
        _, metrics = one_round(adaptive, grid, model(0.0), server_round)
        assert metrics["sampling-replies"] == 3
    assert grid.queries == 3
    assert caplog.text.count("name:c1, name:c2, name:c3") == 1


def test_what_flower_logs_about_a_missing_query_function_is_left_out(caplog):
    """A simulation logs the exception three times, in the process of the server; nothing else is left out."""

    class Logging(FakeGrid):
        def _reply(self, message):
            if message.metadata.message_type == "query":
                flower = logging.getLogger("flwr")
                flower.error("An exception was raised when processing a message by RayBackend")
                flower.error("Traceback ...\nValueError: No query function registered with name 'default'")
                flower.error("something else")
            return super()._reply(message)

    with caplog.at_level(logging.INFO, logger="flwr"):
        one_round(strategy(), Logging(simulated([None] * 9).nodes), model(0.0))
    logging.getLogger("flwr").error("No query function registered: later")
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["something else", "No query function registered: later"]


def test_a_node_without_a_name_that_is_never_reached_is_asked_less_and_less(caplog):
    grid, adaptive = Silent(simulated([0, 1, 2]).nodes), strategy()
    grid.unreachable = frozenset({52})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in range(1, 65):
            one_round(adaptive, grid, model(0.0), server_round)
    assert grid.queries == 2 + 7  # in rounds 1, 2, 4, 8, 16, 32 and 64
    assert caplog.text.count("Node 52 can't be reached") == 1


def restarted(grid, node_id, new_id, **changes):
    """The SuperNode starts again, as a new node."""
    old, client = grid.nodes.pop(node_id)
    grid.nodes[new_id] = (NodeInfo(node_id=new_id, name=old.name, **changes), client)


def test_a_client_that_returns_as_another_node_keeps_its_id_and_its_history():
    nodes = {n: (info(n, name=f"c{n}"), Client(100.0 if n == 3 else 0.01)) for n in range(1, 21)}
    grid, adaptive = FakeGrid(nodes), strategy(cohort_size=4)
    for server_round in range(1, 41):
        one_round(adaptive, grid, model(0.0), server_round)
    place = adaptive.identities.index("name:c3")
    learnt = adaptive.sampler.probabilities()[place]
    assert learnt > 0.2
    restarted(grid, 3, 777)
    asked = len(grid.sent)
    for server_round in range(41, 46):
        one_round(adaptive, grid, model(0.0), server_round)
    assert adaptive.identities.index("name:c3") == place
    assert len(adaptive.identities) == adaptive.sampler.num_clients == 20
    assert 777 in {message.metadata.dst_node_id for message in grid.sent[asked:]}
    assert adaptive.sampler.probabilities()[place] > 0.2


def test_a_keyless_restart_is_recognised_if_clients_are_asked():
    """The dead node still counts as online for a while: the one that was activated later is the client."""
    nodes = {
        n: (info(n, public_key=PEM % n, last_activated_at="2026-01-01"), Client(partition=n))
        for n in (1, 2, 3)
    }
    grid, adaptive = FakeGrid(nodes), strategy(cohort_size=3, identity=reported_identity)
    one_round(adaptive, grid, model(0.0))
    grid.nodes[99] = (info(99, public_key=PEM % 99, last_activated_at="2026-01-02"), Client(partition=2))
    sent = len(grid.sent)
    one_round(adaptive, grid, model(0.0), 2)
    assert adaptive.identities == ("partition-id:1", "partition-id:2", "partition-id:3")
    trained = [m.metadata.dst_node_id for m in grid.sent[sent:] if m.metadata.message_type == "train"]
    assert sorted(trained) == [1, 3, 99]


def test_clients_that_vanish_are_not_drawn_and_newcomers_join():
    nodes = {n: (info(n, name=f"c{n}"), Client()) for n in range(1, 7)}
    grid, adaptive = FakeGrid(nodes), strategy(cohort_size=4)
    one_round(adaptive, grid, model(0.0))
    gone = grid.nodes.pop(2)
    grid.nodes[8] = (info(8, name="c8"), Client())
    grid.nodes[9] = (info(9, name="c9"), Client())
    sent = len(grid.sent)
    for server_round in range(2, 30):
        _, metrics = one_round(adaptive, grid, model(0.0), server_round)
        assert metrics["sampling-available-clients"] == 7
    trained = {message.metadata.dst_node_id for message in grid.sent[sent:]}
    assert trained == {1, 3, 4, 5, 6, 8, 9}
    assert adaptive.identities == (
        "name:c1",
        "name:c2",
        "name:c3",
        "name:c4",
        "name:c5",
        "name:c6",
        "name:c8",
        "name:c9",
    )
    grid.nodes[2] = gone
    assert one_round(adaptive, grid, model(0.0), 30)[1]["sampling-available-clients"] == 8


def test_any_function_can_say_who_a_node_is():
    nodes = {n: (info(n, location=f"{n},{n}", name="same for all"), Client()) for n in (1, 2, 3)}
    adaptive = strategy(identity=lambda node: f"place:{node.location}")
    one_round(adaptive, FakeGrid(nodes), model(0.0))
    assert adaptive.identities == ("place:1,1", "place:2,2", "place:3,3")


def test_an_identity_that_is_no_string_is_refused():
    adaptive = strategy(identity=lambda node: node.node_id)
    with pytest.raises(ConfigurationError, match="identity"):
        one_round(adaptive, FakeGrid({3: (info(3), Client())}), model(0.0))


def test_a_sampler_for_fewer_clients_grows():
    sampler = UniformSampler(num_clients=2, cohort_size=2)
    nodes = {n: (info(n, name=f"c{n}"), Client()) for n in range(1, 6)}
    one_round(strategy(cohort_size=None, sampler=sampler), FakeGrid(nodes), model(0.0))
    assert sampler.num_clients == 5


def test_a_sampler_that_can_not_grow_says_so():
    class Fixed(UniformSampler):
        add_clients = None

    nodes = {n: (info(n, name=f"c{n}"), Client()) for n in range(1, 6)}
    adaptive = strategy(cohort_size=None, sampler=Fixed(num_clients=2, cohort_size=2))
    with pytest.raises(ConfigurationError, match=r"sampler.*add_clients"):
        one_round(adaptive, FakeGrid(nodes), model(0.0))


def test_it_waits_until_enough_clients_are_online(monkeypatch):
    grid = FakeGrid({1: (info(1, name="a"), Client())})
    waits = []

    def arrive(seconds):
        waits.append(seconds)
        grid.nodes[len(waits) + 1] = (info(len(waits) + 1, name=f"b{len(waits)}"), Client())

    monkeypatch.setattr("time.sleep", arrive)
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=3)
    one_round(AdaptiveSampling(inner, cohort_size=1), grid, model(0.0))
    assert len(waits) == 2


def test_a_client_that_can_not_be_reached_is_asked_again():
    adaptive, grid = strategy(), Silent(simulated([0, 1, 2]).nodes)
    grid.unreachable = frozenset({51})
    one_round(adaptive, grid, model(0.0))
    assert adaptive.identities == ("partition-id:0", "partition-id:2")
    grid.unreachable = frozenset()
    one_round(adaptive, grid, model(0.0), 2)
    assert adaptive.identities == ("partition-id:0", "partition-id:2", "partition-id:1")


class Silent(FakeGrid):
    """Some nodes are online and never answer a query in time; the SuperLink says that others are gone."""

    silent: frozenset[int] = frozenset()
    unreachable: frozenset[int] = frozenset()
    waits: set[float | None]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "query":
            self.waits = {*getattr(self, "waits", ()), timeout}
        return super().send_and_receive(messages, timeout=timeout)

    def _reply(self, message):
        if message.metadata.message_type == "query":
            if message.metadata.dst_node_id in self.silent:
                return None
            if message.metadata.dst_node_id in self.unreachable:
                return superlink_error(message)
        return super()._reply(message)


def never(seconds):
    raise AssertionError("there are clients online")


def test_who_does_not_answer_in_time_is_not_left_out_and_is_named_once(monkeypatch, caplog):
    """The first one that is asked, and one among newcomers."""
    monkeypatch.setattr("time.sleep", never)
    grid, adaptive = Silent(simulated([0, 1, 2], tells_size=True).nodes), strategy()
    grid.silent = frozenset({50, 90})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        _, metrics = one_round(adaptive, grid, model(0.0))
        assert metrics["sampling-available-clients"] == 3
        assert adaptive.identities == ("node:50", "partition-id:1", "partition-id:2")
        assert caplog.text.count("1 of 3 new clients did not answer within 60 seconds") == 1
        grid.nodes |= simulated([3, 4], first_node=90).nodes
        for server_round in (2, 3):
            _, metrics = one_round(adaptive, grid, model(0.0), server_round)
            assert metrics["sampling-available-clients"] == 5
    assert adaptive.identities[3:] == ("node:90", "partition-id:4")
    assert grid.queries == 5
    assert caplog.text.count("node:50") == caplog.text.count("node:90") == 1


def test_a_federation_in_which_nobody_answers_in_time_trains(monkeypatch):
    monkeypatch.setattr("time.sleep", never)
    grid, adaptive = Silent(simulated(range(12)).nodes), strategy(cohort_size=4)
    grid.silent = frozenset(grid.nodes)
    result = adaptive.start(grid, model(0.0), num_rounds=2, timeout=3)
    available = [each["sampling-available-clients"] for each in result.train_metrics_clientapp.values()]
    assert available == [12, 12]
    assert grid.waits == {60.0}  # and not the time that training may take
    assert grid.queries == 12


def test_a_size_that_is_no_number_is_named_once(caplog):
    grid, adaptive = simulated([0, 1, 2], tells_size=True), strategy()
    grid.nodes[51][1].examples = "many"
    grid.nodes[51][1].extra = {"num-examples": 4.0}  # in its replies
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in (1, 2):
            one_round(adaptive, grid, model(0.0), server_round)
    (told,) = [each.getMessage() for each in caplog.records if "many" in each.getMessage()]
    assert "partition-id:1 was asked for its number of examples and told 'num-examples': 'many'" in told


def test_one_newcomer_whose_query_fails_leaves_the_others_their_names():
    grid, adaptive = simulated([0, 1]), strategy()
    one_round(adaptive, grid, model(0.0))
    grid.nodes |= simulated([None, 3], first_node=90, query_error=FAILS).nodes
    one_round(adaptive, grid, model(0.0), 2)
    assert adaptive.identities[2:] == ("node:90", "partition-id:3")


def test_clients_may_report_what_they_call_node():
    class Reporting(FakeGrid):
        def _reply(self, message):
            reply = super()._reply(message)
            if message.metadata.message_type == "query":
                reply.content["answer"]["node"] = reply.content["answer"]["partition-id"]
            return reply

    adaptive = strategy(reported_key="node")
    one_round(adaptive, Reporting(simulated([1, 0]).nodes), model(0.0))
    assert adaptive.identities == ("node:0", "node:1")


@pytest.mark.parametrize("size", [float("inf"), float("nan"), -1.0])
def test_a_reported_size_that_makes_no_sense_is_as_good_as_none(size):
    class Reporting(FakeGrid):
        def _reply(self, message):
            reply = super()._reply(message)
            if message.metadata.message_type == "query":
                reply.content["answer"]["num-examples"] = size if message.metadata.dst_node_id == 50 else 1.0
            return reply

    arrays, _ = one_round(strategy(), Reporting(simulated([0, 1, 2, 3], target=4.0).nodes), model(0.0))
    assert np.isfinite(arrays["w"].numpy()).all()
    assert arrays["w"].numpy() != 0.0
