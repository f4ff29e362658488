"""What is wrong with a run's files, and what to do about it, in words."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

LITTLE_SPACE = 128 * 1024
"""Bytes; SQLite can't open a run for writing with less."""
_OF_THE_PLACE = tuple(
    f"SQLITE_{what}" for what in ("IOERR", "CANTOPEN", "FULL", "READONLY", "BUSY", "LOCKED", "PERM", "NOMEM")
)


def sqlite_trouble(path: Path, expectation: str, error: BaseException) -> str:
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


def what_is_left(path: Path) -> str:
    """What to do with a run that can't be opened."""
    return (
        "put a copy of the run in its place, or save the rows that are left with sortition runs export "
        f"{quote(str(path))} --csv DIR --good"
    )


def is_damage(error: BaseException | None) -> bool:
    """Whether what SQLite says is about the database, rather than about the place that it is in."""
    code = getattr(error, "sqlite_errorname", None) or ""
    return not code.startswith(_OF_THE_PLACE)


def what_is_left_out(
    rows: int, missing: int, damage: str | None, witnessed: bool, doubts: Sequence[str]
) -> str | None:
    """What ``--good`` has not taken, as far as it is known; None where nothing was wrong."""
    if not missing and damage is None and not doubts:
        return None
    known = "" if witnessed else "; without its lock file it is not known whether there were more"
    if missing:
        left_out = f"{'' if witnessed else 'at least '}{counted(missing, 'row')} left out{known}"
        return "; ".join([f"{counted(rows, 'row')} before the damage, all good", left_out, *doubts])
    there = "that were committed" if witnessed else "that can be found"
    wrong = "; ".join([*([] if damage is None else [damage]), *doubts])
    return f"nothing is left out, all {counted(rows, 'row')} {there} are good{known}; but {wrong}"


def counted(number: int, what: str) -> str:
    """So many of them.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def has_wal(path: Path) -> bool:
    """Whether a WAL with something in it lies beside the database."""
    try:
        return wal_of(path).stat().st_size > 0
    except FileNotFoundError:
        return False


def wal_of(path: Path) -> Path:
    """Where SQLite keeps the last rows of a database until they are copied into it."""
    return path.with_name(path.name + "-wal")


def _disk_is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < LITTLE_SPACE
    except OSError:
        return False
