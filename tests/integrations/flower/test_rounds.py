"""What a round does: the aggregate, the failures, the types, the metrics."""

from __future__ import annotations

import logging
from itertools import product

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx

from sortition import AdaptiveOSMDSampler, CohortError, UniformSampler
from sortition.core.cohort import Cohort
from sortition.core.designs import DESIGNS
from sortition.integrations.flower import AdaptiveSampling
from tests.integrations.flower.fake_grid import Client, FakeGrid, federation, model, one_round, weights


def fedavg(**options) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **options)


def adaptive(**options) -> AdaptiveSampling:
    return AdaptiveSampling(fedavg(), **options)


SIZES, TARGETS = (1.0, 5.0, 2.0, 12.0), (4.0, -2.0, 8.0, 1.0)


def clients(**options):
    return [Client(target, size, **options) for target, size in zip(TARGETS, SIZES, strict=True)]


class Scripted(UniformSampler):
    """Draws what it is told to, with the weights of draws with replacement from ``chances``."""

    chances = np.array([0.1, 0.2, 0.3, 0.4])

    def told(self, draws):
        self._draws = draws
        return self

    def draw(self, available=None):
        clients, counts = np.unique(self._draws, return_counts=True)
        probabilities = self.chances[clients]
        self.last = Cohort(
            0,
            len(self._draws),
            clients,
            counts,
            probabilities,
            counts / (len(self._draws) * probabilities),
            available=available,
        )
        return self.last

    def observe(self, cohort, norms):
        assert cohort is self.last
        self.heard = np.asarray(norms)


def test_everybody_together_make_the_step_of_plain_fedavg():
    grid = federation(clients())
    ours = one_round(adaptive(cohort_size=4), grid, model(0.5, 3.0))[0]
    plain = one_round(fedavg(), grid, model(0.5, 3.0))[0]
    np.testing.assert_allclose(weights(ours), weights(plain), rtol=1e-13)


@pytest.mark.parametrize("known", ["given", "learnt in an earlier round"])
def test_the_step_is_unbiased_over_every_draw(known):
    """E[w' - w] is the step of all clients together: the sum over all 4^2 draws of K = 2 out of M = 4."""
    start = np.array([0.5, 3.0])
    everybody = weights(one_round(fedavg(), federation(clients()), model(*start))[0]) - start
    mean = np.zeros(2)
    for draws in product(range(4), repeat=2):
        grid = federation(clients())
        sampler = Scripted(num_clients=4, cohort_size=2)
        given = {f"name:client-{m}": size for m, size in enumerate(SIZES)} if known == "given" else None
        strategy = adaptive(sampler=sampler, num_examples=given)
        if known != "given":
            sampler.told([0, 1, 2, 3])
            one_round(strategy, grid, model(0.0, 0.0))
        sampler.told(draws)
        step = weights(one_round(strategy, grid, model(*start), 2)[0]) - start
        mean += sampler.chances[list(draws)].prod() * step
    np.testing.assert_allclose(mean, everybody, rtol=1e-12)


def test_with_sizes_unknown_the_step_is_a_weighted_mean_of_the_replies():
    """Clients 0 and 1 have replied. Client 3, which is drawn next, has more than both together."""
    start = np.array([0.5, 3.0])
    for draws in product(range(4), repeat=2):
        sampler = Scripted(num_clients=4, cohort_size=2)
        grid, strategy = federation(clients()), adaptive(sampler=sampler.told([0, 1]))
        one_round(strategy, grid, model(0.0, 0.0))
        sampler.told(draws)
        arrays, metrics = one_round(strategy, grid, model(*start), 2)
        counts = np.bincount(draws, minlength=4) / (2 * Scripted.chances) * SIZES
        target = np.average(TARGETS, weights=counts)
        np.testing.assert_allclose(weights(arrays), start + 0.5 * (target - start), rtol=1e-12)
        assert metrics["sampling-total-weight"] == pytest.approx(1.0)


