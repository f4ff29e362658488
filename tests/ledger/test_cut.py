"""A run whose file was cut or has lost pages: refused and left as it is; what is left of it can be saved."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from sortition import LedgerError, UniformSampler
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from tests.ledger.helpers import PAGE, crash, make, play, recorded, rows_before, rows_of, state_bytes

ROUNDS = 200
ROWS = 2 * ROUNDS + 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough rounds for a tree of pages; row 0 alone has several."""
    path = tmp_path_factory.mktemp("whole") / "run.db"
    recorded(path, ROUNDS, snapshot_every=50)
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole.parent, tmp_path / "copy")
    return tmp_path / "copy" / "run.db"


def sortition(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("missing", [1, PAGE - 1, PAGE, 3 * PAGE, 5 * PAGE + 7])
def test_a_cut_file_is_refused_and_left_as_it_is(run: Path, missing: int) -> None:
    data = run.read_bytes()[:-missing]
    run.write_bytes(data)
    names = sorted(file.name for file in run.parent.iterdir())
    for question in (lambda: open_run(run, make), lambda: read_run(run), lambda: verify_run(run)):
        with pytest.raises(LedgerError, match=r"its end is missing; put a copy.* or save .* --good$"):
            question()
    assert run.read_bytes() == data
    assert sorted(file.name for file in run.parent.iterdir()) == names


def test_a_file_with_more_than_it_needs_is_no_cut_one(run: Path) -> None:
    """SQLite may leave pages at the end that do not count."""
    run.write_bytes(run.read_bytes() + bytes(PAGE))
    with open_run(run, make) as again:
        assert again.round_index == ROUNDS


def test_a_count_of_an_older_state_says_nothing(run: Path) -> None:
    """Software that does not know of the count leaves it, and changes the counter beside it."""
    data = bytearray(run.read_bytes())
    data[28:32] = (10**6).to_bytes(4, "big")
    run.write_bytes(data)
    with pytest.raises(LedgerError, match="must have 1000000 whole pages of 4096 bytes"):
        read_run(run)
    data[92:96] = bytes(4)
    run.write_bytes(data)
    assert verify_run(run).rows == ROWS
    run.write_bytes(data[:-1])
    with pytest.raises(LedgerError, match="its end is missing"):
        read_run(run)


def test_a_short_file_beside_a_wal_with_the_rest(path: Path, tmp_path: Path) -> None:
    """A checkpoint that a crash interrupted may leave a file that is too short; the WAL has the rest."""
    run = open_run(path, make)
    play(run, 30)
    before = path.read_bytes()
    copy = tmp_path / "copy" / "run.db"
    copy.parent.mkdir()
    shutil.copy(path.with_name("run.db-wal"), copy.with_name("run.db-wal"))
    crash(run)
    copy.write_bytes(path.read_bytes()[: len(before) + 100])
    with open_run(copy, make) as run:
        assert run.round_index == 30
    assert verify_run(copy).replayed


def good_rows(run: Path) -> list[tuple[object, ...]]:
    """What ``good`` takes, which is said, as is what it leaves out; nothing where the first row is lost."""
    try:
        record = read_run(run, good=True)
    except LedgerError as error:
        if "must have a good first row" not in str(error):
            raise
        return []
    with record:
        found = [tuple(getattr(event, name) for name in event.__slots__) for event in record.events()]
        assert record.missing == ROWS - len(found)
        assert record.left_out is not None
    return found


def cuts(whole: Path) -> Iterator[int]:
    size = whole.stat().st_size
    yield from range(size - PAGE, 2 * PAGE, -11 * PAGE)
    yield from range(size - 1, 2 * PAGE, -7 * PAGE - 613)


def test_the_rows_before_the_cut_can_be_saved(whole: Path, tmp_path: Path) -> None:
    """Wherever it is cut, all rows that lie before the cut without a gap, and no other."""
    data, expected = whole.read_bytes(), rows_of(whole)
    last = ROWS + 1
    for size in sorted(cuts(whole), reverse=True):
        run = tmp_path / str(size) / "run.db"
        shutil.copytree(whole.parent, run.parent)
        run.write_bytes(data[:size])
        found = good_rows(run)
        assert found == expected[: len(found)]
        assert len(found) >= rows_before(expected, data, size)
        assert len(found) <= last
        last = len(found)
        assert run.read_bytes() == data[:size]
        shutil.rmtree(run.parent)
    assert last < ROWS // 4  # the cuts went that far


def test_the_command_saves_and_says_what_it_left_out(run: Path, tmp_path: Path) -> None:
    run.write_bytes(run.read_bytes()[: run.stat().st_size // 2])
    found = sortition("runs", "export", run, "--csv", tmp_path / "csv", "--good")
    assert found.exit_code == 0
    with read_run(run, good=True) as record:
        assert (
            f"{record.rows} rows before the damage, all good; {ROWS - record.rows} rows left out"
            in found.stderr
        )
        assert "not known" not in found.stderr
        lines = (tmp_path / "csv" / "rounds.csv").read_text().splitlines()
        assert len(lines) == 1 + len(list(record.rounds()))
        plain = make()
        play(plain, (record.rows - 1) // 2)
        if record.rows % 2 == 0:
            plain.draw()
        assert state_bytes(record.replay()) == state_bytes(plain)
    shutil.rmtree(run.with_name("run.db.d"))
    found = sortition("runs", "show", run, "--good")
    assert found.exit_code == 0
    assert "without its lock file it is not known whether there were more" in found.stderr


@pytest.mark.parametrize("start", [100, PAGE], ids=["first page, but for its header", "root"])
def test_pages_that_only_say_where_the_rows_are(run: Path, start: int) -> None:
    """Without them SQLite finds no row, and all of them are there."""
    data = bytearray(run.read_bytes())
    end = (start // PAGE + 1) * PAGE
    data[start:end] = bytes(end - start)
    run.write_bytes(data)
    for question in (lambda: open_run(run, make), lambda: read_run(run), lambda: verify_run(run)):
        with pytest.raises(LedgerError, match=r"SQLite says: .*; put a copy .* --good$"):
            question()
    assert run.read_bytes() == data
    with read_run(run, good=True) as record:
        assert (record.rows, record.missing) == (ROWS, 0)
        assert len(list(record.rounds())) == ROUNDS
    found = sortition("runs", "show", run, "--good")
    assert found.exit_code == 0
    assert f"nothing is left out, all {ROWS} rows that were committed are good; but {run}" in found.stderr
    assert "--good" not in found.stderr
    shutil.rmtree(run.with_name("run.db.d"))
    found = sortition("runs", "show", run, "--good")
    assert (
        f"all {ROWS} rows that can be found are good; without its lock file it is not known" in found.stderr
    )


def zeroed(data: bytes, kind: int, beside: bytes = b"") -> bytes:
    """The database without one page of that kind in its middle, which is not in the WAL."""
    kept = {int.from_bytes(beside[at : at + 4], "big") for at in range(32, len(beside), 24 + PAGE)}
    pages = [
        number
        for number in range(2, len(data) // PAGE)
        if data[number * PAGE] == kind and number + 1 not in kept
    ]
    number = pages[len(pages) // 2]
    return data[: number * PAGE] + bytes(PAGE) + data[(number + 1) * PAGE :]


def test_an_index_that_is_damaged(run: Path) -> None:
    """Rows are found without it; replay, which needs one, has another."""
    run.write_bytes(zeroed(run.read_bytes(), 0x0A))
    with read_run(run, good=True) as record:
        assert (record.rows, record.missing) == (ROWS, 0)
        assert "must be whole, but SQLite finds" in str(record.left_out)
        plain = make()
        play(plain, ROUNDS)
        assert state_bytes(record.replay()) == state_bytes(plain)


def test_rows_after_a_lost_page_are_counted(run: Path) -> None:
    """Also where nobody else knows how many there were."""
    run.write_bytes(zeroed(run.read_bytes(), 0x0D))
    shutil.rmtree(run.with_name("run.db.d"))
    with read_run(run, good=True) as record:
        assert 0 < record.missing == ROWS - record.rows
        assert f"{record.missing} rows left out; without its lock file" in str(record.left_out)


def test_bytes_at_the_end_that_are_no_page(run: Path) -> None:
    run.write_bytes(run.read_bytes() + bytes(100))
    with read_run(run, good=True) as record:
        assert (record.rows, record.missing) == (ROWS, 0)
        assert str(record.left_out).endswith("bytes: its end is missing")


def test_the_root_of_a_run_that_is_all_in_it(path: Path, tmp_path: Path) -> None:
    """A run that is so short that its rows are in page 2 itself has lost them with it."""
    with open_run(path, lambda: UniformSampler(num_clients=3, cohort_size=1)) as run:
        play(run, 1)
    data = bytearray(path.read_bytes())
    data[PAGE : 2 * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    found = sortition("runs", "export", path, "--csv", tmp_path / "csv", "--good")
    assert found.exit_code == 2
    assert "must have a good first row; put a copy of the run in its place" in found.output


def test_a_cut_run_that_was_not_closed(path: Path, tmp_path: Path) -> None:
    """What is in the WAL counts; the two are put together elsewhere."""
    with open_run(path, make) as run:
        play(run, 500)
    run = open_run(path, make)
    play(run, 30)
    copy = tmp_path / "copy"
    shutil.copytree(path.parent, copy)
    crash(run)
    data = (copy / "run.db").read_bytes()
    (copy / "run.db").write_bytes(data[: -5 * PAGE])
    wal = (copy / "run.db-wal").read_bytes()
    with read_run(copy / "run.db", good=True) as record:
        assert 20 < record.rows < 1001
        assert record.missing == 1061 - record.rows
    (copy / "run.db").write_bytes(zeroed(data, 0x0A, wal))
    with read_run(copy / "run.db", good=True) as record:
        assert (record.rows, record.missing) == (1061, 0)
        assert "but SQLite finds" in str(record.left_out)
    assert (copy / "run.db-wal").read_bytes() == wal


@pytest.mark.parametrize("seed", range(6))
def test_garbage_is_never_taken_for_rows(run: Path, whole: Path, seed: int) -> None:
    """Pages of noise, pages in other places, and leaves that point anywhere: rows as they were, or fewer."""
    chance, expected = np.random.default_rng(seed), rows_of(whole)
    data = bytearray(run.read_bytes())
    for _ in range(12):
        place = PAGE * int(chance.integers(1, len(data) // PAGE))
        data[place : place + PAGE] = chance.bytes(PAGE)
        if chance.random() < 0.7:
            data[place] = 0x0D
    other = PAGE * int(chance.integers(1, len(data) // PAGE))
    data[-PAGE:] = data[other : other + PAGE]
    run.write_bytes(data)
    found = good_rows(run)
    assert found == expected[: len(found)]
