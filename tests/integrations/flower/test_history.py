"""Result, log and callback of a run, unbroken or resumed: all rounds, with their true numbers."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

from sortition import ConfigurationError
from sortition.integrations.flower import AdaptiveSampling
from sortition.ledger import read_run
from sortition.ledger.summary import summarise
from tests.integrations.flower.fake_grid import federation, model, weights
from tests.integrations.flower.test_resume import clients

ROUNDS = 5
PARTS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


class CrashError(Exception):
    """The program is gone."""


def same(one, other):
    """Whether two results are equal, metrics and model."""
    assert weights(one.arrays).tolist() == weights(other.arrays).tolist()
    for part in PARTS:
        of_one, of_other = getattr(one, part), getattr(other, part)
        assert list(of_one) == list(of_other)
        for server_round, metrics in of_one.items():  # the clients of inner's evaluation come in any order
            assert dict(metrics) == pytest.approx(dict(of_other[server_round]), rel=1e-12)


def start(ledger, crash=None, rounds=ROUNDS, **options):
    """A run with all three kinds of metrics. ``crash`` is where it ends: a place and a round."""
    strategy = AdaptiveSampling(FedAdam(), cohort_size=4, seed=5, ledger=ledger)
    grid, called = federation(clients()), []
    evaluate = strategy.aggregate_evaluate

    def aggregate_evaluate(server_round, replies):
        if crash == ("evaluation", server_round):
            raise CrashError
        return evaluate(server_round, replies)

    def evaluate_fn(server_round, arrays):
        if crash == ("evaluate_fn", server_round):
            raise CrashError
        return MetricRecord({"norm": float(np.linalg.norm(weights(arrays)))})

    def on_round(server_round, metrics, arrays):
        called.append((server_round, pytest.approx(metrics, rel=1e-12), weights(arrays).tolist()))
        if crash == ("on_round", server_round):
            raise CrashError

    strategy.aggregate_evaluate = aggregate_evaluate
    if crash is not None:  # no goodbye to the ledger
        strategy._pool.close = lambda: strategy._pool._run and strategy._pool._run._abandon()
    keywords = {"evaluate_fn": evaluate_fn, "on_round": on_round, **options}
    try:
        return strategy.start(grid, model(0.0, 1.0), num_rounds=rounds, **keywords), called, grid
    except CrashError:
        return None, called, grid


@cache
def unbroken():
    """The result of the unbroken run, and what its callback got."""
    return start(None)[:2]


@pytest.fixture
def whole():
    """The same, made once."""
    return unbroken()


@pytest.mark.parametrize("place", ["evaluation", "evaluate_fn", "on_round"])
@pytest.mark.parametrize("crash_round", [1, 3, ROUNDS])
def test_a_resumed_run_has_the_result_of_the_unbroken_one(tmp_path, place, crash_round, whole):
    """Each round's evaluation and callback is done once; a callback that did not return is called again."""
    wanted_result, expected = whole
    _, before, _ = start(tmp_path / "run.db", crash=(place, crash_round))
    result, after, _ = start(tmp_path / "run.db")
    same(result, wanted_result)
    if place == "on_round":
        assert [called[0] for called in before] == list(range(1, crash_round + 1))
        before.pop()
    assert [called[0] for called in before + after] == list(range(1, ROUNDS + 1))
    for found, wanted in zip(before + after, expected, strict=True):
        assert found[1].expected == wanted[1]
        assert found[2] == wanted[2]


@pytest.mark.parametrize("crash", [None, ("evaluate_fn", 3), ("on_round", 1)])
def test_the_metrics_are_logged_in_the_ledger(tmp_path, crash, whole):
    """As curves of the report; those of round 0 belong to the model before the first round."""
    if crash is not None:
        start(tmp_path / "run.db", crash=crash)
    start(tmp_path / "run.db")
    with read_run(tmp_path / "run.db") as record:
        logged, gain = record.logged(), summarise(record).gain
    assert gain.ratio is not None, gain
    wanted = {}
    for source, part in zip(("train", "evaluate", "server"), PARTS, strict=True):
        for server_round, metrics in getattr(whole[0], part).items():
            for name in metrics:
                if not name.startswith("sampling-"):  # the ledger has the draws
                    value = pytest.approx(metrics[name], rel=1e-12)
                    wanted.setdefault(f"{source}/{name}", {})[server_round - 1] = value
    assert list(logged["server/norm"]) == list(range(-1, ROUNDS))
    assert logged == wanted


def test_metrics_that_can_not_be_logged_do_no_harm(tmp_path):
    """Names come from the clients, and lists are no numbers."""

    def evaluate_fn(server_round, arrays):
        return MetricRecord(
            {"\x1b[31m": 1.0, "list": [1.0, 2.0], "x" * 300: 2.0, "fine": 3, "no": float("nan")}
        )

    start(tmp_path / "run.db", rounds=2, evaluate_fn=evaluate_fn, on_round=None)
    with read_run(tmp_path / "run.db") as record:
        logged = record.logged()
    of_server = {name: numbers for name, numbers in logged.items() if name.startswith("server/")}
    assert of_server["server/fine"] == {-1: 3.0, 0: 3.0, 1: 3.0}
    assert set(of_server) == {"server/fine", "server/no"}


def test_the_unbroken_run_has_all_rounds(whole):
    for part in PARTS:
        first = 0 if part.endswith("serverapp") else 1
        assert list(getattr(whole[0], part)) == list(range(first, ROUNDS + 1))