def test_the_sampler_hears_the_norms_scaled_by_the_share_of_the_data():
    """Feedback is (lambda_m norm_m)^2, the sampler's own lambda being 1 / M."""
    sampler = Scripted(num_clients=4, cohort_size=2).told([1, 3])
    sizes = {f"name:client-{m}": size for m, size in enumerate(SIZES)}
    one_round(adaptive(sampler=sampler, num_examples=sizes), federation(clients()), model(0.0))
    expected = np.array([5.0 / 20.0 * 1.0 * 4, 12.0 / 20.0 * 0.5 * 4])
    np.testing.assert_allclose(sampler.heard, expected)


def test_the_log_tells_of_a_client_that_reports_most_of_the_data(caplog):
    """Once; of a size that the server has given itself it need not be told."""
    for given in (None, {"name:client-7": 290.0}):
        grid = federation([Client(examples=290.0 if m == 7 else 20.0 + m) for m in range(12)])
        strategy = adaptive(cohort_size=12, num_examples=given)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="flwr"):
            for server_round in (1, 2):
                one_round(strategy, grid, model(0.0), server_round)
        told = [
            record.getMessage() for record in caplog.records if "examples than all" in record.getMessage()
        ]
        assert len(told) == (given is None)
        assert all("name:client-7" in message and "num_examples" in message for message in told)


@pytest.mark.parametrize("sizes", [[10.0] + [1.0] * 8, [11.0] + [1.1] * 10, [0.0] * 12])
def test_the_log_is_silent_about_sizes_that_may_well_be(sizes, caplog):
    """Nine sizes are few; eleven of twenty-two is no more than all others; nobody may have anything."""
    with caplog.at_level(logging.WARNING, logger="flwr"):
        one_round(adaptive(cohort_size=12), federation([Client(examples=n) for n in sizes]), model(0.0))
    assert "num_examples" not in caplog.text


def test_a_given_size_comes_before_a_reported_one():
    sizes = {"name:client-0": 3.0, "name:client-1": 1.0}
    grid = federation([Client(target=8.0, examples=1.0), Client(target=0.0, examples=1000.0)])
    arrays, _ = one_round(adaptive(cohort_size=2, num_examples=sizes), grid, model(0.0))
    assert weights(arrays) == pytest.approx([3.0])


def test_the_order_of_the_replies_makes_no_difference():
    """Not in the last bit."""
    rng = np.random.default_rng(1)
    many = [Client(t, s) for t, s in zip(rng.normal(size=50) * 1e8, rng.uniform(size=50), strict=True)]
    runs = []
    for shuffle in range(4):
        strategy = adaptive(cohort_size=30, seed=3)
        result = strategy.start(federation(many, shuffle=shuffle), model(0.1, 0.2), num_rounds=4)
        runs.append(weights(result.arrays).tobytes())
    assert len(set(runs)) == 1


def test_integer_buffers_take_no_part_in_the_norm_and_arrays_keep_their_types():
    start = {
        "w": np.array([0.0, 0.0], dtype=np.float32),
        "half": np.array([1.0], dtype=np.float16),
        "batches": np.array(10, dtype=np.int64),
        "small": np.array([3], dtype=np.uint8),
        "mask": np.array([True, False]),
    }

    def train(model, _):
        assert {key: array.dtype for key, array in model.items()} == {k: v.dtype for k, v in start.items()}
        return {**model, "w": model["w"] + np.float32(3.0), "batches": model["batches"] + 1000}

    for inner in (FedAvg, FedAdam, FedAvgM):
        sampler = Scripted(num_clients=2, cohort_size=2).told([0, 1])
        sampler.chances = np.array([0.5, 0.5])
        strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), sampler=sampler)
        grid = federation([Client(train=train), Client(train=train)])
        arrays = ArrayRecord({key: Array(value) for key, value in start.items()})
        for server_round in (1, 2):
            arrays, _ = one_round(strategy, grid, arrays, server_round)
            np.testing.assert_allclose(sampler.heard, np.sqrt(18.0))  # 2 x 3^2, and not 1000 more
        assert {key: array.numpy().dtype for key, array in arrays.items()} == {
            k: v.dtype for k, v in start.items()
        }
        assert arrays["batches"].numpy() == 2010
        assert arrays["small"].numpy().tolist() == [3]
        assert arrays["mask"].numpy().tolist() == [True, False]


