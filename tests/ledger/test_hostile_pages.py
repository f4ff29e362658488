"""Pages made by hand: put together from others, or to harm. Rows are told apart, and nothing runs on."""

from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sortition.ledger.good import GoodStore
from sortition.ledger.pages import Pages
from sortition.ledger.rows import checksum
from sortition.ledger.salvage import salvaged
from tests.ledger.helpers import PAGE, recorded

Row = tuple[Any, ...]
LEAST = (PAGE - 12) * 32 // 255 - 23
"""Bytes of a row of many pages that lie in its first one, where no more do."""


def varint(number: int) -> bytes:
    found = [number & 0x7F]
    while number := number >> 7:
        found.append(number & 0x7F | 0x80)
    return bytes(reversed(found))


def header_of(row: Row, blob: int) -> bytes:
    """What says how long the columns are: no key, text, two bytes, a float, so many bytes, and the seal."""
    kinds = (0, 13 + 2 * len(row[1]), 2, 7, 12 + 2 * blob, 44)
    inner = b"".join(map(varint, kinds))
    return bytes([len(inner) + 1]) + inner


def record(row: Row) -> bytes:
    values = row[1].encode() + struct.pack(">hd", row[2], row[3])
    return header_of(row, len(row[4])) + values + row[4] + row[5]


def cell(number: int, payload: bytes) -> bytes:
    return varint(len(payload)) + varint(number) + payload


def leaf(*cells: bytes, copies: int = 1) -> bytes:
    """A page with these rows, each pointed to so often."""
    page, end = bytearray(PAGE), PAGE
    page[0] = 0x0D
    page[3:5] = (len(cells) * copies).to_bytes(2, "big")
    place = 8
    for content in cells:
        end -= len(content)
        page[end : end + len(content)] = content
        for _ in range(copies):
            page[place : place + 2] = end.to_bytes(2, "big")
            place += 2
    assert place <= end
    return bytes(page)


def sealed(number: int, previous: bytes, text: bytes = b"x") -> Row:
    row = (number, "drawn", number % 1000, 1.5, text)
    return (*row, checksum(previous, *row))


def chain(length: int, previous: bytes = b"", start: int = 0, text: bytes = b"x") -> list[Row]:
    found: list[Row] = []
    for number in range(start, start + length):
        found.append(sealed(number, previous, text))
        previous = found[-1][-1]
    return found


def cells(rows: list[Row]) -> list[bytes]:
    return [cell(row[0], record(row)) for row in rows]


@pytest.fixture
def header(tmp_path: Path) -> bytes:
    """The first page of a run, without what SQLite needs to find its way."""
    recorded(tmp_path / "header.db", 0)
    return (tmp_path / "header.db").read_bytes()[:100] + bytes(PAGE - 100)


def rows_in(path: Path, witness: tuple[int, bytes] | None = None) -> tuple[list[Row], int, bool]:
    found = salvaged(path, witness)
    rows = found.connection.execute("SELECT * FROM events ORDER BY number").fetchall()
    found.connection.close()
    assert found.last == len(rows) - 1
    return rows, found.there, found.forked


def test_a_page_made_by_hand(path: Path, header: bytes) -> None:
    """Else the tests below would show nothing."""
    rows = chain(9)
    path.write_bytes(header + leaf(*cells(rows)))
    assert rows_in(path) == (rows, 8, False)


def test_a_bad_copy_that_lies_before_the_good_one(path: Path, header: bytes) -> None:
    rows = chain(9)
    bad = [(*row[:4], b"y", row[5]) for row in rows]
    path.write_bytes(header + leaf(*cells(bad)) + leaf(*cells(rows)) + leaf(*cells(bad)))
    assert rows_in(path) == (rows, 8, False)


def test_a_row_that_says_its_number_twice(path: Path, header: bytes) -> None:
    """The number is the key; in its place among the columns there is none."""
    rows = chain(3)
    odd = record(rows[1])
    inner = varint(1) + odd[2 : odd[0]]
    twice = bytes([len(inner) + 1]) + inner + b"\1" + odd[odd[0] :]
    path.write_bytes(header + leaf(*cells(rows[:1]), cell(1, twice), *cells(rows[2:])))
    assert rows_in(path)[0] == rows[:1]


@pytest.mark.parametrize("known", [None, 5, 8, 12])
@pytest.mark.parametrize("first", ["own", "other"])
def test_two_rows_that_follow_the_same_one(path: Path, header: bytes, known: int | None, first: str) -> None:
    """The witness decides between them, wherever they lie, if it is among the rows after the fork."""
    own, other = chain(9), chain(3)
    other += chain(6, other[-1][-1], 3, b"other")
    pages = [leaf(*cells(own)), leaf(*cells(other))]
    path.write_bytes(header + b"".join(pages if first == "own" else pages[::-1]))
    witness = None if known is None else (known, own[min(known, 8)][-1])
    decided = known in (5, 8)
    assert rows_in(path, witness) == (own if decided else own[:3], 8, not decided)


