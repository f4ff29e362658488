"""``sortition runs`` and ``sortition report``, as a user types them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.export import whole_file
from sortition.ledger.summary import summarise
from tests.ledger.helpers import CLIENTS, Strange, guarded, make, norms_of, own, play


def sortition(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def run(path: Path) -> Path:
    """Eight rounds, one of them open; a client joined and one left."""
    with open_run(path, make) as recorded:
        play(recorded, 7)
        recorded.add_clients(1)
        recorded.remove_clients([0])
        recorded.draw()
    return path


def test_summary_by_hand(path: Path) -> None:
    with open_run(path, make) as recorded:
        cohorts = [recorded.draw() for _ in range(5)]
        for cohort in cohorts[:4]:
            recorded.observe(cohort, norms_of(cohort))
    with read_run(path) as record:
        summary = summarise(record)
    draws = np.zeros(CLIENTS, dtype=int)
    for cohort in cohorts:
        draws[cohort.clients] += cohort.counts
    failures = sum(int(np.isnan(norms_of(cohort)).sum()) for cohort in cohorts[:4])
    assert (summary.rounds, summary.open_rounds, summary.draws) == (5, 1, draws.sum())
    assert summary.failures == failures
    assert summary.replies == sum(len(cohort) for cohort in cohorts[:4]) - failures
    assert summary.coverage == np.count_nonzero(draws) / CLIENTS
    assert summary.effective_clients == pytest.approx(draws.sum() ** 2 / (draws**2).sum())
    assert [known.draws for known in summary.clients] == sorted(draws[draws > 0], reverse=True)
    top = summary.clients[0]
    last = max(cohort.round_index for cohort in cohorts if top.client in cohort.clients)
    place = cohorts[last].clients.tolist().index(top.client)
    assert top.probability == cohorts[last].probabilities[place]
    assert summary.seen_by_round[-1] == np.count_nonzero(draws)


def test_show(run: Path) -> None:
    found = sortition("runs", "show", run)
    assert found.exit_code == 0
    for text in (
        "AdaptiveOSMDSampler",
        "8, 1 of them await feedback",
        "coverage",
        "requests to a client",
        "most drawn",
        "last norms",
    ):
        assert text in found.output


def lie(recorded: Any, rounds: int) -> None:
    """Client 7 lies by a million."""
    for _ in range(rounds):
        cohort = recorded.draw()
        recorded.observe(cohort, norms_of(cohort) * np.where(cohort.clients == 7, 1e6, 1.0))


def test_show_names_the_suspects(path: Path) -> None:
    """After a snapshot, after more rows without one, and while the run is being written."""
    with open_run(path, guarded, snapshot_every=20) as recorded:
        lie(recorded, 35)
        expected = recorded.sampler.suspects()
        assert [suspect.client for suspect in expected] == [7]
        with read_run(path) as record:
            lie(recorded, 10)  # a snapshot that this reader must not believe
            assert list(summarise(record).suspicion.suspects) == expected
        found = sortition("runs", "show", path)
        assert f"1, with {recorded.sampler.suspects()[0].hits} reports above" in found.output
        assert "suspects: norms above the guard's clip" in found.output


def test_why_no_suspects_are_known(path: Path, run: Path) -> None:
    with read_run(run) as record:
        assert "the sampler has no guard" in summarise(record).suspicion.in_words()
    other = path.with_name("other.db")
    with open_run(other, lambda: Strange(guarded())) as recorded:
        play(recorded, 2)
    with read_run(other) as record:
        assert "not one of the library's" in summarise(record).suspicion.in_words()
    wrapped = path.with_name("wrapped.db")
    with open_run(wrapped, own) as recorded:
        play(recorded, 2)
    with read_run(wrapped) as record:
        assert "only the program that made the sampler" in summarise(record).suspicion.in_words()


def test_verify(run: Path) -> None:
    found = sortition("runs", "verify", run)
    assert found.exit_code == 0
    assert "8 rounds, 1 snapshot, 0 attachments:" in found.output
    assert "drawn again" in found.output
    data = bytearray(run.read_bytes())
    place = data.rindex(b"probabilities") + 100
    data[place] ^= 0x10
    run.write_bytes(data)
    broken = sortition("runs", "verify", run)
    assert broken.exit_code == 2
    assert "has changed" in broken.output
    assert len(broken.output.splitlines()) == 1


def test_export(run: Path, tmp_path: Path) -> None:
    found = sortition("runs", "export", run, "--csv", tmp_path / "csv")
    assert found.exit_code == 0
    tables = {}
    for name in ("rounds", "draws", "members"):
        with open(tmp_path / "csv" / f"{name}.csv", newline="") as file:
            tables[name] = list(csv.DictReader(file))
    with read_run(run) as record:
        rounds = list(record.rounds())
    assert len(tables["rounds"]) == 8
    assert tables["rounds"][-1]["observed_at"] == ""
    rows = iter(tables["draws"])
    for round_ in rounds:  # every number comes back to the bit
        for place, client in enumerate(round_.cohort.clients):
            row = next(rows)
            assert (int(row["round"]), int(row["client"])) == (round_.cohort.round_index, client)
            assert float(row["weight"]) == round_.cohort.weights[place]
            assert float(row["probability"]) == round_.cohort.probabilities[place]
            if round_.norms is None:
                assert (row["replied"], row["norm"]) == ("", "")
            elif np.isnan(round_.norms[place]):
                assert (row["replied"], row["norm"]) == ("0", "")
            else:
                assert float(row["norm"]) == round_.norms[place]
    assert [(row["client"], row["change"]) for row in tables["members"]] == [
        (str(CLIENTS), "joined"),
        ("0", "left"),
    ]


def test_report(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    found = sortition("report", run, "--output", tmp_path / "page.html")
    assert found.exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert "AdaptiveOSMDSampler, 8 rounds" in page
    assert "<script src=" not in page  # it opens offline
    assert f">1: {CLIENTS}<" in page  # who joined
    assert f"Report: {tmp_path / 'page.html'}" in found.output


@pytest.mark.parametrize("command", [("runs", "show"), ("runs", "verify"), ("report",)])
def test_a_file_that_is_no_run(command: tuple[str, ...], tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    foreign.write_text("not a run\n" * 50)
    for path, message in ((foreign, "must be a run of sortition"), (tmp_path / "none", "No such file")):
        found = sortition(*command, path)
        assert found.exit_code == 2
        assert message in found.output
        assert len(found.output.splitlines()) == 1


def test_runs_alone_prints_its_help() -> None:
    found = sortition("runs")
    assert found.exit_code == 0
    assert "verify" in found.output


def test_a_directory_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, message in ((".", "path must name a file"), (str(tmp_path), "Is a directory")):
        found = sortition("runs", "show", name)
        assert found.exit_code == 2
        assert message in found.output
        assert len(found.output.splitlines()) == 1


def test_a_page_that_can_not_be_written(run: Path) -> None:
    pytest.importorskip("vl_convert")
    run.with_name(run.name + ".html").mkdir()
    found = sortition("report", run)
    assert found.exit_code == 2
    assert "must be a file that can be written to (--output names another)" in found.output
    assert len(found.output.splitlines()) == 1


@pytest.mark.parametrize("name", ["run.db", "run.db-wal", "run.db-shm", "run.db.d/lock", "link"])
def test_the_page_is_not_written_over_the_run(run: Path, name: str) -> None:
    pytest.importorskip("vl_convert")
    run.with_name("link").symlink_to(run)
    before = {file: file.read_bytes() for file in run.parent.rglob("*") if file.is_file()}
    found = sortition("report", run, "--output", run.parent / name)
    assert found.exit_code == 2
    assert "must be none of the files of the run, but is: choose another place" in found.output
    assert before == {file: file.read_bytes() for file in before}
    assert verify_run(run).rounds == 8


def test_the_tables_are_not_written_over_the_run(path: Path) -> None:
    path = path.with_name("rounds.csv")  # a strange name for a run, but why not
    with open_run(path, make) as recorded:
        play(recorded, 2)
    for directory in (path.parent, path.with_name("rounds.csv.d"), path.with_name("rounds.csv.d") / "csv"):
        found = sortition("runs", "export", path, "--csv", directory)
        assert found.exit_code == 2
        assert "must be none of the files of the run" in found.output
    assert verify_run(path).rounds == 2


def test_a_page_is_written_aside(run: Path, tmp_path: Path) -> None:
    """The old page stays until the new one is whole; a link to it stays a link."""
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    page.write_text("old")
    link.symlink_to(page)
    with pytest.raises(TypeError), whole_file(link, run) as file:
        file.writelines(["half", 3])  # type: ignore[list-item]
    assert page.read_text() == "old"
    with whole_file(link, run) as file:
        file.write("new")
    assert page.read_text() == "new"
    assert link.is_symlink()
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_table_needs_a_directory(run: Path, tmp_path: Path) -> None:
    found = sortition("runs", "export", run)
    assert found.exit_code == 2
    assert "Missing option '--csv'. It wants DIR: The directory for rounds.csv" in found.output
    (tmp_path / "server.py").write_text("pass")
    found = sortition("runs", "export", run, "--csv", tmp_path / "server.py")
    assert found.exit_code == 2
    assert "server.py must be a directory, or be made one, got a file" in found.output
    assert (tmp_path / "server.py").read_text() == "pass"
