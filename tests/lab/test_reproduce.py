"""The paper's figures: what is run, what is kept and what is measured."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from sortition import ConfigurationError
from sortition.core.errors import DataError
from sortition.lab.problems.least_squares import LeastSquares
from sortition.lab.reports.reproduction import made, provenance, write_figure
from sortition.lab.reproduce import variants as variants_module
from sortition.lab.reproduce.figures import FIGURES, FULL, QUICK, VARIANTS, RunSettings, figure
from sortition.lab.reproduce.finished import RunStore
from sortition.lab.reproduce.published import PUBLISHED
from sortition.lab.reproduce.results import execute, plan, summarise
from sortition.lab.reproduce.simulate import SAMPLERS, simulate
from sortition.lab.reproduce.variants import Start, make_algorithm, make_problem, make_sampler

SHORT = RunSettings("text", "heterogeneous", "adaptive-osmd", 12, 5, 0.1, seed=1, spread=3.0)
ORIGIN = {"commit": "abc", "versions": {"numpy": "1"}}


class TestFigures:
    def test_settings_of_the_paper(self):
        """10 repeats of 1,000 rounds with K = 5 at step 0.1; on images 5 with K = 10 at 0.075 or 0.03."""
        runs = {name: list(figure(name, VARIANTS, FULL).runs()) for name in FIGURES}
        for name in ("fig1", "fig2", "fig3", "fig4", "fig7", "fig8"):
            seeds = {run.seed for line in figure(name, VARIANTS, FULL).lines for run in line.candidates[0]}
            assert seeds == set(range(10))
            assert {(run.num_rounds, run.cohort_size) for run in runs[name]} == {(1000, 5)}
            assert {run.spread for run in runs[name]} == {1.0, 3.0, 10.0}
        assert {run.step_size for run in runs["fig1"]} == {0.1}
        assert {run.sampler for run in runs["fig1"]} == {"uniform", "optimal", "adaptive-osmd"}
        assert {run.sampler for run in runs["fig2"]} == {"adaptive-osmd", "mabs", "vrb", "avare"}
        assert {run.exploration for run in runs["fig3"]} == {0.01, 0.1, 0.4, 0.7, 0.9, 1.0}
        assert {run.step_size for run in runs["fig4"]} == {1.0, 0.5, 0.1, 0.05, 0.01}
        assert not runs["fig5"]
        assert {(run.problem, run.step_size) for run in runs["fig6"]} == {
            ("mnist", 0.075),
            ("kmnist", 0.075),
            ("fashion-mnist", 0.03),
        }
        assert {run.cohort_size for run in runs["fig6"]} == {10}
        assert len({run.seed for run in runs["fig6"]}) == 5
        assert {run.design for run in runs["fig7"]} == {"with_replacement", "without_replacement"}
        assert {run.algorithm for run in runs["fig8"]} == {"scaffold"}

    def test_proportional_sampling_where_weights_differ(self):
        for name in FIGURES:
            samplers = {run.sampler for run in figure(name, VARIANTS, FULL).runs()}
            assert ("proportional" in samplers) is (name == "fig6")

    def test_unknown_figure(self):
        with pytest.raises(ConfigurationError, match="fig9"):
            figure("fig9", VARIANTS)

    def test_equal_runs_of_two_figures_are_run_once(self, tmp_path):
        both = plan(["fig1", "fig2"], tmp_path, variants=("text",), scale=QUICK)
        runs = [run for each in both.figures for run in each.runs()]
        assert len(both.missing) == len(set(runs)) < len(runs)


class TestSimulate:
    def test_regret_of_the_text_is_by_the_definition(self):
        """Recomputed with the pieces: l_t(p^t) - l_t(p*) of the round's own updates (Equation 18)."""
        problem = make_problem(SHORT, None)
        assert isinstance(problem, LeastSquares)
        curves = simulate(SHORT)
        model = problem.initial_model()
        feedback = (problem.all_norms(model, 0) / 100) ** 2
        sampler = make_sampler(Start(SHORT, problem, feedback, feedback))
        algorithm, total = make_algorithm(SHORT), 0.0
        for round_index in range(12):
            a = (problem.all_norms(model, round_index) / 100) ** 2
            total += (np.sum(a / sampler.probabilities()) - np.sqrt(a).sum() ** 2) / 5
            cohort = sampler.draw()
            model, norms = algorithm(model, cohort, problem, round_index)
            sampler.observe(cohort, norms)
            assert curves["loss"][round_index] == pytest.approx(problem.loss(model))
            assert curves["regret"][round_index] == pytest.approx(total)

    @pytest.mark.parametrize(("sampler", "later"), [("uniform", 1), ("importance", 0)])
    def test_regret_of_the_authors_is_after_the_step_and_without_k(self, sampler, later):
        """sum a/p - (sum sqrt a)^2 at the new model, on the step's mini-batches; uniform sampling: on others.

        Both are distributions that do not change.
        """
        settings = replace(SHORT, variant="authors", sampler=sampler)
        problem = make_problem(settings, None)
        model = problem.initial_model()
        feedback = (problem.all_norms(model, 0) / 100) ** 2
        built = make_sampler(Start(settings, problem, feedback, feedback))
        algorithm, total = make_algorithm(settings), 0.0
        curves = simulate(settings)
        for round_index in range(12):
            model, _ = algorithm(model, built.draw(), problem, round_index)
            a = (problem.all_norms(model, round_index + later) / 100) ** 2
            total += np.sum(a / built.probabilities()) - np.sqrt(a).sum() ** 2
            assert curves["regret"][round_index] == pytest.approx(total)

    def test_bound_of_the_theorem_is_kept(self):
        curves = simulate(SHORT)
        assert 0.0 < curves["floor_regret"][0] <= curves["bound"][0]
        assert curves["floor_regret"][0] <= curves["regret"][-1]

    def test_optimal_sampling_has_no_regret(self):
        assert simulate(replace(SHORT, sampler="optimal"))["regret"][-1] == pytest.approx(0.0, abs=1e-6)

    def test_a_run_that_diverges_is_infinite_from_there_on(self):
        ticks = []
        settings = replace(SHORT, sampler="uniform", step_size=1e12, num_rounds=40)
        curves = simulate(settings, tick=lambda: ticks.append(1))
        assert np.isinf(curves["loss"][-1])
        assert np.isfinite(curves["loss"][0])
        assert len(curves["loss"]) == len(ticks) == 40

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_all_samplers_and_designs_run(self, variant):
        for sampler in ("mabs", "vrb", "avare", "importance", "osmd"):
            curves = simulate(replace(SHORT, variant=variant, sampler=sampler, num_rounds=3))
            assert np.all(np.isfinite(curves["regret"]))
        for other in (
            replace(SHORT, variant=variant, design="without_replacement", num_rounds=3),
            replace(
                SHORT, variant=variant, sampler="osmd", algorithm="scaffold", step_size=0.01, num_rounds=3
            ),
            replace(SHORT, variant=variant, problem="one-coordinate", num_rounds=3),
        ):
            assert np.all(np.isfinite(simulate(other)["loss"]))

    def test_unknown_names(self):
        with pytest.raises(ConfigurationError, match="sampler"):
            simulate(replace(SHORT, sampler="roulette"))
        with pytest.raises(ConfigurationError, match="problem"):
            simulate(replace(SHORT, problem="moons"))


