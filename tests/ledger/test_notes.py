"""Notes are rows of the run: kept for good, repeated by nobody. Names of clients are notes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import AvailabilityError, ConfigurationError, LedgerError, NormPrivacy, default_sampler
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import pack
from sortition.ledger.notes import CLIENT_NAMES, note_values
from tests.ledger.helpers import CLIENTS, crash, make, play, recorded, state_bytes


def sortition(*arguments: str | Path) -> str:
    """What the command prints, in one line: a terminal is narrow."""
    found = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


def test_a_note_of_each_round_stays_for_good(path: Path) -> None:
    """Also without a snapshot, through a crash, and while others read."""
    with open_run(path, make) as run:
        for round_index in range(5):
            play(run, 1)
            run.note(round_index, "metrics", {"loss": 1.0 / (1 + round_index), "curve": np.arange(2)})
            run.note(round_index, "other", {"loss": -1.0})
        run.note(4, "metrics", {"loss": 7.0})  # the last one counts
        crash(run)
    with open_run(path, make) as run:
        notes = run.notes("metrics")
    with read_run(path) as record:
        assert record.notes("nothing") == {}
        assert list(record.notes("metrics")) == list(notes) == [0, 1, 2, 3, 4]
    assert [note["loss"] for note in notes.values()] == [1.0, 1 / 2, 1 / 3, 1 / 4, 7.0]
    assert notes[3]["curve"].tolist() == [0, 1]
    assert verify_run(path).replayed


def test_the_sampler_does_not_notice(path: Path) -> None:
    plain = make()
    with open_run(path, make) as run:
        for round_index in range(6):
            play(run, 1)
            play(plain, 1)
            run.note(round_index, "metrics", {"loss": 0.0})
        run.name_clients([0, 1], ["a", "b"])
        assert state_bytes(run) == state_bytes(plain)


def test_what_can_not_be_noted_is_refused_and_changes_nothing(path: Path) -> None:
    with open_run(path, make) as run:
        play(run, 2)
        for wrong, named in (
            (lambda: run.note(3, "metrics", {}), "round_index must be at most 2.*got 3"),
            (lambda: run.note(0, "", {}), "name must be a word"),
            (lambda: run.note(0, CLIENT_NAMES, {}), "name_clients"),
            (lambda: run.note(0, "metrics", {"loss": object()}), "loss"),
            (lambda: run.name_clients([1, 2], ["one"]), r"names must be 2 strings.*\['one'\]"),
            (lambda: run.name_clients([1, 2], "ab"), "names must be 2 strings.*'ab'"),
            (lambda: run.name_clients([1], [5]), "names must be 1 strings"),
        ):
            with pytest.raises(ConfigurationError, match=named):
                wrong()
        with pytest.raises(AvailabilityError, match=f"clients.*0 to {CLIENTS - 1}, got {CLIENTS}"):
            run.name_clients([CLIENTS], ["nobody"])
        assert run.notes("metrics") == {}
        play(run, 1)
    with read_run(path) as record:
        assert record.rows == 1 + 2 * 3


def test_clients_go_by_their_names(path: Path) -> None:
    with open_run(path, make) as run:
        run.name_clients(np.arange(CLIENTS), [f"clinic-{client}" for client in range(CLIENTS)])
        one, other, *_ = play(run, 8)[-1].clients.tolist()
        joined = run.add_clients(1)
        run.name_clients(joined, ["late\x1b[31m"])
        run.name_clients([other], ["renamed"])
        run.remove_clients([0])
        assert run.client_names[other] == "renamed"
    shown = sortition("runs", "show", path, "--top", "40").split()
    assert {f"clinic-{one}", "renamed"} <= set(shown)
    assert f"clinic-{other}" not in shown
    page = path.with_name("page.html")
    sortition("report", path, "--output", page)
    text = page.read_text()
    for expected in (f"clinic-{one}", "renamed", "1: late", "1: clinic-0"):
        assert expected in text
    assert "\x1b" not in text
    sortition("runs", "export", path, "--csv", path.with_name("csv"))
    names = path.with_name("csv") / "names.csv"
    assert names.read_text().splitlines()[1 + other] == f"{other},renamed"


def test_a_client_without_a_name_goes_by_its_number(path: Path) -> None:
    with open_run(path, make) as run:
        cohort = play(run, 3)[-1]
        run.name_clients(cohort.clients[:1], ["the-first"])
    rows = [line.split()[0] for line in sortition("runs", "show", path).splitlines() if line.split()]
    assert {"the-first", str(cohort.clients[1])} <= set(rows)
    assert str(cohort.clients[0]) not in rows
    recorded(path.with_name("unnamed.db"), 2)
    sortition("runs", "export", path.with_name("unnamed.db"), "--csv", path.with_name("csv"))
    assert not (path.with_name("csv") / "names.csv").exists()


def test_names_do_not_uncover_norms(path: Path) -> None:
    def private() -> object:
        return default_sampler(CLIENTS, 4, privacy=NormPrivacy(norm_bound=2.0, noise_multiplier=1.0))

    with open_run(path, private) as run:
        run.name_clients([0, 1, 2, 3], ["a-0", "a-1", "a-2", "a-3"])
        play(run, 8)
    assert "not shown" in sortition("runs", "show", path)


@pytest.mark.parametrize("names", ["no json", '{"a": 1}', '["one"]', 7, "[" * 100_000])
def test_names_that_make_no_sense_are_a_damaged_row(path: Path, names: object) -> None:
    with open_run(path, make) as run:
        values = {"clients": np.array([1, 2]), "names": names}
        run._store.append("noted", 0, note_values(CLIENT_NAMES, values))
    with read_run(path) as record, pytest.raises(LedgerError, match="row 1 must hold 2 names of clients"):
        _ = record.client_names


def test_a_note_that_has_changed_is_an_error_and_not_a_value(path: Path) -> None:
    with open_run(path, make) as run:
        play(run, 2)
        run.note(0, "metrics", {"loss": 0.25})
        run.note(1, "metrics", {"loss": 0.5})
    connection = sqlite3.connect(path)
    with connection:
        changed = pack(note_values("metrics", {"loss": 0.125}))
        connection.execute(
            "UPDATE events SET payload = ? WHERE kind = 'noted' AND round_index = 1", [changed]
        )
    connection.close()
    with read_run(path) as record, pytest.raises(LedgerError, match=r"row 6 .*has changed"):
        record.notes("metrics")
    with read_run(path, good=True) as record:
        assert record.notes("metrics") == {0: {"loss": 0.25}}


def test_a_note_is_as_small_as_what_is_in_it() -> None:
    """A row of a round's metrics must not grow with the rounds."""
    assert len(pack(note_values("metrics", {"loss": 0.5}))) < 100