def test_float32_models_are_summed_in_float64():
    """A thousand tiny updates to a large number: float32 would lose every one of them."""
    step = np.float32(8.0)  # the gap between float32 numbers at 1e8
    moved = [Client(train=lambda model, _: {"w": model["w"] + step}) for _ in range(40)]
    arrays, _ = one_round(adaptive(cohort_size=40), federation(moved), model(1e8, dtype=np.float32))
    assert weights(arrays).tolist() == [1e8 + 8.0]
    assert weights(arrays).dtype == np.float32


def test_one_drawn_node_is_enough_for_inner_whatever_its_minimums():
    """With K = 1 the inner strategy, whose minimum is 2 by default, would wait for ever."""
    inner = fedavg()
    strategy = AdaptiveSampling(inner, cohort_size=1)
    grid = federation(clients())
    assert one_round(strategy, grid, model(0.0))[0] is not None
    assert (inner.min_train_nodes, inner.min_available_nodes) == (2, 2)


def test_it_waits_for_as_many_clients_as_inner_wants_to_train(monkeypatch):
    grid = federation(clients())
    late = grid.nodes.popitem()
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        grid.nodes[late[0]] = late[1]

    monkeypatch.setattr("sortition.integrations.flower.strategy.time.sleep", sleep)
    number = len(clients())
    strategy = AdaptiveSampling(fedavg(min_train_nodes=number), cohort_size=number)
    _, metrics = one_round(strategy, grid, model(0.0))
    assert metrics["sampling-replies"] == number
    assert len(waited) == 1


def test_what_inner_logs_of_its_single_reply_is_left_out(caplog):
    """Its own lines are true of what it is shown, and would be read as if they were about the round."""

    class Talking(FedAvg):
        def aggregate_train(self, server_round, replies):
            logging.getLogger("flwr").info("a line of my own")
            return super().aggregate_train(server_round, replies)

    grid = federation(clients())
    with caplog.at_level(logging.INFO, logger="flwr"):
        one_round(AdaptiveSampling(Talking(fraction_evaluate=0.0), cohort_size=2), grid, model(0.0))
    (line,) = (line for line in caplog.messages if line.startswith("aggregate_train"))
    assert line == f"aggregate_train: drew 2 of {len(clients())} clients online; 2 replied, 0 failed"
    assert not [line for line in caplog.messages if "Sampled" in line or "Received" in line]
    assert "a line of my own" in caplog.messages
    assert not logging.getLogger("flwr").filters


