"""``sortition runs`` and ``sortition report``, as a user types them, and the figures that they show."""

from __future__ import annotations

import csv
import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from sortition import EmpiricalBayesSampler, NormPrivacy, UniformSampler
from sortition.cli.commands import app
from sortition.core.guard_settings import Suspect
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.summary import (
    Suspicion,
    client_row,
    figures,
    median_row,
    moment,
    silent_rows,
    summarise,
    whole_file,
)
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
    assert re.search(
        rf"<td[^>]*>7</td><td[^>]*>1: {CLIENTS}</td>", page
    )  # who joined, before round 7 was drawn
    assert f"Report: {tmp_path / 'page.html'}" in found.output


@pytest.mark.parametrize("command", [("runs", "show"), ("runs", "verify"), ("report",)])
def test_a_file_that_is_no_run(command: tuple[str, ...], tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    foreign.write_text("not a run\n" * 50)
    for path, message in ((foreign, "foreign.db must be a run"), (tmp_path / "none", "No such file")):
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
    assert "--output" in found.output
    assert len(found.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "ends in .html") for name in ("run.db", "run.db-wal", "run.db-shm", "run.db.d/lock")),
        ("link.html", "files of the run"),
        ("run.db.d/page.html", "files of the run"),
    ],
)
def test_the_page_is_not_written_over_the_run(run: Path, name: str, said: str) -> None:
    pytest.importorskip("vl_convert")
    run.with_name("link.html").symlink_to(run)
    before = {file: file.read_bytes() for file in run.parent.rglob("*") if file.is_file()}
    found = sortition("report", run, "--output", run.parent / name)
    assert found.exit_code == 2
    assert said in found.output
    assert before == {file: file.read_bytes() for file in before}
    assert verify_run(run).rounds == 8


def test_the_tables_are_not_written_over_the_run(path: Path) -> None:
    path = path.with_name("rounds.csv")  # a strange name for a run, but why not
    with open_run(path, make) as recorded:
        play(recorded, 2)
    for directory in (path.parent, path.with_name("rounds.csv.d"), path.with_name("rounds.csv.d") / "csv"):
        found = sortition("runs", "export", path, "--csv", directory)
        assert found.exit_code == 2
        assert "files of the run" in found.output
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
    assert "--csv" in found.output
    (tmp_path / "server.py").write_text("pass")
    found = sortition("runs", "export", run, "--csv", tmp_path / "server.py")
    assert found.exit_code == 2
    assert "server.py must be a directory" in found.output
    assert (tmp_path / "server.py").read_text() == "pass"


# Show -------------------------------------------------------------------------------------------------


def uniform() -> UniformSampler:
    return UniformSampler(num_clients=30, cohort_size=4)


@pytest.fixture
def silent(path: Path) -> Path:
    """Twenty rounds in which clients below 20 never reply, and one more that is open."""
    with open_run(path, uniform) as recorded:
        for _ in range(20):
            cohort = recorded.draw()
            recorded.observe(cohort, np.where(cohort.clients < 20, np.nan, 1.25e6 + cohort.round_index))
        recorded.draw()
    return path


