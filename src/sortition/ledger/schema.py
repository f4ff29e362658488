"""What the database of a run looks like, and how to tell that a file is one."""

from __future__ import annotations

import stat
import struct
from pathlib import Path

from sortition.core.errors import LedgerError

APPLICATION_ID = 0x534F5254  # "SORT"
SCHEMA_VERSION = 1
_HEADER = struct.Struct(">16s44xi4xi28x")  # SQLite's first 100 bytes: magic, user_version, application_id

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
