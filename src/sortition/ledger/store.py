"""The rows of a run in SQLite: appended one by one, each sealed together with the one before.

A row is an event. Its checksum covers all that it says and the checksum of its predecessor, so that a row can
neither change, vanish, nor change places unnoticed. One row is one transaction: a reader sees it or does not.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sortition.core.errors import LedgerError
from sortition.ledger.encoding import Plain, pack
from sortition.ledger.places import Places
from sortition.ledger.rows import Event as Event
from sortition.ledger.rows import checksum, is_sealed
from sortition.ledger.schema import SCHEMA
from sortition.ledger.schema import check_header as check_header
from sortition.ledger.trouble import is_damage, sqlite_trouble, wal_of, what_is_good, what_is_left


class Store:
    """The database of one run, open for reading or, by the one who holds the lock, for writing."""

    on_row: Callable[[int], None] | None = None
    """Told the number of each row that ``events`` gives."""

    def __init__(self, path: Path, *, write: bool) -> None:
        check_header(path)
        self.path = path
        with self._trouble("be readable and writable" if write else "be readable", opening=True):
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
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # its WAL will be as private
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
        try:
            for event in self._chain(after, self.last if until is None else until):
                yield event
                if self.on_row is not None and until is None:
                    self.on_row(event.number)
        except LedgerError as error:
            raise self.damage(str(error)) from error

    def _chain(self, after: int, end: int) -> Iterator[Event]:
        previous = b"" if after < 0 else self._seal_of(after)
        query = "SELECT * FROM events WHERE number > ? AND number <= ? ORDER BY number"
        expected = after + 1
        with self._trouble("be readable"):
            for row in self._connection.execute(query, (after, end)):
                event = self._checked(row, previous, expected)
                yield event
                previous, expected = event.checksum, expected + 1
        if expected != end + 1:
            raise LedgerError(f"{self.path} must have a row {expected}, got none: rows are missing")

    def damage(self, text: str) -> LedgerError:
        """The error for rows that are not as they were, with what is good and what to do."""
        good = -1
        with suppress(LedgerError):
            for event in self._chain(-1, self.last):
                good = event.number
        return LedgerError(f"{text}; {what_is_good(self.path, good + 1, self.last + 1)}")

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
            raise self.damage(
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
        try:
            return self._seal_of(number)
        except LedgerError as error:
            raise self.damage(str(error)) from error

    def _seal_of(self, number: int) -> bytes:
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
            raise self.damage(
                f"{self.path} must have the {number + 1} rows that were committed, "
                f"got {self.last + 1}: rows are missing; put {wal_of(self.path).name} back beside it, "
                "or a copy of the whole run in its place"
            )
        if self.checksum_of(number) != seal:
            raise self.damage(f"{self.path} must be as it was written, but row {number} is another one")

    def check_structure(self) -> None:
        """Let SQLite check its own pages and the index."""
        if (flaw := self.flaw()) is not None:
            raise self.damage(flaw)

    def flaw(self) -> str | None:
        """What SQLite finds wrong with its own pages and the index, in words."""
        with self._trouble("be whole"):
            found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found == "ok":
            return None
        return f"{self.path} must be whole, but SQLite finds: {' '.join(str(found).split())}"

    def check_place(self, *, closing: bool = False) -> None:
        """A LedgerError if the file was moved or replaced: what is written now, nobody would find."""
        self._places.check(closing=closing)

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
        if row[0] != expected:
            raise LedgerError(f"{self.path} must have a row {expected}, got {row[0]}: rows are missing")
        if not is_sealed(row, previous):
            raise LedgerError(f"{self.path} must be as it was written, but row {expected} has changed")
        return Event(*row)

    @contextmanager
    def _trouble(self, expectation: str, *, opening: bool = False) -> Iterator[None]:
        """What SQLite raises, as a LedgerError; whoever can't even open a damaged run is told what to do."""
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError) as error:  # the last: damaged text
            advice = f"; {what_is_left(self.path)}" if opening and is_damage(error) else ""
            raise LedgerError(sqlite_trouble(self.path, expectation, error) + advice) from error


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
