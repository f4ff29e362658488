"""Replies that can't be used count as no reply and are named; a model that can't be used is not taken."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from sortition import ConfigurationError, FeedbackError, Guard, UniformSampler, default_sampler
from sortition.integrations.flower import AdaptiveSampling
from sortition.integrations.flower.arrays import STYPE, arrays_of, packed, view
from sortition.lab.reports.ledger_page import ledger_page
from sortition.ledger import read_run
from sortition.ledger.summary import figures, summarise
from tests.integrations.flower.fake_grid import (
    Client,
    FakeGrid,
    empty_context,
    federation,
    model,
    one_round,
    weights,
)
from tests.integrations.flower.test_ledger import CrashError


class RewritingGrid(FakeGrid):
    """The reply of the last node is rewritten on its way."""

    def rewrite(self, change, rounds=None):
        self.change, self.rounds = change, rounds
        return self

    def _reply(self, message):
        reply = super()._reply(message)
        if message.metadata.dst_node_id != max(self.nodes) or "config" not in message.content:
            return reply
        if self.rounds is not None and message.content["config"]["server-round"] not in self.rounds:
            return reply
        content = self.change(reply.content)
        return reply if content is None else Message(content, reply_to=message)


def rewriting(clients, change, rounds=None):
    return RewritingGrid(federation(clients).nodes).rewrite(change, rounds)


def arrays(**values):
    return ArrayRecord({key: Array(np.asarray(value)) for key, value in values.items()})


def with_array(values):
    def change(content):
        content["arrays"] = arrays(w=values)

    return change


def with_bytes(data, dtype="float64", shape=(2,), stype=STYPE):
    def change(content):
        content["arrays"] = ArrayRecord({"w": Array(dtype, shape, stype, data)})

    return change


def with_metrics(**metrics):
    def change(content):
        content["metrics"] = MetricRecord({key.replace("_", "-"): value for key, value in metrics.items()})

    return change


def without(name):
    def change(content):
        del content[name]

    return change


def and_also(name, record):
    def change(content):
        content[name] = record

    return change


GOOD = Array(np.zeros(2)).data
HUGE = GOOD.replace(b"(2,)", b"(9" + b"9" * 15 + b",)")
BAD = {
    "another shape": (with_array(np.zeros(3)), "shape"),
    "a matrix": (with_array(np.zeros((2, 1))), "shape"),
    "a number": (with_array(0.5), "shape"),
    "missing array": (and_also("arrays", ArrayRecord()), "names"),
    "another name": (and_also("arrays", arrays(v=np.zeros(2))), "names"),
    "one more": (and_also("arrays", arrays(w=np.zeros(2), v=np.zeros(2))), "names"),
    "strings": (with_array(["a", "b"]), "floats, integers"),
    "complex": (with_array([1j, 2.0]), "floats, integers"),
    "dates": (with_array(np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]")), "floats, integers"),
    "records": (with_array(np.zeros(2, dtype=[("a", "f8")])), "floats, integers"),
    "garbage": (with_bytes(b"garbage"), "can't be read"),
    "nothing": (with_bytes(b""), "can't be read"),
    "cut off": (with_bytes(GOOD[:-3]), "can't be read"),
    "bad header": (with_bytes(GOOD[:20] + b"(" * 60 + GOOD[80:]), "can't be read"),
    "objects": (with_bytes(GOOD.replace(b"'<f8'", b"'|O' ")), "can't be read"),
    "far too large": (with_bytes(HUGE), "can't be read"),
    "another way to serialise": (with_bytes(GOOD, stype="pickle"), "can't be read"),
    "two records of arrays": (and_also("more", arrays(w=np.zeros(2))), "exactly one ArrayRecord"),
    "no record of arrays": (without("arrays"), "exactly one ArrayRecord"),
    "no metrics": (without("metrics"), "exactly one MetricRecord"),
    "two records of metrics": (and_also("more", MetricRecord({"num-examples": 1.0})), "exactly one Metric"),
    "no size": (with_metrics(loss=1.0), "num-examples"),
    "negative size": (with_metrics(num_examples=-1), "num-examples"),
    "nan size": (with_metrics(num_examples=float("nan")), "num-examples"),
    "infinite size": (with_metrics(num_examples=float("inf")), "num-examples"),
    "size beyond floats": (with_metrics(num_examples=10**400), "num-examples"),
    "list for a size": (with_metrics(num_examples=[3.0]), "num-examples"),
    "size in another record": (
        lambda content: RecordDict({"arrays": content["arrays"], "c": ConfigRecord({"num-examples": 3})}),
        "exactly one MetricRecord",
    ),
    "nothing at all": (lambda content: RecordDict(), "exactly one"),
    "nan": (with_array([np.nan, 1.0]), "finite"),
    "inf": (with_array([1.0, -np.inf]), "finite"),
    "too long to be measured": (with_array([1e200, 0.0]), "too long"),
    "too long with its size": (with_array([1e139, 0.0]), "longer than"),
}


def clients(count=4):
    return [Client(target=1.0 + m, examples=100.0 + m) for m in range(count)]


@pytest.mark.parametrize("memory", [False, True, "clients"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_no_reply_of_that_client_and_of_nobody_else(kind, memory, caplog):
    change, named = BAD[kind]
    results = []
    for bad in (True, False):
        several = clients()
        for client in several if memory == "clients" else ():
            client.context = empty_context()
        if bad:
            grid = rewriting(several, change)
        else:
            several[-1].fails = lambda _: "raises"
            grid = federation(several)
        strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4, memory=memory)
        start = model(0.5, 3.0)
        with caplog.at_level(logging.INFO, logger="flwr"):
            for server_round in (1, 2):
                start, metrics = one_round(strategy, grid, start, server_round)
        assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (3, 1)
        assert metrics["sampling-refused"] == bad
        results.append(weights(start))
    np.testing.assert_array_equal(*results)
    told = [each.getMessage() for each in caplog.records if "counts as no reply" in each.getMessage()]
    assert len(told) == 1  # in two rounds
    assert "name:client-3" in told[0]
    assert named in told[0]


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize("kind", ["garbage", "another shape", "negative size", "nan"])
def test_a_run_with_a_ledger_goes_on_and_is_resumed_when_the_same_cohort_is_met(kind, inner, tmp_path):
    """The crash comes while the replies are on their way, so the cohort is asked again."""

    class Crashing(RewritingGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            second = [each for each in self.sent if each.content.get("config", {}).get("server-round") == 2]
            if crashes and second:
                raise CrashError
            return replies

    for crashes in (True, False):
        grid = Crashing(federation(clients()).nodes).rewrite(BAD[kind][0])
        strategy = AdaptiveSampling(
            inner(fraction_evaluate=0.0), cohort_size=4, ledger=tmp_path / "run.db", identity=by_name
        )
        if crashes:
            with pytest.raises(CrashError):
                strategy.start(grid, model(0.5, 3.0), num_rounds=4)
        else:
            result = strategy.start(grid, model(0.5, 3.0), num_rounds=4)
    assert np.isfinite(weights(result.arrays)).all()
    assert result.train_metrics_clientapp[4]["sampling-refused"] == 1


def by_name(node):
    return node.name


def test_a_given_size_needs_no_record_of_metrics():
    sizes = {f"name:client-{m}": 5.0 for m in range(4)}
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4, num_examples=sizes)
    _, metrics = one_round(strategy, rewriting(clients(), without("metrics")), model(0.5, 3.0))
    assert metrics["sampling-replies"] == 4


def test_metrics_that_differ_from_those_of_others_do_no_harm():
    for odd in ({"loss": [1.0, 2.0]}, {"loss": 0.1, "more": 3}, {}):
        grid = rewriting(clients(), with_metrics(num_examples=103.0, **odd))
        strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4)
        stepped, metrics = one_round(strategy, grid, model(0.5, 3.0))
        assert metrics["sampling-replies"] == 4
        assert stepped is not None


def test_a_reason_is_told_again_for_another_client_and_another_reason(caplog):
    grid = rewriting(clients(), BAD["garbage"][0], rounds=(1, 2))
    first = next(iter(grid.nodes.values()))[1]
    first.train = lambda arrays, t: {"w": arrays["w"] * np.nan}
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=4)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in (1, 2):
            one_round(strategy, grid, model(0.5, 3.0), server_round)
        grid.rewrite(BAD["strings"][0])
        one_round(strategy, grid, model(0.5, 3.0), 3)
    told = [each.getMessage() for each in caplog.records if "counts as no reply" in each.getMessage()]
    assert ["client-0" in line for line in told] == [True, False, False]


@pytest.mark.parametrize("values", [["a"], [1j], [np.nan]])
def test_a_model_that_is_wrong_from_the_start_is_an_error_of_the_server(values):
    grid = federation(clients())
    with pytest.raises(ConfigurationError, match=r"initial_arrays.*'w'"):
        one_round(AdaptiveSampling(FedAvg(), cohort_size=2), grid, arrays(w=values))
    assert grid.sent == []


# The new model


def moments(strategy):
    state = strategy.state_dict()
    drop = ("rounds", "metrics", "silent_times", "rest", "sampler.", "variance_ratio")
    return {name: value for name, value in state.items() if not name.startswith(drop)}


def assert_same(one, other):
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


class Nonsense(FedAdam):
    """Returns what it is told to in round 3, after its moments have changed."""

    def aggregate_train(self, server_round, replies):
        stepped, metrics = super().aggregate_train(server_round, replies)
        return (self.told(stepped) if server_round == 3 else stepped), metrics


@pytest.mark.parametrize("memory", [False, True, "clients"])
@pytest.mark.parametrize(
    "told",
    [
        lambda stepped: arrays(v=np.zeros(2)),
        lambda stepped: arrays(w=np.zeros(3)),
        lambda stepped: arrays(w=["a", "b"]),
        lambda stepped: arrays(w=[1j, 0.0]),
        lambda stepped: arrays(w=[np.nan, 0.0]),
        lambda stepped: ArrayRecord(),
    ],
)
def test_a_step_that_makes_no_sense_counts_as_a_round_without_a_reply(told, memory, caplog):
    inner = Nonsense(fraction_evaluate=0.0)
    inner.told = told
    several = clients()
    for client in several:
        client.context = empty_context()
    grid, strategy = federation(several), AdaptiveSampling(inner, cohort_size=4, memory=memory)
    start = model(0.5, 3.0)
    for server_round in (1, 2):
        start, _ = one_round(strategy, grid, start, server_round)
    before = moments(strategy)
    stepped, metrics = one_round(strategy, grid, start, 3)
    assert stepped is None
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (0, 4)
    assert metrics["sampling-refused"] == 4
    after = moments(strategy)
    assert_same(
        {name: value for name, value in after.items() if "inner_array" not in name},
        {name: value for name, value in before.items() if "inner_array" not in name},
    )
    np.testing.assert_array_equal(inner.m_t["w"], before_moment(before, inner))
    assert "counts as one without a reply" in caplog.text
    assert "name:client-3" in caplog.text  # whose target is the farthest
    start, metrics = one_round(strategy, grid, start, 4)
    assert metrics["sampling-replies"] == 4
    assert np.isfinite(weights(start)).all()


def before_moment(state, inner):
    """m_t as the state before had it."""
    restored = AdaptiveSampling(Nonsense(fraction_evaluate=0.0), cohort_size=4)._inner
    return restored.attributes_in(state)["m_t"]["w"]


@pytest.mark.parametrize("inner", [FedAvg, FedAdam, FedAvgM])
def test_a_model_beyond_its_type_is_not_taken(inner, caplog, tmp_path):
    """The larger client counts 3/4 times 2: one and a half times the largest float32 is no float32.

    The squares in FedAdam's moments are none, whoever is drawn.
    """
    several = [Client(train=lambda arrays, _: {"w": np.full(2, 3.4e38, np.float32)}) for _ in range(2)]
    strategy = AdaptiveSampling(
        inner(fraction_evaluate=0.0),
        sampler=UniformSampler(num_clients=2, cohort_size=1, design="fixed_size", seed=1),
        num_examples={"name:client-0": 3.0, "name:client-1": 1.0},
        clip_updates=False,
        ledger=tmp_path / "run.db",
    )
    seen = []
    result = strategy.start(
        federation(several),
        model(0.0, 0.0, dtype=np.float32),
        num_rounds=8,
        evaluate_fn=lambda _, arrays: seen.append(weights(arrays)),
    )
    assert len(seen) == 9
    assert all(np.isfinite(each).all() for each in seen)
    refused = [each["sampling-refused"] for each in result.train_metrics_clientapp.values()]
    assert "'w' is not finite" in caplog.text
    assert "the largest part of the step is that of name:client-0" in caplog.text
    assert ("'v_t' of inner is not finite" in caplog.text) == (inner is FedAdam)
    if inner is not FedAdam:
        assert 0 < sum(refused) < 8
        assert "that of name:client-1" not in caplog.text


def test_moments_do_not_become_infinite():
    """The square of 1e25 is no float32: FedAdam's v would be infinite, and the model stand still for good."""
    several = [Client(train=lambda arrays, t: {"w": arrays["w"] + np.float32(1e25 if t == 2 else 1.0)})]
    several += [Client(train=lambda arrays, t: {"w": arrays["w"] + np.float32(1.0)}) for _ in range(3)]
    inner = FedAdam(fraction_evaluate=0.0)
    strategy = AdaptiveSampling(inner, cohort_size=4, clip_updates=False)
    models = {}
    result = strategy.start(
        federation(several),
        model(0.0, dtype=np.float32),
        num_rounds=4,
        on_round=lambda t, metrics, arrays: models.update({t: float(weights(arrays)[0])}),
    )
    refused = [each["sampling-refused"] for each in result.train_metrics_clientapp.values()]
    assert refused == [0, 4, 0, 0]
    assert models[1] == models[2] < models[3] < models[4]
    assert np.isfinite(inner.v_t["w"]).all()


