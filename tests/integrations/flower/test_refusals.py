"""What is refused, and that nothing is sent before: inner strategies, samplers, sizes, ledgers."""

from __future__ import annotations

import logging
import os
import sqlite3

import numpy as np
import pytest
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from sortition import (
    ConfigurationError,
    LedgerError,
    ProportionalSampler,
    StateError,
    UniformSampler,
    default_sampler,
)
from sortition.integrations.flower import AdaptiveSampling, registered_identity
from sortition.ledger import open_run
from tests.integrations.flower.fake_grid import Client, federation, model, one_round, weights


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedAvgM, FedProx, FedYogi, FedAdagrad])
def test_these_are_welcome(kind):
    assert isinstance(AdaptiveSampling(kind(), cohort_size=2).inner, kind)


def test_a_subclass_of_these_is_welcome():
    class Logging(FedAvg):
        pass

    AdaptiveSampling(Logging(), cohort_size=2)


@pytest.mark.parametrize(
    "inner",
    [
        flower.FedMedian(),
        flower.FedTrimmedAvg(),
        flower.Krum(),
        flower.MultiKrum(num_malicious_nodes=0, num_nodes_to_select=1),
        flower.Bulyan(),
        flower.QFedAvg(client_learning_rate=0.1),
        flower.FedXgbBagging(),
        flower.FedXgbCyclic(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_strategies_that_need_the_replies_one_by_one_are_refused(inner):
    with pytest.raises(ConfigurationError, match=f"inner.* {type(inner).__name__}"):
        AdaptiveSampling(inner, cohort_size=2)


def test_a_subclass_of_a_refused_one_is_refused_too():
    class MyMedian(flower.FedMedian):
        pass

    with pytest.raises(ConfigurationError, match=r"inner.*MyMedian.*FedMedian"):
        AdaptiveSampling(MyMedian(), cohort_size=2)


def private_wrappers(inner):
    """All four wrappers around this strategy."""
    return [
        flower.DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 100),
        flower.DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 1.0, 100),
        flower.DifferentialPrivacyServerSideAdaptiveClipping(inner, 1.0, 100),
        flower.DifferentialPrivacyClientSideAdaptiveClipping(inner, 1.0, 100),
    ]


@pytest.mark.parametrize("place", range(4))
def test_differential_privacy_inside_is_refused(place):
    wrapped = private_wrappers(FedAvg())[place]
    with pytest.raises(ConfigurationError, match=f"inner.* {type(wrapped).__name__}"):
        AdaptiveSampling(wrapped, cohort_size=2)


@pytest.mark.parametrize("place", range(4))
def test_differential_privacy_outside_is_refused_before_anything_is_sent(place):
    clients, adaptive = federation([Client(), Client()]), AdaptiveSampling(FedAvg(), cohort_size=2)
    wrapper = private_wrappers(adaptive)[place]
    with pytest.raises(ConfigurationError, match="AdaptiveSampling"):
        wrapper.start(clients, model(0.0), num_rounds=1)
    assert clients.sent == []
    adaptive.start(clients, model(0.0), num_rounds=1)  # unwrapped, it runs
    assert clients.sent != []


def test_a_summary_before_the_start_does_no_harm():
    adaptive = AdaptiveSampling(FedAvg(), cohort_size=2)
    adaptive.summary()
    adaptive.start(federation([Client(), Client()]), model(0.0), num_rounds=1)


def test_a_strategy_of_another_kind_is_refused():
    inner = AdaptiveSampling(FedAvg(), cohort_size=2)
    with pytest.raises(ConfigurationError, match=r"inner.*AdaptiveSampling"):
        AdaptiveSampling(inner, cohort_size=2)


def test_a_fraction_is_refused_since_the_sampler_decides():
    with pytest.raises(ConfigurationError, match=r"inner.*fraction_train.*0\.1"):
        AdaptiveSampling(FedAvg(fraction_train=0.1), cohort_size=2)


def test_a_legacy_strategy_is_told_where_the_new_one_is():
    from flwr.server.strategy import FedAvg as LegacyFedAvg

    class Mine(LegacyFedAvg):
        pass

    for legacy, name in ((LegacyFedAvg(), "FedAvg"), (Mine(), "Mine")):
        with pytest.raises(
            ConfigurationError,
            match=rf"flwr\.serverapp\.strategy, got {name} of flwr\.server\.strategy.* import FedAvg'",
        ):
            AdaptiveSampling(legacy, cohort_size=2)


def test_more_clients_than_are_drawn_can_not_be_asked_for():
    with pytest.raises(ConfigurationError, match=r"min_train_nodes=5, but .*cohort_size=4"):
        AdaptiveSampling(FedAvg(min_train_nodes=5), cohort_size=4)
    with pytest.raises(ConfigurationError, match=r"min_train_nodes=5, but .*cohort_size=4"):
        AdaptiveSampling(FedAvg(min_train_nodes=5), sampler=UniformSampler(num_clients=9, cohort_size=4))
    AdaptiveSampling(FedAvg(min_train_nodes=4), cohort_size=4)


def test_a_cohort_size_or_a_sampler_but_not_both():
    with pytest.raises(ConfigurationError, match=r"cohort_size.*sampler.*neither"):
        AdaptiveSampling(FedAvg())
    sampler = UniformSampler(num_clients=3, cohort_size=2)
    with pytest.raises(ConfigurationError, match=r"cohort_size.*sampler.*both"):
        AdaptiveSampling(FedAvg(), cohort_size=2, sampler=sampler)


@pytest.mark.parametrize(
    ("wrong", "right"), [("cohort_sise", "cohort_size"), ("K", "cohort_size"), ("lager", "ledger")]
)
def test_a_wrong_keyword_names_the_nearest_right_one(wrong, right):
    with pytest.raises(ConfigurationError, match=f"AdaptiveSampling.*{wrong}.*{right}"):
        AdaptiveSampling(FedAvg(), **{wrong: 2})
    with pytest.raises(ConfigurationError, match=r"registered_identity.*nod.*node"):
        registered_identity(nod=None)


def test_a_proportional_sampler_is_refused_since_it_would_be_uniform():
    sampler = ProportionalSampler(num_clients=12, cohort_size=4, design="fixed_size")
    with pytest.raises(ConfigurationError, match=r"sampler must not be a ProportionalSampler.*cohort_size"):
        AdaptiveSampling(FedAvg(), sampler=sampler)


def test_a_sampler_with_client_weights_of_its_own_is_refused():
    sampler = UniformSampler(num_clients=2, cohort_size=2, client_weights=np.array([0.1, 0.9]))
    with pytest.raises(ConfigurationError, match=r"sampler.*client_weights"):
        AdaptiveSampling(FedAvg(), sampler=sampler)


def test_what_is_no_sampler_is_refused():
    with pytest.raises(ConfigurationError, match=r"sampler.*'uniform'"):
        AdaptiveSampling(FedAvg(), sampler="uniform")


@pytest.mark.parametrize("size", [-1, "many", None, float("inf")])
def test_sizes_that_make_no_sense_are_refused(size):
    with pytest.raises(ConfigurationError, match=f"num_examples.*{size!r}.*name:a"):
        AdaptiveSampling(FedAvg(), cohort_size=2, num_examples={"name:a": size})


def test_sizes_without_names_are_refused():
    with pytest.raises(ConfigurationError, match="num_examples"):
        AdaptiveSampling(FedAvg(), cohort_size=2, num_examples=[1, 2])


# Ledgers


def strategy(ledger, inner=FedAvg, **options):
    return AdaptiveSampling(inner(fraction_evaluate=0.0), ledger=ledger, **{"cohort_size": 2, **options})


def grid():
    return federation([Client(float(place), 1.0 + place) for place in range(4)])


def test_a_directory_that_is_missing(tmp_path):
    path = tmp_path / "missing" / "run.db"
    with pytest.raises(ConfigurationError, match=f"ledger.*{path}"):
        strategy(path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"ledger.*/file/run.db"):
        strategy(str(tmp_path / "file" / "run.db"))


def test_a_directory_or_a_run_that_may_not_be_written(tmp_path, monkeypatch):
    """Root may write everywhere, so that the answer of the system is played."""
    path = tmp_path / "run.db"
    strategy(path).start(grid(), model(0.0), num_rounds=1)
    before = sorted(tmp_path.rglob("*"))
    for locked, ledger in ((tmp_path, tmp_path / "new.db"), (path, path), (tmp_path / "run.db.d", path)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda asked, mode, locked=locked: os.fspath(asked) != str(locked))
            with pytest.raises(ConfigurationError, match=f"ledger.*{locked}"):
                strategy(ledger)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_read_only(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="ledger"):
        strategy(tmp_path / "run.db")


@pytest.mark.parametrize("value", ["", 5, "a\0b"])
def test_what_names_no_file(value):
    with pytest.raises(ConfigurationError, match="ledger"):
        strategy(value)


def test_a_file_that_is_no_run(tmp_path):
    (tmp_path / "run.db").write_text("something else")
    with pytest.raises(LedgerError, match=r"ledger.*run.db"):
        strategy(tmp_path / "run.db")
    with pytest.raises(LedgerError, match="ledger"):
        strategy(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


def test_a_run_of_another_version(tmp_path):
    path = tmp_path / "run.db"
    strategy(path).start(grid(), model(0.0), num_rounds=1)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerError, match=r"ledger.*99"):
        strategy(path)


def test_a_ledger_may_be_named_from_where_we_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adaptive = strategy("run.db")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.chdir("/")
    adaptive.start(grid(), model(0.0), num_rounds=1)
    assert (tmp_path / "run.db").exists()


def test_a_run_of_another_program_is_not_taken_for_a_new_one(tmp_path):
    with open_run(tmp_path / "run.db", lambda: default_sampler(4, 2)) as run:
        for _ in range(3):
            cohort = run.draw()
            run.observe(cohort, np.ones(len(cohort)))
    clients = grid()
    with pytest.raises(LedgerError, match=r"ledger.*run.db.*AdaptiveSampling"):
        strategy(tmp_path / "run.db").start(clients, model(0.0), num_rounds=5)
    assert clients.sent == []


def test_a_run_of_a_sampler_of_ones_own_needs_that_sampler(tmp_path):
    class Mine(UniformSampler):
        pass

    mine = Mine(num_clients=4, cohort_size=2)
    strategy(tmp_path / "run.db", cohort_size=None, sampler=mine).start(grid(), model(0.0), num_rounds=1)
    clients = grid()
    with pytest.raises(ConfigurationError, match=r"sampler must be given: the run in .*run\.db.*a Mine"):
        strategy(tmp_path / "run.db").start(clients, model(0.0), num_rounds=2)
    assert clients.sent == []


@pytest.mark.parametrize(
    ("begun", "given", "named"),
    [
        ({"cohort_size": 2}, {"cohort_size": 3}, r"begun with cohort_size=2, got 3"),
        ({"cohort_size": 2, "seed": 4}, {"cohort_size": 2}, r"begun with seed=4, got 0"),
        ({"cohort_size": 2}, {"sampler": "uniform"}, r"the default sampler .*got sampler=UniformSampler"),
        (
            {"sampler": "uniform"},
            {"cohort_size": 2},
            r"sampler must be given.*a UniformSampler, got cohort_size",
        ),
        ({"sampler": "uniform"}, {"sampler": "larger"}, r"sampler of cohort_size=2, got 3"),
        ({"sampler": "uniform"}, {"sampler": "reseeded"}, r"sampler of seed=0, got 7"),
    ],
)
def test_another_cohort_size_seed_or_sampler_is_named_in_the_words_of_our_arguments(
    tmp_path, begun, given, named
):
    samplers = {
        "uniform": lambda: UniformSampler(num_clients=4, cohort_size=2),
        "larger": lambda: UniformSampler(num_clients=4, cohort_size=3),
        "reseeded": lambda: UniformSampler(num_clients=4, cohort_size=2, seed=7),
    }

    def build(options):
        made = {name: samplers[value]() if name == "sampler" else value for name, value in options.items()}
        return AdaptiveSampling(FedAvg(fraction_evaluate=0.0), ledger=tmp_path / "run.db", **made)

    build(begun).start(grid(), model(0.0), num_rounds=1)
    clients = grid()
    with pytest.raises(ConfigurationError, match=named + r"\. Give the same, or another ledger"):
        build(given).start(clients, model(0.0), num_rounds=2)
    assert clients.sent == []
    result = build(begun).start(clients, model(0.0), num_rounds=2)  # it is as it was
    assert sorted(result.train_metrics_clientapp) == [1, 2]


def test_a_start_that_is_refused_lets_go_of_the_ledger(tmp_path):
    strategy(tmp_path / "run.db").start(grid(), model(0.0), num_rounds=2)
    wrong = strategy(tmp_path / "run.db", FedAdam)
    for _ in range(2):  # nor does a second try take the run for a new one
        with pytest.raises(StateError, match=r"inner.*FedAvg.*FedAdam"):
            wrong.start(grid(), model(0.0), num_rounds=3)
    result = strategy(tmp_path / "run.db").start(grid(), model(0.0), num_rounds=3)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]


