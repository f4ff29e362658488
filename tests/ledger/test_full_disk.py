"""A full disk: the call fails, the run on disk is intact, and the same call works once there is room."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sortition import LedgerError
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import same_cohort
from sortition.ledger.files import RunFiles
from sortition.ledger.recorded import RecordedSampler
from tests.ledger.helpers import crash, make, norms_of, play, recorded, state_bytes


class Failing:
    """A connection whose next inserts fail, before or after they are committed."""

    def __init__(self, connection: sqlite3.Connection, error: BaseException, after: bool) -> None:
        self._connection, self._error, self._after = connection, error, after

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement.startswith("INSERT"):
            if self._after:
                self._connection.execute(statement, *arguments)
            raise self._error
        return self._connection.execute(statement, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@contextmanager
def failing(run: RecordedSampler, error: BaseException, after: bool) -> Iterator[None]:
    store: Any = run._store
    store._connection = Failing(store._connection, error, after)
    try:
        yield
    finally:
        store._connection = store._connection._connection


FULL = sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after it"])
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_a_failed_commit_changes_nothing_that_counts(path: Path, error: BaseException, after: bool) -> None:
    plain = make()
    expected = play(plain, 6)
    raised = LedgerError if error is FULL else KeyboardInterrupt
    with open_run(path, make) as run:
        play(run, 2)
        with failing(run, error, after), pytest.raises(raised):
            run.draw()
        rows = verify_run(path).rows
        assert rows == (6 if after else 5)
        cohort = run.draw()
        assert same_cohort(cohort, expected[2])
        with failing(run, error, after):
            for _ in range(1 if after else 3):
                with pytest.raises(raised):
                    run.observe(cohort, norms_of(cohort))
        run.observe(cohort, norms_of(cohort))
        assert run.open_cohorts() == []
        with failing(run, error, after), pytest.raises(raised):
            run.remove_clients([1])
        if not after:
            play(run, 3)
            assert state_bytes(run) == state_bytes(plain)
        else:
            assert run.num_clients == make().num_clients - 1
    assert verify_run(path).replayed


def test_what_was_open_before_a_failure_is_not_handed_out_twice(path: Path) -> None:
    with open_run(path, make) as run:
        first = run.draw()
        with failing(run, FULL, after=False), pytest.raises(LedgerError, match="disk is full"):
            run.draw()
        assert run.draw().round_index == 1
        assert [cohort.round_index for cohort in run.open_cohorts()] == [0, 1]
        run.observe(first, norms_of(first))


def test_a_cohort_whose_snapshot_was_interrupted_is_handed_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on disk, and the caller has not had it."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with open_run(path, make, snapshot_every=1) as run:
        with monkeypatch.context() as patch:
            patch.setattr(RunFiles, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.draw()
        assert run.draw().round_index == 0
        assert run.draw().round_index == 1


def test_a_snapshot_that_finds_no_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are there: it is a warning, and the run goes on."""

    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = open_run(path, make, snapshot_every=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.warns(RuntimeWarning, match="no snapshot of .* No space left"):
            play(run, 2)
        with pytest.raises(LedgerError, match="No space left"):
            run.attach(0, "model", {"w": 1})
    assert not list(path.parent.glob("run.db.d/*-*"))
    play(run, 1)
    crash(run)
    with open_run(path, make) as run:
        assert run.round_index == 3


def _with_file_size_limit(path: Path, limit: int) -> None:
    """In a child: write until the limit is hit, then lift it and go on to the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    failures = 0
    with open_run(path, make, snapshot_every=1000) as run:
        cohort = None
        while run.round_index < 40 or cohort is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit if failures < 5 else soft, hard))
            try:
                if cohort is None:
                    cohort = run.draw()
                run.observe(cohort, norms_of(cohort))
                cohort = None
            except LedgerError:
                failures += 1
                with read_run(path) as record:  # intact all the while
                    list(record.rounds())
    os._exit(0 if failures == 5 else 1)


def test_a_file_system_that_takes_no_more(path: Path) -> None:
    """The kernel itself refuses to let the files grow: no injection, the real error of a real write."""
    limit = 64 * 1024
    child = os.fork()
    if child == 0:
        try:
            _with_file_size_limit(path, limit)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert verify_run(path).rounds == 40
    plain = make()
    play(plain, 40)
    with open_run(path, make) as run:
        assert state_bytes(run) == state_bytes(plain)


@pytest.mark.parametrize("free", [0, 10**9])
def test_no_room_to_begin(path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """SQLite says no more than "disk I/O error"; whether that is the room, the disk tells."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - free, free))
    recorded(path, 1)

    def refuse(*_: Any, **__: Any) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
        raise error

    monkeypatch.setattr(sqlite3, "connect", refuse)
    with pytest.raises(LedgerError, match="disk I/O error") as raised:
        open_run(path, make)
    assert ("no space is left" in str(raised.value)) == (free == 0)
    path.unlink()
    shutil.rmtree(path.with_name("run.db.d"))
    with pytest.raises(LedgerError, match="disk I/O error") as raised:
        open_run(path, make)
    assert ("no space is left" in str(raised.value)) == (free == 0)