def test_who_makes_a_model_unusable_rests_and_nobody_else(caplog):
    """Five of six are drawn. The model can't be used if client 0 is among them; the others did no wrong."""
    several = [
        Client(train=lambda arrays, t, value=value: {"w": np.full(2, value, np.float32)})
        for value in (3.4e38, 1.0, 1.0, 1.0, 1.0, 1.0)
    ]
    strategy = AdaptiveSampling(
        FedAvg(fraction_evaluate=0.0),
        sampler=UniformSampler(num_clients=6, cohort_size=5, design="fixed_size", seed=1),
        num_examples={f"name:client-{m}": 100.0 if m == 0 else 1.0 for m in range(6)},
        clip_updates=False,
    )
    strategy.start(federation(several), model(0.0, 0.0, dtype=np.float32), num_rounds=8)
    lines = [each.getMessage() for each in caplog.records]
    assert ["client-0" in line for line in lines if "no usable reply 3 times" in line] == [True]
    assert not [line for line in lines if line.startswith("No usable reply in round")]
    assert strategy.state_dict()["silent_times"][1:].tolist() == [0] * 5


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize("ledger", [True, False])
def test_a_claim_of_1e308_examples_does_not_make_the_model_infinite(inner, ledger, tmp_path):
    several = clients(20)
    several[7].examples = 1e308
    strategy = AdaptiveSampling(
        inner(fraction_evaluate=0.0), cohort_size=20, ledger=tmp_path / "run.db" if ledger else None
    )
    result = strategy.start(federation(several), model(0.5, 3.0), num_rounds=5)
    assert np.isfinite(weights(result.arrays)).all()
    assert np.abs(weights(result.arrays)).max() < 25.0


