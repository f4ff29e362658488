"""A ledger that can't be written, or holds another run, is refused before any client is asked."""

from __future__ import annotations

import os
import sqlite3

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg

from sortition import ConfigurationError, LedgerError, StateError, UniformSampler, default_sampler
from sortition.integrations.flower import AdaptiveSampling
from sortition.ledger import open_run
from tests.integrations.flower.fake_grid import Client, federation, model, weights


def strategy(ledger, inner=FedAvg, **options):
    return AdaptiveSampling(inner(fraction_evaluate=0.0), ledger=ledger, **{"cohort_size": 2, **options})


def grid():
    return federation([Client(float(place), 1.0 + place) for place in range(4)])


def test_a_directory_that_is_missing(tmp_path):
    path = tmp_path / "missing" / "run.db"
    with pytest.raises(ConfigurationError, match=rf"ledger must .* directory that exists.* got '{path}'"):
        strategy(path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"ledger must .* got '.*/file/run.db'"):
        strategy(str(tmp_path / "file" / "run.db"))


def test_a_directory_or_a_run_that_may_not_be_written(tmp_path, monkeypatch):
    """Root may write everywhere, so that the answer of the system is played."""
    path = tmp_path / "run.db"
    strategy(path).start(grid(), model(0.0), num_rounds=1)
    before = sorted(tmp_path.rglob("*"))
    for locked, ledger in ((tmp_path, tmp_path / "new.db"), (path, path), (tmp_path / "run.db.d", path)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda asked, mode, locked=locked: os.fspath(asked) != str(locked))
            with pytest.raises(ConfigurationError, match=r"ledger must .* can be written.* got '"):
                strategy(ledger)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_read_only(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="can be written"):
        strategy(tmp_path / "run.db")


@pytest.mark.parametrize("value", ["", 5, "a\0b"])
def test_what_names_no_file(value):
    with pytest.raises(ConfigurationError, match="ledger must name a file"):
        strategy(value)


def test_a_file_that_is_no_run(tmp_path):
    (tmp_path / "run.db").write_text("something else")
    with pytest.raises(LedgerError, match=r"ledger .*run.db must be a run of sortition, got a file of 14"):
        strategy(tmp_path / "run.db")
    with pytest.raises(LedgerError, match=r"ledger .* must be a readable file"):
        strategy(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


def test_a_run_of_another_version(tmp_path):
    path = tmp_path / "run.db"
    strategy(path).start(grid(), model(0.0), num_rounds=1)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerError, match=r"ledger .* got schema 99"):
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
    with pytest.raises(LedgerError, match=r"ledger must be a run of AdaptiveSampling, .*run.db"):
        strategy(tmp_path / "run.db").start(clients, model(0.0), num_rounds=5)
    assert clients.sent == []


def test_a_run_of_a_sampler_of_ones_own_needs_that_sampler(tmp_path):
    class Mine(UniformSampler):
        pass

    mine = Mine(num_clients=4, cohort_size=2)
    strategy(tmp_path / "run.db", cohort_size=None, sampler=mine).start(grid(), model(0.0), num_rounds=1)
    with pytest.raises(LedgerError, match=r"sampler must be given, .* got a run of Mine"):
        strategy(tmp_path / "run.db").start(grid(), model(0.0), num_rounds=2)


def test_a_start_that_is_refused_lets_go_of_the_ledger(tmp_path):
    strategy(tmp_path / "run.db").start(grid(), model(0.0), num_rounds=2)
    wrong = strategy(tmp_path / "run.db", FedAdam)
    for _ in range(2):  # nor does a second try take the run for a new one
        with pytest.raises(StateError, match="inner strategy FedAdam, got 'FedAvg'"):
            wrong.start(grid(), model(0.0), num_rounds=3)
    result = strategy(tmp_path / "run.db").start(grid(), model(0.0), num_rounds=3)
    assert sorted(result.train_metrics_clientapp) == [3]


def test_a_state_is_loaded_without_a_ledger_only(tmp_path):
    """The ledger would begin with a sampler that has learnt nothing, beside a model that has."""
    plain = strategy(None)
    plain.start(grid(), model(0.0), num_rounds=2)
    with pytest.raises(ConfigurationError, match="ledger must be None where a state is loaded"):
        strategy(tmp_path / "run.db").load_state_dict(plain.state_dict())


def test_rounds_by_hand_are_continued_by_start(tmp_path):
    from tests.integrations.flower.test_rounds import one_round

    by_hand, clients = strategy(tmp_path / "run.db"), grid()
    arrays, _ = one_round(by_hand, clients, model(0.0))
    result = by_hand.start(clients, model(0.0), num_rounds=1)
    np.testing.assert_array_equal(weights(result.arrays), weights(arrays))
