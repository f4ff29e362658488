"""The rows of a run in SQLite, appended one by one.

A row is an event. Its checksum covers all its columns and the checksum of the row before it, so no row can
change, vanish or move unnoticed. One row is one transaction: a reader sees all of it or nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import stat
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from sortition.core.errors import LedgerError
from sortition.ledger.encoding import Plain, pack, unpack

APPLICATION_ID = 0x534F5254  # "SORT"
SCHEMA_VERSION = 2
SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE events (
    number INTEGER PRIMARY KEY,     -- 0, 1, 2, ... without gaps
    kind TEXT NOT NULL,             -- begun, drawn, observed, joined, left, calibrated, loaded, noted
    round_index INTEGER NOT NULL,   -- of what was drawn, observed or noted; -1 for the others
    time REAL NOT NULL,             -- seconds since 1970
    payload BLOB NOT NULL,          -- plain values: see encoding.py
    checksum BLOB NOT NULL          -- of this row and the checksum before it
) STRICT;
CREATE INDEX events_by_round ON events (round_index, kind);
"""
OnRow: TypeAlias = Callable[[int, int], None]
"""Called while rows are read: how many are done, and how many there are."""

LEAST_ROW = 32
"""Bytes. No row of a run takes less."""
_HEADER = struct.Struct(">16s44xi4xi28x")  # SQLite's first 100 bytes: magic, user_version, application_id
_COLUMNS = (int, str, int, float, bytes, bytes)
"""The types of a row's columns. In a damaged database SQLite may return others."""
_NUMBERS = struct.Struct("<qqd")
_LITTLE_SPACE = 128 * 1024
"""Bytes. SQLite cannot open a run for writing with less free space."""
_NOT_DAMAGE = tuple(
    f"SQLITE_{what}" for what in ("IOERR", "CANTOPEN", "FULL", "READONLY", "BUSY", "LOCKED", "PERM", "NOMEM")
)
"""SQLite's errors that concern the disk or the directory rather than the contents of the database."""


class Event(NamedTuple):
    """A row: what happened, in which round, and when."""

    number: int
    kind: str
    round_index: int
    time: float
    payload: bytes
    checksum: bytes

    def values(self) -> dict[str, Any]:
        """The contents of the payload, not to be changed. The first row must also hold the id of its run."""
        values = unpack(self.payload, copy=False)
        run_id = values.get("run_id")
        if self.number == 0 and not (isinstance(run_id, str) and re.fullmatch("([0-9a-f]{2})+", run_id)):
            raise LedgerError(f"run_id of row 0 must be hexadecimal digits, got {run_id!r:.80}")
        return values


def checksum(previous: bytes, number: int, kind: str, round_index: int, at: float, payload: bytes) -> bytes:
    """The checksum of a row: BLAKE2b over the previous row's checksum and all other columns."""
    columns = (previous, _NUMBERS.pack(number, round_index, at), kind.encode(), b"\0", payload)
    return blake2b(b"".join(columns), digest_size=16).digest()