# Clipping


def liar(factor):
    return Client(train=lambda arrays, _: {"w": arrays["w"] + factor})


@pytest.mark.parametrize("memory", [False, True, "clients"])
@pytest.mark.parametrize("sampler", [None, UniformSampler, "guarded"])
def test_an_update_that_is_much_longer_than_others_is_made_shorter(sampler, memory, caplog):
    """From the first round on: at 10 times the other lengths, or as the sampler's guard says."""
    several = [Client(train=lambda arrays, _: {"w": arrays["w"] + 1.0}) for _ in range(9)] + [liar(2e3)]
    for client in several:
        client.context = empty_context()
    options = {"cohort_size": 10}
    if sampler is not None:
        guard = {"guard": Guard(update_factor=3.0)} if sampler == "guarded" else {}
        options = {"sampler": UniformSampler(num_clients=10, cohort_size=10, design="fixed_size", **guard)}
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), memory=memory, **options)
    grid, start = federation(several), model(0.0)
    for server_round in (1, 2, 3):
        stepped, metrics = one_round(strategy, grid, start, server_round)
        assert weights(stepped) - weights(start) == pytest.approx(
            0.1 * (9.0 + (3.0 if sampler == "guarded" else 10.0))
        )
        assert metrics["sampling-clipped"] == 1
        assert metrics["sampling-replies"] == 10
        start = stepped
    told = [each.getMessage() for each in caplog.records if "made shorter" in each.getMessage()]
    assert len(told) == 1
    assert "name:client-9" in told[0]


