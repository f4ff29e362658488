"""``sortition arena`` as a user meets it."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from sortition.cli.commands import app
from sortition.lab.arena import ENVIRONMENTS

QUICK = ["arena", "--environments", "clients-20", "--seeds", "1", "--jobs", "1"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_a_run_with_files(tmp_path):
    out = tmp_path / "new" / "place"
    result = invoke(*QUICK, "--samplers", "avare,optimal", "--out", str(out))
    assert result.exit_code == 0
    assert "clients-20" in result.stdout
    assert "geometric mean" in result.stdout
    stored = json.loads((out / "arena.json").read_text())["replay"]
    assert stored["samplers"] == ["uniform", "avare", "optimal"]
    assert stored["seeds"] == [1]


def test_a_heat_map_where_it_can_be_drawn(tmp_path):
    pytest.importorskip("vl_convert")
    assert invoke(*QUICK, "--samplers", "uniform", "--out", str(tmp_path)).exit_code == 0
    assert (tmp_path / "arena-replay.svg").read_text().startswith("<svg")
    assert (tmp_path / "arena-replay.png").read_bytes().startswith(b"\x89PNG")


def test_a_heat_map_that_cannot_be_drawn_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    result = invoke(*QUICK, "--samplers", "uniform", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert "sortition[reports]" in result.stderr
    assert (tmp_path / "arena.json").exists()


@pytest.mark.parametrize("environment", ["clients-20", "digits-100"])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_factory_that_raises_is_one_line(tmp_path, monkeypatch, jobs, environment):
    (tmp_path / "raising_factory.py").write_text("def f(trial):\n    return trial.rounds\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["--samplers", "raising_factory:f", "--environments", environment, "--jobs", jobs]
    mode = "replay" if environment == "clients-20" else "closed"
    result = invoke(*QUICK, *arguments, "--mode", mode)
    assert result.exit_code == 2
    assert result.stderr.startswith("sortition: samplers: 'raising_factory:f' raised AttributeError: ")
    assert result.stderr.endswith(f" in environment {environment}\n")
    assert result.stderr.count("\n") == 1


def test_a_factory_of_something_else_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "empty_factory.py").write_text("def f(trial):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = invoke(*QUICK, "--samplers", "empty_factory:f")
    assert result.exit_code == 2
    assert result.stderr == "sortition: samplers: 'empty_factory:f' must make a Sampler, got NoneType\n"


def test_help_names_the_extra():
    assert "'reports'" in invoke("arena", "--help").stdout


def test_all_environments_can_be_listed():
    result = invoke("arena", "--list")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(ENVIRONMENTS)
    assert "2 of 100 clients have fifty times" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--samplers", "uniform,best"], ["'best'", "sortition arena --help"]),
        (["--samplers", "unifrom"], ["'unifrom'", "such as uniform"]),
        (["--samplers", ""], ["''", "12 names"]),
        (["--samplers", "nowhere:best"], ["'nowhere:best'", "nowhere"]),
        (["--environments", "moon"], ["'moon'", "sortition arena --list"]),
        (["--environments", "few-heav"], ["'few-heav'", "such as few-heavy", "sortition arena --list"]),
        (["--seeds", "0"], ["--seeds", "at least 1", "'0'"]),
        (["--mode", "open"], ["--mode", "'open'", "replay", "closed"]),
        (["--split", "test"], ["--split", "'test'", "tune", "report"]),
        (["--measure", "speed"], ["--measure", "'speed'", "ratio"]),
        (["--mode", "closed"], ["environments", "none"]),
        (["--out", "/proc/x"], ["--out", "'/proc/x'"]),
        (["--out", "/proc"], ["--out", "'/proc'"]),
    ],
)
def test_errors_are_one_line_and_status_2(arguments, said):
    result = invoke(*QUICK, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("sortition: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 200
    for word in said:
        assert word in result.stderr
