"""The rows of a run in SQLite: appended one by one, each sealed together with the one before.

A row is an event. Its checksum covers all that it says and the checksum of its predecessor, so that a row can
neither change, vanish, nor change places unnoticed. One row is one transaction: a reader sees it or does not.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sortition.core.errors import LedgerError
from sortition.ledger.encoding import Plain, pack, unpack
from sortition.ledger.places import Places

APPLICATION_ID = 0x534F5254  # "SORT"
SCHEMA_VERSION = 1
CHECKSUM_BYTES = 16
_HEADER = struct.Struct(">16s44xi4xi28x")  # SQLite's first 100 bytes: magic, user_version, application_id
_NUMBERS = struct.Struct("<qqd")

SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE events (
    number INTEGER PRIMARY KEY,     -- 0, 1, 2, ... without gaps
    kind TEXT NOT NULL,             -- begun, drawn, observed, joined, left, calibrated, loaded
    round_index INTEGER NOT NULL,   -- of what was drawn or observed; -1 for the others
    time REAL NOT NULL,             -- seconds since 1970
    payload BLOB NOT NULL,          -- plain values: see encoding.py
    checksum BLOB NOT NULL          -- of this row and, through it, of all before
) STRICT;
CREATE INDEX events_by_round ON events (round_index, kind);
"""
COLUMNS = (int, str, int, float, bytes, bytes)
"""What a row consists of; where SQLite's own words are damaged, it may find something else."""


@dataclass(frozen=True, slots=True)
class Event:
    """A row: what happened, in which round, when."""

    number: int
    kind: str
    round_index: int
    time: float
    payload: bytes
    checksum: bytes

    def values(self) -> dict[str, Any]:
        """What the payload holds."""
        return unpack(self.payload)


def checksum(previous: bytes, number: int, kind: str, round_index: int, at: float, payload: bytes) -> bytes:
    """The seal of a row: BLAKE2b over the predecessor's seal and all columns."""
    digest = blake2b(previous, digest_size=CHECKSUM_BYTES)
    digest.update(_NUMBERS.pack(number, round_index, at))
    digest.update(kind.encode() + b"\0")
    digest.update(payload)
    return digest.digest()


def check_header(path: Path) -> None:
    """A LedgerError unless ``path`` is a run that this version can read; it is not opened, only looked at."""
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # to open one is to wait for whoever writes to it
            raise LedgerError(f"{path} must be a run of sortition, got a pipe")
        with open(path, "rb") as file:
            start = file.read(_HEADER.size)
    except OSError as error:
        raise LedgerError(f"{path} must be a readable file, got {error.strerror}") from None
    if len(start) < _HEADER.size:
        raise LedgerError(f"{path} must be a run of sortition, got a file of {len(start)} bytes")
    magic, version, application = _HEADER.unpack(start)
    if magic != b"SQLite format 3\0" or application != APPLICATION_ID:
        raise LedgerError(f"{path} must be a run of sortition, got another kind of file")
    if version != SCHEMA_VERSION:
        known = f"this version of sortition knows schema {SCHEMA_VERSION}"
        raise LedgerError(f"{path} must be of a schema that can be read ({known}), got schema {version}")