@pytest.mark.parametrize("memory", [False, True, "clients"])
def test_an_update_beyond_all_measure_is_refused(memory, caplog):
    """Clipped, one client that has diverged would move the model by 2 in every round, instead of 1."""
    several = [Client(train=lambda arrays, _: {"w": arrays["w"] + 1.0}) for _ in range(9)] + [liar(1e9)]
    for client in several:
        client.context = empty_context()
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), memory=memory, cohort_size=9)
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = strategy.start(federation(several), model(0.0), num_rounds=8)
    least = 7.0 if memory else 8.0  # a client that was never heard is remembered as zero
    assert least - 1e-9 <= weights(result.arrays)[0] <= 8.0 + 1e-9
    refused = [each["sampling-refused"] for each in result.train_metrics_clientapp.values()]
    assert 3 <= sum(refused) <= 5
    assert sum(each["sampling-clipped"] for each in result.train_metrics_clientapp.values()) == 0
    told = [each.getMessage() for each in caplog.records if "name:client-9" in each.getMessage()]
    assert len(told) == 2
    assert "more than 1000 times as long as clip_updates allows (1e+08 times)" in told[0]
    assert "no usable reply 3 times in a row" in told[1]


def test_all_lengths_may_grow_at_once():
    """As when a learning rate is raised: what is refused is remembered, so that the bound follows."""
    several = [
        Client(train=lambda arrays, t: {"w": arrays["w"] + (1e6 if t > 3 else 1.0)}) for _ in range(20)
    ]
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=5)
    result = strategy.start(federation(several), model(0.0), num_rounds=12)
    late = [result.train_metrics_clientapp[t] for t in range(7, 13)]
    assert [each["sampling-refused"] + each["sampling-clipped"] for each in late] == [0] * 6