class TestStore:
    def test_kept_and_loaded(self, tmp_path):
        store, curves = RunStore(tmp_path), simulate(SHORT)
        assert not store.holds(SHORT)
        store.save(SHORT, curves, ORIGIN)
        assert store.holds(SHORT)
        assert np.array_equal(store.load(SHORT)["loss"], curves["loss"])
        assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]

    @pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut off", None])
    def test_damaged_files_are_not_believed(self, tmp_path, damage):
        store = RunStore(tmp_path)
        store.save(SHORT, simulate(SHORT), ORIGIN)
        path = store.path(SHORT)
        path.write_bytes(path.read_bytes()[:-200] if damage is None else damage)
        before = path.read_bytes()
        with pytest.raises(DataError, match="damaged"):
            store.holds(SHORT)
        assert path.read_bytes() == before

    def test_the_run_of_other_settings_is_not_believed(self, tmp_path):
        store, other = RunStore(tmp_path), replace(SHORT, seed=9)
        store.save(SHORT, simulate(SHORT), ORIGIN)
        store.path(SHORT).rename(store.path(other))
        with pytest.raises(DataError, match="another"):
            store.load(other)

    def test_interrupted_and_continued_is_the_same_as_unbroken(self, tmp_path):
        """Stopped within the third run: two are kept, and what comes out in the end is the same."""
        scale = replace(QUICK, rounds=4, repeats=1)
        unbroken = plan(["fig7"], tmp_path / "one", variants=("text",), scale=scale)
        expected = execute(unbroken, jobs=1)[0]

        def interrupt(rounds: int) -> None:
            if rounds == 10:
                raise KeyboardInterrupt

        first = plan(["fig7"], tmp_path / "two", variants=("text",), scale=scale)
        with pytest.raises(KeyboardInterrupt):
            execute(first, jobs=1, progress=interrupt)
        second = plan(["fig7"], tmp_path / "two", variants=("text",), scale=scale)
        assert second.kept == 2
        assert len(second.missing) == len(first.missing) - 2
        result = execute(second, jobs=1)[0]
        for one, other in zip(expected.curves, result.curves, strict=True):
            assert np.array_equal(one.mean, other.mean)

    def test_the_code_that_made_the_runs_is_kept_and_reported(self, tmp_path):
        """Two runs of an older commit are found: the figure is of both, and the pages say so."""
        scale = replace(QUICK, rounds=4, repeats=1)
        first = plan(["fig7"], tmp_path, variants=("text",), scale=scale)
        older = {**first.origin, "commit": "older"}
        for run in first.missing[:2]:
            first.store.save(run, simulate(run), older)
        second = plan(["fig7"], tmp_path, variants=("text",), scale=scale)
        assert second.kept == 2
        results = execute(second, jobs=1)
        assert list(results[0].origins) == [older, second.origin]
        said = provenance(second, results, scale, quick=True)
        assert said["runs_made_by"] == [older, second.origin]
        assert "out of runs made from commit older with" in made(said)
        write_figure(results[0], tmp_path / "fig7", said)
        assert json.loads((tmp_path / "fig7" / "summary.json").read_text())["runs_made_by"][0] == older
        said["runs_made_by"] = [second.origin]
        assert made(said).startswith("Made on")
        assert "out of runs" not in made(said)


