"""What the checksums cover: also what SQLite says of its rows, and what a file is called."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sortition import ConfigurationError, LedgerError
from sortition.ledger import open_run, read_run, verify_run
from tests.ledger.helpers import make, play, recorded

INDEX = "CREATE INDEX events_by_round ON events (round_index, kind)"


def change(path: Path, *statements: str) -> None:
    """As damage to pages does: without SQLite's own rules."""
    for statement in statements:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)
        connection.close()


@pytest.mark.parametrize("column", ["kind", "round_index", "time", "payload", "checksum"])
@pytest.mark.parametrize("value", ["NULL", "'x'", "x'00'", "7", "0.5"])
def test_a_column_of_another_type_is_a_change(column: str, value: str, path: Path) -> None:
    recorded(path, 3)
    connection = sqlite3.connect(path)
    (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'events'").fetchone()
    connection.close()
    loose = sql.replace("NOT NULL", "").replace("STRICT", "").replace("INTEGER NOT", "NOT")
    for name in ("TEXT", "REAL", "BLOB", "round_index INTEGER"):
        loose = loose.replace(name, "round_index" if name.startswith("round") else "")
    quoted = ["'" + text.replace("'", "''") + "'" for text in (loose, sql)]
    change(
        path,
        f"UPDATE sqlite_master SET sql = {quoted[0]} WHERE name = 'events'",
        f"UPDATE events SET {column} = {value} WHERE number = 3",
        f"UPDATE sqlite_master SET sql = {quoted[1]} WHERE name = 'events'",
    )
    with read_run(path) as record, pytest.raises(LedgerError):
        list(record.rounds())
    with pytest.raises(LedgerError):
        verify_run(path)


@pytest.mark.parametrize("word", [b"CREATE TABLE", b"events (", b"INTEGER PRIMARY", b"STRICT"])
def test_words_of_sqlite_that_are_no_text(word: bytes, path: Path) -> None:
    recorded(path, 3)
    data = bytearray(path.read_bytes())
    data[data.index(word)] ^= 0xFF
    path.write_bytes(data)
    for opening in (read_run, verify_run, lambda path: open_run(path, make)):
        with pytest.raises(LedgerError, match="must be readable"):
            opening(path)


def test_an_index_that_leads_to_another_row(path: Path) -> None:
    """A snapshot leaves a round open; the index says that it was drawn in the row of another one."""
    with open_run(path, make) as run:
        play(run, 2)
        run.draw()
    change(
        path,
        "DROP INDEX events_by_round",
        "UPDATE events SET round_index = 3 - round_index WHERE kind = 'drawn' AND round_index > 0",
        INDEX,
    )
    connection = sqlite3.connect(path)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE type = 'index'").fetchone()
    connection.close()
    change(
        path,
        "DELETE FROM sqlite_master WHERE type = 'index'",
        "UPDATE events SET round_index = 3 - round_index WHERE kind = 'drawn' AND round_index > 0",
        f"INSERT INTO sqlite_master VALUES ('index', 'events_by_round', 'events', {root}, '{INDEX}')",
    )
    with pytest.raises(LedgerError, match="must have an index of its rows"):
        open_run(path, make)


def test_attachments_that_changed_places(path: Path) -> None:
    """The model of round 0 is not that of round 1, whatever its file is called."""
    with open_run(path, make) as run:
        play(run, 2)
        for round_index in (0, 1):
            run.attach(round_index, "model", {"w": float(round_index)})
        one, other = sorted(path.with_name("run.db.d").glob("attachment_*"))
        contents = one.read_bytes(), other.read_bytes()
        one.write_bytes(contents[1])
        other.write_bytes(contents[0])
        for round_index in (0, 1):
            with pytest.raises(LedgerError, match="or its name"):
                run.attachment(round_index, "model")
        with pytest.raises(LedgerError, match="or its name"):
            verify_run(path)


def test_names_of_values_are_strings(path: Path) -> None:
    """1 and "1" would be one name on disk, and one of the values lost."""
    with open_run(path, make) as run:
        play(run, 1)
        with pytest.raises(ConfigurationError, match="must be strings, got 1"):
            run.attach(0, "model", {1: 2.0, "1": 3.0})
        assert run.attachment(0, "model") is None


def test_what_cannot_be_read_is_not_called_right(path: Path) -> None:
    recorded(path, 2)
    lock = path.with_name("run.db.d") / "lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(LedgerError, match="lock must be readable"):
        verify_run(path)
