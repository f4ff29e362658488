"""Numbers that a user logs are notes of a round: durable, exported, shown, drawn."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import ConfigurationError, LedgerError, NormPrivacy, default_sampler
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.notes import LOGGED, note_values
from tests.ledger.helpers import CLIENTS, crash, make, norms_of, play, recorded, state_bytes


def sortition(*arguments: str | Path) -> str:
    found = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


def test_a_log_belongs_to_the_round_drawn_last(path: Path) -> None:
    """Before or after the feedback; before the first draw it belongs to no round."""
    with open_run(path, make) as run:
        run.log(loss=9.0)
        first = run.draw()
        run.log(loss=1.0)
        run.observe(first, norms_of(first))
        run.log({"test/loss": np.float32(0.5)}, accuracy=1)
        second, third = run.draw(), run.draw()
        run.observe(third, norms_of(third))
        run.log(loss=3.0)
        run.observe(second, norms_of(second))
        run.log(loss=2.0, round_index=second.round_index)
        wanted = {"loss": {-1: 9.0, 0: 1.0, 1: 2.0, 2: 3.0}, "test/loss": {0: 0.5}, "accuracy": {0: 1.0}}
        assert run.logged() == wanted
        assert list(run.logged()["loss"]) == [-1, 0, 1, 2]
        run.log(loss=4.0, round_index=1)
        run.log(other=5.0, round_index=1)
    with read_run(path) as record:
        assert record.logged() == {**wanted, "loss": {-1: 9.0, 0: 1.0, 1: 4.0, 2: 3.0}, "other": {1: 5.0}}


def test_it_is_on_disk_before_the_call_returns(path: Path) -> None:
    """Killed at once after the call."""
    program = (
        "import os, signal, sys\nfrom sortition.ledger import open_run\n"
        "from tests.ledger.helpers import make, play\n"
        "run = open_run(sys.argv[1], make)\nplay(run, 2)\nrun.log(loss=0.25)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    paths = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, "-c", program, str(path)], env={**os.environ, "PYTHONPATH": paths}, check=False
    )
    assert found.returncode == -signal.SIGKILL
    with open_run(path, make) as run:
        assert run.logged() == {"loss": {1: 0.25}}
        play(run, 1)
        run.log(loss=0.125)
        crash(run)
    with read_run(path) as record:
        assert record.logged() == {"loss": {1: 0.25, 2: 0.125}}
    assert verify_run(path).replayed


def test_the_sampler_does_not_notice(path: Path) -> None:
    plain = make()
    with open_run(path, make) as run:
        for _ in range(5):
            play(run, 1)
            run.log(loss=0.5)
        play(plain, 5)
        assert state_bytes(run) == state_bytes(plain)


def test_what_can_not_be_logged_is_refused_and_changes_nothing(path: Path) -> None:
    with open_run(path, make) as run:
        play(run, 2)
        for wrong, named in (
            (lambda: run.log(), "at least one number"),
            (lambda: run.log(0.5), "numbers must be a mapping.*got 0.5"),
            (lambda: run.log(loss="low"), "loss must be one number, got 'low'"),
            (lambda: run.log(loss=True), "loss must be one number, got True"),
            (lambda: run.log(loss=None), "loss must be one number, got None"),
            (lambda: run.log(loss=[1.0, 2.0]), "loss must be one number"),
            (lambda: run.log(loss=1 + 0j), "loss must be one number"),
            (lambda: run.log({"a\nb": 1.0}), r"printable.*got 'a\\nb'"),
            (lambda: run.log({"\x1b[31m": 1.0}), "printable"),
            (lambda: run.log({"": 1.0}), "1 to 200 characters, got ''"),
            (lambda: run.log({"x" * 201: 1.0}), "1 to 200 characters"),
            (lambda: run.log({3: 1.0}), "got 3"),
            (lambda: run.log(loss=1.0, round_index=2), "at most 1, the round that was drawn last, got 2"),
            (lambda: run.log(loss=1.0, round_index=-2), "round_index must be a whole number of at least -1"),
            (lambda: run.note(0, LOGGED, {"loss": 1.0}), "call log to log numbers"),
        ):
            with pytest.raises(ConfigurationError, match=named):
                wrong()
        assert run.logged() == {}
        play(run, 1)
    with read_run(path) as record:
        assert record.rows == 1 + 2 * 3
    with pytest.raises(LedgerError, match="was closed; open it again"):
        run.log(loss=1.0)


def test_training_may_diverge(path: Path) -> None:
    with open_run(path, make) as run:
        for loss in (1.0, math.inf, math.nan):
            play(run, 1)
            run.log(loss=loss)
    with read_run(path) as record:
        assert list(record.logged()["loss"].values()) == [1.0, math.inf, pytest.approx(math.nan, nan_ok=True)]
    assert "loss nan (round 2)" in sortition("runs", "show", path)
    pytest.importorskip("vl_convert")
    sortition("report", path)


def test_shown_exported_and_drawn(path: Path) -> None:
    with open_run(path, make) as run:
        run.log(loss=2.0)
        for t in range(4):
            play(run, 1)
            run.log(loss=1 / (t + 3))
            if t % 2 == 0:
                run.log(accuracy=t / 10)
    shown = sortition("runs", "show", path)
    assert "last logged        loss 0.1667 (round 3), accuracy 0.2 (round 2)" in shown
    sortition("runs", "export", path, "--csv", path.with_name("csv"))
    with open(path.with_name("csv") / "logged.csv", newline="") as file:
        rows = [(int(row["round"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]
    assert rows == [
        (-1, "loss", 2.0),
        (0, "loss", 1 / 3),
        (0, "accuracy", 0.0),
        (1, "loss", 1 / 4),
        (2, "loss", 1 / 5),
        (2, "accuracy", 0.2),
        (3, "loss", 1 / 6),
    ]
    pytest.importorskip("vl_convert")
    sortition("report", path, "--output", path.with_name("page.html"))
    page = path.with_name("page.html").read_text()
    assert "<h2>Logged</h2>" in page
    for point in ('"x": -1.0, "at": "-1", "y": 2.0', '"x": 2.0, "at": "2", "y": 0.2'):
        assert point in page


def test_nothing_logged_nothing_shown(path: Path) -> None:
    recorded(path, 2)
    assert "logged" not in sortition("runs", "show", path)
    assert "logged.csv" not in sortition("runs", "export", path, "--csv", path.with_name("csv"))


def test_what_is_logged_in_a_private_run_is_the_users_own(path: Path) -> None:
    def private() -> object:
        return default_sampler(CLIENTS, 4, privacy=NormPrivacy(norm_bound=2.0, noise_multiplier=1.0))

    with open_run(path, private) as run:
        play(run, 2)
        run.log(loss=0.75)
    assert "loss 0.75 (round 1)" in sortition("runs", "show", path)


def test_a_row_of_others_is_checked(path: Path) -> None:
    with open_run(path, make) as run:
        play(run, 1)
        run._store.append("noted", 0, note_values(LOGGED, {"bell\x07": 1.0}))
    with read_run(path) as record:
        assert record.logged() == {"bell\N{REPLACEMENT CHARACTER}": {0: 1.0}}
    with open_run(path, make) as run:
        run._store.append("noted", 0, note_values(LOGGED, {"loss": "low"}))
    with read_run(path) as record, pytest.raises(LedgerError, match="row 4 must hold numbers, got 'low'"):
        record.logged()
