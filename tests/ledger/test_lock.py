"""The lock of a run when things go wrong: dropped runs, bad moments to fork, other files in its place."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import shutil
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sortition import LedgerError
from sortition.ledger import RecordedSampler, open_run, read_run, verify_run
from sortition.ledger.lock import witness
from tests.ledger.helpers import make, norms_of, play, recorded


def lock_of(path: Path) -> Path:
    return path.with_name("run.db.d") / "lock"


def is_held(path: Path) -> bool:
    """Whether the lock of the run is held."""
    descriptor = os.open(lock_of(path), os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


# Dropped runs ---------------------------------------------------------------------------------------------


def after_it_was_dropped(path: Path, last_act: Callable[[RecordedSampler], object]) -> list[object]:
    """What comes of it when a run is used by a ``__del__``, which Python calls after the lock is free."""
    outcome: list[object] = []

    class Server:
        def __init__(self) -> None:
            self.run = open_run(path, make)
            self.itself = self

        def __del__(self) -> None:
            outcome.append(is_held(path))
            try:
                outcome.append(last_act(self.run))
            except BaseException as error:
                outcome.append(error)

    play(Server().run, 2)
    gc.collect()
    return outcome


@pytest.mark.parametrize(
    "last_act",
    [
        lambda run: run.draw(),
        lambda run: run.remove_clients([0]),
        lambda run: run.attach(0, "model", {"weight": 1.0}),
    ],
    ids=["draw", "remove_clients", "attach"],
)
def test_a_dropped_run_does_not_write(path: Path, last_act: Callable[[RecordedSampler], object]) -> None:
    held, error = after_it_was_dropped(path, last_act)
    assert not held
    assert isinstance(error, LedgerError)
    assert "dropped" in str(error)
    assert verify_run(path).rows == 5
    assert verify_run(path).attachments == 0


def test_a_dropped_run_is_closed_without_a_snapshot(path: Path) -> None:
    assert after_it_was_dropped(path, lambda run: run.close()) == [False, None]
    assert not list(path.parent.glob("run.db.d/snapshot-*"))
    assert verify_run(path).rows == 5


# Forks ----------------------------------------------------------------------------------------------------


@contextmanager
def a_fork(fork: Callable[[], int] = os.fork, act: Callable[[], object] = lambda: None) -> Iterator[None]:
    """A child that does something and then lives until the block ends."""
    said, say = os.pipe()
    child = fork()
    if child == 0:
        try:
            act()
        finally:
            os.write(say, b".")
            signal.pause()
            os._exit(0)
    try:
        assert os.read(said, 1) == b"."
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(said)
        os.close(say)


def let_go_as_a_killed_process(run: RecordedSampler) -> None:
    """The kernel closes the descriptor of the dead; it unlocks nothing that a child has open too."""
    run._lock._hold.close()


@pytest.mark.parametrize("moment", ["flock", "_sync_all"])
def test_a_fork_while_a_run_is_opened(path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not keep the lock when its parent is killed, be it forked just before the lock was taken."""
    where: Any = fcntl if moment == "flock" else sys.modules["sortition.ledger.recorded"]
    original = getattr(where, moment)
    forks = []

    def forking(*arguments: Any) -> Any:
        monkeypatch.undo()
        forks.append(a_fork())
        forks[0].__enter__()
        return original(*arguments)

    monkeypatch.setattr(where, moment, forking)
    run = open_run(path, make)
    try:
        let_go_as_a_killed_process(run)
        assert not is_held(path)
    finally:
        forks[0].__exit__(None, None, None)


