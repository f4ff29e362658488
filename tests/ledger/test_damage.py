"""Damaged, foreign and newer files: a clear error or the right answer, never a wrong one."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sortition import ConfigurationError, LedgerError
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import pack, same_cohort, same_norms, unpack
from sortition.ledger.record import Round
from tests.ledger.helpers import crash, make, norms_of, play, recorded, state_bytes

ROUNDS = 6


class Original:
    """A run of six rounds and an open one, with two snapshots; closed, or crashed with its WAL."""

    def __init__(self, directory: Path, crashed: bool) -> None:
        self.closed = not crashed
        self.path = directory / "original" / "run.db"
        self.path.parent.mkdir()
        run = open_run(self.path, make, snapshot_every=2)
        play(run, ROUNDS)
        run.attach(ROUNDS - 1, "model", {"w": 1.0})
        self.open = run.draw()
        if crashed:  # take the files as they are at this moment: closing would tidy up
            kept = directory / "crashed"
            shutil.copytree(self.path.parent, kept)
            self.path = kept / "run.db"
            crash(run)
        else:
            run.close()
        self.files = {
            file.relative_to(self.path.parent): file.read_bytes()
            for file in sorted(self.path.parent.rglob("*"))
            if file.is_file()
        }
        plain = make()
        play(plain, ROUNDS)
        plain.draw()
        self.state = state_bytes(plain)
        with read_run(self.path) as record:
            self.rounds = list(record.rounds())

    def copy(self, directory: Path, damaged: Path, data: bytes) -> Path:
        """The run in another place, with one file damaged."""
        for name, content in self.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(data if name == damaged else content)
        return directory / "run.db"

    def check(self, path: Path) -> int:
        """Whatever is asked of it, the damaged run tells the truth or raises; how often it raised."""
        refusals, before = 0, path.read_bytes()
        for question in (self._read, self._verify, self._continue):
            try:
                question(path)
            except LedgerError as error:
                if not str(error) or "\n" in str(error):
                    raise AssertionError("an error must be one line") from error
                if self.closed and path.read_bytes() != before:
                    raise AssertionError("what can't be read must be left as it is") from error
                refusals += 1
        return refusals

    def _read(self, path: Path) -> None:
        with read_run(path) as record:
            assert same_rounds(list(record.rounds()), self.rounds)

    def _verify(self, path: Path) -> None:
        verify_run(path)
        with read_run(path) as record:
            assert same_rounds(list(record.rounds()), self.rounds)

    def _continue(self, path: Path) -> None:
        with open_run(path, make) as run:
            assert state_bytes(run) == self.state
            assert same_cohort(run.draw(), self.open)
            run.observe(self.open, norms_of(self.open))


def same_rounds(found: list[Round], expected: list[Round]) -> bool:
    return len(found) == len(expected) and all(
        same_cohort(one.cohort, other.cohort)
        and (one.drawn_at, one.observed_at) == (other.drawn_at, other.observed_at)
        and (one.norms is None) == (other.norms is None)
        and (one.norms is None or other.norms is None or same_norms(one.norms, other.norms))
        for one, other in zip(found, expected, strict=True)
    )


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "crashed"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("damage"), request.param)


def damages(original: Original, per_file: int, seed: int) -> list[tuple[Path, str, Callable[[bytes], bytes]]]:
    chance = random.Random(seed)
    found: list[tuple[Path, str, Callable[[bytes], bytes]]] = []
    for name, content in original.files.items():
        if not content or name.name.endswith("-shm"):
            continue  # the shm is rebuilt when the run is opened
        for _ in range(per_file):
            place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)

            def flip(data: bytes, place: int = place, bit: int = bit) -> bytes:
                return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]

            def cut(data: bytes, place: int = place) -> bytes:
                return data[:place]

            found.append((name, f"bit {bit} of byte {place} flipped", flip))
            found.append((name, f"cut at {place}", cut))
    return found


def test_flipped_bits_and_cut_files(original: Original, tmp_path: Path) -> None:
    refusals = 0
    for number, (name, what, damage) in enumerate(damages(original, per_file=8, seed=3)):
        path = original.copy(tmp_path / str(number), name, damage(original.files[name]))
        try:
            refusals += original.check(path) > 0
        except Exception as error:
            raise AssertionError(f"{name}: {what}") from error
        shutil.rmtree(path.parent)
    assert refusals > 25  # most damage does not go unnoticed


def test_verify_finds_a_changed_byte_in_every_row(original: Original, tmp_path: Path) -> None:
    """Each column of each row, changed behind the back of the ledger with SQLite itself."""
    rows = 2 * ROUNDS + 2
    changes = {
        "kind": "'drawn '",
        "round_index": "round_index + 1",
        "time": "time + 1e-3",
        "payload": "CAST(substr(payload, 1, length(payload) - 1) || x'07' AS BLOB)",
        "checksum": "randomblob(16)",
    }
    for number in range(rows):
        for column, value in changes.items():
            path = original.copy(tmp_path / f"{number}-{column}", Path("none"), b"")
            connection = sqlite3.connect(path)
            with connection:
                connection.execute(f"UPDATE events SET {column} = {value} WHERE number = {number}")
            connection.close()
            with pytest.raises(LedgerError):
                verify_run(path)
            shutil.rmtree(path.parent)


@pytest.mark.parametrize("number", [0, 3, 2 * ROUNDS + 1], ids=["first", "middle", "last"])
def test_a_row_that_was_deleted(original: Original, tmp_path: Path, number: int) -> None:
    path = original.copy(tmp_path / "copy", Path("none"), b"")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"DELETE FROM events WHERE number = {number}")
    connection.close()
    with pytest.raises(LedgerError):
        verify_run(path)
    if number != 3:  # an old row that nothing needs any more is verify's business
        with pytest.raises(LedgerError):
            open_run(path, make)


def test_rows_lost_together_with_the_wal(tmp_path: Path) -> None:
    """A WAL that vanished takes committed rounds with it; the witness beside it knows better."""
    original = Original(tmp_path, crashed=True)
    path = original.copy(tmp_path / "copy", Path("none"), b"")
    (path.parent / "run.db-wal").unlink()
    (path.parent / "run.db-shm").unlink(missing_ok=True)
    for question in (lambda: open_run(path, make), lambda: verify_run(path)):
        with pytest.raises(LedgerError, match="rows are missing"):
            question()


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"SQLite format 3\0", b"client,norm\n1,2.0\n" * 100, b"SQLite format 3\0" + bytes(5000)],
    ids=["empty", "one byte", "magic alone", "csv", "hollow"],
)
def test_foreign_files_are_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for question in (lambda: open_run(path, make), lambda: read_run(path), lambda: verify_run(path)):
        with pytest.raises(LedgerError, match=r"run\.db must be a run"):
            question()
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_database_of_something_else(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE events (number INTEGER); INSERT INTO events VALUES (1);")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"run\.db must be a run"):
        open_run(path, make)
    assert path.read_bytes() == before


def test_a_run_of_a_newer_version(path: Path) -> None:
    recorded(path, 1)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = path.read_bytes()
    for question in (lambda: open_run(path, make), lambda: read_run(path), lambda: verify_run(path)):
        with pytest.raises(LedgerError, match=r"schema 2.*schema 99"):
            question()
    assert path.read_bytes() == before


def test_a_missing_file_or_directory(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="No such file"):
        read_run(tmp_path / "none.db")
    with pytest.raises(LedgerError, match="nowhere"):
        open_run(tmp_path / "nowhere" / "run.db", make)
    with pytest.raises(LedgerError):
        open_run(tmp_path, make)


def test_a_run_that_lost_its_database_is_not_begun_anew(path: Path) -> None:
    recorded(path, 2)
    path.unlink()
    with pytest.raises(LedgerError, match=r"run\.db is missing"):
        open_run(path, make)
    shutil.rmtree(path.with_name("run.db.d"))
    open_run(path, make).close()


def test_snapshots_of_another_run_are_not_believed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        recorded(tmp_path / name / "run.db", 3)
    shutil.rmtree(tmp_path / "a" / "run.db.d")
    shutil.copytree(tmp_path / "b" / "run.db.d", tmp_path / "a" / "run.db.d")
    with pytest.raises(LedgerError):
        verify_run(tmp_path / "a" / "run.db")


def test_a_broken_snapshot_is_reported_and_does_not_matter(path: Path) -> None:
    recorded(path, 6, snapshot_every=2)
    plain = make()
    play(plain, 6)
    for snapshot in sorted(path.parent.glob("run.db.d/snapshot-*"), reverse=True):
        data = bytearray(snapshot.read_bytes())
        data[len(data) // 2] ^= 1
        snapshot.write_bytes(data)
        with pytest.raises(LedgerError, match=r"snapshot-.*remove it"):
            verify_run(path)
        run = open_run(path, make)
        assert state_bytes(run) == state_bytes(plain)
        crash(run)


def test_bytes_that_nobody_packed() -> None:
    good = pack({"a": 1, "b": 2.5, "c": b"xy".hex(), "d": np.arange(3)})
    assert unpack(good)["d"].tolist() == [0, 1, 2]
    chance = random.Random(0)
    for _ in range(500):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        for data in (bytes(bad), good[: chance.randrange(len(good))], good + b"x", b"\xff" * 10):
            try:
                unpack(data)
            except LedgerError:
                continue


def test_a_header_that_is_too_deep() -> None:
    with pytest.raises(LedgerError, match="record"):
        unpack((200_000).to_bytes(4, "little") + b"[" * 200_000)


# What the checksums cover -----------------------------------------------------------------------------


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
        with pytest.raises(LedgerError, match=r"run\.db"):
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
    with pytest.raises(LedgerError, match="index"):
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
            with pytest.raises(LedgerError, match="attachment_model-"):
                run.attachment(round_index, "model")
        with pytest.raises(LedgerError, match="attachment_model-"):
            verify_run(path)


def test_names_of_values_are_strings(path: Path) -> None:
    """1 and "1" would be one name on disk, and one of the values lost."""
    with open_run(path, make) as run:
        play(run, 1)
        with pytest.raises(ConfigurationError, match=r"arrays .*1"):
            run.attach(0, "model", {1: 2.0, "1": 3.0})
        assert run.attachment(0, "model") is None


def test_what_cannot_be_read_is_not_called_right(path: Path) -> None:
    recorded(path, 2)
    lock = path.with_name("run.db.d") / "lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(LedgerError, match="lock"):
        verify_run(path)
