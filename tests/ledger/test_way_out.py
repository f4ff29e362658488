"""What is damaged is said together with what is good, and how to go on from that."""

from __future__ import annotations

import csv
import os
import shutil
import sqlite3
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sortition import AdaptiveOSMDSampler, Guard, LedgerError, UniformSampler
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.codec import same_cohort
from tests.ledger.helpers import CLIENTS, COHORT_SIZE, crash, make, norms_of, play, recorded, state_bytes


def sortition(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def change(path: Path, number: int) -> None:
    """Another last byte in that row, behind the ledger's back."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "UPDATE events SET payload = CAST(substr(payload, 1, length(payload) - 1) || x'07' AS BLOB) "
            f"WHERE number = {number}"
        )
    connection.close()


@pytest.fixture
def damaged(path: Path) -> Path:
    """Ten rounds; row 8, the feedback of round 3, has changed."""
    recorded(path, 10)
    change(path, 8)
    return path


def test_the_error_says_what_is_good_and_what_to_do(damaged: Path) -> None:
    for command in (["runs", "show"], ["runs", "verify"], ["report"]):
        found = sortition(*command, damaged)
        assert found.exit_code == 2
        assert "row 8 has changed; rows 0 to 7 are good" in found.output
        assert "export" in found.output
        assert "--good" in found.output
        assert len(found.output.splitlines()) == 1


def test_the_good_rows_can_be_saved(damaged: Path, tmp_path: Path) -> None:
    with read_run(damaged, good=True) as record:
        rounds = list(record.rounds())
        assert (record.rows, record.missing) == (8, 13)
    expected = play(make(), 4)
    assert all(same_cohort(round_.cohort, cohort) for round_, cohort in zip(rounds, expected, strict=True))
    assert [round_.norms is None for round_ in rounds] == [False, False, False, True]
    found = sortition("runs", "export", damaged, "--csv", tmp_path / "csv", "--good")
    assert found.exit_code == 0
    assert "8 rows before the damage, all good; 13 rows left out" in found.stderr
    with open(tmp_path / "csv" / "rounds.csv", newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["0", "1", "2", "3"]
    assert "4, 1 of them await feedback" in sortition("runs", "show", damaged, "--good").stdout


def test_a_whole_run_has_nothing_to_leave_out(path: Path, tmp_path: Path) -> None:
    recorded(path, 2)
    found = sortition("runs", "export", path, "--csv", tmp_path / "csv", "--good")
    assert (found.exit_code, found.stderr) == (0, "")


def test_a_new_run_can_go_on_from_the_good_rows(damaged: Path, tmp_path: Path) -> None:
    """As docs/ledger.md says."""
    with read_run(damaged, good=True) as record:
        state = record.replay().state_dict()
    plain = make()
    play(plain, 3)
    plain.draw()
    with open_run(tmp_path / "new.db", make) as run:
        run.load_state_dict(state)
        assert state_bytes(run) == state_bytes(plain)
        assert run.draw().round_index == 4


def test_the_first_row(path: Path) -> None:
    recorded(path, 2)
    change(path, 0)
    for good in (False, True):
        with pytest.raises(LedgerError, match="put a copy of the run in its place"):
            read_run(path, good=good)


def test_pages_that_sqlite_can_not_read(path: Path) -> None:
    """Damage below the rows: what comes before it can be saved all the same."""
    recorded(path, 200)
    data = bytearray(path.read_bytes())
    data[-3 * 4096 :] = bytes(3 * 4096)
    path.write_bytes(data)
    with pytest.raises(LedgerError), read_run(path) as record:
        list(record.rounds())
    with read_run(path, good=True) as record:
        assert 100 < record.rows < 401
        assert record.missing == 401 - record.rows
        assert len(list(record.rounds())) == record.rows // 2


def test_a_wal_that_was_deleted(path: Path, tmp_path: Path) -> None:
    run = open_run(path, make)
    play(run, 3)
    for name in ("run.db", "run.db.d"):
        (shutil.copytree if name.endswith(".d") else shutil.copy)(
            path.with_name(name), tmp_path / f"copy-{name}"
        )
    crash(run)
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "run.db"
    shutil.move(tmp_path / "copy-run.db", copy)
    shutil.move(tmp_path / "copy-run.db.d", copy.with_name("run.db.d"))
    for question in (read_run, verify_run, lambda path: open_run(path, make)):
        with pytest.raises(LedgerError, match=r"the 7 rows.*got 1.*put run.db-wal back.*all 1 rows .* good"):
            question(copy)
    with read_run(copy, good=True) as record:
        assert (record.rows, record.missing) == (1, 6)
    copy.with_name("run.db.d").rename(tmp_path / "aside")
    with open_run(copy, make) as run:
        assert run.round_index == 0


def test_a_damaged_attachment_names_the_good_ones(path: Path) -> None:
    with open_run(path, make) as run:
        for _ in range(3):
            cohort = run.draw()
            run.attach(cohort.round_index, "model", {"w": cohort.round_index})
            run.observe(cohort, norms_of(cohort))
        for number in (2, 1):
            file = path.with_name("run.db.d") / f"attachment_model-{number:09d}"
            file.write_bytes(file.read_bytes()[:-1] + b"x")
            good = r'attachment\(1, "model"\) can be read' if number == 2 else "or begin without it"
            with pytest.raises(LedgerError, match=f"{number:09d} must be as it was written.*{good}"):
                run.attachment(number, "model")
    with pytest.raises(LedgerError, match=r"000000001 must be as it was written.*or begin without it"):
        verify_run(path)


def other(**settings: Any) -> AdaptiveOSMDSampler:
    usual = {"num_clients": CLIENTS, "cohort_size": COHORT_SIZE, "num_rounds": 50, "rate_scale": 30.0}
    return AdaptiveOSMDSampler(**{**usual, **settings})


@pytest.mark.parametrize(
    ("begun", "built", "message"),
    [
        ({}, {"cohort_size": 5}, "cohort_size = 4, got 5"),
        ({}, {"cohort_size": 5, "num_clients": 31}, "num_clients = 30, got 31; cohort_size = 4, got 5"),
        ({"guard": Guard(fence=5.0)}, {"guard": Guard(fence=6.0)}, "guard.fence = 5.0, got 6.0"),
        ({"guard": None}, {"guard": Guard()}, r"guard = none, got Guard\(.*\)"),
    ],
)
def test_other_settings(path: Path, begun: Any, built: Any, message: str) -> None:
    open_run(path, lambda: other(**begun)).close()
    with pytest.raises(LedgerError, match=f"that the run was begun with: {message}$"):
        open_run(path, lambda: other(**built))


def test_another_kind_of_sampler(path: Path) -> None:
    recorded(path, 1)
    with pytest.raises(LedgerError, match=r"begun with: AdaptiveOSMDSampler, got UniformSampler$"):
        open_run(path, lambda: UniformSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE))


def test_closing_a_run_whose_files_were_moved(path: Path) -> None:
    run = open_run(path, make)
    play(run, 2)
    path.rename(path.with_name("moved.db"))
    with pytest.raises(LedgerError, match="or close this run"):
        run.draw()
    with pytest.raises(LedgerError, match=r"is closed now.*put them together in one place and open it there"):
        run.close()
    path.with_name("moved.db").rename(path)
    with open_run(path, make) as run:
        assert run.round_index == 2


def test_a_place_that_sqlite_can_not_write_to(path: Path, tmp_path: Path) -> None:
    """A killed run on a read-only file system; here, a link is where the shm has to go."""
    run = open_run(path, make)
    play(run, 2)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("run.db", "run.db-wal"):
        shutil.copy(path.with_name(name), copy / name)
    crash(run)
    (copy / "run.db-shm").symlink_to("nowhere")
    for good in (False, True):
        with pytest.raises(
            LedgerError, match=r"copy run.db, run.db-wal and run.db.d together to such a place$"
        ):
            read_run(copy / "run.db", good=good)


@pytest.mark.parametrize("free", [0, 10**9])
def test_no_room_to_begin(path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """SQLite says no more than "disk I/O error"; whether that is the room, the disk tells."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - free, free))
    recorded(path, 1)

    def refuse(*_: Any, **__: Any) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
        raise error

    monkeypatch.setattr(sqlite3, "connect", refuse)
    with pytest.raises(LedgerError, match="disk I/O error") as raised:
        open_run(path, make)
    assert ("no space is left" in str(raised.value)) == (free == 0)
    path.unlink()
    shutil.rmtree(path.with_name("run.db.d"))
    with pytest.raises(LedgerError, match="disk I/O error") as raised:
        open_run(path, make)
    assert ("no space is left" in str(raised.value)) == (free == 0)


def test_files_are_their_owners_alone(path: Path) -> None:
    """The norms, and the key of the noise, are for nobody else."""
    before = os.umask(0o022)
    try:
        run = open_run(path, make, snapshot_every=1)
        play(run, 1)
        run.attach(0, "model", {"w": 1})
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.rglob("run.db*/**/*")}
        modes |= {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        run.close()
    finally:
        os.umask(before)
    assert modes.pop("run.db.d") == 0o700
    assert {"run.db", "run.db-wal", "run.db-shm", "lock", "attachment_model-000000000"} < modes.keys()
    assert set(modes.values()) == {0o600}
