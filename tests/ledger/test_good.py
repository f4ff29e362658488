"""What can be read of a damaged run, and what is said about the rest: docs/reference/ledger.md, the table."""

from __future__ import annotations

import csv
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from sortition import LedgerError
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import same_cohort
from sortition.ledger.store import Event, Store
from tests.ledger.helpers import crash, make, norms_of, play, recorded, rows_of, state_bytes

PAGE = 4096
"""Bytes of a page of the database."""
ROUNDS = 200
ROWS = 2 * ROUNDS + 1
OPENERS = (lambda run: open_run(run, make), read_run, verify_run)
LEAF, INNER, INDEX = 0x0D, 0x05, 0x0A
"""The first byte of a page with rows, of one that points to such pages, and of one of the index."""


def sortition(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough rounds for a tree of pages; row 0 alone takes several."""
    path = tmp_path_factory.mktemp("whole") / "run.db"
    recorded(path, ROUNDS, snapshot_every=50)
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(whole.parent, tmp_path / "copy")
    return tmp_path / "copy" / "run.db"


def killed(path: Path, before: int, after: int) -> Path:
    """A copy of a run as a killed writer leaves it: ``before`` rounds in the file, ``after`` in the WAL."""
    recorded(path, before)
    run = open_run(path, make)
    play(run, after)
    copy = path.with_name("killed")
    shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns("killed", "*-shm"))
    crash(run)
    return copy / "run.db"


def good_rows(run: Path) -> list[tuple[Any, ...]]:
    """The rows that ``good`` gives, all others being counted; none if the first row is damaged."""
    try:
        record = read_run(run, good=True)
    except LedgerError as error:
        if "first row" not in str(error):
            raise
        return []
    with record:
        found = [tuple(event) for event in record.events()]
        assert record.missing == ROWS - len(found)
        assert (record.left_out is None) == (record.missing == 0)
    return found


def zeroed(data: bytes, kind: int) -> bytes:
    """The database without one page of that kind in its middle."""
    pages = [number for number in range(2, len(data) // PAGE) if data[number * PAGE] == kind]
    number = pages[len(pages) // 2]
    return data[: number * PAGE] + bytes(PAGE) + data[(number + 1) * PAGE :]


def change(path: Path, number: int) -> None:
    """Another last byte in that row, written past the ledger."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "UPDATE events SET payload = CAST(substr(payload, 1, length(payload) - 1) || x'07' AS BLOB) "
            f"WHERE number = {number}"
        )
    connection.close()


# A row has changed ------------------------------------------------------------------------------------


@pytest.fixture
def damaged(path: Path) -> Path:
    """Ten rounds; row 8, the feedback of round 3, has changed."""
    recorded(path, 10)
    change(path, 8)
    return path


def test_the_error_says_what_is_good_and_what_to_do(damaged: Path) -> None:
    for command in (["runs", "show"], ["runs", "verify"], ["report"]):
        found = sortition(*command, damaged)
        assert found.exit_code == 2
        for part in ("row 8 ", "rows 0 to 7", "runs export", "--good"):
            assert part in found.output
        assert len(found.output.splitlines()) == 1


def test_a_good_snapshot_after_the_damage_is_enough_to_go_on(damaged: Path) -> None:
    """Nothing is lost except that row; without the snapshot the run cannot be opened."""
    plain = make()
    play(plain, 10)
    run = open_run(damaged, make)
    assert state_bytes(run) == state_bytes(plain)
    crash(run)
    for snapshot in damaged.parent.glob("run.db.d/snapshot-*"):
        snapshot.unlink()
    with pytest.raises(LedgerError, match="row 8 "):
        open_run(damaged, make)