class Store:
    """The database of one run, open for reading or, with the writer's lock held, for writing.

    With ``good``, a damaged run is opened as if it ended before its first damaged row.
    """

    on_row: OnRow | None = None
    """Called for each row that ``events`` gives, if it reads to the last row."""
    dropped = 0
    """With ``good``: at least this many rows follow that are damaged, or that come after a damaged one."""

    def __init__(self, path: Path, *, write: bool, good: bool = False) -> None:
        check_header(path)
        check_beside(path)
        self.path = path
        self._good = good
        advice = "replace the run with a copy" if good else _advice(path)
        with self._sqlite_errors("opened", advice):
            self._connection = _connect(path, write, good)
            try:
                self._check_schema()
                if write:
                    mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                    if mode != "wal":
                        raise LedgerError(f"{path} is on a file system without WAL, got mode {mode!r}")
                    self._connection.execute("PRAGMA synchronous = FULL")
                if good:
                    self._keep_good_rows()
                else:
                    self._check_length()
                    self.last, self._last_checksum = self._last_row()
            except BaseException:
                self._connection.close()
                raise
        weakref.finalize(self, self._connection.close).atexit = False  # a run that is dropped without close

    @staticmethod
    def create(path: Path, first: Plain) -> None:
        """Make a new database with its first row, ``begun``; ``path`` must not exist."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # the WAL gets the same mode
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(SCHEMA)
            at, payload = time.time(), pack(first)
            own = checksum(b"", 0, "begun", -1, at, payload)
            connection.execute(
                "INSERT INTO events VALUES (0, 'begun', -1, ?, ?, ?)", (at, memoryview(payload), own)
            )
            connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()

    @property
    def last_checksum(self) -> bytes:
        """The checksum of the last row."""
        return self._last_checksum

    def append(self, kind: str, round_index: int, values: Plain) -> None:
        """Commit one more row. When this returns, the row is on disk."""
        number, at, payload = self.last + 1, time.time(), pack(values)
        own = checksum(self._last_checksum, number, kind, round_index, at, payload)
        with self._sqlite_errors("written to (the rows on disk are intact; call again later)"):
            self._connection.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (number, kind, round_index, at, payload, own)
            )
        self.last, self._last_checksum = number, own

    def refresh(self) -> None:
        """Ask the disk for the last row again, after an append that may or may not have been committed."""
        with self._sqlite_errors("read"):
            if self._connection.in_transaction:
                self._connection.rollback()
            self.last, self._last_checksum = self._last_row()

    def events(self, after: int = -1, until: int | None = None) -> Iterator[Event]:
        """The rows after number ``after``, up to ``until`` or the last one; each is checked."""
        try:
            for event in self._chain(after, self.last if until is None else until):
                yield event
                if self.on_row is not None and until is None:
                    self.on_row(event.number + 1, self.last + 1)
        except LedgerError as error:
            raise self.damage(str(error)) from error

    def event(self, number: int) -> Event:
        """The row with that number."""
        return next(iter(self.events(number - 1, number)))

    def find(self, kind: str, round_index: int) -> Event | None:
        """The row of that kind and round, if there is one."""
        rows = self._rows_in_order() if self._good else "events"  # a damaged index must not hide good rows
        query = f"SELECT number FROM {rows} WHERE round_index = ? AND kind = ? AND number <= ?"
        with self._sqlite_errors("read", _advice(self.path)):
            row = self._connection.execute(query, (round_index, kind, self.last)).fetchone()
        if row is None:
            return None
        event = self.event(row[0])
        if (event.kind, event.round_index) != (kind, round_index):  # the index itself has no checksum
            raise self.damage(f"the index of {self.path} is damaged: it gives row {event.number} for another")
        return event

    def numbers(self, kind: str) -> dict[int, int]:
        """Round to row number, for all rows of that kind; the last one of each round."""
        query = f"SELECT round_index, number FROM {self._rows_in_order()} WHERE kind = ?"
        with self._sqlite_errors("read", _advice(self.path)):
            rows = self._connection.execute(query, (kind,)).fetchall()
        return {row[0]: row[1] for row in rows if isinstance(row[0], int)}  # a changed row fails in events()

    def events_of(self, kind: str) -> Iterator[Event]:
        """The rows of that kind, in order; each is checked against the checksum before it."""
        query = (
            f"SELECT row.*, previous.checksum FROM {self._rows_in_order()} AS found "
            "JOIN events AS row ON row.number = found.number "
            "JOIN events AS previous ON previous.number = found.number - 1 WHERE found.kind = ?"
        )
        with self._sqlite_errors("read", _advice(self.path)):
            for *row, previous in self._connection.execute(query, (kind,)):
                if not isinstance(previous, bytes) or not _is_as_written(row, previous):
                    raise self.damage(f"row {row[0]} of {self.path} has changed since it was written")
                yield Event(*row)

    def checksum_of(self, number: int) -> bytes:
        """The checksum that is stored in the row with that number."""
        try:
            return self._checksum_of(number)
        except LedgerError as error:
            raise self.damage(str(error)) from error

    def check_witness(self, known: tuple[int, bytes] | None) -> None:
        """A LedgerError if the row that the witness (see ``lock``) knows is missing or a different one."""
        if known is None:
            return
        number, expected = known
        if number > self.last:
            raise self.damage(
                f"rows are missing from {self.path}: {number + 1} were committed, {self.last + 1} are there; "
                f"put {wal_of(self.path).name} back beside it, or replace the run with a copy"
            )
        if self.checksum_of(number) != expected:
            raise self.damage(f"row {number} of {self.path} is not the one that was committed")

    def check_structure(self) -> None:
        """Let SQLite check its own pages and the index."""
        with self._sqlite_errors("checked", _advice(self.path)):
            found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise self.damage(f"{self.path} is damaged; SQLite finds: {' '.join(str(found).split())}")

    def damage(self, problem: str) -> LedgerError:
        """The error for a damaged run: the problem, which rows are good, and what to do."""
        good = 0
        with suppress(LedgerError):
            for event in self._chain(-1, self.last):
                good = event.number + 1
        if good == 0:
            return LedgerError(f"{problem}; its first row is damaged too: replace the run with a copy")
        which = f"all {good} rows that are there" if good > self.last else f"rows 0 to {good - 1}"
        return LedgerError(
            f"{problem}; {which} are good: save them with {_export(self.path)}; docs/reference/ledger.md, "
            '"When something is damaged", says how to go on'
        )

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _chain(self, after: int, end: int | None) -> Iterator[Event]:
        """The rows after ``after``, up to ``end`` or the last one; a LedgerError at the first break."""
        previous = b"" if after < 0 else self._checksum_of(after)
        query = "SELECT * FROM events WHERE number > ? ORDER BY number LIMIT ?"  # not a page further
        expected = after + 1
        with self._sqlite_errors("read"):
            for row in self._connection.execute(query, (after, -1 if end is None else end - after)):
                if row[0] != expected:
                    raise LedgerError(f"rows are missing from {self.path}: row {expected} is not there")
                if not _is_as_written(row, previous):
                    raise LedgerError(f"row {expected} of {self.path} has changed since it was written")
                yield Event(*row)
                previous, expected = row[-1], expected + 1
        if end is not None and expected != end + 1:
            raise LedgerError(f"rows are missing from {self.path}: row {expected} is not there")

    def _keep_good_rows(self) -> None:
        """Let the run end before its first damaged row, and count the rows that SQLite finds after it."""
        good: Event | None = None
        problem: LedgerError | None = None
        try:
            for event in self._chain(-1, None):
                good = event
        except LedgerError as error:
            if not _is_damage(error.__cause__):
                raise
            problem = error
            after = -1 if good is None else good.number
            with suppress(LedgerError):  # Python reads a row ahead, and loses a good one to an error after it
                good = next(self._chain(after, after + 1))
        if good is None:
            reason = problem or f"{self.path} has no rows"
            raise LedgerError(f"{reason}; without its first row nothing can be read: replace it with a copy")
        self.last, self._last_checksum = good.number, good.checksum
        if problem is not None:
            there = 0
            with suppress(sqlite3.Error):
                rows = f"SELECT 1 FROM events NOT INDEXED LIMIT {self._most_rows()}"
                there = self._connection.execute(f"SELECT count(*) FROM ({rows})").fetchone()[0]
            self.dropped = max(1, there - good.number - 1)

    def _rows_in_order(self) -> str:
        """In SQL, the rows up to the last one, read in order, without the index and not a page further."""
        columns = "SELECT number, kind, round_index FROM events NOT INDEXED"
        return f"({columns} WHERE number >= 0 ORDER BY number LIMIT {self.last + 1})"

    def _check_schema(self) -> None:
        """A LedgerError unless the database has the table and the index of a run, and nothing else.

        A view in the place of the table could take forever to read, and a trigger could drop new rows.
        """
        self._connection.execute("PRAGMA trusted_schema = OFF")
        query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
        wanted = _schema()
        found = self._connection.execute(query).fetchmany(len(wanted) + 1)
        if found != wanted:
            raise LedgerError(
                f"{self.path} must have the tables of a run and no others; {_advice(self.path)}"
            )

    def _check_length(self) -> None:
        """A LedgerError if the file ends within a page; where whole pages are missing, SQLite says so itself.

        While rows are in the WAL the file may be short. SQLite keeps a WAL for as long as anybody is
        connected, so it is enough to look for it last.
        """
        size, found = self._size(), self.path.stat().st_size
        if found < size and not _has_wal(self.path):
            raise LedgerError(
                f"the end of {self.path} is missing: it has {found} of {size} bytes; {_advice(self.path)}"
            )

    def _size(self) -> int:
        """The bytes of all pages, those in the WAL included."""
        query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(self._connection.execute(query).fetchone()[0])

    def _most_rows(self) -> int:
        """More rows do not fit into the file. Forged pages may refer to one another, and never end."""
        return self._size() // LEAST_ROW

    def _last_row(self) -> tuple[int, bytes]:
        query = "SELECT number, checksum FROM events ORDER BY number DESC LIMIT 1"
        row = self._connection.execute(query).fetchone()
        if row is None or not (isinstance(row[0], int) and isinstance(row[1], bytes)):
            raise LedgerError(f"the last row of {self.path} is damaged, got {row}; {_advice(self.path)}")
        if not 0 <= row[0] < self._most_rows():
            raise LedgerError(f"{self.path} is too small for a row {row[0]}; {_advice(self.path)}")
        return row[0], row[1]

    def _checksum_of(self, number: int) -> bytes:
        query = "SELECT checksum FROM events WHERE number = ?"
        with self._sqlite_errors("read"):
            row = self._connection.execute(query, (number,)).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise LedgerError(f"rows are missing from {self.path}: row {number} is not there")
        return row[0]

    @contextmanager
    def _sqlite_errors(self, action: str, advice: str = "") -> Iterator[None]:
        """Turn an error of SQLite into a LedgerError; if the database is damaged, with ``advice``."""
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError) as error:  # the last: damaged text
            problem = sqlite_problem(self.path, action, error)
            raise LedgerError(f"{problem}; {advice}" if advice and _is_damage(error) else problem) from error


@cache
def _schema() -> list[tuple[str, ...]]:
    """What ``sqlite_master`` holds in a run."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(SCHEMA)
        return connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
        ).fetchall()
    finally:
        connection.close()