def shown(run: Path, columns: int = 80) -> str:
    result = CliRunner().invoke(app, ["runs", "show", str(run)], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    return result.stdout


def test_why_each_is_drawn_as_it_is(silent: Path) -> None:
    """The probability and the last norms of those at both ends, and the medians to compare them with."""
    lines = [line.split() for line in shown(silent).splitlines()]
    with read_run(silent) as record:
        summary = summarise(record)
    for known in (*summary.clients[:5], *summary.clients[-5:]):
        assert " ".join(client_row(known)).split() in lines
    assert lines.count(" ".join(median_row(summary)).split()) == 2


def test_the_medians_by_hand(silent: Path) -> None:
    with read_run(silent) as record:
        rounds = list(record.rounds())
        found = median_row(summarise(record))
    draws, newest = np.zeros(30), {}
    for round_ in rounds:
        draws[round_.cohort.clients] += round_.cohort.counts
        if round_.norms is not None:
            newest |= {c: n for c, n in zip(round_.cohort.clients, round_.norms, strict=True) if n == n}
    assert found[1] == f"{np.median(draws[draws > 0]):g}"
    assert found[3:] == ("0.0333", f"{np.median(list(newest.values())):.3g}")


def test_who_was_silent_by_hand(path: Path) -> None:
    """Client 0 never replies, 1 not after round 4, 2 not in round 6; and 3 has a name."""

    def everybody() -> UniformSampler:
        return UniformSampler(num_clients=6, cohort_size=6, design="fixed_size")

    with open_run(path, everybody) as recorded:
        recorded.name_clients([1], ["clinic-b"])
        for t in range(9):
            norms = np.ones(6)
            norms[[0, *([1] if t > 4 else []), *([2] if t == 6 else [])]] = np.nan
            recorded.observe(recorded.draw(), norms)
        recorded.draw()  # open: nobody was silent in it
    with read_run(path) as record:
        clients = summarise(record).clients
    assert silent_rows(clients.most_silent(20)) == [
        ("0", "10", "0", "9", "never"),
        ("clinic-b", "10", "5", "4", "4"),
        ("2", "10", "8", "1", "8"),
    ]
    assert [known.client for known in clients.most_silent(1)] == [0]
    title, _, table = shown(path).partition("most often silent")
    assert title
    assert [line.split() for line in table.splitlines()[4:7]] == [
        ["0", "10", "0", "9", "never"],
        ["clinic-b", "10", "5", "4", "4"],
        ["2", "10", "8", "1", "8"],
    ]


def test_nobody_was_silent(path: Path) -> None:
    with open_run(path, uniform) as recorded:
        cohort = recorded.draw()
        recorded.observe(cohort, np.ones(len(cohort)))
    assert "silent" not in shown(path)


def test_the_last_reply_has_the_number_of_its_round(path: Path) -> None:
    """Of a run that goes on from another, rounds go on too; a late reply counts for its own round."""
    before = uniform()
    for _ in range(7):
        cohort = before.draw()
        before.observe(cohort, np.ones(len(cohort)))
    with open_run(path, uniform) as recorded:
        recorded.load_state_dict(before.state_dict())
        first, second = recorded.draw(), recorded.draw()
        recorded.observe(second, np.full(len(second), np.nan))
        recorded.observe(first, np.ones(len(first)))
    with read_run(path) as record:
        summary = summarise(record)
    assert summary.round_indices.tolist() == [7, 8]
    assert {summary.clients.of(client).last_reply for client in first.clients.tolist()} == {7}


def test_silence_is_told_from_an_open_round(path: Path) -> None:
    with open_run(path, uniform) as recorded:
        recorded.draw()
    assert "none yet" in shown(path)
    with open_run(path, uniform) as recorded:
        cohort = recorded.draw()
        recorded.observe(cohort, np.full(len(cohort), np.nan))
    assert "never replied" in shown(path)
    assert "none yet" not in shown(path)


def test_nobody_is_shown_at_both_ends(path: Path) -> None:
    with open_run(path, uniform) as recorded:
        cohort = recorded.draw()
    text = shown(path)
    assert "least drawn" not in text
    rows = [line.split()[0] for line in text.splitlines() if line.split()]
    assert sorted(row for row in rows if row.isdecimal()) == sorted(map(str, cohort.clients.tolist()))


def test_no_rounds_at_all(path: Path) -> None:
    with open_run(path, uniform):
        pass
    text = shown(path)
    assert "none drawn yet" in text
    assert "most drawn" not in text


def test_a_narrow_terminal_breaks_no_number(silent: Path) -> None:
    text = shown(silent, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text
    wide = {word for line in shown(silent, 200).splitlines() for word in line.split() if word[0].isdecimal()}
    assert wide <= set(text.split())


def test_settings_and_times(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun at 1000 s; a cohort every minute; the last two, drawn at 1240 s and 1300 s, are open."""
    clock = iter(range(1000, 9000, 60))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(clock)))
        with open_run(path, lambda: UniformSampler(num_clients=30, cohort_size=4, seed=5)) as recorded:
            for _ in range(2):
                recorded.observe(recorded.draw(), np.ones(4))
            recorded.draw()
            recorded.draw()
    with read_run(path) as record:
        summary = summarise(record)
    found = dict(figures(summary, now=1300.0 + 7200.0))
    assert (found["cohort size"], found["seed"]) == ("4", "5")
    assert "design" in found["settings"]
    assert found["begun"] == moment(1000.0) == "1970-01-01 00:16:40 UTC"
    assert found["last row"] == "1970-01-01 00:22:40 UTC, 6 min after the first"
    assert found["rounds"] == (
        "4, 2 of them await feedback, the oldest drawn 1970-01-01 00:21:40 UTC, 2 h ago"
    )
    assert "ago" not in dict(figures(summary))["rounds"]  # a page is read later
    assert found["effective clients"] == f"{summary.effective_clients:.1f} of 30 clients"
    for name in ("cohort size", "seed", "begun", "last row"):
        assert found[name] in shown(path, 200)


def test_those_there_now_are_told_from_all_that_ever_were(path: Path) -> None:
    """Thirty, six that join, four that leave."""
    with open_run(path, uniform) as recorded:
        play(recorded, 3)
        recorded.add_clients(6)
        with read_run(path) as record:
            summary = summarise(record)
        found, drawn = dict(figures(summary)), len(summary.clients)
        assert found["clients"] == "36"
        assert found["coverage"] == f"{drawn / 36:.1%}: {drawn} of 36 clients were drawn at least once"
        recorded.remove_clients([0, 1, 2, 33])
    with read_run(path) as record:
        summary = summarise(record)
    found = dict(figures(summary))
    everybody = "the 36 clients ever there"
    assert found["clients"] == "32 now; 36 ever, of which 4 left"
    assert found["coverage"] == f"{drawn / 36:.1%}: {drawn} of {everybody} were drawn at least once"
    assert found["effective clients"] == f"{summary.effective_clients:.1f} of {everybody}"


def test_privacy_leaves_the_guard_blind(path: Path) -> None:
    def private() -> EmpiricalBayesSampler:
        return EmpiricalBayesSampler(num_clients=30, cohort_size=4, privacy=NormPrivacy(2.5, 1.0))

    with open_run(path, private) as recorded:
        for _ in range(20):
            cohort = recorded.draw()
            recorded.observe(cohort, np.where(cohort.clients == 7, 1e6, 1.0))
        spent = recorded.privacy_spent()
    text = shown(path, 200)
    assert f"epsilon {spent.epsilon:.3g} at delta 1e-05, for the norms of the client" in text
    assert f"with most replies ({spent.most_replies})" in text
    assert "privacy clips norms at 2.5" in text
    assert "no report was above" not in text


def test_suspects_with_how_often() -> None:
    suspects = tuple(Suspect(client, hits, 9.0) for client, hits in ((7, 5), (3, 4), (1, 2), (0, 1)))
    assert Suspicion(suspects).in_words() == (
        "4, with 12 reports above the guard's clip: 7 (5), 3 (4), 1 (2), ..."
    )
    assert Suspicion(suspects[:1]).in_words().endswith("clip: 7 (5)")


def test_how_far_it_is(silent: Path) -> None:
    told: list[tuple[int, int]] = []
    with read_run(silent, on_row=lambda *row: told.append(row)) as record:
        assert list(record.rounds())
    assert told == [(number + 1, 42) for number in range(42)]
    told.clear()
    verify_run(silent, on_row=lambda *row: told.append(row))
    assert told == [(number + 1, 42) for number in range(42)]


@pytest.mark.parametrize("command", [["runs", "show"], ["runs", "verify"]])
def test_a_bar_where_there_is_a_terminal(silent: Path, command: list[str]) -> None:
    """On stderr, and only there; where it is none, nothing at all."""
    call = [sys.executable, "-m", "sortition", *command, str(silent)]
    ours, theirs = pty.openpty()
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        text = b""
        with suppress(OSError):  # what a terminal ends with
            while part := os.read(ours, 10_000):
                text += part
        seen = process.communicate()[0]
    os.close(ours)
    assert process.returncode == 0
    assert b"42/42" in text
    plain = subprocess.run(call, capture_output=True, check=True, timeout=600)
    assert plain.stderr == b""
    assert b"42/42" not in seen
    assert len(plain.stdout.splitlines()) == len(seen.splitlines())
