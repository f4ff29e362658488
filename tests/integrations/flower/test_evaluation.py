"""Sampled evaluation: unbiased for all clients online, with a standard error, and apart from training."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from sortition import ConfigurationError
from sortition.core.designs import inclusion_probabilities
from sortition.integrations.flower import AdaptiveSampling
from sortition.integrations.flower.evaluation import draw_evaluators
from sortition.integrations.flower.metrics import standard_errors, weighted_means
from tests.integrations.flower.fake_grid import Client, FakeGrid, model, weights
from tests.integrations.flower.fake_grid import federation as plain_federation

LOSSES = np.array([3.0, 1.0, -2.0, 0.5, 4.0])


class Coins:
    """Gives the order that it is told and coins that fall as they are told; sums up what that is worth."""

    def __init__(self, order, coins):
        self.order, self.coins, self.thresholds = order, list(coins), []

    def permutation(self, number):
        return np.array(self.order)

    def random(self):
        return Coin(self)


class Coin:
    """A uniform random number u of which is told, comparison by comparison, whether it is below."""

    def __init__(self, source):
        self.source = source

    def __mul__(self, scale):
        self.scale = scale
        return self

    def __lt__(self, bound):
        if not 0.0 < bound < self.scale:  # no matter of chance
            return bound > 0.0
        self.source.thresholds.append(bound / self.scale)
        below = self.source.coins.pop(0) if self.source.coins else True
        self.source.thresholds[-1] = self.source.thresholds[-1] if below else 1 - self.source.thresholds[-1]
        return below


def all_draws(sizes, cohort_size):
    """Every draw that there is with its probability: all orders of the clients, and all ways coins fall."""
    orders = list(permutations(range(len(sizes))))
    for order in orders:
        paths = [[]]
        while paths:
            path = paths.pop()
            coins = Coins(order, path)
            drawn = draw_evaluators(sizes, cohort_size, coins)
            depth = len(coins.thresholds)
            if len(path) < depth:  # more coins were needed: let the next one fall either way
                paths += [[*path, True], [*path, False]]
                continue
            yield drawn, float(np.prod(coins.thresholds)) / len(orders)


@pytest.mark.parametrize(
    "sizes", [[1.0, 1, 1, 1, 1], [1.0, 2, 3, 4, 2], [1.0, 1, 9, 1, 2], [1.0, 0, 2, 2, 4]]
)
@pytest.mark.parametrize("cohort_size", [2, 3])
def test_the_mean_over_all_draws_is_that_of_all_clients(sizes, cohort_size):
    """Exactly: every order, every fall of the coins. The clients evaluate on as much as is known of them."""
    sizes = np.array(sizes, dtype=float)
    total, mean, included = 0.0, 0.0, np.zeros(5)
    for (places, inclusion), probability in all_draws(sizes, cohort_size):
        reported = [{"loss": LOSSES[place]} for place in places]
        mean += probability * weighted_means(reported, sizes[places] / inclusion)["loss"]
        total += probability
        included[places] += probability
        assert len(places) == cohort_size
    assert total == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(
        included, inclusion_probabilities(sizes / sizes.sum(), cohort_size), atol=1e-12
    )
    assert mean == pytest.approx(float(sizes @ LOSSES / sizes.sum()), abs=1e-12)


@pytest.mark.parametrize("cohort_size", [2, 3, 4])
def test_the_squared_standard_error_is_the_variance_for_equal_sizes(cohort_size):
    """Over all draws: the variance of the mean, and the mean of what is reported as its variance."""
    mean = square = reported_variance = 0.0
    for (places, inclusion), probability in all_draws(np.ones(5), cohort_size):
        reported = [{"loss": LOSSES[place]} for place in places]
        found = weighted_means(reported, 1.0 / inclusion)["loss"]
        error = standard_errors(reported, 1.0 / inclusion, inclusion)["loss-standard-error"]
        mean, square = mean + probability * found, square + probability * found**2
        reported_variance += probability * error**2
    assert reported_variance == pytest.approx(square - mean**2, rel=1e-12)


def test_the_standard_error_for_unequal_sizes_is_about_right():
    """Twelve of forty clients, 4,000 draws. For seeds 1 to 4 the ratio was .988, 1.024, .987 and .958."""
    rng = np.random.default_rng(1)
    sizes, losses = rng.uniform(1.0, 10.0, 40), rng.normal(size=40)
    means, variances = [], []
    for _ in range(4000):
        places, inclusion = draw_evaluators(sizes, 12, rng)
        reported = [{"loss": losses[place]} for place in places]
        means.append(weighted_means(reported, sizes[places] / inclusion)["loss"])
        error = standard_errors(reported, sizes[places] / inclusion, inclusion)["loss-standard-error"]
        variances.append(error**2)
    assert np.mean(means) == pytest.approx(sizes @ losses / sizes.sum(), abs=4 * np.std(means) / 4000**0.5)
    assert np.mean(variances) == pytest.approx(np.var(means), rel=0.1)  # 4.5 standard errors of a variance


def test_what_a_standard_error_is_where_there_is_no_chance_or_a_single_reply():
    one = [{"loss": 1.0}]
    assert np.isnan(standard_errors(one, np.ones(1), np.array([0.5]))["loss-standard-error"])
    assert standard_errors(one, np.ones(1), np.ones(1))["loss-standard-error"] == 0.0
    lists = [{"by-class": [1.0, 2.0]}, {"by-class": [3.0, 2.0]}]
    assert standard_errors(lists, np.ones(2), np.full(2, 0.5))["by-class-standard-error"] == pytest.approx(
        [0.5**0.5, 0.0]
    )


def clients(number=10, fails=lambda server_round: None):
    return [Client(float(place), 1.0 + place, fails=fails) for place in range(number)]


def sizes_of(number=10):
    return {f"name:client-{place}": 1.0 + place for place in range(number)}


def run(grid, rounds=3, ledger=None, inner=None, on_round=None, **options):
    options = {"cohort_size": 4, "evaluate_cohort_size": 3, "num_examples": sizes_of(), "seed": 3, **options}
    strategy = AdaptiveSampling(inner or FedAvg(), ledger=ledger, **options)
    return strategy.start(grid, model(0.0), num_rounds=rounds, on_round=on_round)


class NotingGrid(FakeGrid):
    """Notes who was asked to do what in which round."""

    def _reply(self, message):
        if message.metadata.message_type in ("train", "evaluate"):
            self.asked.append(
                (
                    message.metadata.message_type,
                    int(message.content["config"]["server-round"]),
                    message.metadata.dst_node_id,
                )
            )
        return super()._reply(message)


def federation(clients):
    grid = plain_federation(clients)
    noting = NotingGrid(grid.nodes)
    noting.asked = []
    return noting


def evaluators(grid, server_round):
    return sorted(node for kind, number, node in grid.asked if (kind, number) == ("evaluate", server_round))


def test_a_round_of_evaluation():
    grid = federation(clients())
    result = run(grid)
    for server_round in (1, 2, 3):
        nodes = evaluators(grid, server_round)
        assert len(set(nodes)) == len(nodes) == 3
        losses = [grid.nodes[node][1].target for node in nodes]
        found = result.evaluate_metrics_clientapp[server_round]
        assert found["loss"] == pytest.approx(np.mean(losses))  # in proportion to size: all count equally
        assert found["loss-standard-error"] > 0.0
        counts = [found[f"sampling-{what}"] for what in ("available-clients", "distinct-clients", "replies")]
        assert counts == [10, 3, 3]


def test_with_everybody_it_is_what_flower_has():
    result = run(federation(clients()), evaluate_cohort_size=10)
    plain = FedAvg(fraction_evaluate=1.0)
    grid = federation(clients())
    messages = plain.configure_evaluate(1, model(0.0), ConfigRecord(), grid)
    expected = plain.aggregate_evaluate(1, grid.send_and_receive(messages))
    found = result.evaluate_metrics_clientapp[1]
    assert found["loss"] == pytest.approx(expected["loss"])
    assert found["loss-standard-error"] == 0.0


def test_evaluation_does_not_change_who_trains():
    drawn = []
    for options in ({}, {"evaluate_cohort_size": 5}, {"inner": FedAvg(fraction_evaluate=0.0)}):
        if "inner" in options:
            options["evaluate_cohort_size"] = None
        grid = federation(clients())
        result = run(grid, **options)
        trained = sorted(asked for asked in grid.asked if asked[0] == "train")
        drawn.append((trained, weights(result.arrays).tolist()))
    assert drawn[0] == drawn[1] == drawn[2]


class CrashError(Exception):
    """The program is gone."""


def test_a_resumed_run_draws_the_same_evaluators(tmp_path):
    """The crash comes when the evaluators of round 2 have been asked."""
    whole, broken, resumed = (federation(clients()) for _ in range(3))
    expected = run(whole)
    send = broken.send_and_receive

    def crashing(messages, *, timeout=None):
        replies = send(messages, timeout=timeout)
        if evaluators(broken, 2):
            raise CrashError
        return replies

    broken.send_and_receive = crashing
    with pytest.raises(CrashError):
        run(broken, ledger=tmp_path / "run.db")
    result = run(resumed, ledger=tmp_path / "run.db")
    for server_round in (2, 3):
        assert evaluators(resumed, server_round) == evaluators(whole, server_round)
    assert result == expected


def test_silent_evaluators_are_counted_and_the_others_stand_in():
    grid = federation(
        [
            Client(float(place), 1.0, fails=lambda _, place=place: ["raises", None][place % 2])
            for place in range(10)
        ]
    )
    result = run(grid, evaluate_cohort_size=8, num_examples=dict.fromkeys(sizes_of(), 1.0))
    found = result.evaluate_metrics_clientapp[1]
    heard = [grid.nodes[node][1].target for node in evaluators(grid, 1) if grid.nodes[node][1].target % 2]
    assert found["sampling-replies"] == len(heard) < 8
    assert found["sampling-failures"] == 8 - len(heard)
    assert found["loss"] == pytest.approx(np.mean(heard))
    variance = np.var(heard, ddof=1) * (1 - len(heard) / 10) / len(heard)
    assert found["loss-standard-error"] == pytest.approx(variance**0.5)


WRONG = {
    "no metrics": RecordDict(),
    "two records": RecordDict({"a": MetricRecord({"num-examples": 1.0}), "b": MetricRecord({"x": 1.0})}),
    "no size": RecordDict({"a": MetricRecord({"loss": 1.0})}),
    "negative": RecordDict({"a": MetricRecord({"num-examples": -1, "loss": 1.0})}),
    "nan": RecordDict({"a": MetricRecord({"num-examples": float("nan"), "loss": 1.0})}),
    "a list": RecordDict({"a": MetricRecord({"num-examples": [1.0], "loss": 1.0})}),
    "loss is nan": RecordDict({"a": MetricRecord({"num-examples": 1.0, "loss": float("nan")})}),
    "loss is inf": RecordDict({"a": MetricRecord({"num-examples": 1.0, "loss": [1.0, float("inf")]})}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_malformed_evaluation_counts_as_none_and_is_named(wrong, caplog):
    grid = federation([Client(float(place), 1.0) for place in range(6)])
    handled = grid._handled

    def lying(message, client):
        if message.metadata.message_type == "evaluate" and client.target == 2.0:
            return Message(RecordDict(dict(WRONG[wrong])), reply_to=message)
        return handled(message, client)

    grid._handled = lying
    result = run(grid, rounds=1, evaluate_cohort_size=6, num_examples=None)
    found = result.evaluate_metrics_clientapp[1]
    assert found["loss"] == pytest.approx(np.mean([0.0, 1.0, 3.0, 4.0, 5.0]))
    assert found["sampling-failures"] == 1
    assert "What name:client-2 returned for evaluation counts as no reply" in caplog.text


def test_nobody_evaluates():
    result = run(federation(clients(fails=lambda _: "raises")), rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {
        "sampling-available-clients": 10,
        "sampling-distinct-clients": 3,
        "sampling-replies": 0,
        "sampling-failures": 3,
    }


def test_without_sizes_each_is_as_likely_and_counts_by_what_it_reports():
    grid = federation(clients())
    strategy = AdaptiveSampling(FedAvg(), cohort_size=4, evaluate_cohort_size=3)
    messages = strategy.configure_evaluate(1, model(0.0), ConfigRecord(), grid)
    found = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    heard = [grid.nodes[node][1] for node in evaluators(grid, 1)]
    expected = np.average([c.target for c in heard], weights=[c.examples for c in heard])
    assert found["loss"] == pytest.approx(expected)


def test_a_huge_size_does_not_take_over():
    """Eleven clients of one example; one claims 1e300 for its evaluation, and has loss 1e6."""
    grid = federation([Client(1.0, 1.0) for _ in range(11)])
    handled = grid._handled
    liar = next(iter(grid.nodes))

    def lying(message, client):
        if message.metadata.message_type == "evaluate" and message.metadata.dst_node_id == liar:
            metrics = MetricRecord({"num-examples": 1e300, "loss": 1e6})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        return handled(message, client)

    grid._handled = lying
    result = run(grid, rounds=4, evaluate_cohort_size=11, num_examples=None, cohort_size=11)
    assert result.evaluate_metrics_clientapp[4]["loss"] <= 1e6 * 100 / 110 + 1  # ten times the others at most
    result = run(grid, rounds=1, evaluate_cohort_size=11, num_examples=dict.fromkeys(sizes_of(11), 1.0))
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx((1e6 + 10) / 11)


def test_a_function_of_ones_own_gets_the_weights():
    def own(records, weighted_by_key):
        metrics = [next(iter(record.metric_records.values())) for record in records]
        losses, weights = ([m[name] for m in metrics] for name in ("loss", weighted_by_key))
        return MetricRecord({"loss": float(np.average(losses, weights=weights)), "worst": max(losses)})

    grid = federation(clients())
    plain = run(federation(clients()))
    result = run(grid, inner=FedAvg(evaluate_metrics_aggr_fn=own))
    for server_round, found in result.evaluate_metrics_clientapp.items():
        worst = max(grid.nodes[node][1].target for node in evaluators(grid, server_round))
        assert found["worst"] == worst
        assert "worst-standard-error" not in found
        for name in ("loss", "loss-standard-error"):
            assert found[name] == pytest.approx(plain.evaluate_metrics_clientapp[server_round][name])


def test_a_subclass_that_reads_the_replies_sees_the_means():
    seen = []

    class Reading(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            replies = list(replies)
            seen.append([dict(reply.content["metrics"]) for reply in replies])
            return super().aggregate_evaluate(server_round, replies)

    grid = federation(clients())
    result = run(grid, inner=Reading(), rounds=1)
    ((reply,),) = seen
    assert reply["loss"] == result.evaluate_metrics_clientapp[1]["loss"]
    assert reply["num-examples"] == sum(grid.nodes[node][1].examples for node in evaluators(grid, 1))


@pytest.mark.parametrize(
    ("inner", "size", "named"),
    [
        ({"fraction_evaluate": 0.5}, 3, r"fraction_evaluate=1\.0.*evaluate_cohort_size.*got 0\.5"),
        ({"min_evaluate_nodes": 5}, 3, "min_evaluate_nodes=5.*evaluate_cohort_size=3"),
        ({}, 1, "evaluate_cohort_size.*1"),
        ({}, "many", "evaluate_cohort_size.*many"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(inner, size, named):
    with pytest.raises(ConfigurationError, match=named):
        AdaptiveSampling(FedAvg(**inner), cohort_size=4, evaluate_cohort_size=size)


def test_inner_evaluation_that_fails_over_its_replies_does_not_end_the_run(caplog):
    """Without the option, evaluation is left to Flower, which refuses replies with different metrics."""
    grid = federation([Client(1.0, 1.0, extra={"accuracy": 0.5}), Client(), Client()])
    inner = FedAvg()
    result = AdaptiveSampling(inner, cohort_size=3).start(grid, model(0.0), num_rounds=2)
    assert list(result.train_metrics_clientapp) == [1, 2]
    assert result.evaluate_metrics_clientapp == {}
    assert "The evaluation of round 1 failed and is left out" in caplog.text


def test_clients_that_rest_do_not_evaluate():
    """One never replies. It begins to rest after its third silence in training."""
    grid = federation([Client(float(place), 1.0) for place in range(5)])
    silent = next(iter(grid.nodes))
    grid.nodes[silent][1].fails = lambda server_round: "times out"
    result = run(grid, rounds=4, cohort_size=4, evaluate_cohort_size=4, num_examples=None)
    rests = result.train_metrics_clientapp[4]["sampling-resting-clients"]
    trained = [number for kind, number, node in grid.asked if kind == "train" and node == silent]
    evaluated = [number for kind, number, node in grid.asked if kind == "evaluate" and node == silent]
    third = trained[2]
    assert rests == 1
    assert third not in evaluated
    assert 4 not in evaluated