def test_it_can_be_switched_off():
    several = [Client(train=lambda arrays, _: {"w": arrays["w"] + 1.0}) for _ in range(9)] + [liar(1e9)]
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=10, clip_updates=False)
    stepped, metrics = one_round(strategy, federation(several), model(0.0))
    assert weights(stepped) == pytest.approx(0.1 * (9.0 + 1e9))
    assert metrics["sampling-clipped"] == 0


def test_a_large_client_is_not_taken_for_a_liar():
    """Its norm times its size is a million times that of the others; its update is as long as theirs."""
    several = [Client(examples=1.0) for _ in range(30)] + [Client(examples=1e6)]
    sizes = {f"name:client-{m}": client.examples for m, client in enumerate(several)}
    for given in (None, sizes):
        strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=31, num_examples=given)
        _, metrics = one_round(strategy, federation(several), model(0.0))
        assert metrics["sampling-clipped"] == 0


def test_a_resumed_run_clips_as_the_unbroken_one(tmp_path):
    """The liar is drawn by itself after the crash, so that the bound comes from the lengths before."""

    def federated():
        return federation(
            [Client(train=lambda arrays, t, m=m: {"w": arrays["w"] + 0.1 * m}) for m in range(1, 60)]
            + [Client(train=lambda arrays, t: {"w": arrays["w"] + (2e4 if t > 3 else 1.0)})]
        )

    def strategy(ledger):
        sampler = default_sampler(60, 20, seed=4)
        return AdaptiveSampling(FedAvg(fraction_evaluate=0.0), sampler=sampler, ledger=ledger)

    whole = strategy(tmp_path / "whole.db").start(federated(), model(0.0), num_rounds=8)
    strategy(tmp_path / "run.db").start(federated(), model(0.0), num_rounds=3)
    resumed = strategy(tmp_path / "run.db").start(federated(), model(0.0), num_rounds=8)
    np.testing.assert_array_equal(weights(resumed.arrays), weights(whole.arrays))
    clipped = [each["sampling-clipped"] for each in whole.train_metrics_clientapp.values()]
    assert max(clipped) == 1