class TestSummary:
    def test_the_best_step_size_is_chosen(self, tmp_path):
        scale = replace(QUICK, rounds=6, repeats=2, step_sizes=None)
        todo = plan(["fig4"], tmp_path, variants=("text",), scale=scale)
        result = execute(todo, jobs=1)[0]
        for line in todo.figures[0].lines:
            finals = {
                candidate[0].step_size: np.mean(
                    [np.log(todo.store.load(run)["loss"][-1]) for run in candidate]
                )
                for candidate in line.candidates
            }
            curve = next(
                curve
                for curve in result.curves
                if (curve.panel, curve.label, curve.quantity) == (line.panel, line.label, "log loss")
            )
            assert curve.step_size == min(finals, key=finals.__getitem__)
            assert curve.mean[-1] == pytest.approx(min(finals.values()))

    def test_only_the_chosen_step_size_has_all_repeats(self, tmp_path):
        """4 repeats: 3 at each of 2 step sizes, and the fourth at one of them, for 6 lines."""
        scale = replace(QUICK, rounds=3, repeats=4)
        todo = plan(["fig8"], tmp_path, variants=("text",), scale=scale)
        assert (len(todo.missing), todo.rounds) == (36, 3 * 42)
        seen: list[int] = []
        execute(todo, jobs=1, progress=seen.append)
        assert len(list((tmp_path / "runs").iterdir())) == 42
        assert seen == list(range(1, 3 * 42 + 1))
        assert plan(["fig8"], tmp_path, variants=("text",), scale=scale).remaining() == ()

    def test_published_numbers_are_compared_where_they_can_be(self, tmp_path):
        """Made-up runs that end where the published ones do are within; others are not."""
        todo = plan(["fig1"], tmp_path, variants=("authors",), scale=FULL)
        labels = {(line.panel, line.label): line for line in todo.figures[0].lines}
        more = {(line.panel, line.label): line for line in todo.figures[0].published}
        for line in labels.values():
            for run in line.candidates[0]:
                todo.store.save(
                    run,
                    {name: np.ones(1000) for name in ("loss", "regret")} | {"rounds": np.arange(1.0, 1001.0)},
                    ORIGIN,
                )
        for published in (each for each in PUBLISHED if each.figure == "fig1"):
            losses = np.ones(1000)
            losses[[99, 499, 999]] = np.exp(list(published.log_losses.values()))
            for run in more[(published.panel, published.label)].candidates[0]:
                regret = np.full(1000, math.exp(published.log_regret or 0.0))
                rounds = np.arange(1.0, 1001.0)
                todo.store.save(run, {"loss": losses, "regret": regret, "rounds": rounds}, ORIGIN)
        for run in todo.figures[0].replayed:
            ones = np.ones((10, len(SAMPLERS), 1000)) * np.arange(1.0, 6.0)[:, None]
            todo.store.save(run, {"loss": ones, "regret": 10.0 * ones, "rounds": rounds}, ORIGIN)
        rows = summarise(todo.figures[0], todo.store).table
        assert len(rows) == 33
        assert {row["runs"] for row in rows} == {FULL.published_repeats}
        assert all(row["within"] for row in rows)
        places = {"Uniform": 1.0, "Optimal (oracle)": 2.0, "Adaptive-OSMD": 3.0}
        for row in rows:
            scale = 10.0 if row["quantity"] == "log regret" else 1.0
            assert row["replayed"] == pytest.approx(math.log(scale * places[row["sampler"]]))


