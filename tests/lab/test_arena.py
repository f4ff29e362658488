"""The arena: environments by seed, measures by hand, the halves that are kept apart, and its command."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import ConfigurationError, FixedSampler, OptimalSampler, UniformSampler
from sortition.cli.commands import app
from sortition.lab.arena.environments import (
    ENVIRONMENTS,
    Environment,
    LocalUpdates,
    Training,
    digits_training,
    environments_of,
    paper_least_squares,
    seeds_of,
)
from sortition.lab.arena.tournament import Variance, judge, replay, run_closed_loop, run_replay, train_one
from sortition.lab.arena.traces import GeneratedNorms, Trace
from sortition.lab.arena.vectors import VECTOR_ENVIRONMENTS
from sortition.lab.contestants import CONTESTANTS, find_contestant
from sortition.lab.problems.softmax import gaussian_federation
from sortition.lab.reports.standings import arena_json, arena_table, closed_loop_table, heat_map, standings
from sortition.lab.training import Trajectory
from sortition.lab.versions import versions

QUICK = ["arena", "--environments", "clients-20", "--seeds", "1", "--jobs", "1"]
TINY = Environment("tiny", "tune", "ten clients, twenty rounds", GeneratedNorms(10, 2, num_rounds=20))
TINY_TRAINING = Environment(
    "tiny-training", "tune", "twenty clients", digits_training(num_clients=20, cohort_size=3, num_rounds=20)
)


def short(environment: Environment) -> Environment:
    """The same with few rounds, and few clients where there would be thousands."""
    if isinstance(environment.source, GeneratedNorms):
        clients = min(environment.source.clients, 200)
        return replace(environment, source=replace(environment.source, num_rounds=20, clients=clients))
    return replace(environment, source=replace(environment.source, num_rounds=3))


def contestants(*names: str):
    return {name: CONTESTANTS[name] for name in names}


class TestEnvironments:
    def test_enough_of_them_in_two_halves_of_the_same_size(self):
        halves = Counter(environment.half for environment in ENVIRONMENTS.values())
        assert len(ENVIRONMENTS) > 20
        assert halves["tune"] == halves["report"]
        trained = Counter(environment.half for environment in ENVIRONMENTS.values() if environment.training)
        assert trained["tune"] == trained["report"]

    @pytest.mark.parametrize("name", ENVIRONMENTS)
    def test_the_seed_decides(self, name):
        environment = short(ENVIRONMENTS[name])
        first, again, other = (environment.source(seed) for seed in (4, 4, 5))
        assert np.array_equal(first.norms, again.norms, equal_nan=True)
        assert np.array_equal(first.client_weights, again.client_weights)
        assert not np.array_equal(first.norms, other.norms, equal_nan=True)
        assert first.norms.shape == (environment.num_rounds, len(first.client_weights))
        assert first.client_weights.sum() == pytest.approx(1.0)
        replied = first.norms[:, ~np.isnan(first.norms).any(axis=0)]  # some clients never reply
        assert np.isfinite(replied).all()
        assert (replied >= 0.0).all()
        assert replied.any(axis=1).all()

    def test_a_trace_is_made_once(self):
        assert TINY.trace(3) is TINY.trace(3)

    def test_halves_share_neither_environments_nor_seeds(self):
        tune, report = environments_of("tune"), environments_of("report")
        assert not {env.name for env in tune} & {env.name for env in report}
        assert len(environments_of("all")) == len(tune) + len(report)
        assert not set(seeds_of("tune", 9)) & set(seeds_of("report", 9))
        assert seeds_of("all", 3) == seeds_of("report", 3)

    def test_local_steps_of_one_step_are_gradients(self):
        problem = gaussian_federation(concentration=0.3, tail=1.5, seed=1)
        model = np.random.default_rng(0).normal(size=len(problem.initial_model()))
        clients = np.array([3, 50, 99])
        one = LocalUpdates(problem, 1, 0.1).updates(model, clients, 5)
        assert one == pytest.approx(problem.local_gradients(np.tile(model, (3, 1)), clients, 5, 0))
        two = LocalUpdates(problem, 2, 0.1).updates(model, clients, 5)
        second = problem.local_gradients(model - 0.1 * one, clients, 5, 1)
        assert two == pytest.approx((one + second) / 2)

    def test_an_independent_draw_may_be_empty(self):
        problem = gaussian_federation(concentration=0.3, tail=1.5)
        nobody = np.zeros(0, dtype=np.int64)
        for federation in (problem, LocalUpdates(problem, 2, 0.1)):
            assert federation.updates(federation.initial_model(), nobody, 0).shape == (0, 200)


class TestReplay:
    trace = Trace(np.array([0.5, 0.5]), 1, np.array([[1.0, 3.0], [2.0, 2.0], [0.0, 0.0]]))

    def test_by_hand(self):
        """a = (1, 9) / 4: uniform has 2 (1 + 9) / 4 = 5, the optimum (1 + 3)^2 / 4 = 4; (1, 1): both 4."""
        sampler = UniformSampler(num_clients=2, cohort_size=1)
        assert replay(sampler, self.trace) == pytest.approx([1.25, 1.0, 1.0])
        sampler = FixedSampler(num_clients=2, cohort_size=1, probabilities=[0.25, 0.75])
        assert replay(sampler, self.trace) == pytest.approx([1.0, (4 + 4 / 3) / 4, 1.0])

    def test_the_sampler_hears_of_those_it_drew_alone(self):
        heard = []

        class Listening(UniformSampler):
            def observe(self, cohort, norms):
                heard.append((cohort.clients.tolist(), list(norms)))
                super().observe(cohort, norms)

        replay(Listening(num_clients=2, cohort_size=1), self.trace)
        for norms, (clients, told) in zip(self.trace.norms, heard, strict=True):
            assert told == norms[clients].tolist()

    def test_the_oracle_is_perfect(self):
        trace = TINY.trace(0)
        sampler = OptimalSampler(num_clients=10, cohort_size=2, client_weights=trace.client_weights)
        assert replay(sampler, trace) == pytest.approx(np.ones(20))

    def test_measured_in_some_rounds_only(self):
        every_third = replace(self.trace, norms=np.tile(self.trace.norms, (3, 1)), measured_every=3)
        sampler = UniformSampler(num_clients=2, cohort_size=1)
        assert replay(sampler, every_third) == pytest.approx([1.25, 1.25, 1.25])

    def test_summary(self):
        ratios = np.concatenate([[5.0, 3.0], np.ones(18)])
        variance = Variance.of_run(ratios)
        assert variance.mean == pytest.approx(26 / 20)
        assert variance.early == 4.0
        assert variance.segments == tuple(ratios)
        assert Variance.of_run(np.array([2.0])).early == 2.0

    def test_the_bound_is_the_first_rounds_largest_feedback(self):
        assert self.trace.trial(0).feedback_bound == pytest.approx(9 / 4)


class TestTournament:
    def test_scores(self):
        arena = run_replay(contestants("avare", "optimal"), [TINY], split="report", seeds=2)
        assert arena.samplers == ("uniform", "avare", "optimal")
        assert arena.seeds == (1, 3)
        uniform, avare, optimal = arena.scores
        assert (uniform.to_uniform, uniform.early_to_uniform) == (1.0, 1.0)
        assert (optimal.ratio, optimal.early_ratio) == pytest.approx((1.0, 1.0))
        traces = [TINY.trace(seed) for seed in (1, 3)]
        runs = [
            replay(CONTESTANTS["avare"](trace.trial(seed)), trace)
            for seed, trace in zip((1, 3), traces, strict=True)
        ]
        assert avare.ratio == pytest.approx(np.mean(runs))
        assert avare.early_ratio == pytest.approx(np.mean([run[:2] for run in runs]))
        assert avare.to_uniform == pytest.approx(avare.ratio / uniform.ratio)

    def test_another_design_is_compared_with_its_own_uniform_sampling(self):
        """By the norms alone, variances of two designs differ by what nobody knows."""

        def independent(trial):
            return UniformSampler(**{**trial.common(), "design": "independent"})

        samplers = {"independent": independent, **contestants("k-vib", "avare", "optimal-client-sampling")}
        arena = run_replay(samplers, [TINY], split="report", seeds=2)
        uniform, own, k_vib, avare, _ = arena.scores
        assert own.to_uniform == own.early_to_uniform == 1.0
        assert own.ratio != uniform.ratio
        assert k_vib.design == own.design == "independent"
        assert k_vib.to_uniform == pytest.approx(k_vib.ratio / own.ratio)
        assert avare.to_uniform == pytest.approx(avare.ratio / uniform.ratio)
        places = {row.sampler: row.first_places for row in standings(arena)}
        assert places == {
            "uniform": int(uniform.ratio <= avare.ratio),
            "independent": None,
            "k-vib": None,
            "avare": int(avare.ratio <= uniform.ratio),
            "optimal-client-sampling": None,
        }
        assert [row.worst_behind is None for row in standings(arena)] == [False, True, True, False, True]

    def test_two_processes_give_the_same(self):
        arguments = contestants("uniform", "k-vib"), [TINY, replace(TINY, name="twin")]
        counts = []
        alone = run_replay(*arguments, split="tune", seeds=1)
        assert (
            run_replay(*arguments, split="tune", seeds=1, jobs=2, progress=counts.append).scores
            == alone.scores
        )
        assert counts[-1] == 2 * 2 * 20

    def test_closed_loop_leaves_out_where_there_is_nothing_to_train(self):
        arena = run_closed_loop(
            contestants("uniform", "optimal"), [TINY, TINY_TRAINING], split="tune", seeds=1
        )
        assert [env.name for env in arena.environments] == ["tiny-training"]
        uniform, optimal = arena.scores
        assert uniform.closed_loop.rounds_to_uniform == 1.0
        assert optimal.closed_loop.rounds_to_optimal == 1.0
        assert optimal.ratio == pytest.approx(1.0)
        assert "tiny-training" in closed_loop_table(arena).columns[0]._cells

    def test_closed_loop_trains_no_uniform_sampling_of_another_design(self):
        """So there is nothing that K-Vib is compared with: "-" in the table, null in the JSON."""
        arena = run_closed_loop(contestants("k-vib"), [TINY_TRAINING], split="tune", seeds=1)
        uniform, k_vib = standings(arena)
        assert (uniform.worst_to_uniform, uniform.first_places) == (1.0, 1)
        assert math.isnan(k_vib.worst_to_uniform)
        assert (k_vib.first_places, k_vib.worst_behind) == (None, None)
        shown = arena_table(arena, "to_uniform").columns[2].cells
        assert {cell.removeprefix("[bold]").removesuffix("[/bold]") for cell in shown} == {"-"}
        stored = json.loads(arena_json({"closed": arena}))["closed"]
        assert stored["versions"] == versions()
        assert [score["to_uniform"] for score in stored["scores"]] == [1.0, None]
        assert stored["standings"][1]["worst_to_uniform"] is None

    def test_rounds_to_targets_by_hand(self):
        def falling(step: float) -> list[Trajectory]:
            return [Trajectory(losses=10.0 - step * np.arange(1.0, 11.0), variance_ratios=np.ones(10))]

        verdicts = judge({"uniform": falling(0.5), "other": falling(0.25), "optimal": falling(1.0)})
        assert verdicts["uniform"].target_loss == 6.0  # after 8 of 10 rounds
        assert verdicts["optimal"].rounds_to_target == 4
        assert verdicts["optimal"].rounds_to_uniform == 0.5
        assert verdicts["optimal"].reference_loss == 2.0
        assert verdicts["uniform"].rounds_to_reference is None
        assert verdicts["other"].rounds_to_target is None
        assert verdicts["other"].final_loss == 7.5

    def test_a_factory_by_its_module(self):
        assert find_contestant("sortition.lab.contestants:avare") is CONTESTANTS["avare"]
        for name in (
            "best",
            "sortition.lab.contestants:best",
            "no.such.module:best",
            ":best",
            ".a:best",
        ):
            with pytest.raises(ConfigurationError, match="best"):
                find_contestant(name)

    def test_what_closed_loop_cannot_run_is_named(self):
        for chosen, said in (([TINY], "tiny has"), ([TINY, TINY], "tiny, tiny have")):
            with pytest.raises(ConfigurationError, match=f"that mode closed can run; {said} replay only"):
                run_closed_loop(contestants("uniform"), chosen, split="tune", seeds=1)

    @pytest.mark.parametrize("fight", [run_replay, run_closed_loop])
    def test_nothing_to_do_is_said(self, fight):
        with pytest.raises(ConfigurationError, match="environments"):
            fight(contestants("uniform"), [], split="all")
        with pytest.raises(ConfigurationError, match="seeds"):
            fight(contestants("uniform"), [TINY_TRAINING], split="all", seeds=0)


@pytest.fixture(scope="module")
def arena():
    return run_replay(
        contestants("uniform", "avare", "optimal"),
        [TINY, replace(TINY, name="twin")],
        split="tune",
        seeds=1,
    )


class TestReports:
    def test_standings(self, arena):
        uniform, avare, optimal = standings(arena)
        assert uniform.geometric_mean == pytest.approx(arena.scores[0].ratio)  # twins
        assert (optimal.geometric_mean, optimal.oracle) == (pytest.approx(1.0), True)
        assert uniform.worst_to_uniform == 1.0
        assert uniform.first_places + avare.first_places == 2
        assert min(uniform.worst_behind, avare.worst_behind) == 1.0

    def test_table_and_heat_map_have_all_cells(self, arena):
        table = arena_table(arena, "to_uniform")
        assert [column.header for column in table.columns] == ["environment", "uniform", "avare", "optimal"]
        assert table.columns[0]._cells[:2] == ["tiny", "twin"]
        values = heat_map(arena)["data"]["values"]
        assert len(values) == 6
        assert sum(cell["best"] for cell in values) == 2

    def test_json_holds_everything(self, arena):
        [standing, *_] = json.loads(arena_json({"replay": arena}))["replay"]["standings"]
        assert standing["sampler"] == "uniform"
        scores = json.loads(arena_json({"replay": arena}))["replay"]["scores"]
        assert len(scores) == 6
        assert len(scores[0]["by_seed"][0]["segments"]) == 20
        infinite = replace(arena, scores=(replace(arena.scores[0], ratio=np.inf), *arena.scores[1:]))
        assert json.loads(arena_json({"replay": infinite}))["replay"]["scores"][0]["ratio"] is None


def test_the_recorded_run_trains():
    trace = Training(partial(paper_least_squares, spread=1.0), 5, 100, 0.1)(0)
    assert np.median(trace.norms[-1]) < 0.5 * np.median(trace.norms[0])


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


def test_the_geometric_mean_is_that_of_the_cells():
    """One environment: the mean is the cell, whatever the measure; and 1 is what it is over."""
    for measure, one in (("ratio", "the least that any probabilities"), ("to_uniform", "uniform sampling")):
        shown = invoke(*QUICK, "--samplers", "avare", "--measure", measure).stdout
        lines = {
            line.split("│")[1].strip(): line.split("│")[2:-1] for line in shown.splitlines() if "│" in line
        }
        assert lines["geometric mean"] == lines["clients-20"]
        assert f"in the cells 1 is {one}" in shown
        if measure == "to_uniform":
            assert float(lines["geometric mean"][0]) == 1.0
            assert float(lines["geometric mean"][1]) != 1.0


def test_an_environment_of_the_other_half_is_told():
    assert "of the other half" not in invoke(*QUICK, "--samplers", "uniform").stderr
    half = ENVIRONMENTS["clients-20"].half
    other = "report" if half == "tune" else "tune"
    result = invoke(*QUICK, "--samplers", "uniform", "--split", other)
    assert result.exit_code == 0
    assert f"clients-20 are of the other half; of --split {other} only the seeds" in result.stderr


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
    assert "'raising_factory:f' raised AttributeError" in result.stderr
    assert environment in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("mode", ["replay", "closed", "vectors"])
def test_a_sampler_that_raises_is_one_line_with_the_place(tmp_path, monkeypatch, mode):
    (tmp_path / "raising_sampler.py").write_text(
        "from sortition import UniformSampler\n"
        "class Own(UniformSampler):\n"
        "    def observe(self, cohort, norms):\n"
        "        {}['one']\n"
        "def f(trial):\n    return Own(**trial.common())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = {"replay": "clients-20", "closed": "digits-100", "vectors": "least-squares-1"}[mode]
    arguments = ["--samplers", "raising_sampler:f", "--environments", environment, "--jobs", "1"]
    result = invoke(*QUICK, *arguments, "--mode", mode)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "sortition: raising_sampler.py, line 4, in observe: KeyError: 'one' "
        f"(sampler 'raising_sampler:f', environment {environment})"
    )
    assert result.stderr.count("\n") == 1


def test_an_error_that_no_code_of_a_user_raises_is_left_as_it_is():
    training = Training(int, cohort_size=1, num_rounds=1, step_size=0.1)
    with pytest.raises(TypeError):
        train_one("uniform", CONTESTANTS["uniform"], "here", training, 0, lambda: None)


def test_factories_of_one_name_in_two_modules_have_two_columns(tmp_path, monkeypatch):
    """And each column holds its own sampler's scores."""
    for module, sampler in (("first_module", "UniformSampler"), ("second_module", "AvareSampler")):
        (tmp_path / f"{module}.py").write_text(
            f"from sortition import {sampler}\ndef factory(trial):\n    return {sampler}(**trial.common())\n"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["first_module:factory", "second_module:factory"]
    result = invoke(*QUICK, "--samplers", ",".join(["uniform", "avare", *names]), "--out", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    stored = json.loads((tmp_path / "arena.json").read_text())["replay"]
    assert stored["samplers"] == ["uniform", "avare", *names]
    uniform, avare, first, second = (score["ratio"] for score in stored["scores"])
    assert uniform == first != second == avare
    assert result.stdout.index("first_module:") < result.stdout.index("second_module:")


def test_a_factory_whose_settings_are_wrong_is_named(tmp_path, monkeypatch):
    (tmp_path / "wrong_factory.py").write_text(
        "from sortition import UniformSampler\n\n\ndef f(trial):\n"
        "    return UniformSampler(num_clients=0, cohort_size=1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    result = invoke(*QUICK, "--samplers", "wrong_factory:f")
    assert result.exit_code == 2
    assert "num_clients" in result.stderr
    assert "'wrong_factory:f'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_factory_of_something_else_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "empty_factory.py").write_text("def f(trial):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = invoke(*QUICK, "--samplers", "empty_factory:f")
    assert result.exit_code == 2
    assert "'empty_factory:f'" in result.stderr
    assert "NoneType" in result.stderr
    assert result.stderr.count("\n") == 1


def test_all_environments_can_be_listed():
    result = invoke("arena", "--list")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        *ENVIRONMENTS,
        *VECTOR_ENVIRONMENTS,
    ]


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
        (["--mode", "closed"], ["that mode closed can run; clients-20 has replay only"]),
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


@pytest.mark.parametrize(
    "refused",
    [
        ["--samplers", "nowhere:best"],
        ["--mode", "closed"],
        ["--mode", "vectors", "--environments", "few-heavy"],
        ["--designs", "fixed_size"],
    ],
)
def test_what_is_refused_leaves_no_directory(refused, tmp_path):
    out = tmp_path / "new" / "out"
    assert invoke(*QUICK, *refused, "--out", str(out)).exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "new/out"])
def test_a_link_to_nothing_is_refused_before_the_run(below, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    result = invoke(*QUICK, "--samplers", "uniform", "--out", str(link / below))
    assert (result.exit_code, result.stdout) == (2, "")  # what was run would have been printed
    assert f"got {str(link / below)!r}: {str(link)!r} is a link to nothing" in result.stderr
    assert list(tmp_path.iterdir()) == [link]


def test_environments_without_training_are_named_when_closed_loop_leaves_them_out():
    result = invoke(
        "arena",
        "--environments",
        "ls-sigma-1,steady",
        "--mode",
        "closed",
        "--samplers",
        "uniform",
        "--seeds",
        "1",
    )
    assert result.exit_code == 0
    assert "steady" in result.stderr
    assert "steady" not in result.stdout
