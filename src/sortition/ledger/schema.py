"""What the database of a run looks like, and how to tell that a file is one."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

from sortition.core.errors import LedgerError
from sortition.ledger.trouble import has_wal, wal_of, what_is_left
from sortition.ledger.wal import Committed, committed

APPLICATION_ID = 0x534F5254  # "SORT"
SCHEMA_VERSION = 1
_HEADER = struct.Struct(">16s44xi4xi28x")  # SQLite's first 100 bytes: magic, user_version, application_id
_PAGE_SIZES = tuple(2**power for power in range(9, 17))
_LOCK_BYTE = 2**30
"""SQLite leaves out the page that this byte is in."""

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


def check_header(path: Path) -> None:
    """A LedgerError unless ``path`` is a whole run that this version can read; it is only looked at."""
    if (cut := cut_short(path)) is not None:
        raise LedgerError(f"{cut}; {what_is_left(path)}")


def cut_short(path: Path) -> str | None:
    """In words, that the end of the run at ``path`` is missing; a LedgerError if it is no run that we know.

    What is in its WAL is part of it: a checkpoint that was interrupted may leave a file that is too short. A
    writer may begin or end between the looks at the two, so that a file that seems cut is looked at again.
    """
    return _looks_cut(path) and _looks_cut(path)


def _looks_cut(path: Path) -> str | None:
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # to open one is to wait for whoever writes to it
            raise LedgerError(f"{path} must be a run of sortition, got a pipe")
        wal = committed(wal_of(path)) if has_wal(path) else Committed()  # before the file is measured
        with open(path, "rb") as file:
            start = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
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
    page, least = page_size_of(path, start), _pages_of(start)
    if wal is None or wal.pages:
        return None if wal is None or wal.page_size != page else _lost_beside_wal(path, size, wal)
    if size % page == 0 and size >= least * page:
        return None
    found = f"{path} must have {least} whole pages of {page} bytes, got {size} bytes"
    if least > 1 and any(size == least * other for other in _PAGE_SIZES):
        return f"{found}, as many pages of {size // least} bytes: the page size in its header has changed"
    return f"{found}: its end is missing"


def _lost_beside_wal(path: Path, size: int, wal: Committed) -> str | None:
    """In words, that pages are neither in the file nor in its WAL.

    The file must be measured after its WAL was read: who begins a WAL anew has put the old one into it.
    """
    whole, never_used = size // wal.page_size, _LOCK_BYTE // wal.page_size + 1
    beyond = range(whole + 1, wal.pages + 1)
    lost = next((number for number in beyond if number not in wal.held and number != never_used), None)
    if lost is None:
        return None
    return (
        f"{path} must have {wal.pages} pages of {wal.page_size} bytes, but for those in {wal_of(path).name}, "
        f"got {size} bytes, and page {lost} in neither: its end is missing"
    )


def page_size_of(path: Path, start: bytes) -> int:
    """The bytes of a page, by the header of the database at ``path``; a LedgerError where that can't be."""
    size = int.from_bytes(start[16:18], "big")
    size = 65536 if size == 1 else size
    if size not in _PAGE_SIZES:
        raise LedgerError(f"the page size of {path} must be a power of two from 512 on, got {size}")
    return size


def _pages_of(start: bytes) -> int:
    """The pages of a database, by its header; 1 where the count is of an older state, and says nothing."""
    change, pages, valid_for = (int.from_bytes(start[place : place + 4], "big") for place in (24, 28, 92))
    return pages if change == valid_for else 1
