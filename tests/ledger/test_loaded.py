"""Runs that begin where another sampler stood."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import AvareSampler, ConfigurationError, Guard, OSMDSampler, StateError
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import same_cohort
from sortition.ledger.summary import export_csv, figures, summarise
from tests.ledger.helpers import CLIENTS, crash, make, norms_of, play, state_bytes


def test_a_loaded_state_is_recorded(path: Path) -> None:
    """A run may begin where a sampler stands, open cohorts included."""
    plain = make(seed=5)
    play(plain, 3)
    late = plain.draw()
    run = open_run(path, make)
    run.load_state_dict(plain.state_dict())
    assert run.round_index == 4
    play(run, 2)
    run.observe(late, norms_of(late))
    run.observe(late, norms_of(late))
    crash(run)
    play(plain, 2)
    plain.observe(late, norms_of(late))
    with open_run(path, make) as run:
        assert state_bytes(run) == state_bytes(plain)
        with pytest.raises(StateError, match="state"):
            run.load_state_dict(plain.state_dict())
    assert verify_run(path).replayed


def test_a_state_that_can_not_be_recorded_is_not_loaded(path: Path) -> None:
    """The sampler has taken it, the ledger can't: memory stays what the disk is."""
    plain = make(seed=5)
    play(plain, 3)
    with open_run(path, make) as run:
        with pytest.raises(ConfigurationError, match=r"my_note .*list"):
            run.load_state_dict({**plain.state_dict(), "my_note": [1, 2]})
        assert state_bytes(run) == state_bytes(make())
        assert run.round_index == run.sampler.round_index == 0
        assert same_cohort(run.draw(), make().draw())
        run._abandon()
    with open_run(path, make) as run:
        assert run.round_index == 1


def test_a_loaded_run_is_reported_as_it_was(path: Path, tmp_path: Path) -> None:
    """Clients that joined and left before, and the round that was drawn before and answered here."""
    plain = make()
    play(plain, 2)
    late = plain.draw()
    plain.add_clients(5)
    plain.remove_clients([int(late.clients[0]), CLIENTS + 1])
    with open_run(path, make) as run:
        run.load_state_dict(plain.state_dict())
        own = run.draw()
        run.observe(late, norms_of(late))
        run.add_clients(2)
        run.remove_clients([CLIENTS + 2])
        with read_run(path) as record:
            first, second = record.rounds()
            memberships = list(record.memberships())
            summary = summarise(record)
            export_csv(record, tmp_path / "csv")
        assert summary.present == run.num_clients == CLIENTS + 5 - 2 + 2 - 1
    assert same_cohort(first.cohort, late)
    assert first.norms is not None
    assert np.array_equal(first.norms, norms_of(late), equal_nan=True)
    assert (first.drawn_at, first.cohort.available) == (None, None)
    assert same_cohort(second.cohort, own)
    assert second.norms is None
    drawn = np.union1d(late.clients, own.clients)
    assert (summary.rounds, summary.open_rounds, len(summary.clients)) == (2, 1, len(drawn))
    assert summary.coverage == len(drawn) / (CLIENTS + 5 + 2)
    assert summary.first_draw == second.drawn_at
    assert [known.client for known in summary.clients if known.left] == [late.clients[0]]
    assert [m.round_index for m in memberships] == [4, 4]
    with open(tmp_path / "csv" / "rounds.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["round"], row["drawn_at"] == "") for row in rows] == [("2", True), ("3", False)]


def test_suspects_from_before_the_run(path: Path) -> None:
    """A client that lied before the state was loaded, and was not drawn since."""

    def guarded() -> Any:
        return OSMDSampler(num_clients=20, cohort_size=4, learning_rate=0.05, guard=Guard())

    plain = guarded()
    for _ in range(30):
        cohort = plain.draw()
        plain.observe(cohort, np.where(cohort.clients == 2, 1e9, 1.0))
    assert [suspect.client for suspect in plain.suspects()] == [2]
    with open_run(path, guarded) as run:
        run.load_state_dict(plain.state_dict())
    found = CliRunner().invoke(app, ["runs", "show", str(path)])
    assert found.exit_code == 0
    assert "suspects: norms above the guard's clip" in found.output


def test_a_run_that_goes_on_from_another_says_so(tmp_path: Path) -> None:
    """By the recipe of docs/reference/ledger.md: the open cohort is answered in the new run, as its round."""

    def avare() -> AvareSampler:
        return AvareSampler(num_clients=20, cohort_size=4, guard=Guard())

    with open_run(tmp_path / "run.db", avare) as run:
        for t in range(6):
            cohort = run.draw()
            run.attach(t, "model", {"w": np.full(2, float(t))})
            if t < 5:
                run.observe(cohort, np.where(cohort.clients == 3, 1e6, 1.0))
    with read_run(tmp_path / "run.db") as record:
        state, continues = record.replay().state_dict(), record.continues
        *_, last = record.rounds()
        model = record.attachment(5, "model")
        assert record.attachment(1, "model") is None
    assert continues is None
    assert last.norms is None
    assert model is not None
    assert np.array_equal(model["w"], [5.0, 5.0])
    with open_run(tmp_path / "new.db", avare) as run:
        run.load_state_dict(state)
        run.observe(last.cohort, np.ones(len(last.cohort)))
        run.draw()
    assert verify_run(tmp_path / "new.db").rounds == 2
    with read_run(tmp_path / "new.db") as record:
        summary = summarise(record)
    assert summary.rounds == 2
    assert summary.continues == 6
    assert "from a loaded state, at round 6;" in dict(figures(summary))["begun"]