def test_a_subclass_that_reads_the_replies_sees_the_means_of_the_metrics():
    """Weights: the number of examples times the weight that a client was drawn with."""
    seen = []

    class Reading(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            seen.append([(dict(r.content["metrics"]), list(r.content["arrays"])) for r in replies])
            return super().aggregate_train(server_round, replies)

    targets, sizes = [1.0, 2.0, 4.0, 8.0], [1.0, 3.0, 3.0, 5.0]
    grid = federation(
        [Client(t, s, extra={"steps": 2, "curve": [t, 1.0]}) for t, s in zip(targets, sizes, strict=True)]
    )
    given = {f"name:client-{place}": size for place, size in enumerate(sizes)}
    strategy = AdaptiveSampling(Reading(fraction_evaluate=0.0), cohort_size=2, num_examples=given)
    cohorts = []
    draw = strategy._pool.draw
    strategy._pool.draw = lambda *arguments: cohorts.append(draw(*arguments)) or cohorts[-1]
    _, metrics = one_round(strategy, grid, model(0.0))
    (cohort,) = (drawn.cohort for drawn in cohorts)
    weights = np.array(sizes)[cohort.clients] * cohort.weights
    (((reply, arrays),),) = seen
    assert reply["loss"] == pytest.approx(np.average(np.array(targets)[cohort.clients], weights=weights))
    assert reply["curve"] == pytest.approx([reply["loss"], 1.0])
    assert reply["steps"] == 2.0
    assert reply["num-examples"] == np.array(sizes)[cohort.clients].sum()
    assert arrays == ["w"]
    assert {name: metrics[name] for name in ("loss", "steps", "curve")} == {
        name: reply[name] for name in ("loss", "steps", "curve")
    }


def test_metrics_that_only_some_clients_report_are_means_over_these():
    grid = federation([Client(extra={"accuracy": 0.5}), Client(extra={"accuracy": float("nan")}), Client()])
    _, metrics = one_round(AdaptiveSampling(fedavg(), cohort_size=3), grid, model(0.0))
    assert metrics["accuracy"] == 0.5
    assert metrics["loss"] == 1.0


def test_the_line_of_a_round_tells_failures_from_refused_replies(caplog):
    def wrong(arrays, server_round):
        return {"other": arrays["w"]}

    silent = Client(fails=lambda server_round: "times out")
    grid = federation([Client(), Client(), Client(train=wrong), silent])
    with caplog.at_level(logging.INFO, logger="flwr"):
        one_round(AdaptiveSampling(fedavg(), cohort_size=4), grid, model(0.0))
    assert "aggregate_train: drew 4 of 4 clients online; 2 replied, 2 failed (1 refused)" in caplog.messages
    assert [line for line in caplog.messages if "No reply" in line] == [
        "\t> No reply from name:client-3: not in time"
    ]


def test_who_fails_is_named_in_one_line_with_the_end_of_its_error(caplog):
    class Ray(FakeGrid):
        """A simulation sends the traceback of Ray."""

        def _reply(self, message):
            if message.metadata.message_type == "train" and message.metadata.dst_node_id == 107:
                error = "<class 'RayTaskError'>:<'ray::run()\n  File 1\n  File 2\nValueError: no data\n'>"
                return Message(Error(2, error), reply_to=message)
            return super()._reply(message)

    late = Client(fails=lambda server_round: "times out")
    grid = Ray(federation([Client(), Client(), late, late]).nodes)
    with caplog.at_level(logging.INFO, logger="flwr"):
        one_round(AdaptiveSampling(fedavg(), cohort_size=4), grid, model(0.0))
    assert [line for line in caplog.messages if "No reply" in line] == [
        "\t> No reply from name:client-1: ValueError: no data",
        "\t> No reply from name:client-2, name:client-3: not in time",
    ]


def test_a_metrics_function_that_fails_does_not_end_the_run(caplog):
    def aggregate(records, weighted_by_key):
        return MetricRecord(
            {"least": min(next(iter(r.metric_records.values()))["accuracy"] for r in records)}
        )

    grid = federation([Client(extra={"accuracy": 0.5}), Client()])
    strategy = AdaptiveSampling(fedavg(train_metrics_aggr_fn=aggregate), cohort_size=2)
    stepped, metrics = one_round(strategy, grid, model(0.0))
    assert stepped is not None
    assert metrics["accuracy"] == 0.5
    assert "train_metrics_aggr_fn of inner failed, so the means are given instead: KeyError" in caplog.text


def test_the_messages_are_those_of_inner():
    grid = federation(clients())
    strategy = AdaptiveSampling(FedProx(fraction_evaluate=0.0, proximal_mu=0.25), cohort_size=2)
    messages = list(strategy.configure_train(6, model(0.0), ConfigRecord({"lr": 0.1}), grid))
    assert {m.metadata.dst_node_id for m in messages} <= set(grid.get_node_ids())
    for message in messages:
        assert dict(message.content["config"]) == {"lr": 0.1, "proximal-mu": 0.25, "server-round": 6}


@pytest.mark.parametrize("design", DESIGNS)
def test_any_sampler_and_design_will_do(design):
    sampler = AdaptiveOSMDSampler(num_clients=4, cohort_size=2, num_rounds=10, design=design)
    result = adaptive(sampler=sampler).start(federation(clients()), model(0.0), num_rounds=10)
    assert np.isfinite(weights(result.arrays)).all()


def test_metrics_of_a_round():
    sampler = Scripted(num_clients=4, cohort_size=2).told([0, 3])
    sizes = {f"name:client-{m}": size for m, size in enumerate(SIZES)}
    strategy = adaptive(sampler=sampler, num_examples=sizes)
    _, metrics = one_round(strategy, federation(clients()), model(0.0))
    shares = np.array([1.0, 12.0]) / 20.0
    drawn = np.array([1 / 0.2, 1 / 0.8])
    assert metrics["sampling-available-clients"] == 4
    assert metrics["sampling-distinct-clients"] == 2
    assert metrics["sampling-replies"] == 2
    assert metrics["sampling-failures"] == 0
    assert metrics["sampling-effective-clients"] == pytest.approx(4.0)  # of a uniform sampler
    assert metrics["sampling-variance-ratio"] == pytest.approx(1.0)
    assert metrics["sampling-largest-weight"] == pytest.approx(5.0)
    assert metrics["sampling-total-weight"] == pytest.approx(np.sum(shares * drawn))
    assert metrics["sampling-coverage"] == pytest.approx(0.5)
    weighted = shares * drawn
    assert metrics["loss"] == pytest.approx(np.sum(weighted * [4.0, 1.0]) / weighted.sum())


def test_the_variance_ratio_falls_as_the_sampler_learns():
    steps = [0.9] * 3 + [0.1] * 37  # all within the bound for updates
    skewed = [Client(target=0.0, train=lambda m, _, s=s: {"w": m["w"] + s}) for s in steps]
    strategy = adaptive(cohort_size=5)
    result = strategy.start(federation(skewed), model(0.0), num_rounds=150)
    ratios = [result.train_metrics_clientapp[t]["sampling-variance-ratio"] for t in range(1, 151)]
    assert np.mean(ratios[-30:]) < 0.5
    assert result.train_metrics_clientapp[150]["sampling-effective-clients"] < 38


def test_a_metrics_function_of_inner_sees_the_real_replies_once():
    seen = []

    def aggregate(records, key):
        seen.append([next(iter(record.metric_records.values()))[key] for record in records])
        return MetricRecord({"count": len(records)})

    inner = fedavg(train_metrics_aggr_fn=aggregate)
    sampler = Scripted(num_clients=4, cohort_size=2).told([0, 3])
    _, metrics = one_round(AdaptiveSampling(inner, sampler=sampler), federation(clients()), model(0.0))
    assert seen == [[pytest.approx(1.0 * 5.0), pytest.approx(12.0 * 1.25)]]
    assert metrics["count"] == 2
    assert inner.train_metrics_aggr_fn is aggregate


def test_evaluation_is_left_to_inner():
    grid = federation(clients())
    result = AdaptiveSampling(FedAvg(), cohort_size=2).start(grid, model(0.0), num_rounds=1)
    expected = np.average(TARGETS, weights=SIZES)
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(expected)


def test_to_aggregate_without_a_round_is_an_error():
    with pytest.raises(CohortError, match="aggregate_train"):
        adaptive(cohort_size=2).aggregate_train(1, [])


# Clients that do not answer, or answer with nonsense: the round goes on without them


@pytest.mark.parametrize("failure", ["raises", "crashes", "times out"])
def test_a_failure_is_no_reply_of_that_client_and_of_nobody_else(failure):
    silent = 2
    failing = [Client(t, s) for t, s in zip(TARGETS, SIZES, strict=True)]
    failing[silent].fails = lambda server_round: failure
    sampler = Scripted(num_clients=4, cohort_size=3).told([0, 2, 3])
    sizes = {f"name:client-{m}": size for m, size in enumerate(SIZES)}
    strategy = adaptive(sampler=sampler, num_examples=sizes)
    arrays, metrics = one_round(strategy, federation(failing), model(0.0))
    assert np.isnan(sampler.heard).tolist() == [False, True, False]
    raised = np.array([1 / 0.3, 1 / 1.2]) * 3 / 2
    expected = np.sum(np.array([1.0, 12.0]) / 20.0 * raised * 0.5 * np.array([4.0, 1.0]))
    assert weights(arrays) == pytest.approx([expected])
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (2, 1)


def test_all_three_failures_at_once():
    kinds = ["raises", "crashes", "times out", None]
    grid = federation(
        [Client(t, s, fails=lambda _, k=k: k) for t, s, k in zip(TARGETS, SIZES, kinds, strict=True)]
    )
    sampler = Scripted(num_clients=4, cohort_size=4).told([0, 1, 2, 3])
    one_round(adaptive(sampler=sampler), grid, model(0.0))
    assert np.isnan(sampler.heard).tolist() == [True, True, True, False]


@pytest.mark.parametrize("inner", [FedAvg, FedAdam, FedAvgM])
def test_a_round_without_a_reply_changes_nothing_and_training_goes_on(inner):
    """Round 3 of four is lost."""

    def lost(server_round):
        return "crashes" if server_round == 3 else None

    grid = federation([Client(t, s, fails=lost) for t, s in zip(TARGETS, SIZES, strict=True)])
    sampler = UniformSampler(num_clients=4, cohort_size=4)
    strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), sampler=sampler)
    arrays = [model(0.0)]
    for server_round in range(1, 5):
        before = sampler.probabilities()
        stepped, metrics = one_round(strategy, grid, arrays[-1], server_round)
        if server_round == 3:
            assert stepped is None
            assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (0, 4)
            np.testing.assert_array_equal(sampler.probabilities(), before)
        else:
            assert not np.array_equal(weights(stepped), weights(arrays[-1]))
            arrays.append(stepped)