def test_what_the_callback_gets(whole):
    result, called = whole
    for server_round, metrics, arrays in called:
        sources = zip(("train", "evaluate", "server"), PARTS, strict=True)
        got = metrics.expected
        assert got == {
            f"{source}/{name}": value
            for source, part in sources
            for name, value in getattr(result, part)[server_round].items()
        }
        assert got["train/sampling-replies"] == 4
        assert got["server/norm"] == pytest.approx(np.linalg.norm(arrays))
    assert called[-1][2] == weights(result.arrays).tolist()


def test_the_model_is_on_disk_when_the_callback_raises(tmp_path):
    _, called, _ = start(tmp_path / "run.db", crash=("on_round", 3))
    result, _, _ = start(tmp_path / "run.db", rounds=3)
    assert weights(result.arrays).tolist() == called[-1][2]


def test_a_state_saved_by_the_callback_is_complete(whole):
    """Neither evaluation nor callback is repeated when it is loaded."""
    states, called = {}, []
    strategy = AdaptiveSampling(FedAdam(), cohort_size=4, seed=5)

    def evaluate_fn(server_round, arrays):
        return MetricRecord({"norm": float(np.linalg.norm(weights(arrays)))})

    def save(server_round, metrics, arrays):
        states[server_round] = strategy.state_dict()

    strategy.start(federation(clients()), model(0.0, 1.0), ROUNDS, evaluate_fn=evaluate_fn, on_round=save)
    resumed = AdaptiveSampling(FedAdam(), cohort_size=4, seed=5)
    resumed.load_state_dict(states[2])
    result = resumed.start(
        *(federation(clients()), model(0.0, 1.0), ROUNDS),
        evaluate_fn=evaluate_fn,
        on_round=lambda server_round, metrics, arrays: called.append(server_round),
    )
    same(result, whole[0])
    assert called == [3, 4, 5]


def test_a_finished_run_says_so_and_asks_nobody(tmp_path, caplog, whole):
    start(tmp_path / "run.db")
    with caplog.at_level(logging.INFO, logger="flwr"):
        result, called, grid = start(tmp_path / "run.db")
    assert "This run is finished: 5 rounds are done, and num_rounds=5" in caplog.text
    same(result, whole[0])
    assert called == []
    assert grid.sent == []


def test_the_log_counts_the_rounds_of_the_whole_run(tmp_path, caplog):
    start(tmp_path / "run.db", rounds=2)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="flwr"):
        start(tmp_path / "run.db", rounds=4)
    heads = [line for line in caplog.messages if line.startswith("[ROUND")]
    assert heads == ["[ROUND 3/4]", "[ROUND 4/4]"]
    assert "Resuming after round 2 of 4" in caplog.messages
    drawn = [line for line in caplog.messages if "drew" in line]
    assert drawn == ["aggregate_train: drew 4 of 12 clients online; 4 replied, 0 failed"] * 2


def test_the_record_of_a_round_does_not_grow_with_the_rounds(tmp_path):
    sizes = []
    for rounds in (3, 30):
        start(tmp_path / f"{rounds}.db", rounds=rounds)
        attached = (tmp_path / f"{rounds}.db.d").glob("attachment_flower-*")
        sizes.append(max(file.stat().st_size for file in attached))
    assert sizes[1] <= sizes[0] + 200  # numbers have more digits; the metrics of a round take more than this


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"v": np.zeros(2)}, "it has 'w', which initial_arrays has not"),
        ({"w": np.zeros(2), "v": np.zeros(2)}, "it has no 'v', which initial_arrays has"),
        ({"w": np.zeros(3)}, r"'w' has shape \(2,\) there and \(3,\) in initial_arrays"),
        ({"w": np.zeros(2, np.float32)}, "'w' has type float64 there and float32 in initial_arrays"),
    ],
)
def test_a_ledger_of_another_model_is_refused_before_any_client_is_asked(tmp_path, other, named):
    start(tmp_path / "run.db", rounds=2)
    grid = federation(clients())
    strategy = AdaptiveSampling(FedAdam(), cohort_size=4, seed=5, ledger=tmp_path / "run.db")
    arrays = ArrayRecord({key: Array(value) for key, value in other.items()})
    with pytest.raises(ConfigurationError, match=named):
        strategy.start(grid, arrays, num_rounds=3)
    assert grid.sent == []


def test_a_run_without_evaluation_has_its_training_metrics(tmp_path):
    for rounds in (2, 4):
        inner = FedAvg(fraction_evaluate=0.0)
        strategy = AdaptiveSampling(inner, cohort_size=4, ledger=tmp_path / "run.db")
        result = strategy.start(federation(clients()), model(0.0, 1.0), num_rounds=rounds)
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4]
    assert result.evaluate_metrics_clientapp == result.evaluate_metrics_serverapp == {}


def test_the_example_in_the_docs(tmp_path):
    """The lines of docs/reference/metrics.md as they are there."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()
    (example,) = (part for part in page.split("```python\n") if part.startswith("def on_round"))
    strategy = AdaptiveSampling(FedAvg(), cohort_size=4, evaluate_cohort_size=3)
    names = {"strategy": strategy, "grid": federation(clients()), "arrays": model(0.0, 1.0), "np": np}
    names["folder"] = tmp_path
    exec(example.partition("```")[0], names)
    result = names["result"]
    lines = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    for (number, train_loss), server_round in zip(lines, range(1, 21), strict=True):
        assert int(number) == server_round
        assert float(train_loss) == result.train_metrics_clientapp[server_round]["loss"]
    assert sorted(file.name for file in tmp_path.glob("*.npz")) == ["model-10.npz", "model-20.npz"]
    with np.load(tmp_path / "model-20.npz") as saved:
        assert saved["w"].tolist() == weights(result.arrays).tolist()