class Store:
    """The database of one run, open for reading or, by the one who holds the lock, for writing."""

    def __init__(self, path: Path, *, write: bool) -> None:
        check_header(path)
        self.path = path
        with self._trouble("be readable"):
            self._connection = _connect(path, write)
            try:
                if write:
                    mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                    if mode != "wal":
                        raise LedgerError(f"{path} must be on a file system that allows WAL, got {mode!r}")
                    self._connection.execute("PRAGMA synchronous = FULL")
                self.last, self._last_checksum = self._last_row()
                self._places = Places(path, (path, wal_of(path)))
            except BaseException:
                self._connection.close()
                raise

    @staticmethod
    def create(path: Path, first: Plain) -> None:
        """A whole new database with its first row, ``begun``; ``path`` must not exist."""
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(SCHEMA)
            at, payload = time.time(), pack(first)
            seal = checksum(b"", 0, "begun", -1, at, payload)
            connection.execute(
                "INSERT INTO events VALUES (0, 'begun', -1, ?, ?, ?)", (at, memoryview(payload), seal)
            )
            connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()

    @property
    def last_checksum(self) -> bytes:
        """The seal of the last row."""
        return self._last_checksum

    def append(self, kind: str, round_index: int, values: Plain) -> None:
        """Commit one more row; when this returns it is on disk."""
        number, at, payload = self.last + 1, time.time(), pack(values)
        seal = checksum(self._last_checksum, number, kind, round_index, at, payload)
        with self._trouble("be writable (what is on disk is intact; call again once it is)"):
            self._connection.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (number, kind, round_index, at, payload, seal)
            )
        self.last, self._last_checksum = number, seal

    def refresh(self) -> None:
        """Ask the disk again what the last row is, after an append of which we do not know how it ended."""
        with self._trouble("be readable"):
            if self._connection.in_transaction:
                self._connection.rollback()
            self.last, self._last_checksum = self._last_row()

    def events(self, after: int = -1, until: int | None = None) -> Iterator[Event]:
        """The rows after number ``after``, to the last, or to ``until``; each checked."""
        previous = b"" if after < 0 else self.checksum_of(after)
        end = self.last if until is None else until
        query = "SELECT * FROM events WHERE number > ? AND number <= ? ORDER BY number"
        expected = after + 1
        with self._trouble("be readable"):
            for row in self._connection.execute(query, (after, end)):
                event = self._checked(row, previous, expected)
                yield event
                previous, expected = event.checksum, expected + 1
        if expected != end + 1:
            raise LedgerError(f"{self.path} must have a row {expected}, got none: rows are missing")

    def event(self, number: int) -> Event:
        """The row of that number."""
        return next(iter(self.events(number - 1, number)))

    def find(self, kind: str, round_index: int) -> Event | None:
        """The row of that kind and round, if there is one."""
        query = "SELECT number FROM events WHERE round_index = ? AND kind = ? AND number <= ?"
        with self._trouble("be readable"):
            row = self._connection.execute(query, (round_index, kind, self.last)).fetchone()
        if row is None:
            return None
        event = self.event(row[0])
        if (event.kind, event.round_index) != (kind, round_index):  # the index has no checksum of its own
            raise LedgerError(
                f"{self.path} must have an index of its rows, but row {event.number} is another"
            )
        return event

    def numbers(self, kind: str) -> dict[int, int]:
        """Round to row number, for all rows of that kind."""
        query = "SELECT round_index, number FROM events NOT INDEXED WHERE kind = ? AND number <= ?"
        with self._trouble("be readable"):
            rows = self._connection.execute(query, (kind, self.last)).fetchall()
        return {row[0]: row[1] for row in rows if isinstance(row[0], int)}  # what has changed, events tells

    def checksum_of(self, number: int) -> bytes:
        """The seal of the row of that number, as it is written there."""
        with self._trouble("be readable"):
            row = self._connection.execute(
                "SELECT checksum FROM events WHERE number = ?", (number,)
            ).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise LedgerError(f"{self.path} must have a row {number}, got none: rows are missing")
        return row[0]

    def check_witness(self, known: tuple[int, bytes] | None) -> None:
        """A LedgerError if a witness (see ``lock``) knows of a row that is missing, or is another one."""
        if known is None:
            return
        number, seal = known
        if number > self.last:
            raise LedgerError(
                f"{self.path} must have the {number + 1} rows that were committed, "
                f"got {self.last + 1}: rows are missing"
            )
        if self.checksum_of(number) != seal:
            raise LedgerError(f"{self.path} must be as it was written, but row {number} is another one")

    def check_structure(self) -> None:
        """Let SQLite check its own pages and the index."""
        with self._trouble("be whole"):
            found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise LedgerError(f"{self.path} must be whole, but SQLite finds: {' '.join(str(found).split())}")

    def check_place(self) -> None:
        """A LedgerError if the file was moved or replaced: what is written now, nobody would find."""
        self._places.check()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _last_row(self) -> tuple[int, bytes]:
        query = "SELECT number, checksum FROM events ORDER BY number DESC LIMIT 1"
        row = self._connection.execute(query).fetchone()
        if row is None or not (isinstance(row[0], int) and isinstance(row[1], bytes)):
            raise LedgerError(f"{self.path} must end with a row as it was written, got {row}")
        return row[0], row[1]

    def _checked(self, row: Any, previous: bytes, expected: int) -> Event:
        number, kind, round_index, at, payload, seal = row
        if number != expected:
            raise LedgerError(f"{self.path} must have a row {expected}, got {number}: rows are missing")
        types = tuple(map(type, row))
        if types != COLUMNS or seal != checksum(previous, number, kind, round_index, at, payload):
            raise LedgerError(f"{self.path} must be as it was written, but row {number} has changed")
        return Event(number, kind, round_index, at, payload, seal)

    @contextmanager
    def _trouble(self, expectation: str) -> Iterator[None]:
        """What SQLite raises, as a LedgerError."""
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError) as error:  # the last: damaged text
            raise LedgerError(f"{self.path} must {expectation}, but SQLite says: {error}") from error


def wal_of(path: Path) -> Path:
    """Where SQLite keeps the last rows of a database until they are copied into it."""
    return path.with_name(path.name + "-wal")


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    """A connection without transactions of its own; other threads may use it, one at a time."""
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode={'rw' if write else 'ro'}"
    try:
        connection = sqlite3.connect(
            address, uri=True, isolation_level=None, timeout=10.0, check_same_thread=False
        )
        connection.execute("SELECT 1 FROM events LIMIT 1")
    except sqlite3.OperationalError:
        if write or wal_of(path).exists():
            raise
        # nobody writes, and we may not create the files that WAL needs: read it as it lies there
        connection = sqlite3.connect(
            f"{address}&immutable=1", uri=True, isolation_level=None, check_same_thread=False
        )
    return connection