def test_a_fork_in_another_thread_waits_until_the_lock_is_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the file and knowing its descriptor, the child could not close it."""
    original = os.open
    order: list[str] = []
    forker: list[threading.Thread] = []

    def forked() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        order.append("forked")
        os.waitpid(child, 0)

    def opening(*arguments: Any) -> int:
        descriptor = original(*arguments)
        if not forker and Path(arguments[0]) == lock_of(path):
            forker.append(threading.Thread(target=forked))
            forker[0].start()
            forker[0].join(0.2)  # where it could fork, it would have by then
            order.append("opened")
        return descriptor

    monkeypatch.setattr(os, "open", opening)
    with open_run(path, make):
        forker[0].join()
    assert order == ["opened", "forked"]


def test_a_fork_that_python_was_not_told_of(path: Path) -> None:
    """By a library in C: it has the lock's descriptor, and must not unlock what is its parent's."""
    run = open_run(path, make)

    def close() -> None:
        with pytest.raises(LedgerError, match="fork"):
            run.close()

    with a_fork(ctypes.PyDLL(None).fork, close):
        assert is_held(path)
    play(run, 1)
    run.close()
    assert verify_run(path).rounds == 1


# Files that the ledger did not write ------------------------------------------------------------------


def write_witness(path: Path, number: bytes) -> None:
    text = b"row %s %s" % (number, b"a" * 32)
    lock_of(path).write_bytes(b"%s check %08x\n" % (text, zlib.crc32(text)))


def test_a_witness_that_is_a_number(path: Path) -> None:
    recorded(path, 2)
    write_witness(path, b"9" * 18)
    assert witness(lock_of(path)) == (10**18 - 1, b"\xaa" * 16)
    with pytest.raises(LedgerError, match="rows are missing"):
        read_run(path)


@pytest.mark.parametrize("digits", [19, 30, 5000])
def test_a_witness_that_no_row_can_have_had(path: Path, digits: int) -> None:
    recorded(path, 2)
    write_witness(path, b"9" * digits)
    assert witness(lock_of(path)) is None
    for good in (False, True):
        with read_run(path, good=good) as record:
            assert record.rows == 5
            assert record.missing == 0
    with open_run(path, make) as run:
        play(run, 1)
    assert witness(lock_of(path)) is not None


@contextmanager
def at_once() -> Iterator[None]:
    """Ends a wait that would go on for ever."""

    def waited(*_: Any) -> None:
        raise AssertionError("it waits")  # no OSError, which the library might take for a file's

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(600)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_a_lock_that_is_no_file(path: Path, put: Callable[[Path], None]) -> None:
    recorded(path, 2)
    lock_of(path).unlink()
    put(lock_of(path))
    with at_once():
        assert witness(lock_of(path)) is None
        with read_run(path) as record:
            assert record.rows == 5
        with pytest.raises(LedgerError, match="lock"):
            open_run(path, make)


def test_a_snapshot_or_an_attachment_that_is_a_pipe(path: Path) -> None:
    with open_run(path, make) as run:
        play(run, 2)
        run.attach(1, "model", {"weight": 1.0})
    side = path.with_name("run.db.d")
    (attachment,) = side.glob("attachment_model-*")
    for file in (*side.glob("snapshot-*"), attachment):
        file.unlink()
        os.mkfifo(file)
    with at_once():
        with read_run(path) as record:
            assert record.replay().round_index == 2
        with pytest.raises(LedgerError, match="plain file"):
            verify_run(path)
        with open_run(path, make) as run, pytest.raises(LedgerError, match=r"model-000000001 .*plain file"):
            run.attachment(1, "model")


def test_a_wal_that_is_a_pipe(path: Path) -> None:
    recorded(path, 2)
    os.mkfifo(path.with_name("run.db-wal"))
    with at_once(), pytest.raises(LedgerError, match=r"run\.db"):
        open_run(path, make)


# Files that were moved while a run was open -----------------------------------------------------------


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
        with pytest.raises(LedgerError, match="moved, removed or replaced"):
            call()
    with pytest.raises(LedgerError, match="closed"):
        run.draw()


def test_there_are_never_two_writers(path: Path) -> None:
    """With the lock gone another writer may take a new one: then the first one is refused."""
    first = open_run(path, make)
    play(first, 2)
    shutil.rmtree(path.with_name("run.db.d"))
    with open_run(path, make) as second:
        with pytest.raises(LedgerError, match="moved, removed or replaced"):
            first.draw()
        play(second, 1)
        with pytest.raises(LedgerError, match="moved, removed or replaced"):
            first.close()
        play(second, 1)
    assert verify_run(path).rounds == 4


def test_what_was_put_back_is_written_on(path: Path) -> None:
    with open_run(path, make) as run:
        play(run, 2)
        path.rename(path.with_name("elsewhere"))
        with pytest.raises(LedgerError, match="moved, removed or replaced"):
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
        with pytest.raises(LedgerError, match="pipe"):
            opening(path)