def test_the_good_rows_can_be_saved(damaged: Path, tmp_path: Path) -> None:
    with read_run(damaged, good=True) as record:
        rounds = list(record.rounds())
        assert (record.rows, record.missing) == (8, 13)
    expected = play(make(), 4)
    assert all(same_cohort(round_.cohort, cohort) for round_, cohort in zip(rounds, expected, strict=True))
    assert [round_.norms is None for round_ in rounds] == [False, False, False, True]
    found = sortition("runs", "export", damaged, "--csv", tmp_path / "csv", "--good")
    assert found.exit_code == 0
    assert "8 rows" in found.stderr
    assert "13 rows left out" in found.stderr
    with open(tmp_path / "csv" / "rounds.csv", newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["0", "1", "2", "3"]
    assert sortition("runs", "show", damaged, "--good").exit_code == 0


def test_a_new_run_can_go_on_from_the_good_rows(damaged: Path, tmp_path: Path) -> None:
    """As docs/reference/ledger.md says."""
    with read_run(damaged, good=True) as record:
        state = record.replay().state_dict()
    plain = make()
    play(plain, 3)
    plain.draw()
    with open_run(tmp_path / "new.db", make) as run:
        run.load_state_dict(state)
        assert state_bytes(run) == state_bytes(plain)
        assert run.draw().round_index == 4


def test_without_the_first_row_nothing_can_be_read(path: Path) -> None:
    recorded(path, 2)
    change(path, 0)
    for good in (False, True):
        with pytest.raises(LedgerError, match="first row"):
            read_run(path, good=good)


def test_a_last_row_with_another_number(path: Path) -> None:
    """SQLite finds nothing wrong with it."""
    recorded(path, 5)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE events SET number = 8000 WHERE number = 10")
    connection.close()
    with read_run(path, good=True) as record:
        assert (record.rows, record.missing) == (10, 1)
        assert "at least" not in str(record.left_out)
    shutil.rmtree(path.with_name("run.db.d"))
    with read_run(path, good=True) as record:
        assert (record.rows, record.missing) == (10, 1)
        assert "at least 1 row left out" in str(record.left_out)


# The file was cut -------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [1, PAGE - 1, PAGE, 3 * PAGE, 5 * PAGE + 7])
def test_a_cut_file_is_refused_and_left_as_it_is(run: Path, missing: int) -> None:
    data = run.read_bytes()[:-missing]
    run.write_bytes(data)
    for opener in OPENERS:
        with pytest.raises(LedgerError, match=r"run\.db.*--good$"):
            opener(run)
    assert run.read_bytes() == data


def test_a_file_with_more_than_it_needs_is_not_cut(run: Path) -> None:
    """SQLite may leave pages at the end that do not count."""
    run.write_bytes(run.read_bytes() + bytes(PAGE + 100))
    with open_run(run, make) as again:
        assert again.round_index == ROUNDS


def cuts(whole: Path) -> Iterator[int]:
    size = whole.stat().st_size
    yield from range(size - PAGE, 2 * PAGE, -5 * PAGE)
    yield from range(size - 1, 2 * PAGE, -3 * PAGE - 613)


def test_the_rows_before_the_cut_can_be_saved(whole: Path, tmp_path: Path) -> None:
    """Wherever it is cut: rows as they were, fewer the more is missing, and the file is not changed."""
    data, expected = whole.read_bytes(), rows_of(whole)
    last = ROWS
    for size in sorted(cuts(whole), reverse=True):
        run = tmp_path / str(size) / "run.db"
        shutil.copytree(whole.parent, run.parent)
        run.write_bytes(data[:size])
        found = good_rows(run)
        assert found == expected[: len(found)]
        assert rows_before(expected, data, size) <= len(found) <= last
        last = len(found)
        assert run.read_bytes() == data[:size]
        shutil.rmtree(run.parent)
    assert last < ROWS // 4  # the cuts went that far


def rows_before(rows: list[tuple[Any, ...]], data: bytes, size: int) -> int:
    """Rows, from the first on, that are whole before the cut: a row ends with its checksum."""
    ends = [(data.index(row[-1]) // PAGE + 1) * PAGE for row in rows]
    return next((number for number, end in enumerate(ends) if end > size), len(rows))


def test_the_command_saves_and_says_what_it_left_out(run: Path, tmp_path: Path) -> None:
    run.write_bytes(run.read_bytes()[: run.stat().st_size // 2])
    found = sortition("runs", "export", run, "--csv", tmp_path / "csv", "--good")
    assert found.exit_code == 0
    with read_run(run, good=True) as record:
        assert f"{ROWS - record.rows} rows left out" in found.stderr
        assert "at least" not in found.stderr
        lines = (tmp_path / "csv" / "rounds.csv").read_text().splitlines()
        assert len(lines) == 1 + len(list(record.rounds()))
        plain = make()
        play(plain, (record.rows - 1) // 2)
        if record.rows % 2 == 0:
            plain.draw()
        assert state_bytes(record.replay()) == state_bytes(plain)
    shutil.rmtree(run.with_name("run.db.d"))  # and the lock file, which knows how many
    found = sortition("runs", "show", run, "--good")
    assert found.exit_code == 0
    assert "at least" in found.stderr
    assert "lock file" in found.stderr


def test_every_moment_of_a_checkpoint_is_no_cut(path: Path, tmp_path: Path) -> None:
    """Pages go from the WAL into the file in order. A crash may end that anywhere; the WAL has the rest."""
    run = open_run(path, make)
    play(run, 60)
    before, wal = path.read_bytes(), path.with_name("run.db-wal").read_bytes()
    crash(run)
    after = path.read_bytes()
    copy = tmp_path / "copy" / "run.db"
    assert len(after) > len(before) + 3 * PAGE
    for size in range(PAGE, len(after) + 1, PAGE // 4):
        copy.parent.mkdir()
        copy.write_bytes(after[:size] + before[size:])
        copy.with_name("run.db-wal").write_bytes(wal)
        with read_run(copy) as record:
            assert len(list(record.rounds())) == 60
        shutil.rmtree(copy.parent)


@pytest.mark.parametrize("missing", [PAGE, 5 * PAGE, 20 * PAGE])
def test_a_cut_run_that_was_not_closed(path: Path, missing: int) -> None:
    """What the WAL has counts. What neither file has is damage: an error, never a wrong row."""
    run = killed(path, 300, 20)
    expected = rows_of(path)
    run.write_bytes(run.read_bytes()[:-missing])
    with read_run(run, good=True) as record:
        found = [tuple(event) for event in record.events()]
        assert record.missing == len(expected) - len(found)
    assert found == expected[: len(found)]
    if len(found) < len(expected):
        for question in (verify_run, lambda run: list(read_run(run).rounds())):
            with pytest.raises(LedgerError, match="--good"):
                question(run)


# Pages were lost --------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [100, PAGE], ids=["first page without its header", "root"])
def test_pages_that_sqlite_needs_to_find_the_rows(run: Path, start: int, tmp_path: Path) -> None:
    data = bytearray(run.read_bytes())
    end = (start // PAGE + 1) * PAGE
    data[start:end] = bytes(end - start)
    run.write_bytes(data)
    for opener in OPENERS:
        with pytest.raises(LedgerError, match=r"run\.db"):
            opener(run)
    found = sortition("runs", "export", run, "--csv", tmp_path / "csv", "--good")
    assert found.exit_code == 2
    assert "replace" in found.output
    assert run.read_bytes() == data


def test_the_header(run: Path) -> None:
    run.write_bytes(bytes(100) + run.read_bytes()[100:])
    for opener in (*OPENERS, lambda run: read_run(run, good=True)):
        with pytest.raises(LedgerError, match=r"run\.db must be a run of sortition"):
            opener(run)


@pytest.mark.parametrize("size", [1000, 8192])
def test_another_page_size_in_the_header(run: Path, size: int) -> None:
    data = bytearray(run.read_bytes())
    data[16:18] = size.to_bytes(2, "big")
    run.write_bytes(data)
    for opener in OPENERS:
        with pytest.raises(LedgerError, match=r"run\.db"):
            opener(run)


def test_a_damaged_index(run: Path) -> None:
    """The rows are read without it, also those that a snapshot has left open."""
    with open_run(run, make) as again:
        again.draw()
    run.write_bytes(zeroed(run.read_bytes(), INDEX))
    with pytest.raises(LedgerError, match=r"run\.db"):
        verify_run(run)
    with read_run(run, good=True) as record:
        assert (record.rows, record.missing, record.left_out) == (ROWS + 1, 0, None)
        plain = make()
        play(plain, ROUNDS)
        plain.draw()
        assert state_bytes(record.replay()) == state_bytes(plain)


def test_a_lost_page_of_rows(run: Path, whole: Path) -> None:
    run.write_bytes(zeroed(run.read_bytes(), LEAF))
    found = good_rows(run)
    assert 50 < len(found) < ROWS
    assert found == rows_of(whole)[: len(found)]
    with read_run(run) as record, pytest.raises(LedgerError, match="--good"):
        list(record.rounds())
    shutil.rmtree(run.with_name("run.db.d"))
    with read_run(run, good=True) as record:
        assert record.rows == len(found)
        assert "at least" in str(record.left_out)


def test_a_lost_page_in_the_middle_of_the_tree(path: Path) -> None:
    """A long run has three levels of pages; the rows below a lost one cannot be reached."""
    run = open_run(path, make)
    for _ in range(1100):
        run._store.append("x", 0, {"a": np.zeros(2500, dtype=np.uint8)})
    crash(run)
    path.with_name("run.db.d").rename(path.with_name("aside"))
    expected = rows_of(path)
    path.write_bytes(zeroed(path.read_bytes(), INNER))
    with read_run(path, good=True) as record:
        found = [tuple(event) for event in record.events()]
    assert 200 < len(found) < len(expected)
    assert found == expected[: len(found)]


@pytest.mark.parametrize("seed", range(6))
def test_garbage_is_never_taken_for_rows(run: Path, whole: Path, seed: int) -> None:
    """Pages of noise and pages in other places: rows as they were, or fewer."""
    chance, expected = np.random.default_rng(seed), rows_of(whole)
    data = bytearray(run.read_bytes())
    for _ in range(1 + seed):
        place = PAGE * int(chance.integers(6, len(data) // PAGE))
        data[place : place + PAGE] = chance.bytes(PAGE)
        if chance.random() < 0.7:
            data[place] = LEAF
    other = PAGE * int(chance.integers(1, len(data) // PAGE))
    data[-PAGE:] = data[other : other + PAGE]
    run.write_bytes(data)
    found = good_rows(run)
    assert found == expected[: len(found)]


# Other files of the run -------------------------------------------------------------------------------


def test_a_whole_run_has_nothing_to_leave_out(path: Path, tmp_path: Path) -> None:
    recorded(path, 2)
    found = sortition("runs", "export", path, "--csv", tmp_path / "csv", "--good")
    assert (found.exit_code, found.stderr) == (0, "")


def test_a_run_that_is_written_meanwhile_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that goes on while ``good`` looks through the rows adds none, and takes none away."""
    recorded(path, 5)
    with open_run(path, make) as run:
        chain = Store._chain

        def interrupted(self: Store, after: int, end: int | None) -> Iterator[Event]:
            for event in chain(self, after, end):
                yield event
                if end is None:
                    play(run, 1)

        monkeypatch.setattr(Store, "_chain", interrupted)
        with read_run(path, good=True) as record:
            assert (record.rows, record.missing, record.left_out) == (11, 0, None)
            assert len(list(record.rounds())) == 5


def test_the_file_of_another_run(path: Path, tmp_path: Path) -> None:
    """Its rows are good, and not those that the lock file knows."""
    recorded(path, 5)
    recorded(tmp_path / "other.db", 5)
    shutil.copy(tmp_path / "other.db", path)
    for opener in OPENERS:
        with pytest.raises(LedgerError, match="row 10 "):
            opener(path)
    with read_run(path, good=True) as record:
        assert (record.rows, record.missing) == (11, 0)
        assert "another run" in str(record.left_out)


def test_a_wal_that_was_deleted(path: Path, tmp_path: Path) -> None:
    copy = killed(path, 0, 3)
    copy.with_name("run.db-wal").unlink()
    for opener in OPENERS:
        with pytest.raises(LedgerError, match=r"rows are missing.* 7 .*run\.db-wal.*--good"):
            opener(copy)
    with read_run(copy, good=True) as record:
        assert (record.rows, record.missing) == (1, 6)
    copy.with_name("run.db.d").rename(tmp_path / "aside")
    with open_run(copy, make) as run:
        assert run.round_index == 0


def test_the_side_directory_is_missing(run: Path) -> None:
    shutil.rmtree(run.with_name("run.db.d"))
    plain = make()
    play(plain, ROUNDS)
    with open_run(run, make) as again:
        assert state_bytes(again) == state_bytes(plain)
        assert again.attachment(ROUNDS - 1, "model") is None


def test_a_damaged_attachment_names_the_good_ones(path: Path) -> None:
    with open_run(path, make) as run:
        for _ in range(3):
            cohort = run.draw()
            run.attach(cohort.round_index, "model", {"w": cohort.round_index})
            run.observe(cohort, norms_of(cohort))
        for number in (2, 1):
            file = path.with_name("run.db.d") / f"attachment_model-{number:09d}"
            file.write_bytes(file.read_bytes()[:-1] + b"x")
            with pytest.raises(LedgerError, match=f"{number:09d}") as raised:
                run.attachment(number, "model")
            assert ('attachment(1, "model")' in str(raised.value)) == (number == 2)
    with pytest.raises(LedgerError, match="attachment_model-000000001"):
        verify_run(path)


def test_a_place_that_sqlite_can_not_write_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed run on a read-only file system; here, a link that nobody minds is where the shm has to go."""
    monkeypatch.setattr("sortition.ledger.store.check_beside", lambda path: None)
    copy = killed(path, 0, 2)
    copy.with_name("run.db-shm").symlink_to("nowhere")
    for good in (False, True):
        with pytest.raises(LedgerError, match=r"copy run\.db, run\.db-wal and run\.db\.d"):
            read_run(copy, good=good)
