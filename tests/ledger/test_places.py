"""A run's files are taken away while it is open: the next call says so, and nobody writes into the void."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sortition import LedgerError
from sortition.ledger import open_run, read_run, verify_run
from tests.ledger.helpers import make, norms_of, play

TAKEN_AWAY: dict[str, Callable[[Path], object]] = {
    "the database, moved": lambda path: path.rename(path.with_name("moved.db")),
    "the database, removed": lambda path: path.unlink(),
    "the database, replaced": lambda path: os.replace(shutil.copy(path, path.with_name("copy")), path),
    "the WAL, removed": lambda path: path.with_name("run.db-wal").unlink(),
    "the directory, moved": lambda path: path.with_name("run.db.d").rename(path.with_name("moved.d")),
    "the lock, removed": lambda path: path.with_name("run.db.d").joinpath("lock").unlink(),
    "the lock, replaced": lambda path: os.replace(
        shutil.copy(path.with_name("run.db.d") / "lock", path.with_name("copy")),
        path.with_name("run.db.d") / "lock",
    ),
}


@pytest.mark.parametrize("how", TAKEN_AWAY)
def test_the_next_call_is_refused(how: str, path: Path) -> None:
    run = open_run(path, make)
    play(run, 2)
    cohort = run.draw()
    TAKEN_AWAY[how](path)
    calls = (
        run.draw,
        lambda: run.observe(cohort, norms_of(cohort)),
        lambda: run.attach(0, "m", {}),
        run.close,
    )
    for call in calls:
        with pytest.raises(LedgerError, match="must stay where it is"):
            call()
    with pytest.raises(LedgerError, match="was closed"):
        run.draw()


def test_there_are_never_two_writers(path: Path) -> None:
    """With the lock gone somebody else may take another one: then the first one writes no more."""
    first = open_run(path, make)
    play(first, 2)
    shutil.rmtree(path.with_name("run.db.d"))
    with open_run(path, make) as second:
        with pytest.raises(LedgerError, match="must stay where it is"):
            first.draw()
        play(second, 1)
        with pytest.raises(LedgerError, match="must stay where it is"):
            first.close()
        play(second, 1)
    assert verify_run(path).rounds == 4


def test_what_was_put_back_is_written_on(path: Path) -> None:
    with open_run(path, make) as run:
        play(run, 2)
        path.rename(path.with_name("elsewhere"))
        with pytest.raises(LedgerError, match="must stay where it is"):
            run.draw()
        path.with_name("elsewhere").rename(path)
        play(run, 2)
    assert verify_run(path).rounds == 4


def test_a_name_that_is_no_text(path: Path) -> None:
    """File names are bytes; not all of them are UTF-8."""
    odd = Path(os.fsdecode(os.fsencode(path.parent) + b"/\xff?#%41.db"))
    with open_run(odd, make) as run:
        play(run, 2)
    with read_run(odd) as record:
        assert len(list(record.rounds())) == 2


def test_a_pipe_is_no_run(path: Path) -> None:
    os.mkfifo(path)
    for opening in (read_run, verify_run, lambda path: open_run(path, make)):
        with pytest.raises(LedgerError, match="got a pipe"):
            opening(path)
