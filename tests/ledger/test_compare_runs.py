"""``sortition runs compare``: the table by hand, the page, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from sortition import EmpiricalBayesSampler, NormPrivacy, UniformSampler
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run
from sortition.ledger.side_by_side import RunComparison, Target
from sortition.ledger.summary import summarise
from tests.ledger.helpers import CLIENTS, COHORT_SIZE, play, recorded

SIZES: dict[str, Any] = {"num_clients": CLIENTS, "cohort_size": COHORT_SIZE}


def compare(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["runs", "compare", *map(str, arguments)])


def record(path: Path, make: Any, losses: list[float], **others: float) -> Path:
    """A run that logs these losses, one a round."""
    with open_run(path, make) as run:
        for loss in losses:
            play(run, 1)
            run.log(loss=loss)
        if others:
            run.log(**others)
    return path


def cells(output: str) -> dict[str, dict[str, str]]:
    """The table by run and column."""
    head, ruler, *rows = output.splitlines()
    edges = [found.span() for found in re.finditer("-+", ruler)]
    columns = [head[a:b].strip() for a, b in edges]
    table = [
        [row[a : b if place < len(edges) - 1 else None].strip() for place, (a, b) in enumerate(edges)]
        for row in rows[: rows.index("")]
    ]
    return {row[0]: dict(zip(columns, row, strict=True)) for row in table}


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """A learner that reaches 0.4 after 11 rounds, and a uniform sampler that never does."""
    falling = np.linspace(1.0, 0.45, 10).tolist()
    return (
        record(
            tmp_path / "learner.db",
            lambda: EmpiricalBayesSampler(**SIZES),
            [*falling, 0.4, 0.5],
            accuracy=0.75,
        ),
        record(tmp_path / "plain.db", lambda: UniformSampler(**SIZES, seed=7), falling),
    )


def test_the_table_by_hand(runs: tuple[Path, Path]) -> None:
    found = compare(*runs, "--target", "loss=0.4")
    assert found.exit_code == 0
    table = cells(found.output)
    learner, plain = table["learner"], table["plain"]
    with read_run(runs[0]) as one, read_run(runs[1]) as other:
        first, second = summarise(one), summarise(other)
    assert learner["sampler"] == "EmpiricalBayesSampler"
    assert (learner["rounds"], plain["rounds"]) == ("12", "10")
    assert learner["trainings"] == str(first.replies + first.failures)
    assert learner["replied"] == f"{first.replies / (first.replies + first.failures):.1%}"
    assert plain["clients"] == str(len(second.clients))
    assert (learner["loss"], plain["loss"]) == ("0.5", "0.45")
    assert (learner["accuracy"], plain["accuracy"]) == ("0.75", "-")
    assert (learner["rounds to loss 0.4"], plain["rounds to loss 0.4"]) == ("11", "> 10")
    assert (learner["variance"], plain["variance"]) == (first.gain.short(), "x1 [1, 1]")
    assert "  plain: design with_replacement, guard none, seed 7\n" in found.output
    assert re.search(r"\n  learner: design fixed_size, guard Guard\(.*\), seed 0\n", found.output)
    assert "at or below it" in found.output


def test_nothing_differs_and_nothing_is_logged(tmp_path: Path) -> None:
    """Two runs of one directory name each, called by their paths."""
    paths = [tmp_path / name / "run.db" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        recorded(path, 3)
    found = compare(*paths).output
    assert "differ:" not in found
    table = cells(found)
    assert list(table) == [str(path) for path in paths]
    assert list(table[str(paths[0])]) == [
        "run",
        "sampler",
        "rounds",
        "trainings",
        "replied",
        "clients",
        "variance",
    ]


def test_a_number_that_should_rise(tmp_path: Path) -> None:
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for path, values in zip(paths, ([0.1, float("nan"), 0.6, 0.5], [0.2, 0.3, 0.4, 0.55]), strict=True):
        record(path, lambda: UniformSampler(**SIZES), values)
    found = compare(*paths, "--target", "loss=0.5")
    assert [row["rounds to loss 0.5"] for row in cells(found.output).values()] == ["3", "4"]
    assert "at or above it" in found.output


def test_the_model_before_the_first_round_may_do(tmp_path: Path) -> None:
    with open_run(tmp_path / "a.db", lambda: UniformSampler(**SIZES)) as run:
        run.log(loss=0.3)
        play(run, 1)
    with (
        read_run(tmp_path / "a.db") as first,
        read_run(record(tmp_path / "b.db", lambda: UniformSampler(**SIZES), [0.9])) as other,
    ):
        found = RunComparison({"a": summarise(first), "b": summarise(other)}, Target("loss", 0.4))
    assert found.falls
    assert (found.rounds_to_target("a"), found.rounds_to_target("b")) == (0, None)


def test_a_private_run_shows_no_norms(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    privacy = NormPrivacy(norm_bound=2.0, noise_multiplier=1.0)
    private = record(
        tmp_path / "private.db", lambda: EmpiricalBayesSampler(**SIZES, privacy=privacy), [1.0] * 12
    )
    found = compare(*runs, private).output
    assert cells(found)["private"]["variance"] == "-"
    different = re.search(r"\n  private: (.*)\n", found)[1]
    assert "seed" not in different
    assert "privacy NormPrivacy" in different


def test_the_page_has_a_colour_for_each_run(runs: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    for run in runs:
        run.chmod(0o640)
    page = tmp_path / "page.html"
    found = compare(*runs, "--target", "loss=0.4", "--report", page)
    assert found.exit_code == 0, found.output
    assert f"Report: {page}" in found.output
    assert page.stat().st_mode & 0o777 == 0o640
    text = page.read_text()
    specs = json.loads(re.search(r"^const specs = (.*);$", text, re.MULTILINE)[1])
    assert len(specs) == 1  # accuracy was logged once: no curve
    layers = specs[0]["layer"]
    assert layers[-1]["data"]["values"] == [{"y": 0.4}]
    (lines,) = (layer for layer in layers if layer["mark"]["type"] == "line")
    scale = lines["encoding"]["color"]["scale"]
    assert scale["domain"] == ["learner", "plain"]
    assert len(set(scale["range"])) == 2
    losses = [point["y"] for point in specs[0]["data"]["values"] if point["sampler"] == "learner"]
    assert losses[-2:] == [0.4, 0.5]
    assert "<script src=" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{0}"], "at least two"),
        (["{0}", "{0}"], "twice"),
        (["{0}", "{1}", "--target", "loss"], "expected NAME=VALUE, such as loss=0.4, got 'loss'"),
        (["{0}", "{1}", "--target", "loss=low"], "expected NAME=VALUE"),
        (["{0}", "{1}", "--target", "loss=nan"], "expected NAME=VALUE"),
        (["{0}", "{1}", "--target", "los=0.4"], "got 'los'; logged: loss, accuracy"),
        (["{0}", "none.db"], "No such file"),
        (["{0}", "{1}", "--report", "{1}"], "expected a file that ends in .html"),
        (["{0}", "{1}", "--report", "{1}.d/page.html"], "one of the files of the run"),
        (["{0}", "{1}", "--report", "/nowhere/page.html"], "directory that can be written to"),
    ],
)
def test_what_is_refused(runs: tuple[Path, Path], arguments: list[str], said: str) -> None:
    """One line and status 2, and the runs are as they were."""
    before = [run.read_bytes() for run in runs]
    found = compare(*(text.format(*runs) for text in arguments))
    assert found.exit_code == 2
    assert said in found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert [run.read_bytes() for run in runs] == before


def test_a_damaged_run_is_an_error_or_cut_short(runs: tuple[Path, Path]) -> None:
    data = bytearray(runs[1].read_bytes())
    place = data.rindex(b"probabilities") + 100
    data[place] ^= 0x10
    runs[1].write_bytes(data)
    assert compare(*runs).exit_code == 2
    found = CliRunner().invoke(app, ["runs", "compare", *map(str, runs), "--good"])
    assert found.exit_code == 0
    assert "left out" in found.stderr