def test_clip_updates_is_true_or_false():
    with pytest.raises(ConfigurationError, match=r"clip_updates.*1"):
        AdaptiveSampling(FedAvg(), cohort_size=2, clip_updates=1)


# Arrays that are averaged


def test_variances_stay_positive_whatever_the_weights(monkeypatch):
    """Weights of 10 would extrapolate: 1 + 10 (0.5 - 1) = -4. Averaged, it is what the clients return."""
    start = arrays(**{"w": np.zeros(2), "bn.running_var": np.ones(2), "bn.running_mean": np.zeros(2)})

    def train(m):
        return lambda arrays, _: {
            "w": arrays["w"] + 1.0,
            "bn.running_var": 0.5 * arrays["bn.running_var"] + 0.01 * m,
            "bn.running_mean": arrays["bn.running_mean"] + m,
        }

    for inner in (FedAvg, FedAdam, FedAvgM):
        grid = federation([Client(train=train(m), examples=1.0 + m) for m in range(20)])
        sampler = UniformSampler(num_clients=20, cohort_size=2, design="fixed_size", seed=1)
        sizes = {f"name:client-{m}": 1.0 + m for m in range(20)}
        strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), sampler=sampler, num_examples=sizes)
        record = start
        for server_round in range(1, 13):
            before = arrays_of(record)
            record, _ = one_round(strategy, grid, record, server_round)
            after = arrays_of(record)
            drawn = after["bn.running_mean"] - before["bn.running_mean"]
            assert np.all((drawn >= 0.0) & (drawn <= 19.0))
            np.testing.assert_allclose(
                after["bn.running_var"], 0.5 * before["bn.running_var"] + 0.01 * drawn, rtol=1e-12
            )
            assert (after["bn.running_var"] > 0.0).all()


def test_a_negative_variance_is_refused(caplog):
    """Evaluation takes its root."""
    several = [
        Client(train=lambda arrays, _, value=value: {**arrays, "bn.running_var": np.full(2, value)})
        for value in (0.5, -50.0, 0.7)
    ]
    start = arrays(**{"w": np.zeros(2), "bn.running_var": np.ones(2)})
    record, metrics = one_round(
        AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=3), federation(several), start
    )
    assert metrics["sampling-refused"] == 1
    np.testing.assert_allclose(arrays_of(record)["bn.running_var"], 0.6)
    assert "client-1 returned counts as no reply: its array 'bn.running_var'" in caplog.text


def test_the_share_in_the_average_is_the_number_of_examples_times_the_weight():
    start = arrays(**{"w": np.zeros(1), "x.running_mean": np.zeros(1), "n": np.array([0])})
    grid = federation(
        [
            Client(
                train=lambda arrays, _, m=m: {key: array * 0 + m for key, array in arrays.items()}, examples=n
            )
            for m, n in ((4, 1.0), (8, 3.0))
        ]
    )
    record, _ = one_round(AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2), grid, start)
    assert arrays_of(record)["x.running_mean"].tolist() == [7.0]
    assert arrays_of(record)["n"].tolist() == [7]


@pytest.mark.parametrize("memory", [False, True, "clients"])
def test_arrays_can_be_named_that_are_averaged(memory):
    """They are no part of the norm, nor of a memory."""
    several = [
        Client(
            train=lambda arrays, _, m=m: {"0": arrays["0"] + 1.0, "1": arrays["1"] * 0.0 + m}, examples=1.0
        )
        for m in range(10)
    ]
    for client in several:
        client.context = empty_context()
    strategy = AdaptiveSampling(
        FedAvg(fraction_evaluate=0.0), cohort_size=3, averaged_arrays=["1"], memory=memory
    )
    record = ArrayRecord([np.zeros(2), np.ones(3)])
    for server_round in range(1, 8):
        record, metrics = one_round(strategy, federation(several, shuffle=server_round), record, server_round)
        assert ((arrays_of(record)["1"] >= 0.0) & (arrays_of(record)["1"] <= 9.0)).all()
        assert metrics.get("sampling-memory-lost", 0) == 0
    if not memory:
        np.testing.assert_allclose(arrays_of(record)["0"], 7.0)
    if memory == "clients":
        assert metrics["sampling-memory-bytes"] == 2 * 8


