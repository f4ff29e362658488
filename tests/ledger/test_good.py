"""What ``good`` takes of a run, and what it says about the rest."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sortition import LedgerError
from sortition.ledger import open_run, read_run, salvage, schema
from sortition.ledger.good import GoodStore
from sortition.ledger.pages import Pages
from sortition.ledger.trouble import has_wal
from tests.ledger.helpers import PAGE, crash, make, play, recorded


def test_a_run_that_is_written_meanwhile_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that goes on while ``good`` looks through the rows adds none, and takes none away."""
    recorded(path, 5)
    with open_run(path, make) as run:
        looked = GoodStore.flaw

        def flaw(self: GoodStore) -> str | None:
            found = looked(self)
            play(run, 3)
            return found

        monkeypatch.setattr(GoodStore, "flaw", flaw)
        with read_run(path, good=True) as record:
            assert (record.rows, record.missing, record.left_out) == (11, 0, None)
            assert len(list(record.rounds())) == 5


def test_the_file_of_another_run(path: Path, tmp_path: Path) -> None:
    """Its rows are good, and not those that the lock file knows of."""
    recorded(path, 5)
    recorded(tmp_path / "other.db", 5)
    shutil.copy(tmp_path / "other.db", path)
    with read_run(path, good=True) as record:
        assert (record.rows, record.missing) == (11, 0)
        assert "its lock file knows another row 10: is this another run's file?" in str(record.left_out)


def test_a_last_row_that_says_another_number(path: Path) -> None:
    """SQLite finds nothing wrong with it, and nobody knows what it was."""
    recorded(path, 5)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE events SET number = 8000 WHERE number = 10")
    connection.close()
    with read_run(path, good=True) as record:
        assert (record.rows, record.missing) == (10, 1)
        assert str(record.left_out).endswith("all good; 1 row left out")
    shutil.rmtree(path.with_name("run.db.d"))
    with read_run(path, good=True) as record:
        assert "at least 1 row left out; without its lock file" in str(record.left_out)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -2 * PAGE])


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.ENOSPC, "must have room for a copy of .*run.db"),
        (errno.EIO, "the rows of .*run.db must be readable, and a copy of them writable"),
    ],
)
def test_why_rows_can_not_be_gathered(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, text: str
) -> None:
    """Room is asked for only where there is none."""
    recorded(path, 20)
    cut(path)

    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(salvage, "Pages", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(path.parent))
    with pytest.raises(LedgerError, match=rf"{text}.*got .*{os.strerror(code)}") as raised:
        read_run(path, good=True)
    assert str(raised.value).startswith(f"{path.parent} must have room") == (code == errno.ENOSPC)


def test_a_full_disk_as_sqlite_says_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(path, 100)
    cut(path)
    monkeypatch.setattr(salvage, "_SETTINGS", f"{salvage._SETTINGS} PRAGMA max_page_count = 3;")
    with pytest.raises(LedgerError, match=r"must have room for a copy of .*got database or disk is full"):
        read_run(path, good=True)


def test_rows_are_gathered_in_the_temporary_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's, as the error says; and nothing stays there, though the rows can still be read."""
    recorded(path, 20)
    cut(path)
    place = path.with_name("temporary")
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    seen: list[str] = []
    looked = Pages.cells

    def look(self: Pages) -> Any:
        seen.extend(file.name for file in place.rglob("*"))
        return looked(self)

    monkeypatch.setattr(Pages, "cells", look)
    with read_run(path, good=True) as record:
        assert "rows.db" in seen
        assert list(place.iterdir()) == []
        assert record.replay().round_index > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1000, r"the page size of .*run.db must be a power of two from 512 on, got 1000"),
        (8192, r"as many pages of 4096 bytes: the page size in its header has changed"),
    ],
)
def test_another_page_size(path: Path, size: int, text: str) -> None:
    recorded(path, 20)
    data = bytearray(path.read_bytes())
    data[16:18] = size.to_bytes(2, "big")
    path.write_bytes(data)
    with pytest.raises(LedgerError, match=text):
        read_run(path)


@pytest.mark.parametrize("closes", [False, True])
def test_a_writer_between_two_looks(path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool) -> None:
    """A file that is short for the moment, because its WAL is being copied into it, is not cut."""
    recorded(path, 20)
    data, answers = path.read_bytes(), [False]
    path.write_bytes(data[:-PAGE])

    def look(asked: Path) -> bool:
        if answers:
            return answers.pop()
        if closes:
            path.write_bytes(data)
        return not closes

    monkeypatch.setattr(schema, "has_wal", look)
    assert schema.cut_short(path) is None
    monkeypatch.setattr(schema, "has_wal", has_wal)
    path.write_bytes(data[:-PAGE])
    assert schema.cut_short(path) is not None


def test_no_room_to_put_the_wal_into_the_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the rows in it would be left out without a word."""
    run = open_run(path, make)
    play(run, 20)
    copy = path.with_name("copy")
    shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns("copy", "*-shm"))
    crash(run)
    connect = sqlite3.connect

    class Full(sqlite3.Connection):
        def execute(self, sql: str, /, *rest: Any) -> sqlite3.Cursor:
            if "wal_checkpoint" in sql:
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorname = "SQLITE_FULL"
                raise error
            return super().execute(sql, *rest)

    monkeypatch.setattr(sqlite3, "connect", lambda *names, **how: connect(*names, **how, factory=Full))
    with pytest.raises(LedgerError, match=r"must have room for a copy of .*got database or disk is full"):
        salvage.salvaged(copy / "run.db", None)
