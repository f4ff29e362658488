"""The command line as a user meets it: results, and errors of one line."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import sortition
from sortition import UniformSampler, default_sampler
from sortition.cli import commands, experiments
from sortition.lab.contestants import CONTESTANTS
from sortition.ledger import open_run

TINY = [
    *("--clients", "20", "--cohort", "3", "--rounds", "10", "--step-size", "0.01"),
    *("--repeats", "1", "--jobs", "1"),
]


TOY = """
import numpy as np, sortition

class Toy:
    num_clients, client_weights = 6, np.full(6, 1 / 6)
    def __init__(self, seed): self.data = np.random.default_rng(seed).normal(size=(6, 3))
    def initial_model(self): return np.zeros(3)
    def updates(self, model, clients, round_index): return model - self.data[clients]
    def loss(self, model): return float(np.mean((self.data - model) ** 2))

class LateUpdates(Toy):
    def updates(self, model, clients, round_index):
        if round_index == 3:
            raise RuntimeError("late")
        return super().updates(model, clients, round_index)

class LateLoss(Toy):
    def loss(self, model):
        if np.any(model):
            raise RuntimeError("late")
        return 1.0

def bad(seed): raise RuntimeError("boom")
def incomplete(seed): import nosuch.package
def none(trial=None, seed=0): pass

def mute(trial):
    class Mute(sortition.UniformSampler):
        def draw(self, available=None): raise RuntimeError("late")
    return Mute(**trial.common())
"""
"""Problems and factories with a fault."""

DIAGNOSE = ["diagnose", "--cohort", "2", "--step-size", "0.01", "--rounds", "10"]
BENCH = ["bench", "--clients", "1e3", "--rounds", "2", "--sampler"]
OWN = ["compare", "--cohort", "2", "--rounds", "10", "--jobs", "1", "--problem"]


def invoke(*arguments: str):
    return CliRunner().invoke(commands.app, list(arguments))


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sortition", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )


class TestResults:
    def test_version(self):
        result = invoke("--version")
        assert result.exit_code == 0
        assert result.stdout == f"sortition {sortition.__version__}\n"

    def test_no_command_shows_help(self):
        result = invoke()
        assert result.exit_code == 0
        assert "compare" in result.stdout

    def test_table_has_the_rows_asked_for(self):
        result = invoke("compare", *TINY, "--samplers", "avare,vrb")
        assert result.exit_code == 0
        first = [line.split(" ")[0] for line in result.stdout.splitlines()]
        assert first[first.index("uniform") :][:3] == ["uniform", "avare", "vrb"]

    def test_blanks_in_a_list_do_not_matter(self):
        arguments = ["compare", *TINY, "--samplers"]
        assert invoke(*arguments, "avare, vrb ").stdout == invoke(*arguments, "avare,vrb").stdout

    def test_warmup_says_where_kernels_are_kept(self):
        result = invoke("warmup")
        assert result.exit_code == 0
        assert "__pycache__" in result.stdout or "NUMBA_CACHE_DIR" in os.environ

    def test_a_directory_is_no_run(self):
        result = invoke("report", ".")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "sortition: path must name a file, got the directory '.'\n"

    def test_as_a_module(self):
        assert shell("--version").stdout == f"sortition {sortition.__version__}\n"

    def test_the_list_of_commands_says_what_each_one_says(self):
        """``ABOUT`` repeats the first line of each command's help, so that none is imported for the list."""
        group = typer.main.get_group(commands.app)
        listed = invoke("--help").stdout
        for name in commands.MODULES:
            said = group.get_command(None, name).help.splitlines()[0]
            assert said == commands.ABOUT[name]
            assert said.split()[0] in listed

    def test_a_command_that_is_not_there(self):
        result = invoke("nosuch")
        assert result.exit_code == 2
        for name in ("arena", "bench", "compare", "reproduce", "report", "runs"):
            assert name in result.stderr
        for name in ("show", "export", "verify"):
            assert name in invoke("runs", "nosuch").stderr

    def test_seed_determines_the_output(self):
        arguments = ["compare", *TINY, "--samplers", "proportional"]
        first = invoke(*arguments, "--seed", "1").stdout
        assert invoke(*arguments, "--seed", "1").stdout == first
        assert invoke(*arguments, "--seed", "2").stdout != first

    def test_a_real_run_with_two_processes(self, tmp_path):
        """Not a terminal: the table on stdout, and nothing at all on stderr."""
        path = tmp_path / "results.json"
        result = shell(
            "compare", *TINY[:-2], "--samplers", "uniform,optimal", "--jobs", "2", "--json", str(path)
        )
        assert (result.returncode, result.stderr) == (0, "")
        assert "optimal" in result.stdout
        stored = json.loads(path.read_text())
        assert [row["name"] for row in stored["rows"]] == ["uniform", "optimal"]
        assert len(stored["rows"][0]["losses"]) == stored["num_rounds"] == 10

    def test_who_draws_independently_is_said(self):
        result = invoke("compare", *TINY, "--samplers", "k-vib")
        assert "one run each; independent draws for k-vib\n" in result.stdout
        assert "; independent draws for" not in invoke("compare", *TINY, "--samplers", "avare").stdout

    def test_one_run_has_no_spread(self):
        assert "±" not in invoke("compare", *TINY, "--samplers", "avare").stdout
        assert " ± 0." in invoke("compare", *TINY, "--repeats", "2", "--samplers", "avare").stdout


