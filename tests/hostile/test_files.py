"""Runs from others: nothing in the file is executed, nothing hangs, no name reaches the terminal as it is."""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from benchmarks.hostile import judge_files
from sortition import AvareSampler, Guard, LedgerError, NormPrivacy, SortitionError
from sortition.cli.commands import app
from sortition.lab.diagnosis import recorded_run
from sortition.lab.diagnosis.diagnose import diagnose
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import pack, unpack
from sortition.ledger.store import checksum
from sortition.ledger.summary import export_csv, summarise

NORM, SEED = 0.123456789, 987654321


def make(privacy: NormPrivacy | None = None) -> AvareSampler:
    return AvareSampler(num_clients=9, cohort_size=3, seed=SEED, privacy=privacy)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return recorded(tmp_path / "run.db", make)


def recorded(path: Path, make_sampler: Callable[[], AvareSampler]) -> Path:
    with open_run(path, make_sampler) as sampler:
        for _ in range(4):
            cohort = sampler.draw()
            sampler.observe(cohort, np.full(len(cohort), NORM))
    return path


def sortition(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def forge(run: Path, number: int, **changes: Any) -> None:
    """Another content of a row, with right checksums."""
    connection, previous = sqlite3.connect(run), b""
    with connection:
        for row in connection.execute("SELECT * FROM events ORDER BY number").fetchall():
            payload = pack({**unpack(row[4]), **changes}) if row[0] == number else row[4]
            previous = checksum(previous, *row[:4], payload)
            connection.execute(
                "UPDATE events SET payload = ?, checksum = ? WHERE number = ?", (payload, previous, row[0])
            )
    connection.close()
    for file in (run.parent / "run.db.d").iterdir():
        file.unlink()


# What the database may contain ------------------------------------------------------------------------

SCHEMAS = {
    "a view that never ends": """
        ALTER TABLE events RENAME TO real;
        CREATE VIEW events AS WITH RECURSIVE f(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM f)
        SELECT n AS number, 'drawn' AS kind, n AS round_index, 0.5 AS time, x'' AS payload, x'' AS checksum
        FROM f;
    """,
    "a trigger that drops rows": """
        CREATE TRIGGER swallow BEFORE INSERT ON events BEGIN SELECT RAISE(IGNORE); END;
    """,
    "a trigger that changes rows": """
        CREATE TRIGGER twice AFTER INSERT ON events BEGIN UPDATE events SET time = 0.0; END;
    """,
    "one more table": "CREATE TABLE more (x);",
    "an index with an expression": "CREATE INDEX more ON events (abs(number));",
    "no index": "DROP INDEX events_by_round;",
    "another column": "ALTER TABLE events ADD COLUMN more TEXT;",
}


@pytest.mark.parametrize("what", SCHEMAS)
def test_a_database_with_another_schema(run: Path, what: str) -> None:
    """Some of these once hung every reader, or let commits vanish."""
    connection = sqlite3.connect(run)
    connection.executescript(SCHEMAS[what])
    connection.close()
    for question in (read_run, verify_run, lambda path: open_run(path, make)):
        with pytest.raises(LedgerError, match="tables of a run"):
            question(run)
    with pytest.raises(LedgerError, match="tables of a run"):
        read_run(run, good=True)
    assert sortition("runs", "show", run).exit_code == 2


def test_a_row_number_that_does_not_fit(run: Path) -> None:
    connection = sqlite3.connect(run)
    with connection:
        connection.execute("INSERT INTO events VALUES (?, 'drawn', 9, 0.5, x'00', x'00')", (2**62,))
    connection.close()
    for question in (read_run, verify_run, lambda path: open_run(path, make)):
        with pytest.raises(LedgerError, match="too small"):
            question(run)


@pytest.mark.parametrize("clients", [2**52, 10**7, -1, None, "x"])
def test_more_newcomers_than_the_row_names(run: Path, clients: Any) -> None:
    with open_run(run, make) as sampler:
        sampler.add_clients(2)
    forge(run, 9, clients=clients)
    with read_run(run) as record:  # the ids of the row count, not a number that may be anything
        assert record.replay().num_clients == 11


# Links --------------------------------------------------------------------------------------------------


def test_the_lock_follows_no_link(tmp_path: Path) -> None:
    """Somebody else's link once let 55 bytes of any file of ours be overwritten."""
    precious = tmp_path / "precious"
    precious.write_text("x" * 100)
    (tmp_path / "run.db.d").mkdir(mode=0o700)
    (tmp_path / "run.db.d" / "lock").symlink_to(precious)
    with pytest.raises(LedgerError, match="link"):
        open_run(tmp_path / "run.db", make)
    assert precious.read_text() == "x" * 100


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    (tmp_path / "run.db.d").mkdir()
    (tmp_path / "run.db.d").chmod(mode)
    with pytest.raises(LedgerError, match="belongs to you"):
        open_run(tmp_path / "run.db", make)
    assert list((tmp_path / "run.db.d").iterdir()) == []


def test_a_journal_deletes_no_file(run: Path) -> None:
    """SQLite deletes the file that a rollback journal names, once that was rolled back: any file of ours."""
    precious = run.parent / "precious"
    precious.write_bytes(b"a thesis")
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(precious).encode()
    header = magic + struct.pack(">5I", 0, 1, run.stat().st_size // 4096, 512, 4096)
    end = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    journal = run.with_name("run.db-journal")
    journal.write_bytes(header.ljust(512, b"\0") + end)
    for question in (read_run, verify_run, lambda path: open_run(path, make)):
        with pytest.raises(LedgerError, match=r"run\.db-journal must not be there"):
            question(run)
    assert precious.read_bytes() == b"a thesis"
    journal.unlink()
    open_run(run, make).close()


def test_a_directory_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "run.db.d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="belongs to you"):
        open_run(tmp_path / "run.db", make)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "run.db.d").mkdir(mode=0o700)
    os.chown(tmp_path / "run.db.d", 65534, -1)
    with pytest.raises(LedgerError, match="belongs to you"):
        open_run(tmp_path / "run.db", make)


# Names --------------------------------------------------------------------------------------------------

NAMES = [
    "[/x]",
    "[red]x[/red]",
    ":boom:",
    "\x1b[2J\x1b]0;gone\x07",
    "a\rb\nc",
    "\u202eright to left",
    "x" * 10**6,
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
@pytest.mark.parametrize(
    "entry", ["sampler", "state.config.guard", "state.config.design", "state.config.privacy"]
)
def test_names_in_the_terminal(run: Path, entry: str, name: str) -> None:
    forge(run, 0, **{entry: name})
    for command in (("runs", "show"), ("runs", "verify")):
        found = sortition(*command, run)
        assert found.exception is None or isinstance(found.exception, SystemExit)
        text = (found.stdout + found.stderr).replace("\n", "")
        assert text.isprintable()
        assert len(text) < 20_000
    if len(name) < 100 and entry == "sampler":
        assert name.isprintable() == (name in sortition("runs", "show", run).stdout)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "</td><b>", *NAMES], ids=lambda name: repr(name[:20])
)
def test_names_in_the_page(run: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("vl_convert")
    forge(run, 0, **{"sampler": name, "state.config.design": name})
    assert sortition("report", run, "--output", tmp_path / "page.html").exit_code == 0
    body = (tmp_path / "page.html").read_text().partition("<body>")[2].partition("<script type")[0]
    assert name not in body or name in NAMES[:3]
    assert body.isprintable()


# Privacy and permissions --------------------------------------------------------------------------------


def test_a_private_run_shows_neither_norms_nor_seed(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    private = recorded(tmp_path / "run.db", lambda: make(NormPrivacy(1.0, 1.0, fresh_noise=False)))
    open_one = recorded(tmp_path / "open.db", make)
    for run, hidden in ((private, True), (open_one, False)):
        shown = sortition("runs", "show", run).stdout
        assert sortition("report", run, "--output", tmp_path / "page.html").exit_code == 0
        assert sortition("runs", "export", run, "--csv", tmp_path / "csv").exit_code == 0
        page = (tmp_path / "page.html").read_text()
        table = (tmp_path / "csv" / "draws.csv").read_text()
        for text in (shown, page):
            assert (f"{NORM:.3g}" in text) != hidden
            assert (str(SEED) in text) != hidden
            assert ("not shown" in text) == hidden
        assert (repr(NORM) in table) != hidden
        assert ("Norms of the updates" in page) != hidden


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_pages_and_tables_have_the_permissions_of_the_run(run: Path, tmp_path: Path, mode: int) -> None:
    pytest.importorskip("vl_convert")
    run.chmod(mode)
    page = tmp_path / "page.html"
    page.touch(mode=0o666)
    assert sortition("report", run, "--output", page).exit_code == 0
    assert sortition("runs", "export", run, "--csv", tmp_path / "csv").exit_code == 0
    for file in (page, *(tmp_path / "csv").iterdir()):
        assert stat.S_IMODE(file.stat().st_mode) == mode


@pytest.mark.parametrize("value", [0, -1, 0.5, float("nan"), True, 2**63, 2**64, 10**400, 2**40, 2**53])
@pytest.mark.parametrize("entry", ["setting.client_weights", "state.config.num_clients"])
def test_what_a_file_says_of_its_clients(run: Path, entry: str, value: Any) -> None:
    """Who shows or diagnoses it gets an error of the library, or an answer; and nobody fills 8 TB."""
    forge(run, 0, **{entry: value})
    for question in (lambda: summarise(read_run(run)), lambda: diagnose(run)):
        with suppress(SortitionError):
            question()


def test_a_file_whose_newcomers_have_any_ids(run: Path) -> None:
    with open_run(run, make) as sampler:
        number = int(sampler.add_clients(1)[0])
        cohort = sampler.draw()
        sampler.observe(cohort, np.ones(len(cohort)))
    for ids in ([number + 2**40], [-1]):
        forge(run, 9, ids=np.array(ids))
        for question in (lambda: summarise(read_run(run)), lambda: diagnose(run)):
            with pytest.raises(LedgerError, match="join"):
                question()


@pytest.mark.parametrize(
    ("entry", "value"),
    [*(("probabilities", value) for value in (0.0, -1.0, np.nan, np.inf, 2.0)), ("weights", np.inf)],
)
def test_a_diagnosis_needs_the_chances_of_a_cohort(run: Path, entry: str, value: float) -> None:
    """A forged chance was divided by, or multiplied beyond what a double holds."""
    forge(run, 1, **{entry: np.array([value, 0.1, 0.1])})
    with pytest.raises(LedgerError, match="chances of a cohort"):
        diagnose(run)


@pytest.mark.parametrize("seed", range(3))
def test_one_value_of_a_row_or_a_snapshot_is_wrong(tmp_path: Path, seed: int) -> None:
    """With right checksums: who reads or continues it gets an error of the library, or nothing unusual."""
    counted = {"refused": 0, "fine": 0}
    for entry, change, verdict in judge_files(tmp_path, rounds=4, seed=seed, elements=2, every=97):
        assert verdict in counted, f"{entry} <- {change}: {verdict}"
        counted[verdict] += 1
    assert min(counted.values()) > 20


# Pipes, links and lengths -------------------------------------------------------------------------------

ASKS = """
import sys
from sortition import AvareSampler, LedgerError
from sortition.ledger import open_run, read_run, verify_run
questions = {
    "read": lambda path: read_run(path).last_attachments(),
    "good": lambda path: read_run(path, good=True),
    "verify": verify_run,
    "open": lambda path: open_run(path, lambda: AvareSampler(num_clients=9, cohort_size=3)).close(),
}
for name, question in questions.items():
    try:
        question(sys.argv[1])
        print(name, "answered")
    except LedgerError as error:
        print(name, "refused", error)
"""


def asked(run: Path) -> dict[str, str]:
    """What each reader says, in a process of its own: one that waits for a pipe can't be interrupted."""
    found = subprocess.run(
        [sys.executable, "-c", ASKS, str(run)], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    return {name: rest for name, _, rest in (line.partition(" ") for line in found.stdout.splitlines())}


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize("end", ["-journal", "-wal", "-shm"])
def test_a_pipe_or_a_link_beside_a_run(run: Path, end: str, kind: str) -> None:
    """A pipe once made every reader wait for ever; SQLite wrote where a link led."""
    precious, file = run.with_name("precious"), run.with_name(run.name + end)
    precious.write_text("x" * 100)
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(precious)
    for said in asked(run).values():
        assert said.startswith(f"refused {file} must")
    assert precious.read_text() == "x" * 100
    file.unlink()
    open_run(run, make).close()


@pytest.mark.parametrize("name", ["lock", "snapshot-000000008", "attachment_model-000000003"])
def test_a_pipe_in_the_side_directory(run: Path, name: str) -> None:
    with open_run(run, make) as sampler:
        sampler.attach(3, "model", {"weights": np.ones(3)})
    file = run.with_name("run.db.d") / name
    file.unlink()
    os.mkfifo(file)
    said = asked(run)
    assert said["read"] == said["good"] == "answered"
    assert said["verify"].startswith(f"refused {file} must be a plain file")
    assert said["open"].startswith("refused" if name == "lock" else "answered")


def test_a_new_run_beside_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.db-wal")
    with pytest.raises(LedgerError, match=r"run\.db-wal must be a plain file"):
        open_run(tmp_path / "run.db", make)
    assert [file.name for file in tmp_path.iterdir()] == ["run.db-wal"]


def test_a_run_that_is_a_device() -> None:
    with pytest.raises(LedgerError, match="got a pipe or a device"):
        read_run("/dev/zero")


@pytest.mark.parametrize("length", [0, 10, 60, 200, 2**40])
def test_a_snapshot_of_another_length(run: Path, tmp_path: Path, length: int) -> None:
    """One of a terabyte, all of it a hole, was a MemoryError."""
    pytest.importorskip("vl_convert")
    snapshot = run.with_name("run.db.d") / "snapshot-000000008"
    os.truncate(snapshot, length)
    assert sortition("runs", "show", run).exit_code == 0
    assert sortition("report", run, "--output", tmp_path / "page.html").exit_code == 0
    with pytest.raises(LedgerError, match="checksum is wrong"):
        verify_run(run)
    open_run(run, make).close()
    verify_run(run)


def test_a_long_header_of_a_snapshot(run: Path) -> None:
    """Its length is believed only up to a limit."""
    snapshot = run.with_name("run.db.d") / "snapshot-000000008"
    data = bytearray(snapshot.read_bytes())
    data[40:44] = struct.pack("<I", 2**32 - 1)
    snapshot.write_bytes(data)
    os.truncate(snapshot, 2**40)
    with pytest.raises(LedgerError, match="checksum is wrong"):
        verify_run(run)
    assert sortition("runs", "show", run).exit_code == 0


# What columns and recipes may say -----------------------------------------------------------------------


@pytest.mark.parametrize("time", [1e300, -1e300, float("inf"), 1e12])
@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_time_that_no_calendar_has(run: Path, tmp_path: Path, number: int, time: float) -> None:
    with open_run(run, make) as sampler:
        sampler.add_clients(1)
    forge_column(run, number, "time", time)
    for command in (("runs", "show", run), ("runs", "export", run, "--csv", tmp_path / "csv")):
        assert sortition(*command).exit_code == 0
    table = "members" if number == 9 else "rounds"
    assert "unknown" in (tmp_path / "csv" / f"{table}.csv").read_text()


def forge_column(run: Path, number: int, column: str, value: Any) -> None:
    """Another value of a column of a row, with right checksums."""
    connection, previous = sqlite3.connect(run), b""
    with connection:
        connection.execute(f"UPDATE events SET {column} = ? WHERE number = ?", (value, number))
        for row in connection.execute("SELECT * FROM events ORDER BY number").fetchall():
            previous = checksum(previous, *row[:5])
            connection.execute("UPDATE events SET checksum = ? WHERE number = ?", (previous, row[0]))
    connection.close()
    for file in run.with_name("run.db.d").iterdir():
        file.unlink()


@pytest.mark.parametrize("name", [np.zeros((2, 2)), np.zeros(0), None, 3])
def test_a_note_without_a_name(run: Path, tmp_path: Path, name: Any) -> None:
    """An array was compared with a word, and raised a ValueError."""
    with open_run(run, make) as sampler:
        sampler.log(loss=0.5)
    forge(run, 9, note=name)
    for question in (
        lambda record: summarise(record),
        lambda record: export_csv(record, tmp_path),
        lambda record: record.notes("other"),
    ):
        with read_run(run) as record, pytest.raises(LedgerError, match="note of row 9 must be a word"):
            question(record)


def test_a_recipe_for_a_huge_cohort(tmp_path: Path) -> None:
    """100 million draws for a file of some kilobytes once took 4 GB and half a minute."""

    def few() -> AvareSampler:
        return AvareSampler(num_clients=9, cohort_size=3, design="with_replacement", guard=Guard())

    run = recorded(tmp_path / "run.db", few)
    for size, said in ((2**20, "draws another cohort"), (2**20 + 1, "cohort_size must be at most 1048576")):
        forge(run, 0, **{"setting.cohort_size": size, "state.config.cohort_size": size})
        with pytest.raises(LedgerError, match=said):
            verify_run(run)
    assert "cohort_size must be at most" in " ".join(sortition("runs", "show", run).stdout.split())


# Pages of a run -----------------------------------------------------------------------------------------


def test_a_diagnosis_has_the_permissions_of_its_run(run: Path, tmp_path: Path) -> None:
    """It once was written for everybody, and into whatever was there."""
    pytest.importorskip("vl_convert")
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    page.touch(mode=0o666)
    other = tmp_path / "other.html"
    os.link(page, other)
    with open_run(run, make) as sampler:
        for _ in range(40):
            cohort = sampler.draw()
            sampler.observe(cohort, 1.0 + cohort.clients)
    found = sortition("diagnose", run, "--report", page, "--json", figures)
    assert found.exit_code == 0, found.output
    for file in (page, figures):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.stat().st_size > 1000
    assert other.read_text() == ""
    whole = run.read_bytes()
    assert "one of the files of the run" in sortition("diagnose", run, "--json", run).output
    assert run.read_bytes() == whole


def test_two_private_runs_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    for privacy, hidden in ((NormPrivacy(1.0, 1.0, fresh_noise=False), True), (None, False)):
        runs = []
        for seed in (SEED, SEED + 1):
            sampler = AvareSampler(num_clients=9, cohort_size=3, seed=seed, privacy=privacy)
            runs.append(recorded(tmp_path / f"{hidden}-{seed % 2}.db", lambda own=sampler: own))
        page = tmp_path / "page.html"
        found = sortition("runs", "compare", *runs, "--report", page)
        assert found.exit_code == 0, found.output
        for text in (found.output, page.read_text()):
            assert (str(SEED) in text or str(SEED + 1) in text) != hidden
            assert f"{NORM:.3g}" not in text


def test_a_diagnosis_keeps_few_lists_of_clients(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of all clients for each round after which one left: gigabytes for a small file."""
    monkeypatch.setattr(recorded_run, "MOST_VISITED", 20)
    with read_run(run) as record:
        kept = [len(drawn.here) for drawn in recorded_run.drawn_rounds(record, 3)]
        assert kept == [9, 9, 0, 0]
        assert any("too many clients" in note for note in diagnose(record).noise.notes)