def test_a_state_is_loaded_without_a_ledger_only(tmp_path):
    """The ledger would begin with a sampler that has learnt nothing, beside a model that has."""
    plain = strategy(None)
    plain.start(grid(), model(0.0), num_rounds=2)
    with pytest.raises(ConfigurationError, match="ledger"):
        strategy(tmp_path / "run.db").load_state_dict(plain.state_dict())


def test_rounds_by_hand_are_continued_by_start(tmp_path):
    by_hand, clients = strategy(tmp_path / "run.db"), grid()
    arrays, _ = one_round(by_hand, clients, model(0.0))
    result = by_hand.start(clients, model(0.0), num_rounds=1)
    np.testing.assert_array_equal(weights(result.arrays), weights(arrays))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"initial_arrays": [np.zeros(1)]}, r"initial_arrays must be an ArrayRecord.* got list"),
        ({"timeout": "8"}, r"timeout must lie in .* got '8'"),
        ({"timeout": -1.0}, r"timeout must lie in .* got -1"),
        ({"num_rounds": 2.5}, r"num_rounds must be .* got 2\.5"),
        ({"num_rounds": -1}, r"num_rounds must be .* got -1"),
        (
            {"on_round": lambda server_round, metrics: None},
            r"on_round must be a function of \(server_round, ",
        ),
        ({"on_round": 3}, r"on_round must be a function of .* got 3"),
        ({"evaluate_fn": lambda arrays: None}, r"evaluate_fn must be a function of \(server_round, arrays\)"),
        ({"number_of_rounds": 3}, "num_rounds"),
    ],
)
def test_wrong_arguments_of_start_are_refused_before_anything_is_sent(wrong, named):
    grid = federation([Client(), Client()])
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2)
    arguments = {"grid": grid, "initial_arrays": model(0.0), "num_rounds": 2, **wrong}
    with pytest.raises(ConfigurationError, match=named):
        strategy.start(**arguments)
    assert not grid.sent
    assert grid.queries == 0


def test_a_second_start_says_what_begins_anew(caplog):
    grid = federation([Client(), Client()])
    strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2)
    with caplog.at_level(logging.INFO, "flwr.sortition"):
        strategy.start(grid, model(0.0), num_rounds=1)
        assert "has run before" not in caplog.text
        strategy.start(grid, model(0.0), num_rounds=1)
    assert caplog.text.count("This strategy has run before. The model begins anew") == 1
