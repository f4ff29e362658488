"""The rows of a damaged database, page by page, where SQLite can't find its way to them.

SQLite finds rows by pages that point to other pages: where one of these is lost, so is the way to rows that
are as they were. Here every page that holds rows is read on its own, in whatever order they lie. A row counts
only if its checksum is right, which covers all that it says and the checksum of the one before; so it does
not matter where it was found. But a checksum is no signature: where pages of a copy of the run, which went on
in its own way, have got into the file, two different rows may follow the same one. Then the witness (see
``lock``) decides, if the rows lead up to it, and else the rows end there. A row that has no rival is taken.
"""

from __future__ import annotations

import errno
import shutil
import sqlite3
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from sortition.core.errors import LedgerError
from sortition.ledger.pages import Pages
from sortition.ledger.rows import is_sealed, looks_like_one
from sortition.ledger.schema import SCHEMA
from sortition.ledger.trouble import has_wal, wal_of

Row: TypeAlias = tuple[Any, ...]
Witness: TypeAlias = tuple[int, bytes]
_MOST_VERSIONS = 8
"""Of one row, that are looked into; there are more only where somebody made them."""
_SETTINGS = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA temp_store = MEMORY;
"""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What could be gathered."""

    connection: sqlite3.Connection
    """A private database with the rows before the first lost one."""
    last: int
    """The number of the last of them; -1 where there is none."""
    there: int
    """The number of the last row that there is a sign of; there may have been more."""
    forked: bool
    """Whether the rows end because two different ones follow, and nobody knows which is this run's."""


def salvaged(path: Path, witness: Witness | None) -> Salvaged:
    """The rows of ``path`` in a database of its own.

    Its file is in the temporary directory, and has lost its name when this returns: it is gone when the
    connection is closed.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="sortition-") as directory:
            connection = sqlite3.connect(
                Path(directory) / "rows.db", isolation_level=None, check_same_thread=False
            )
            try:
                connection.executescript(_SETTINGS + SCHEMA)
                connection.execute("BEGIN")
                with _settled(path, Path(directory)) as file:
                    search = _Search(Pages(path, file), witness)
                    connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", search.chain())
                    last = connection.execute("SELECT count(*) FROM events").fetchone()[0] - 1
                    there = search.last_sign(last)
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(_no_copy(path, error)) from error
    return Salvaged(connection, last, there, search.forked)


def _no_copy(path: Path, error: OSError | sqlite3.Error) -> str:
    """Why the rows could not be gathered, in words."""
    if _is_full(error):
        room = f"{tempfile.gettempdir()} must have room for a copy of {path}"
        return f"{room} where its rows can be sorted out (TMPDIR names another place), got {error}"
    return f"the rows of {path} must be readable, and a copy of them writable elsewhere, got {error}"


def _is_full(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorname", None) == "SQLITE_FULL"


@contextmanager
def _settled(path: Path, directory: Path) -> Iterator[BinaryIO]:
    """The file or, where its last rows are in a WAL, a copy that SQLite has put them into, if it can."""
    if not has_wal(path):
        with open(path, "rb") as file:
            yield file
        return
    copy = directory / "run.db"
    for source, target in ((path, copy), (wal_of(path), wal_of(copy))):
        shutil.copyfile(source, target)
    connection = sqlite3.connect(copy, isolation_level=None)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        if _is_full(error):
            raise
    finally:
        connection.close()
    with open(copy, "rb") as file:
        yield file


class _Places:
    """Where the rows of each number may lie, in the order that they were found: sixteen bytes for each."""

    def __init__(self, cells: Iterable[tuple[int, tuple[int, int]]]) -> None:
        numbers, places = array("q"), array("q")
        for number, (page, pointer) in cells:
            numbers.append(number)
            places.append(page << 16 | pointer)
        found = np.frombuffer(numbers, dtype=np.int64)
        order = np.argsort(found, kind="stable")
        self._numbers, self._places = found[order], np.frombuffer(places, dtype=np.int64)[order]

    def of(self, number: int) -> list[tuple[int, int]]:
        """Page and place in it."""
        start, end = np.searchsorted(self._numbers, [number, number + 1])
        return [(place >> 16, place & 0xFFFF) for place in self._places[start:end].tolist()]

    def largest(self, above: int) -> Iterator[int]:
        """The numbers above that one, the largest first."""
        yield from np.unique(self._numbers[self._numbers > above])[::-1].tolist()


class _Search:
    """For the rows of a run among what lies in its pages."""

    forked = False
    """Whether ``chain`` ended because it could not tell two rows apart."""

    def __init__(self, pages: Pages, witness: Witness | None) -> None:
        self._pages = pages
        self._places = _Places(pages.cells())
        self._witness = witness

    def chain(self) -> Iterator[Row]:
        """Row after row, for as long as the seals hold."""
        seal = b""
        way: dict[int, bytes] = {}
        for number in count():
            found = self._following(number, {seal})
            if len(found) > 1:
                way = way or self._way(number, seal)
                self.forked = way.get(number) not in found
            if not found or self.forked:
                return
            seal = way[number] if len(found) > 1 else next(iter(found))
            yield found[seal][0]

    def last_sign(self, last: int) -> int:
        """The largest number, from ``last`` on, of a row that was sealed after one that is there too."""
        for number in self._places.largest(last + self.forked):
            before = {row[-1] for row in self._rows(number - 1)}
            if self._following(number, set(sorted(before)[:_MOST_VERSIONS])):
                return number
        return last + 1 if self.forked else last

    def _way(self, fork: int, seal: bytes) -> dict[int, bytes]:
        """From a fork to the witness, the seals that lead there, by number; empty if none do."""
        if self._witness is None:
            return {}
        goal, sought = self._witness
        parents: list[dict[bytes, bytes]] = []
        tips = {seal}
        for number in range(fork, goal + 1):
            found = self._following(number, tips)
            if not found or len(found) > _MOST_VERSIONS:
                return {}
            parents.append({own: before for own, (_, before) in found.items()})
            tips = set(found)
        way: dict[int, bytes] = {}
        for number in range(goal, fork - 1, -1):
            if sought not in parents[number - fork]:
                return {}
            way[number] = sought
            sought = parents[number - fork][sought]
        return way

    def _following(self, number: int, seals: set[bytes]) -> dict[bytes, tuple[Row, bytes]]:
        """The rows of that number that follow one of these seals, by their own, with the one they follow."""
        return {
            row[-1]: (row, before) for row in self._rows(number) for before in seals if is_sealed(row, before)
        }

    def _rows(self, number: int) -> Iterator[Row]:
        for place in self._places.of(number):
            row = self._pages.row(place)
            if row is not None and looks_like_one(row):
                yield row
