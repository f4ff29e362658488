"""``sortition runs show``: who is drawn most and least, and why, wherever it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import UniformSampler
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run
from sortition.ledger.summary import client_row, median_row, summarise


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
