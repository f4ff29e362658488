"""A run that was not closed, and cut: the WAL says which pages there must be, and has some of them."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from sortition import LedgerError
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.schema import cut_short
from sortition.ledger.wal import Committed, committed
from tests.ledger.helpers import PAGE, crash, make, play, recorded

FRAME = 24 + PAGE


@pytest.fixture
def killed(path: Path, tmp_path: Path) -> Path:
    """A long run with its last rows in the WAL, as a writer that was killed leaves it."""
    recorded(path, 300)
    run = open_run(path, make)
    play(run, 20)
    copy = tmp_path / "copy"
    shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns("copy", "*-shm"))
    crash(run)
    return copy / "run.db"


def wal_of(run: Path) -> Path:
    return run.with_name("run.db-wal")


@pytest.mark.parametrize("missing", [PAGE - 1, 5 * PAGE, 20 * PAGE])
def test_pages_that_are_nowhere(killed: Path, missing: int) -> None:
    held = committed(wal_of(killed))
    assert held is not None
    data = killed.read_bytes()[:-missing]
    gone = set(range(len(data) // PAGE + 1, held.pages + 1)) - held.held
    killed.write_bytes(data)
    wal = wal_of(killed).read_bytes()
    assert bool(gone) == (missing > PAGE)
    if not gone:  # the last page is in the WAL too
        with open_run(killed, make) as run:
            assert run.round_index == 320
        return
    for question in (lambda: open_run(killed, make), lambda: read_run(killed), lambda: verify_run(killed)):
        with pytest.raises(
            LedgerError, match=rf"page {min(gone)} in neither: its end is missing; put a copy"
        ):
            question()
    assert (killed.read_bytes(), wal_of(killed).read_bytes()) == (data, wal)
    with read_run(killed, good=True) as record:
        assert 0 < record.rows < 641
        assert record.missing == 641 - record.rows


def test_what_counts_of_a_wal_is_what_sqlite_takes(killed: Path) -> None:
    """Frame by frame; a half one, and one that no longer is as it was, end it, whatever follows."""
    data = wal_of(killed).read_bytes()
    frames = (len(data) - 32) // FRAME
    ends = [n for n in range(frames) if any(data[32 + n * FRAME + 4 : 32 + n * FRAME + 8])]
    for number in (0, frames // 2, frames - 1):
        place = 32 + number * FRAME
        for offset in (3, 7, 15, 23, 24, FRAME - 1):
            changed = bytearray(data)
            changed[place + offset] ^= 1
            wal_of(killed).write_bytes(changed)
            assert committed(wal_of(killed)) == expected(data, [n for n in ends if n < number])
        wal_of(killed).write_bytes(data[: place + FRAME - 1])
        assert committed(wal_of(killed)) == expected(data, [n for n in ends if n < number])
    wal_of(killed).write_bytes(data)
    found = committed(wal_of(killed))
    assert found == expected(data, ends)
    connection = sqlite3.connect(killed)
    assert connection.execute("PRAGMA page_count").fetchone()[0] == found.pages
    connection.close()


def expected(data: bytes, ends: list[int]) -> Committed:
    frames = [data[32 + n * FRAME : 40 + n * FRAME] for n in range(ends[-1] + 1 if ends else 0)]
    pages = frozenset(int.from_bytes(frame[:4], "big") for frame in frames)
    return Committed(PAGE, int.from_bytes(frames[-1][4:], "big") if frames else 0, pages)


@pytest.mark.parametrize("wal", [b"x", b"x" * 5000])
def test_a_wal_of_which_nothing_counts(killed: Path, wal: bytes) -> None:
    """SQLite takes the file alone, and so it must be whole by itself."""
    wal_of(killed).write_bytes(wal)
    assert cut_short(killed) is None
    killed.write_bytes(killed.read_bytes()[:-PAGE])
    assert "its end is missing" in str(cut_short(killed))


def test_every_moment_of_a_checkpoint_is_no_cut(path: Path, tmp_path: Path) -> None:
    """Pages go from the WAL into the file in their order, and it may end anywhere."""
    run = open_run(path, make)
    play(run, 60)
    before, wal = path.read_bytes(), wal_of(path).read_bytes()
    crash(run)
    after = path.read_bytes()
    copy = tmp_path / "copy" / "run.db"
    copy.parent.mkdir()
    assert len(after) > len(before) + 3 * PAGE
    for size in range(PAGE, len(after) + 1, PAGE // 4):
        copy.write_bytes(after[:size] + before[size:])
        wal_of(copy).write_bytes(wal)
        assert cut_short(copy) is None