class TestImages:
    """What a run of Figure 6 was run on is a part of its settings."""

    @pytest.fixture
    def data(self, tmp_path, monkeypatch):
        """Three made-up sets, and federations small enough for them."""
        monkeypatch.setattr(variants_module, "NUM_IMAGE_CLIENTS", 40)
        for seed, name in enumerate(("mnist", "kmnist", "fashion-mnist")):
            rng = np.random.default_rng(seed)
            for kind, shape in (("images-idx3", (800, 3, 3)), ("labels-idx1", (800,))):
                array = rng.integers(0, 10, shape).astype(np.uint8)
                path = tmp_path / "data" / name / f"t10k-{kind}-ubyte"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(
                    bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes() + bytes(array)
                )
        return tmp_path / "data"

    def plan(self, data):
        scale = replace(QUICK, rounds=2, evaluate_images_every=1)
        return plan(["fig6"], data.parent / "out", variants=("text",), scale=scale, data=data)

    def test_runs_on_other_images_are_not_taken_for_those_on_these(self, data):
        first = self.plan(data)
        before = execute(first, jobs=1)[0]
        assert self.plan(data).kept == len(first.missing)
        for one, other in (("mnist", "aside"), ("kmnist", "mnist"), ("aside", "kmnist")):
            (data / one).rename(data / other)
        swapped = self.plan(data)
        assert swapped.kept == len(first.missing) // 3  # Fashion-MNIST is as it was
        after = execute(swapped, jobs=1)[0]
        for one, other in zip(before.curves, after.curves, strict=True):
            assert np.array_equal(one.mean, other.mean) is (one.panel == "fashion-mnist")

    def test_two_sets_of_the_same_images_are_refused(self, data):
        shutil.rmtree(data / "kmnist")
        shutil.copytree(data / "mnist", data / "kmnist")
        with pytest.raises(DataError, match="image sets"):
            self.plan(data)
        assert not (data.parent / "out").exists()

    def test_images_that_change_under_a_run_are_refused(self, data):
        todo = self.plan(data)
        shutil.rmtree(data / "mnist")
        (data / "kmnist").rename(data / "mnist")
        run = next(run for run in todo.missing if run.problem == "mnist")
        with pytest.raises(DataError, match="mnist"):
            make_problem(run, data)
