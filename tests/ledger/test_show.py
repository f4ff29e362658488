"""``sortition runs show``: who is drawn most and least, and why, wherever it is read."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import EmpiricalBayesSampler, NormPrivacy, UniformSampler
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.summary import client_row, figures, median_row, summarise
from sortition.ledger.suspects import Suspicion
from sortition.ledger.words import moment
from sortition.samplers.guard import Suspect
from tests.ledger.helpers import play


def make() -> UniformSampler:
    return UniformSampler(num_clients=30, cohort_size=4)


@pytest.fixture
def run(path: Path) -> Path:
    """Twenty rounds in which clients below 20 never reply, and one more that is open."""
    with open_run(path, make) as recorded:
        for _ in range(20):
            cohort = recorded.draw()
            recorded.observe(cohort, np.where(cohort.clients < 20, np.nan, 1.25e6 + cohort.round_index))
        recorded.draw()
    return path


def shown(run: Path, columns: int = 80) -> str:
    result = CliRunner().invoke(app, ["runs", "show", str(run)], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    return result.stdout


def test_why_each_is_drawn_as_it_is(run: Path) -> None:
    """The probability and the last norms of those at both ends, and the medians to compare them with."""
    lines = [line.split() for line in shown(run).splitlines()]
    with read_run(run) as record:
        summary = summarise(record)
    for known in (*summary.clients[:5], *summary.clients[-5:]):
        assert " ".join(client_row(known)).split() in lines
    assert lines.count(" ".join(median_row(summary)).split()) == 2


def test_the_medians_by_hand(run: Path) -> None:
    with read_run(run) as record:
        rounds = list(record.rounds())
        found = median_row(summarise(record))
    draws, newest = np.zeros(30), {}
    for round_ in rounds:
        draws[round_.cohort.clients] += round_.cohort.counts
        if round_.norms is not None:
            newest |= {c: n for c, n in zip(round_.cohort.clients, round_.norms, strict=True) if n == n}
    assert found[1] == f"{np.median(draws[draws > 0]):g}"
    assert found[3:] == ("0.0333", f"{np.median(list(newest.values())):.3g}")


def test_silence_is_told_from_an_open_round(path: Path) -> None:
    with open_run(path, make) as recorded:
        recorded.draw()
    assert "none yet" in shown(path)
    with open_run(path, make) as recorded:
        cohort = recorded.draw()
        recorded.observe(cohort, np.full(len(cohort), np.nan))
    assert "never replied" in shown(path)
    assert "none yet" not in shown(path)


def test_nobody_is_shown_at_both_ends(path: Path) -> None:
    with open_run(path, make) as recorded:
        cohort = recorded.draw()
    text = shown(path)
    assert "least drawn" not in text
    rows = [line.split()[0] for line in text.splitlines() if line.split()]
    assert sorted(row for row in rows if row.isdecimal()) == sorted(map(str, cohort.clients.tolist()))


def test_no_rounds_at_all(path: Path) -> None:
    with open_run(path, make):
        pass
    text = shown(path)
    assert "none drawn yet" in text
    assert "most drawn" not in text


def test_a_narrow_terminal_breaks_no_number(run: Path) -> None:
    text = shown(run, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text
    wide = {word for line in shown(run, 200).splitlines() for word in line.split() if word[0].isdecimal()}
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
    with open_run(path, make) as recorded:
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
    assert found["clients"] == "32 now; 36 ever, of whom 4 left"
    assert found["coverage"] == f"{drawn / 36:.1%}: {drawn} of {everybody} were drawn at least once"
    assert found["effective clients"] == f"{summary.effective_clients:.1f} of {everybody}"


def test_privacy_leaves_the_guard_blind(path: Path) -> None:
    def private() -> EmpiricalBayesSampler:
        return EmpiricalBayesSampler(num_clients=30, cohort_size=4, privacy=NormPrivacy(2.5, 1.0))

    with open_run(path, private) as recorded:
        for _ in range(20):
            cohort = recorded.draw()
            recorded.observe(cohort, np.where(cohort.clients == 7, 1e6, 1.0))
    text = shown(path, 200)
    assert "privacy clips norms at 2.5 before the guard sees them, so that liars are not found" in text
    assert "no report was above" not in text


def test_suspects_with_how_often() -> None:
    suspects = tuple(Suspect(client, hits, 9.0) for client, hits in ((7, 5), (3, 4), (1, 2), (0, 1)))
    assert Suspicion(suspects).in_words() == (
        "4, with 12 reports above the guard's clip: 7 (5), 3 (4), 1 (2), ..."
    )
    assert Suspicion(suspects[:1]).in_words().endswith("clip: 7 (5)")


def test_how_far_it_is(run: Path) -> None:
    told: list[tuple[int, int]] = []
    with read_run(run, on_row=lambda *row: told.append(row)) as record:
        assert list(record.rounds())
    assert told == [(number + 1, 42) for number in range(42)]
    told.clear()
    verify_run(run, on_row=lambda *row: told.append(row))
    assert told == [(number + 1, 42) for number in range(42)]


@pytest.mark.parametrize("command", [["runs", "show"], ["runs", "verify"]])
def test_a_bar_where_there_is_a_terminal(run: Path, command: list[str]) -> None:
    """On stderr, and only there; where it is none, nothing at all."""
    call = [sys.executable, "-m", "sortition", *command, str(run)]
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
    plain = subprocess.run(call, capture_output=True, check=True, timeout=120)
    assert plain.stderr == b""
    assert b"42/42" not in seen
    assert len(plain.stdout.splitlines()) == len(seen.splitlines())
