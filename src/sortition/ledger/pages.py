"""The pages of a database that may be damaged, or made to harm: what looks like a row of a run, and where.

Nothing of it is believed. A row says in its header how long it and its parts are: only what has the six parts
of a row of a run is looked at any further, and so the work and the memory follow from the size of the file.

The format is SQLite's (https://www.sqlite.org/fileformat2.html, sections 1.6 and 2.1).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sortition.ledger.rows import CHECKSUM_BYTES
from sortition.ledger.schema import page_size_of

_FIRST_PAGE_STARTS = 100
_LEAF = 0x0D  # a page with rows of a table
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}  # by serial type; the last are 0 and 1
_FLOAT = 7
_FIRST_OF_BYTES = 12
_SEAL = _FIRST_OF_BYTES + 2 * CHECKSUM_BYTES
_LONGEST = 10**9
"""Bytes of a row, for SQLite."""
_SHORTEST = 2 + 7 + CHECKSUM_BYTES
"""Bytes of a row of a run: its length and number, a header for six columns, and the seal."""
_TIMES_OVER = 8
"""How often the bytes of the file may be read for rows of many pages. Each such page is one row's, but copies
of a row that SQLite has moved may share them."""
_GARBAGE = (IndexError, ValueError, struct.error)
"""What comes of reading bytes that are no row; damaged text is a ValueError."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A row as it lies in its page: how long it is, its number, its columns, and where its bytes are."""

    length: int
    number: int
    kinds: tuple[int, ...]
    start: int
    end: int
    """Where they end in this page; the rest, if there is more, is in the pages of a chain."""


class Pages:
    """The pages of a database, from 1 on; what is missing of them reads as zeros."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._file = file
        header = file.read(_FIRST_PAGE_STARTS)
        self._size = page_size_of(path, header)
        self._usable = self._size - header[20]
        self._bytes = os.fstat(file.fileno()).st_size
        self._may_read = _TIMES_OVER * self._bytes

    def cells(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """The number and the place of whatever looks like a row; no more of a page than can lie in it."""
        most = self._bytes // _SHORTEST
        for number in range(1, -(-self._bytes // self._size) + 1):
            page, start = self._page(number), _FIRST_PAGE_STARTS if number == 1 else 0
            if page[start] != _LEAF:
                continue
            room = self._size
            for pointer in _pointers(page, start):
                with suppress(*_GARBAGE):
                    cell = self._cell(page, pointer)
                    room -= cell.end - pointer
                    if room < 0:
                        break
                    if cell.number < most:
                        yield cell.number, (number, pointer)

    def row(self, place: tuple[int, int]) -> tuple[Any, ...] | None:
        """The row at a place; None if there is none."""
        number, pointer = place
        page = self._page(number)
        try:
            cell = self._cell(page, pointer)
            _, *values = _columns(self._payload(page, cell), cell.kinds)
        except _GARBAGE:
            return None
        values[2] = float(values[2])  # SQLite stores 2.0 as 2
        return (cell.number, *values)

    def _cell(self, page: bytes, pointer: int) -> _Cell:
        """What begins there; a ValueError unless it is as long and has the columns that a row has."""
        length, place = _varint(page, pointer)
        number, start = _varint(page, place)
        ahead, place = _varint(page, start)
        kinds = []
        for _ in range(6):
            kind, place = _varint(page, place)
            kinds.append(kind)
        if place != start + ahead or not _is_shape_of_a_row(kinds):
            raise ValueError("no row of a run")
        if length != ahead + sum(map(_bytes_of, kinds)) or length > min(self._bytes, _LONGEST):
            raise ValueError("another length")
        end = start + self._local(length)
        if end > self._usable:
            raise ValueError("beyond the page")
        return _Cell(length, number, tuple(kinds), start, end)

    def _local(self, length: int) -> int:
        """How many bytes of a row lie in its page."""
        most = self._usable - 35
        if length <= most:
            return length
        least = (self._usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (self._usable - 4)
        return local if local <= most else least

    def _payload(self, page: bytes, cell: _Cell) -> bytes:
        """The bytes of a row: what lies in its page, and what lies in the chain of pages after it."""
        parts, left = [page[cell.start : cell.end]], cell.length - (cell.end - cell.start)
        self._may_read -= left
        if self._may_read < 0:
            raise ValueError("rows of many pages share them")
        following = page[cell.end : cell.end + 4]
        visited = set()
        while left > 0:
            number = int.from_bytes(following, "big")
            if number in visited:
                raise ValueError("a chain that goes round")
            visited.add(number)
            chained = self._page(number)
            parts.append(chained[4 : min(self._usable, 4 + left)])
            left -= self._usable - 4
            following = chained[:4]
        return b"".join(parts)

    def _page(self, number: int) -> bytes:
        if not 0 < number <= -(-self._bytes // self._size):
            raise ValueError("no such page")
        self._file.seek((number - 1) * self._size)
        return self._file.read(self._size).ljust(self._size, b"\0")


def _pointers(page: bytes, start: int) -> dict[int, None]:
    """Where the rows of a page begin, in order, each once."""
    end = start + 8 + 2 * int.from_bytes(page[start + 3 : start + 5], "big")
    places = range(start + 8, min(end, len(page) - 1), 2)
    return dict.fromkeys(int.from_bytes(page[place : place + 2], "big") for place in places)


def _is_shape_of_a_row(kinds: list[int]) -> bool:
    """Whether the columns are of the types of the table; the number is the key, and lies before them."""
    number, kind, round_index, time, payload, seal = kinds
    return (
        number == 0
        and kind > _FIRST_OF_BYTES
        and kind % 2 == 1
        and round_index in _INTEGER_BYTES
        and (time == _FLOAT or time in _INTEGER_BYTES)
        and payload >= _FIRST_OF_BYTES
        and payload % 2 == 0
        and seal == _SEAL
    )


def _bytes_of(kind: int) -> int:
    """How long a value of that serial type is."""
    if kind >= _FIRST_OF_BYTES:
        return (kind - _FIRST_OF_BYTES) // 2
    return 8 if kind == _FLOAT else _INTEGER_BYTES.get(kind, 0)


def _columns(record: bytes, kinds: tuple[int, ...]) -> Iterator[Any]:
    """The values of a row, which lie behind its header."""
    at = len(record) - sum(map(_bytes_of, kinds))
    for kind in kinds:
        data = record[at : at + _bytes_of(kind)]
        at += len(data)
        if kind == 0:
            yield None
        elif kind in (8, 9):
            yield kind - 8
        elif kind == _FLOAT:
            yield struct.unpack(">d", data)[0]
        elif kind < _FIRST_OF_BYTES:
            yield int.from_bytes(data, "big", signed=True)
        else:
            yield data.decode() if kind % 2 else data


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of one to nine bytes, seven bits each and eight in the ninth, and the place after it."""
    value = 0
    for used in range(8):
        byte = data[place + used]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + used + 1
    return value << 8 | data[place + 8], place + 9