class TestImports:
    """Looking at a recorded run needs the ledger and the charts, and no experiment."""

    @pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["runs", "show"], ["runs", "compare"]])
    def test_a_look_takes_no_compiler(self, arguments, tmp_path):
        """numba alone takes longer to import than these commands to run."""
        count = {"show": 1, "compare": 2}.get(arguments[-1], 0)
        runs = [tmp_path / name for name in ("a.db", "b.db")[:count]]
        for run in runs:
            with open_run(run, lambda: default_sampler(num_clients=5, cohort_size=2)) as recorded:
                cohort = recorded.draw()
                recorded.observe(cohort, [1.0] * len(cohort))
        program = (
            "import sys\nfrom sortition.cli import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            "assert not {'numba', 'scipy', 'sortition.samplers.base'} & set(sys.modules)\n"
        )
        command = [sys.executable, "-c", program, *arguments, *map(str, runs)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert (result.returncode, result.stderr) == (0, "")

    @pytest.mark.parametrize(
        "command", [["report"], ["runs", "show"], ["runs", "verify"], ["runs", "compare"]]
    )
    def test_a_recorded_run_is_looked_at_without_an_experiment(self, command, tmp_path):
        runs = [tmp_path / "run.db", tmp_path / "other.db"][: 1 + (command[-1] == "compare")]
        for run in runs:
            with open_run(run, lambda: UniformSampler(num_clients=5, cohort_size=2)) as recorded:
                cohort = recorded.draw()
                recorded.observe(cohort, [1.0] * len(cohort))
        program = (
            "import sys\nfrom sortition.cli import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            "print('MODULES', *sys.modules)\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", program, *command, *map(str, runs)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        loaded = set(result.stdout.partition("MODULES ")[2].split())
        lab = {name for name in loaded if name.startswith("sortition.lab.")}
        pages = {f"sortition.lab.reports{name}" for name in ("", ".charts", ".ledger_page", ".page")}
        assert lab == (pages if command == ["report"] else set())
        assert not loaded & {"sklearn", "torch", "flwr", "sortition.cli.experiments"}


class TestErrors:
    @pytest.mark.parametrize(
        "command",
        [["compare", *TINY, "--samplers", "uniform"], ["bench", "--clients", "1e3", "--rounds", "2"]],
    )
    def test_a_full_disk_is_one_line_after_the_results(self, command):
        result = invoke(*command, "--json", "/dev/full")
        assert (result.exit_code, result.stderr) == (2, "sortition: /dev/full: No space left on device\n")
        assert "drawn a round" in result.stdout

    def test_a_reader_who_leaves_is_no_error_of_ours(self, monkeypatch):
        def left(*arguments, **settings):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        monkeypatch.setattr(experiments, "compare", left)
        result = invoke("compare", *TINY)
        assert (result.exit_code, result.stderr) == (1, "")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--clients", "many"], ["--clients", "'many'", "whole number"]),
            (["--clients", "1"], ["--clients", "at least 2", "'1'"]),
            (["--clients", "5000"], ["--clients must be", "1797", "5000"]),
            (["--rounds", "0"], ["--rounds", "at least 2", "'0'"]),
            (["--samplers", "uniform,best"], ["--samplers", "'best'", "sortition samplers"]),
            (["--samplers", "avari"], ["--samplers", "'avari'", "such as avare"]),
            (["--samplers", ""], ["--samplers", "''", "12 names"]),
            (["--design", "stratified"], ["--design", "'stratified'", "without_replacement"]),
            (
                ["--cohort", "21", "--design", "independent"],
                ["--cohort must be", "20", "21"],
            ),
            (["--seed", "-1"], ["--seed", "at least 0", "'-1'"]),
            (["--step-size", "big"], ["--step-size", "a number", "'big'"]),
            (["--step-size", "0"], ["--step-size must be", "0.0"]),
            (["--step-size", "1e300"], ["--step-size must lower the loss", "1e+300", "or tune"]),
            (["--rounds", "9" * 20], ["--rounds", "at most 1000000", "'99999999999999999999'"]),
            (["--rounds", "9" * 5000], ["--rounds", "at most 1000000"]),
            (["--repeats", "9" * 20], ["--repeats", "at most 1000000"]),
            (["--seed", "9" * 20], ["--seed", "at most 9223372036854775807"]),
            (["--samplers", "x.py:f"], ["--samplers must be module:factory", "'x.py:f'"]),
            (["--samplers", "bogus"], ["'bogus'", "or module:factory"]),
            (["--samplers", "default"], ["the default sampler is empirical-bayes"]),
            (["--samplers", "oort"], ["'oort'", "sortition arena --real runs them all"]),
            (["--report", "page.txt"], ["--report", "ends in .html", "'page.txt'"]),
            (["--json", "/no/such/place/file.json"], ["--json", "directory", "/no/such/place/file.json"]),
            (["--json", "/proc/x.json"], ["--json", "directory", "/proc/x.json"]),
            (["--report", "/proc/x.html"], ["--report", "directory", "/proc/x.html"]),
            (["--colour", "red"], ["--colour"]),
        ],
    )
    def test_one_line_and_status_2(self, arguments, said):
        result = invoke("compare", *TINY, *arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("sortition: ")
        assert result.stderr.count("\n") == 1
        for word in said:
            assert word in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (
                ["bench", "--clients", "1e3", "--rounds", "9" * 20],
                "expected a whole number of at most 1000000",
            ),
            (["bench", "--clients", "1e9", "--sampler", "optimal"], "--clients must be at most 1e+07"),
            (["diagnose", "a:b", "--rounds", "9" * 20], "expected a whole number of at most 1000000"),
            (["arena", "--seeds", "9" * 20], "expected a whole number of at most 1000000"),
            (
                ["arena", "--samplers", "oort"],
                "sortition arena --real runs them all, and takes no --samplers",
            ),
            (["arena", "--real", "--samplers", "oort"], "runs them all, and takes no --samplers"),
            (
                ["diagnose", "nofile"],
                "SOURCE must be a recorded run (RUN.db), norms (NORMS.csv) or a problem",
            ),
            (["runs", "show", "nofile"], "must be a run of sortition, got no readable file: No such file"),
            (["diagnose", "toy:bad"], "SOURCE: bad(seed=0) or one of its methods raised RuntimeError: boom"),
            (["diagnose", "toy:none"], "SOURCE must have num_clients, got NoneType"),
            (["diagnose", "math:sqrt"], "SOURCE: sqrt(seed=0) or one of its methods raised TypeError: "),
            ([*DIAGNOSE, "toy:LateUpdates"], "toy.py, line 14, in updates: RuntimeError: late (problem "),
            ([*DIAGNOSE, "toy:LateLoss"], "toy.py, line 20, in loss: RuntimeError: late (problem LateLoss)"),
            (["diagnose", "toy:Toy", "--seed", str(2**63)], "'--seed': expected a whole number of at most"),
            ([*OWN, "toy:bad", "--diagnose"], "--problem: bad(seed=0) or one of its methods raised Runtime"),
            ([*OWN, "toy:LateLoss", "--diagnose"], "in loss: RuntimeError: late (problem LateLoss)"),
            ([*OWN, "toy:incomplete"], "raised ModuleNotFoundError: No module named 'nosuch'"),
            ([*OWN, "toy:none"], "--problem must have num_clients, got NoneType"),
            ([*OWN, "broken:x"], "--problem: importing 'broken' raised ValueError: two lines"),
            ([*OWN, "nosuch:x"], "--problem: 'nosuch:x' can't be found: No module named 'nosuch'"),
            ([*OWN, "toy:x"], "--problem: 'toy:x' can't be found: module 'toy' has no attribute 'x'"),
            ([*BENCH, "toy:none"], "--sampler: 'toy:none' must make a Sampler, got NoneType"),
            ([*BENCH, "os.path:join"], "--sampler: 'os.path:join' raised TypeError: "),
            ([*BENCH, "toy:mute"], "in draw: RuntimeError: late (sampler 'toy:mute'); in a"),
            ([*BENCH, "x.py:f"], "--sampler must be module:factory"),
            (["arena", "--samplers", "x.py:f"], "sortition: --samplers must be module:factory"),
            (
                ["arena", "--samplers", "toy:none", "--environments", "clients-20", "--jobs", "1"],
                "--samplers: 'toy:none' must make a Sampler, got NoneType; in environment clients-20",
            ),
            (
                ["arena", "--environments", "steady", "--mode", "closed", "--split", "all"],
                "--environments must name at least one that mode closed can run; steady has replay only",
            ),
            (
                ["arena", "--samplers", "toy:none", "--mode", "vectors", "--jobs", "1"],
                "--samplers: 'toy:none' must make a Sampler, got NoneType",
            ),
        ],
    )
    def test_other_commands(self, arguments, said, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / "toy.py").write_text(TOY)
        (tmp_path / "broken.py").write_text("raise ValueError('two\\nlines')")
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize("name", ["logi.py:Logi", "./logi:Logi", "a/logi:Logi", ":Logi", ".logi:Logi"])
    def test_a_module_is_named_as_import_names_it(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "logi.py").write_text("Logi = dict\n")
        result = invoke("compare", "--problem", name)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert "--problem must be module:factory, as in clinics:Clinics for clinics.py" in result.stderr
        assert f"got {name!r}" in result.stderr

    def test_unknown_command(self):
        result = invoke("compete")
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert "compete" in result.stderr

    def test_a_hint_is_given_once(self):
        assert invoke("compar").stderr.count("Did you mean") == 1

    def test_all_names_that_an_error_tells_to_look_for_are_there(self):
        shown = invoke("samplers").stdout
        assert all(f"│ {name} " in shown for name in CONTESTANTS)

    def test_interrupt(self, monkeypatch):
        def interrupted(*arguments, **settings):
            raise KeyboardInterrupt

        monkeypatch.setattr(experiments, "compare", interrupted)
        result = invoke("compare", *TINY)
        assert (result.exit_code, result.stderr) == (130, "sortition: interrupted\n")

    @pytest.mark.parametrize(
        ("package", "extra"), [("typer", "cli"), ("rich", "cli"), ("sklearn", "experiments")]
    )
    def test_a_missing_package_names_its_extra(self, package, extra, tmp_path: Path):
        absent = f"raise ModuleNotFoundError('No module named {package}', name='{package}')"
        (tmp_path / f"{package}.py").write_text(absent)
        result = shell("compare", *TINY, PYTHONPATH=str(tmp_path))
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert package in result.stderr
        assert f"pip install 'sortition[{extra}]'" in result.stderr


def test_a_problem_without_a_colon_is_told_how_to_name_it():
    result = invoke("compare", "--problem", "clinics.Clinics")
    assert result.exit_code == 2
    assert "--problem must be module:factory, as in clinics:Clinics, got 'clinics.Clinics'" in result.stderr