def _connect(path: Path, write: bool, good: bool) -> sqlite3.Connection:
    """A connection without implicit transactions; threads may share it, one at a time.

    SQLite refuses a file with fewer pages than its header says, unless its schema is writable: with ``good``
    it shall read what is left. The connection is read-only all the same.
    """
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode={'rw' if write else 'ro'}"
    lenient = "PRAGMA writable_schema = ON" if good else ""
    try:
        return _opened(address, lenient, "SELECT 1 FROM sqlite_master LIMIT 1")
    except sqlite3.OperationalError:
        if write or wal_of(path).exists():
            raise
        # nobody writes, and the files that WAL needs may not be created here: read the file as it is
        return _opened(f"{address}&immutable=1", lenient)


def _opened(address: str, *statements: str) -> sqlite3.Connection:
    """A connection after these statements; if one fails, it is closed."""
    connection = sqlite3.connect(
        address, uri=True, isolation_level=None, timeout=10.0, check_same_thread=False
    )
    try:
        for statement in statements:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_as_written(row: Sequence[Any], previous: bytes) -> bool:
    """Whether a row has the checksum of a row that follows the one with the checksum ``previous``."""
    return tuple(map(type, row)) == _COLUMNS and row[-1] == checksum(previous, *row[:-1])


def check_header(path: Path) -> None:
    """A LedgerError unless ``path`` starts as a run that this version can read. The file is not changed."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe or a terminal would be waited for
            raise LedgerError(f"{path} must be a run of sortition, got a pipe or a device")
        with open(path, "rb") as file:
            start = file.read(_HEADER.size)
    except OSError as error:
        raise LedgerError(
            f"{path} must be a run of sortition, got no readable file: {error.strerror}"
        ) from None
    if len(start) < _HEADER.size:
        raise LedgerError(f"{path} must be a run of sortition, got a file of {len(start)} bytes")
    magic, version, application = _HEADER.unpack(start)
    if magic != b"SQLite format 3\0" or application != APPLICATION_ID:
        raise LedgerError(f"{path} must be a run of sortition, got another kind of file")
    if version != SCHEMA_VERSION:
        raise LedgerError(
            f"{path} must have schema {SCHEMA_VERSION}, which this version of sortition reads, "
            f"got schema {version}"
        )


def check_beside(path: Path) -> None:
    """A LedgerError if there is something beside a run that SQLite must not open.

    A run has a WAL from its first row on, and never a rollback journal. SQLite would roll it back, and a
    journal may name a file of ours that is deleted then. SQLite would wait for a pipe, and write where a link
    leads.
    """
    journal = path.with_name(path.name + "-journal")
    if os.path.lexists(journal):
        raise LedgerError(
            f"{journal} must not be there: no run has such a file, and SQLite would do what it says; "
            "move it away"
        )
    for file in (wal_of(path), path.with_name(path.name + "-shm")):
        with suppress(OSError):
            if not stat.S_ISREG(file.lstat().st_mode):
                raise LedgerError(
                    f"{file} must be a plain file, got a link, a pipe or the like; move it away"
                )


def wal_of(path: Path) -> Path:
    """Where SQLite keeps the newest rows of a database until it copies them into the file."""
    return path.with_name(path.name + "-wal")


def _has_wal(path: Path) -> bool:
    try:
        return wal_of(path).stat().st_size > 0
    except FileNotFoundError:
        return False


def sqlite_problem(path: Path, action: str, error: BaseException) -> str:
    """That a run cannot be ``action``, what SQLite says, and the reason behind it where that can be told."""
    said = f"{path} cannot be {action}; SQLite says: {error}"
    code = getattr(error, "sqlite_errorname", None) or ""
    if code.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_FULL")) and _disk_is_full(path):
        return f"{said}: no space is left on its disk; make room and call again"
    wal = wal_of(path)
    if code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) and wal.exists():
        return (
            f"{said}; the run was not closed, and its newest rows, in {wal.name}, can only be read where "
            f"SQLite may write: copy {path.name}, {wal.name} and {path.name}.d together to such a place"
        )
    return said


def counted(number: int, what: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _is_damage(error: BaseException | None) -> bool:
    """Whether an error concerns the contents of the database rather than its disk or directory."""
    code = getattr(error, "sqlite_errorname", None) or ""
    return not code.startswith(_NOT_DAMAGE)


def _export(path: Path) -> str:
    return f"sortition runs export {shlex.quote(str(path))} --csv DIR --good"


def _advice(path: Path) -> str:
    return f"replace the run with a copy, or save the rows that can still be read with {_export(path)}"


def _disk_is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < _LITTLE_SPACE
    except OSError:
        return False
