"""The rows of a damaged database, page by page, where SQLite can't find its way to them.

SQLite finds rows by pages that point to other pages: where one of these is lost, so is the way to rows that
are as they were. Here every page that holds rows is read on its own, in whatever order they lie. A row counts
only if its checksum is right, which covers all that it says and the checksum of the one before; so it does
not matter where it was found, and nothing old or foreign is taken for one.

The format is SQLite's (https://www.sqlite.org/fileformat2.html, sections 1.6 and 2.1).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from sortition.core.errors import LedgerError
from sortition.ledger.rows import is_sealed, looks_like_one
from sortition.ledger.schema import SCHEMA, page_size_of
from sortition.ledger.trouble import has_wal, wal_of

_FIRST_PAGE_STARTS = 100
_LEAF = 0x0D  # a page with rows of a table
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # by serial type
_GARBAGE = (IndexError, ValueError, struct.error)
"""What comes of reading bytes that are no row; damaged text is a ValueError."""


def salvaged(path: Path) -> tuple[sqlite3.Connection, int]:
    """A private database with the rows of ``path`` before the first lost one, and the last number seen.

    SQLite keeps it in a file without a name, which is gone when the connection is closed.
    """
    connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    try:
        connection.executescript(SCHEMA)
        connection.execute("BEGIN")
        with _settled(path) as file:
            last = _copy_rows(_Pages(file), connection)
        connection.execute("COMMIT")
    except BaseException as error:
        connection.close()
        if isinstance(error, (OSError, sqlite3.Error)):
            room = f"{tempfile.gettempdir()} must have room for a copy of {path}"
            raise LedgerError(f"{room} where its rows can be sorted out, got {error}") from error
        raise
    return connection, last


def _copy_rows(pages: _Pages, connection: sqlite3.Connection) -> int:
    """Row after row for as long as the seals hold; the number of the last row that there is, good or not."""
    places: dict[int, list[tuple[int, int]]] = {}
    for number, place in pages.cells():
        places.setdefault(number, []).append(place)
    previous = b""
    for number in count():
        rows = [row for row in map(pages.row, places.pop(number, ())) if row and is_sealed(row, previous)]
        if not rows:
            break
        connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows[0])
        previous = rows[0][-1]
    last = number - 1
    for beyond in sorted(places, reverse=True):
        if beyond > last and any(row and looks_like_one(row) for row in map(pages.row, places[beyond])):
            return beyond
    return last


@contextmanager
def _settled(path: Path) -> Iterator[BinaryIO]:
    """The file or, where its last rows are in a WAL, a copy that SQLite has put them into, if it can."""
    if not has_wal(path):
        with open(path, "rb") as file:
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="sortition-") as directory:
        copy = Path(directory) / "run.db"
        for source, target in ((path, copy), (wal_of(path), wal_of(copy))):
            shutil.copyfile(source, target)
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(copy, isolation_level=None)
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()
        with open(copy, "rb") as file:
            yield file


@dataclass(frozen=True, slots=True)
class _Cell:
    """A row as it lies in its page: how long it is, its number, and where its bytes begin."""

    length: int
    number: int
    start: int


class _Pages:
    """The pages of a database, from 1 on; what is missing of them reads as zeros."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        header = file.read(_FIRST_PAGE_STARTS)
        self._size = page_size_of(header)
        self._usable = self._size - header[20]
        self._bytes = os.fstat(file.fileno()).st_size

    def cells(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """The number and the place of whatever looks like a row."""
        for number in range(1, -(-self._bytes // self._size) + 1):
            page, start = self._page(number), _FIRST_PAGE_STARTS if number == 1 else 0
            if page[start] != _LEAF:
                continue
            cells = int.from_bytes(page[start + 3 : start + 5], "big")
            for place in range(start + 8, min(start + 8 + 2 * cells, self._size - 1), 2):
                pointer = int.from_bytes(page[place : place + 2], "big")
                with suppress(*_GARBAGE):
                    yield _cell(page, pointer).number, (number, pointer)

    def row(self, place: tuple[int, int]) -> tuple[Any, ...] | None:
        """The row at a place; None if there is none."""
        number, pointer = place
        page = self._page(number)
        try:
            cell = _cell(page, pointer)
            row = _columns(self._payload(page, cell))
        except _GARBAGE:
            return None
        if len(row) == 6 and row[0] is None:  # the number is the key, and lies before the others
            row[0] = cell.number
            row[3] = float(row[3]) if isinstance(row[3], int) else row[3]  # so SQLite stores 2.0
        return tuple(row)

    def _payload(self, page: bytes, cell: _Cell) -> bytes:
        """The bytes of a row: what lies in its page, and what lies in the chain of pages after it."""
        if not 0 <= cell.length <= self._bytes:
            raise ValueError("longer than the file")
        local, most = cell.length, self._usable - 35
        if local > most:
            least = (self._usable - 12) * 32 // 255 - 23
            local = least + (cell.length - least) % (self._usable - 4)
            local = local if local <= most else least
        end = cell.start + local
        parts, left = [page[cell.start : end]], cell.length - local
        following = int.from_bytes(page[end : end + 4], "big") if left else 0
        while left > 0:
            chained = self._page(following)
            parts.append(chained[4 : min(self._usable, 4 + left)])
            left -= self._usable - 4
            following = int.from_bytes(chained[:4], "big")
        return b"".join(parts)

    def _page(self, number: int) -> bytes:
        if not 0 < number <= -(-self._bytes // self._size):
            raise ValueError("no such page")
        self._file.seek((number - 1) * self._size)
        return self._file.read(self._size).ljust(self._size, b"\0")


def _cell(page: bytes, pointer: int) -> _Cell:
    length, place = _varint(page, pointer)
    number, start = _varint(page, place)
    return _Cell(length, number, start)


def _columns(record: bytes) -> list[Any]:
    """The values of a row: a header says what each is, the values follow."""
    start, place = _varint(record, 0)
    at, found = start, []
    while place < start:
        kind, place = _varint(record, place)
        value, at = _value(record, kind, at)
        found.append(value)
    if at != len(record):
        raise ValueError("bytes are missing or left over")
    return found


def _value(record: bytes, kind: int, at: int) -> tuple[Any, int]:
    if kind == 0:
        return None, at
    if kind in _INTEGER_BYTES:
        end = at + _INTEGER_BYTES[kind]
        return int.from_bytes(record[at:end], "big", signed=True), end
    if kind == 7:
        return struct.unpack_from(">d", record, at)[0], at + 8
    if kind in (8, 9):
        return kind - 8, at
    if kind < 12:
        raise ValueError("no such type")
    end = at + (kind - 12) // 2
    data = record[at:end]
    return data.decode() if kind % 2 else data, end


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of one to nine bytes, seven bits each and eight in the ninth, and the place after it."""
    value = 0
    for used in range(8):
        byte = data[place + used]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + used + 1
    return value << 8 | data[place + 8], place + 9