def test_averaged_arrays_that_do_not_exist_are_refused():
    grid = federation(clients())
    for wrong in ("w", ["v"], [3]):
        with pytest.raises(ConfigurationError, match="averaged_arrays"):
            one_round(AdaptiveSampling(FedAvg(), cohort_size=2, averaged_arrays=wrong), grid, model(0.0))
    assert grid.sent == []


# Reading and writing arrays


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12.0)[::2],
        np.zeros((0, 3)),
        np.array(3),
        np.array([True, False]),
        np.arange(3, dtype=">f4"),
        np.arange(3, dtype=np.float16),
    ],
    ids=str,
)
def test_arrays_are_read_and_written_as_flower_does(values):
    assert Array(np.zeros(1)).stype == STYPE
    for array in (Array(values), packed(values)):
        assert array.shape == values.shape
        assert array.dtype == str(values.dtype)
        for read in (view(array), array.numpy()):
            np.testing.assert_array_equal(read, values)
            assert read.dtype == values.dtype
    assert packed(values).data == Array(values).data


# Runs in which nothing is of any use


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
def test_a_run_without_any_usable_reply_stops_and_says_why(inner):
    class Nan(FakeGrid):
        def _reply(self, message):
            reply = super()._reply(message)
            if message.metadata.message_type == "train":
                reply.content["arrays"] = arrays(w=[np.nan])
            return reply

    strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), cohort_size=2)
    grid = Nan(federation([Client() for _ in range(6)]).nodes)
    with pytest.raises(
        FeedbackError, match=r"in 3 rounds.*name:client-\d returned: its array 'w' must be fin"
    ):
        strategy.start(grid, model(0.0), num_rounds=40)
    assert len(grid.sent) == 3 * 2


def test_a_run_in_which_all_report_0_examples_stops_and_says_why():
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2)
    grid = federation([Client(examples=0.0) for _ in range(6)])
    with pytest.raises(FeedbackError, match=r"report 0 examples \('num-examples'\)"):
        strategy.start(grid, model(0.0), num_rounds=40)
    assert len(grid.sent) == 3 * 2


def test_silence_does_not_stop_a_run_and_neither_do_three_bad_rounds_later_on():
    def fails(server_round):
        return "raises" if server_round < 6 else None

    silent = federation([Client(fails=fails) for _ in range(2)])
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2)
    assert len(strategy.start(silent, model(0.0), num_rounds=8).train_metrics_clientapp) == 8

    def spoiled(content):
        content["arrays"] = arrays(w=[np.nan])

    bad = rewriting([Client()], spoiled, rounds=range(2, 20))
    strategy = AdaptiveSampling(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1), cohort_size=1
    )
    assert len(strategy.start(bad, model(0.0), num_rounds=8).train_metrics_clientapp) == 8


def test_the_record_shows_what_was_refused_and_made_shorter(tmp_path):
    def jumps(arrays, server_round):
        return {"w": arrays["w"] + (300.0 if server_round > 3 else 1.0)}

    def spoiled(content):
        content["arrays"] = arrays(w=[np.nan])

    steady = [Client(train=lambda arrays, _: {"w": arrays["w"] + 1.0}) for _ in range(6)]
    grid = rewriting([Client(train=jumps), *steady], spoiled, rounds=(1, 2))
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=7, ledger=tmp_path / "run.db")
    result = strategy.start(grid, model(0.0), num_rounds=6)
    rounds = result.train_metrics_clientapp.values()
    assert sum(each["sampling-clipped"] for each in rounds) == 3
    with read_run(tmp_path / "run.db") as record:
        shown = dict(figures(summarise(record)))
        assert "train/sampling-clipped" not in ledger_page(record)
    assert shown["troubles"] == "2 replies refused, 3 updates made shorter"
    assert "sampling" not in shown.get("last logged", "")