def test_the_last_model_is_the_result_even_if_no_round_had_a_reply():
    grid = federation([Client(fails=lambda _: "times out"), Client(fails=lambda _: "raises")])
    result = adaptive(cohort_size=2).start(grid, model(7.0), num_rounds=2)
    assert weights(result.arrays).tolist() == [7.0]
    assert result.train_metrics_clientapp[2]["sampling-failures"] == 2


def test_an_update_that_is_not_finite_is_no_reply():
    some = [Client(2.0), Client(train=lambda model, _: {"w": model["w"] + np.inf}), Client(4.0)]
    arrays, metrics = one_round(adaptive(cohort_size=3), federation(some), model(0.0))
    assert np.isfinite(weights(arrays)).all()
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (2, 1)


@pytest.mark.parametrize("counter", [np.nan, np.inf])
def test_an_integer_array_that_comes_back_not_finite_is_no_reply(counter):
    start = ArrayRecord({"w": Array(np.zeros(1)), "batches": Array(np.array([10]))})

    def train(arrays, _):
        return {"w": arrays["w"] + 1.0, "batches": np.array([counter])}

    grid = federation([Client(2.0), Client(train=train), Client(4.0)])
    arrays, metrics = one_round(adaptive(cohort_size=3), grid, start)
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (2, 1)
    assert 0 <= arrays["batches"].numpy()[0] <= 10


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
def test_a_round_in_which_nobody_is_drawn_is_one_without_a_reply(inner, monkeypatch):
    """Independent draws can come out empty; the inner strategy would wait for nodes for ever."""

    def never(seconds):
        raise AssertionError("nothing to wait for")

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", never)
    sampler = UniformSampler(num_clients=4, cohort_size=1, design="independent")
    strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), sampler=sampler)
    result = strategy.start(federation(clients()), model(0.0), num_rounds=20)
    drawn = [each["sampling-distinct-clients"] for each in result.train_metrics_clientapp.values()]
    assert len(drawn) == 20
    assert min(drawn) == 0 < max(drawn)


def test_a_reply_to_no_message_of_the_round_is_ignored():
    """Late replies of round 1, while nobody replies to round 2."""
    silent = [Client(fails=lambda server_round: "times out" if server_round == 2 else None) for _ in range(4)]
    grid, strategy = federation(silent), adaptive(cohort_size=4)
    stale = grid.send_and_receive(strategy.configure_train(1, model(0.0), ConfigRecord(), grid), timeout=1.0)
    assert len(stale) == 4
    messages = strategy.configure_train(2, model(0.0), ConfigRecord(), grid)
    arrays, metrics = strategy.aggregate_train(2, [*stale, *grid.send_and_receive(messages, timeout=1.0)])
    assert arrays is None
    assert (metrics["sampling-replies"], metrics["sampling-failures"]) == (0, 4)
