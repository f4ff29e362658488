"""What is wrong with a run's files, and what to do about it, in words."""

from __future__ import annotations

import shutil
from pathlib import Path
from shlex import quote

LITTLE_SPACE = 128 * 1024
"""Bytes; SQLite can't open a run for writing with less."""


def sqlite_trouble(path: Path, expectation: str, error: Exception) -> str:
    """What SQLite says, and what is behind it, where that can be told."""
    said = f"{path} must {expectation}, but SQLite says: {error}"
    code = getattr(error, "sqlite_errorname", None) or ""
    if code.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_FULL")) and _disk_is_full(path):
        return f"{said}: no space is left on its disk; make room, and call again"
    wal = wal_of(path)
    if code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) and wal.exists():
        return (
            f"{said}; it was not closed, and its last rows, in {wal.name}, can be read only where SQLite may "
            f"write: copy {path.name}, {wal.name} and {path.name}.d together to such a place"
        )
    return said


def what_is_good(path: Path, good: int, there: int) -> str:
    """What can be saved of a run whose first ``good`` rows are as they were written, of those ``there``."""
    if good == 0:
        return "not even its first row is good: put a copy of the run in its place"
    what = f"all {good} rows that are there are good" if good >= there else f"rows 0 to {good - 1} are good"
    return (
        f"{what}: save them with sortition runs export {quote(str(path))} --csv DIR --good; docs/ledger.md, "
        '"When something is damaged", says how to go on'
    )


def wal_of(path: Path) -> Path:
    """Where SQLite keeps the last rows of a database until they are copied into it."""
    return path.with_name(path.name + "-wal")


def _disk_is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < LITTLE_SPACE
    except OSError:
        return False
