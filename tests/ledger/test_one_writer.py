"""One process writes, any number read, and none of them sees half of a round."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sortition import LedgerError
from sortition.ledger import open_run, read_run, verify_run
from tests.ledger.helpers import make, norms_of, play, recorded

RACER = """
import sys
from sortition import LedgerError
from sortition.ledger import open_run
from tests.ledger.helpers import make, play
sys.stdin.readline()                      # the starting gun
try:
    run = open_run(sys.argv[1], make)
except LedgerError as error:
    print("refused:", error)
    raise SystemExit(0)
print("won", flush=True)
sys.stdin.readline()                      # keep it until told
play(run, 3)
run.close()
"""


def start(path: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", RACER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
def test_two_processes_race_for_one_run(path: Path, exists: bool) -> None:
    if exists:
        recorded(path, 2)
    racers = [start(path), start(path)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = []
    for racer in racers:
        assert racer.stdout is not None
        said.append(racer.stdout.readline().strip())
    assert sorted(line.split(":")[0] for line in said) == ["refused", "won"]
    assert "open for writing already" in "".join(said)
    for racer in racers:
        racer.communicate("finish\n" if "won" in said[racers.index(racer)] else None, timeout=600)
        assert racer.returncode == 0
    assert verify_run(path).rounds == (5 if exists else 3)


def test_a_second_writer_in_the_same_process(path: Path) -> None:
    """A notebook cell that is run twice: the first run is still there when the second is opened."""
    message = r"open for writing already, in this process.*close\(\)"
    with open_run(path, make), pytest.raises(LedgerError, match=message):
        open_run(path, make)
    open_run(path, make).close()


def test_a_run_that_was_dropped_is_nobodys(path: Path) -> None:
    """As after a crash: no snapshot, and nothing lost."""
    run = open_run(path, make)
    play(run, 2)
    del run
    gc.collect()
    assert not list(path.parent.glob("run.db.d/snapshot-*"))
    with open_run(path, make) as run:
        assert run.round_index == 2
        play(run, 1)
    assert verify_run(path).rounds == 3


def test_a_run_dropped_in_a_fork_stays_its_writers(path: Path) -> None:
    """Nor is a descriptor closed there that has come to be another file's."""
    run = open_run(path, make)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]  # takes the number of the lock's
            del run
            gc.collect()
            for descriptor in mine:
                os.fstat(descriptor)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    racer = start(path)
    said, _ = racer.communicate("go\n", timeout=600)
    assert "in another process" in said
    run.close()


def test_a_killed_writer_leaves_no_lock_behind(path: Path) -> None:
    racer = start(path)
    assert racer.stdin is not None
    assert racer.stdout is not None
    racer.stdin.write("go\n")
    racer.stdin.flush()
    assert racer.stdout.readline() == "won\n"
    racer.kill()
    racer.communicate()
    open_run(path, make).close()


def _in_a_fork(run: Any, answer: Any) -> None:
    try:
        run.draw()
    except LedgerError as error:
        answer.put(str(error))
    else:
        answer.put("drawn")


def test_a_fork_is_not_the_writer(path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    with open_run(path, make) as run:
        play(run, 1)
        answer = fork.SimpleQueue()
        child = fork.Process(target=_in_a_fork, args=(run, answer))
        child.start()
        assert "fork" in answer.get()
        child.join()
        play(run, 1)
    assert verify_run(path).rounds == 2


def test_a_second_writer_through_a_link(path: Path) -> None:
    """A run has one lock, whatever name it is opened by; also before it exists."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    directory = path.parent / "directory"
    directory.symlink_to(path.parent)
    for first, second in ((link, path), (path, link), (path, directory / "link.db")):
        with open_run(first, make) as run:
            play(run, 1)
            with pytest.raises(LedgerError, match="open for writing already"):
                open_run(second, make)
    assert verify_run(link).rounds == 3
    with read_run(link) as record:
        assert record.path == path.resolve()
    assert not link.with_name("link.db.d").exists()


def test_a_fork_does_not_keep_the_lock(path: Path) -> None:
    """The worker of a killed writer lives on; the run can be opened all the same."""
    reading, writing = os.pipe()
    writer = os.fork()
    if writer == 0:
        try:
            run = open_run(path, make)
            worker = os.fork()
            if worker == 0:
                os.write(writing, b"%d\n" % os.getpid())  # it has begun, and so closed the lock
                signal.pause()
                os._exit(0)
            play(run, 1)  # the writer has the lock still
            os.write(writing, b"played\n")
            signal.pause()
        finally:
            os._exit(1)
    said = b""
    while said.count(b"\n") < 2:
        said += os.read(reading, 40)
    worker = int(said.replace(b"played\n", b""))
    try:
        with pytest.raises(LedgerError, match="open for writing already"):
            open_run(path, make)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        with open_run(path, make) as run:
            assert run.round_index == 1
        os.kill(worker, 0)  # it was there all the time
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_readers_see_whole_rounds_while_it_is_written(path: Path) -> None:
    with open_run(path, make, snapshot_every=2) as run:
        for rounds in range(6):
            with read_run(path) as early:
                cohort = run.draw()
                with read_run(path) as late:
                    run.observe(cohort, norms_of(cohort))
                    seen = list(late.rounds())
                assert len(list(early.rounds())) == rounds  # as it was when it was opened
            assert [round_.norms is None for round_ in seen] == [False] * rounds + [True]
            assert np.array_equal(seen[-1].cohort.clients, cohort.clients)
            assert verify_run(path).rounds == rounds + 1


def test_reading_changes_nothing(path: Path) -> None:
    """Except SQLite's own two files, which hold nothing and which the next writer removes."""

    def files() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}

    recorded(path, 3)
    before = files()
    verify_run(path)
    with read_run(path) as record:
        list(record.rounds())
    after = files()
    assert after.pop("run.db-wal", b"") == b""
    after.pop("run.db-shm", None)
    assert after == before
    open_run(path, make).close()
    assert files().keys() == before.keys()


def test_reading_where_nothing_may_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only medium SQLite can't make the files that WAL needs; the run is read as it lies there."""
    recorded(path, 3)
    connect = sqlite3.connect

    def without_files(address: str, **options: Any) -> sqlite3.Connection:
        if "immutable" not in address:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(address, **options)

    monkeypatch.setattr(sqlite3, "connect", without_files)
    with read_run(path) as record:
        assert len(list(record.rounds())) == 3
    with pytest.raises(LedgerError, match="unable to open"):
        open_run(path, make)
