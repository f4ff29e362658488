"""``sortition arena --real``: tuning, tasks as files, what the scores say, and the command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition.cli.commands import app
from sortition.core.errors import ConfigurationError, DataError
from sortition.lab.arena import real
from sortition.lab.arena.real import (
    BASE,
    CONTROL,
    FULL_PARTICIPATION,
    METHODS,
    RECOMMENDED,
    SETUPS,
    Cell,
    Effort,
    Setup,
    Task,
    cells_of,
    finished,
    installed_federations,
    methods_of,
    online_at,
    rounds_left,
    run_once,
    run_real,
    search,
    tasks_of,
    worst_of,
)
from sortition.lab.arena.real_scores import Curves, judge, log_ratio, ratio_interval
from sortition.lab.federations.data import FEDERATIONS, Examples, Source, dealt
from sortition.lab.reports.real_page import (
    geometric_means,
    picture,
    real_json,
    real_page,
    recommended,
    verdict,
)

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

TINY = Effort(num_rounds=6, evaluations=3, tuning_runs=2, tuning_seeds=1, report_seeds=2, probed_seeds=1)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """A federation of 12 clients in the place of chem97: nothing needs to be installed."""
    generator = np.random.default_rng(0)
    owners = np.repeat(np.arange(12), 5 * (np.arange(12) + 1))
    targets = (generator.random(len(owners)) < 0.1 + 0.07 * owners).astype(np.int64)
    inputs = generator.standard_normal((len(owners), 3)).astype(np.float32)
    source = Source("a toy", "none", "table", "nowhere")
    small = dealt("toy", source, Examples(inputs, targets, owners, 2))
    monkeypatch.setitem(FEDERATIONS, "toy", source)
    monkeypatch.setitem(SETUPS, "toy", Setup(6, 2, 3, SETUPS["chem97"].steps))
    known = real.federation
    monkeypatch.setattr(real, "federation", lambda name: small if name == "toy" else known(name))
    monkeypatch.setattr("sortition.lab.arena.real_scores.federation", lambda name: small)


def task(method: str = BASE, **cell) -> Task:
    return Task(replace(Cell("toy", "softmax", share=0.25), **cell), method, TINY)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method):
    run = run_once(task(method), (0.1, 1.0), seed=1, probed=True)
    assert len(run.losses) == len(run.worst) == 3
    assert all(math.isfinite(loss) for loss in run.losses + run.worst + run.errors)
    assert len(run.errors) == 2
    assert run == run_once(task(method), (0.1, 1.0), seed=1, probed=True)
    if method == FULL_PARTICIPATION:
        assert run.trainings == 12
        assert run.errors == pytest.approx([0.0, 0.0], abs=1e-12)
    elif method not in (BASE, CONTROL):
        assert 2 <= run.trainings <= 3


@pytest.mark.parametrize(
    "cell",
    [
        {"algorithm": "fedadam"},
        {"algorithm": "scaffold"},
        {"weighting": "equal"},
        {"online": "hours"},
        {"model": "two-layer"},
    ],
)
def test_every_condition_trains(cell):
    run = run_once(task(**cell), (0.1, 0.1), seed=1, probed=True)
    assert all(math.isfinite(loss) for loss in run.losses)
    assert len(run.errors) == (2 if {"weighting", "model"} & set(cell) else 0)


def test_training_that_diverges_ends():
    run = run_once(task(), (1e3, 1e3), seed=1)
    assert run.losses[-1] == run.worst[-1] == math.inf


def test_everybody_is_online_nine_hours_a_day_and_somebody_always():
    hours = np.random.default_rng(0).integers(6, 20, size=48)
    online = [online_at(hours, round_index) for round_index in range(24)]
    assert np.array_equal(np.bincount(np.concatenate(online)), np.full(48, 9))
    assert min(map(len, online)) == 18
    first = hours[online[6]]
    assert first.max() < hours[online[18]].max()  # early ones are online early


def test_the_worst_tenth_is_of_those_who_are_judged():
    losses = np.array([np.nan, *range(20)], dtype=float)
    assert worst_of(losses) == 18.5


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 40])
def test_the_search_keeps_to_its_runs_and_finds_the_best_that_it_tried(most):
    tried = {}

    def cost(pair):
        assert pair not in tried
        tried[pair] = (abs(math.log2(pair[0]) - 3) + abs(math.log2(pair[1]) + 2), 0.0)
        return tried[pair]

    best = search(cost, (1.0, 1.0), most)
    assert len(tried) <= most
    assert tried[best] == min(tried.values())
    if most == 40:
        assert best == (8.0, 0.25)


class TestTasks:
    def all_tasks(self) -> list[Task]:
        control = replace(task(CONTROL), effort=replace(TINY, tuning_runs=0))
        return [*(task(method) for method in (BASE, RECOMMENDED, "fedvarp")), control]

    def test_finished_tasks_are_not_run_again(self, tmp_path):
        tasks, ticks = self.all_tasks(), []
        assert rounds_left(tasks, tmp_path) == 3 * 6 * 4 + 6 * 2
        run_real(tasks, tmp_path, progress=ticks.append)
        assert ticks[-1] == 3 * 6 * 4 + 6 * 2
        assert rounds_left(tasks, tmp_path) == 0
        results = [finished(each, tmp_path) for each in tasks]
        kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
        lost = tasks[1].file(tmp_path)
        lost.unlink()
        run_real(tasks, tmp_path)
        assert [finished(each, tmp_path) for each in tasks] == results
        assert {p for p in kept if p.stat().st_mtime_ns == kept[p]} == set(kept) - {lost}

    def test_the_reference_sets_the_target_of_the_others(self, tmp_path):
        tasks = self.all_tasks()
        run_real(tasks, tmp_path)
        reference, *others, control = (finished(each, tmp_path) for each in tasks)
        assert reference["target"] is None
        assert [each["target"] for each in others] == [reference["tuned_target"]] * 2
        assert (control["steps"], control["tried"]) == (others[0]["steps"], 0)

    def test_damaged_and_foreign_files_are_refused(self, tmp_path):
        run_real(self.all_tasks()[:1], tmp_path)
        path = task().file(tmp_path)
        content = json.loads(path.read_text())
        content["settings"]["method"] = "other"
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match="another task"):
            finished(task(), tmp_path)
        path.write_text("{")
        with pytest.raises(DataError, match="damaged"):
            run_real(self.all_tasks(), tmp_path)

    def test_the_design_is_fractional_and_complete(self):
        names = [name for name in FEDERATIONS if name != "toy"]
        tasks = tasks_of(names)
        assert len({each.file(real.Path()) for each in tasks}) == len(tasks)
        for name in names:
            cells = cells_of(name)
            assert cells[0].condition == "base"
            assert len({cell.condition for cell in cells}) == len(cells)
            assert all(cell.condition.count(",") == 0 for cell in cells)  # one factor at a time
        for cell in {each.cell for each in tasks}:
            assert methods_of(cell)[0] == BASE
        conditions = {each.cell.condition for each in tasks}
        assert conditions == {
            "base",
            "K/M 1%",
            "K/M 20%",
            "weights 1/M",
            "by hour",
            "fedadam",
            "scaffold",
            "two-layer",
        }
        assert {each.effort.report_seeds for each in tasks_of(names, seeds=3)} == {3}

    def test_no_tasks(self, tmp_path):
        with pytest.raises(ConfigurationError, match="at least one"):
            run_real([], tmp_path)


class TestScores:
    def curves(self, *means: float, seeds: int = 3, trainings: float = 10.0, noise: float = 0.0) -> Curves:
        spread = noise * np.random.default_rng(0).standard_normal((seeds, len(means)))
        return Curves(np.array([means] * seeds) + spread, np.full(seeds, trainings))

    def test_half_the_rounds_with_twice_the_trainings_is_a_draw(self):
        base = self.curves(*np.linspace(10, 1, 10))
        fast = self.curves(*np.linspace(10, -8, 10), trainings=20.0)
        # base is at 3 after 8 evaluations, the other one after 1 + 9 * 7 / 18 = 4.5
        assert math.exp(log_ratio(fast, base, base)) == pytest.approx(2 * 4.5 / 8)
        assert log_ratio(base, base, base) == 0.0

    def test_who_never_gets_there_has_no_ratio(self):
        base, slow = self.curves(5, 4, 3, 2, 1), self.curves(5, 5, 5, 5, 5)
        assert log_ratio(slow, base, base) is None
        assert ratio_interval(slow, base, base) is None

    def test_the_interval_holds_the_ratio_and_shrinks_with_the_noise(self):
        base = self.curves(*np.linspace(10, 1, 10), seeds=6)
        widths = []
        for noise in (0.3, 0.03):
            own = self.curves(*np.linspace(10, 0, 10), seeds=6, noise=noise)
            low, high = ratio_interval(own, base, base)
            assert low < math.exp(log_ratio(own, base, base)) < high
            widths.append(high - low)
        assert widths[1] < widths[0] / 3

    def test_scores_and_page(self, tmp_path):
        tasks = [task(method) for method in (BASE, RECOMMENDED, "fedvarp", "mifa", FULL_PARTICIPATION)]
        run_real(tasks, tmp_path)
        (result,) = judge(tasks, tmp_path)
        base = result.scores[0]
        assert (base.method, base.ratio, base.interval) == (BASE, 1.0, None)
        assert 0 < base.rounds <= 0.8 * 3 * 2 + 1e-9  # less if the fitted curve is flat there
        assert base.examples == pytest.approx(base.trainings * 6)
        assert base.megabytes == pytest.approx(base.trainings * 8 * 2 * 4 / 1e6)
        assert result.best_rival.rival in (BASE, "fedvarp")
        assert "mifa" not in result.best_rival.rival
        stored = json.loads(real_json([result]))
        assert [score["method"] for score in stored["cells"][0]["scores"]] == [each.method for each in tasks]
        page = real_page([result], {}, "a test", quick=False)
        assert all(each.method in page for each in tasks)
        assert len(picture([result])["spec"]["layer"]) == 4
        assert RECOMMENDED in geometric_means([result]) or result.scores[1].ratio is None
        assert "Against the best unbiased rival" in " ".join(verdict([result]))

    def test_the_recommended_setting_counts_in_every_cell(self, tmp_path):
        """Without a memory under SCAFFOLD, which has one; and not where few clients take part."""
        cells = [{}, {"algorithm": "scaffold"}, {"share": 0.04}]
        tasks = [
            task(method, **cell)
            for cell in cells
            for method in (BASE, "default" if "algorithm" in cell else RECOMMENDED)
        ]
        run_real(tasks, tmp_path)
        results = [
            result._replace(scores=(result.scores[0], replace(result.scores[1], ratio=ratio)))
            for result, ratio in zip(judge(tasks, tmp_path), (0.5, 0.8, 0.1), strict=True)
        ]
        mean = recommended(results).mean
        assert (mean.ratio, mean.cells, mean.missed) == (pytest.approx(math.sqrt(0.5 * 0.8)), 2, 0)

    def test_the_interval_of_a_mean_over_cells(self, tmp_path):
        """Of n cells with the same interval it is narrower by the root of n."""
        tasks = [task(BASE), task(RECOMMENDED)]
        run_real(tasks, tmp_path)
        (result,) = judge(tasks, tmp_path)
        score = replace(result.scores[1], ratio=0.5, interval=(0.25, 1.0))
        four = [result._replace(scores=(result.scores[0], score))] * 4
        found = recommended(four)
        assert (found.mean.ratio, found.mean.cells) == (pytest.approx(0.5), 4)
        assert found.interval == pytest.approx((0.5 / math.sqrt(2.0), 0.5 * math.sqrt(2.0)))
        unknown = result._replace(scores=(result.scores[0], replace(score, interval=None)))
        assert recommended([*four, unknown]).interval is None


def test_a_task_uses_one_thread(monkeypatch):
    """With more, the numbers would depend on the number of processes."""
    before, seen = torch.get_num_threads(), []
    original = real.run_once

    def watched(*arguments, **more):
        seen.append(torch.get_num_threads())
        return original(*arguments, **more)

    monkeypatch.setattr(real, "run_once", watched)
    torch.set_num_threads(2)
    try:
        real.run_task(task(), None, None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


class TestCommand:
    def invoke(self, *arguments: str):
        return CliRunner().invoke(app, ["arena", *arguments])

    def test_quick_and_again(self, tmp_path, monkeypatch):
        efforts = {CONTROL: replace(TINY, tuning_runs=0)}
        monkeypatch.setattr(real, "effort_of", lambda cell, method, **_: efforts.get(method, TINY))
        arguments = ("--real", "--quick", "--federations", "toy", "--jobs", "1", "--out", str(tmp_path))
        first = self.invoke(*arguments)
        assert first.exit_code == 0, first.output
        assert {path.name for path in tmp_path.iterdir()} == {"runs", "real.json", "real.html", "toy.svg"}
        again = self.invoke(*arguments)
        assert again.stdout == first.stdout
        assert "Finished tasks found" in again.stderr
        assert "sortition diagnose: " in (tmp_path / "real.html").read_text()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--quick"], "need --real"),
            (["--ray", "local"], "need --real"),
            (["--real", "--samplers", "uniform"], "of its own"),
            (["--real", "--mode", "closed"], "of its own"),
            (["--real", "--split", "tune"], "of its own"),
            (["--real", "--federations", "mars"], "got 'mars'"),
            (["--real", "--seeds", "0"], "at least 1"),
        ],
    )
    def test_bad_options(self, arguments, said):
        result = self.invoke(*arguments)
        assert result.exit_code == 2
        assert said in result.stderr.replace("\n", " ")

    def test_missing_data(self, monkeypatch, tmp_path):
        def missing(name):
            raise DataError(f"{name} is not installed")

        monkeypatch.setattr(real, "federation", missing)
        out = tmp_path / "out"
        result = self.invoke("--real", "--federations", "toy", "--out", str(out))
        assert (result.exit_code, result.stderr) == (2, "sortition: toy is not installed\n")
        result = self.invoke("--real", "--out", str(out))
        assert (result.exit_code, "no federation has its data installed" in result.stderr) == (2, True)
        assert not out.exists()

    def test_what_is_missing_is_left_out(self, monkeypatch):
        known = real.federation

        def some(name):
            if name != "toy":
                raise DataError("not here")
            return known(name)

        monkeypatch.setattr(real, "federation", some)
        names, missing = installed_federations(None)
        assert (names, missing) == (["toy"], {name: "not here" for name in FEDERATIONS if name != "toy"})


ON_RAY = """
from sortition.lab.arena.ray_tasks import run_on_ray

def three(tick):
    tick()
    return 3

def failing(tick):
    raise ValueError("no")

print(sorted(run_on_ray([three, three], "local", ["a", "b"])))
try:
    list(run_on_ray([failing], "local", ["c"]))
except ValueError as error:
    print(error.__notes__)
"""


def test_tasks_on_a_local_ray_cluster():
    """Results with their places, and errors with the task's name; in a process of its own."""
    pytest.importorskip("ray", reason="ray comes with flwr[simulation], which is not installed")
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "[(0, 3), (1, 3)]\n['in c']\n", done.stderr