def test_a_fork_is_said(path: Path, header: bytes) -> None:
    own, other = chain(9), chain(3)
    other += chain(1, other[-1][-1], 3, b"other")
    path.write_bytes(header + leaf(*cells(own)) + leaf(*cells(other)))
    store = GoodStore(path, None)
    store.close()
    assert store.missing == 6
    assert "at least 6 rows left out" in str(store.left_out)
    assert "two rows 3 follow, and it is not known which is this run's" in str(store.left_out)


def test_more_versions_of_a_row_than_anybody_has(path: Path, header: bytes) -> None:
    """Who makes many, at many numbers, does not make the search longer than the file."""
    start = chain(1)
    levels = [start]
    for number in range(1, 4):
        levels.append([sealed(number, levels[-1][0][-1], b"%d" % version) for version in range(20)])
    path.write_bytes(header + b"".join(leaf(*cells(level)) for level in levels))
    assert rows_in(path, (3, levels[3][0][-1])) == (start, 3, True)


def test_a_number_that_has_changed_is_not_counted(path: Path, header: bytes) -> None:
    """Nobody sealed it: how many rows there were is told by those that follow each other."""
    rows = chain(20)
    contents = cells(rows)
    contents[7] = cell(150, record(rows[7]))
    contents[9] = cell(2**40, record(rows[9]))
    far = chain(2, b"far", 10**6)  # more rows than a file of this size can hold
    path.write_bytes(header + leaf(*contents[:10]) + leaf(*contents[10:]) + leaf(*cells(far)))
    assert rows_in(path) == (rows[:7], 19, False)


class Counting(io.FileIO):
    """A file that knows how much was read of it."""

    total = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(-1 if size is None else size) or b""
        self.total += len(found)
        return found


def many_pages(row: Row, length: int, following: int) -> bytes:
    """The first part of a row of so many bytes, of which the rest begins on another page."""
    blob = length - len(header_of(row, 10**6)) - len(row[1]) - 2 - 8 - 16
    assert blob >= 2**13  # its length takes three bytes too
    start = header_of(row, blob).ljust(LEAST, b"\0")[:LEAST]
    return varint(length) + varint(row[0]) + start + following.to_bytes(4, "big")


def hostile(kind: str, size: int) -> bytes:
    """Pages, from the second on, that would take much more to read than they are."""
    row, length = chain(1)[0], LEAST + (PAGE - 4) * (size // PAGE - 8)
    if kind == "columns":  # a header that goes on for pages, of columns without a value
        content = varint(length) + varint(0) + varint(length) + bytes(LEAST - 3) + (3).to_bytes(4, "big")
        return leaf(content) + (3).to_bytes(4, "big") + bytes(PAGE - 4)
    if kind == "circle":  # an overflow page that points to itself
        return leaf(many_pages(row, length, 3)) + (3).to_bytes(4, "big") + bytes(PAGE - 4)
    if kind == "pointers":  # many pointers to one row, on many pages
        return leaf(cell(3, b"\0" * 5), copies=2000) * (size // PAGE)
    if kind == "shared":  # many rows that go on in the same long chain of pages
        there = size // PAGE // 2
        rows = leaf(many_pages(row, LEAST + (PAGE - 4) * (there - 8), there + 2)) * there
        return rows + b"".join((there + 3 + n).to_bytes(4, "big") + bytes(PAGE - 4) for n in range(there))
    page = bytearray(leaf(cell(0, record((*row[:4], b"x" * 3000, row[5])))))  # rows within each other
    own = page.index(cell(0, record((*row[:4], b"x" * 3000, row[5])))[:12])
    ahead = cell(0, record((*row[:4], b"x" * 1400, row[5])))[:20]
    count = 60
    for place in range(count):
        page[own + 40 + 20 * place : own + 60 + 20 * place] = ahead
        page[8 + 2 * place : 10 + 2 * place] = (own + 40 + 20 * place).to_bytes(2, "big")
    page[3:5] = count.to_bytes(2, "big")
    return bytes(page) * (size // PAGE)


@pytest.mark.parametrize("kind", ["columns", "circle", "pointers", "shared", "overlapping"])
def test_a_small_file_does_not_take_long(path: Path, header: bytes, kind: str) -> None:
    """The bytes read, and those kept, are a few times the file's, whatever it says."""
    size = 400 * PAGE
    path.write_bytes((header + hostile(kind, size)).ljust(size, b"\0"))
    tracemalloc.start()
    try:
        with Counting(path) as file:
            pages = Pages(path, file)
            places = list(pages.cells())
            rows = list(map(pages.row, (place for _, place in places)))
            assert file.total < (16 if kind in ("shared", "overlapping") else 1.1) * size
            assert sum(len(row[4]) for row in rows if row) < 12 * size
        assert rows_in(path)[0] == []
        assert tracemalloc.get_traced_memory()[1] < 16 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("change", [-1, 1, 2**40])
def test_a_row_of_another_length_than_its_header_says(path: Path, header: bytes, change: int) -> None:
    rows = chain(3)
    contents = cells(rows)
    contents[1] = varint(len(record(rows[1])) + change) + contents[1][1:]
    path.write_bytes(header + leaf(*contents))
    with open(path, "rb") as file:
        assert [number for number, _ in Pages(path, file).cells()] == [0, 2]
    assert rows_in(path)[0] == rows[:1]
