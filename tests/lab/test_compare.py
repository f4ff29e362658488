"""The comparison: what its numbers mean, and that processes do not change them."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from sortition import Cohort, ConfigurationError, UniformSampler
from sortition.lab import parallel
from sortition.lab.arena.environments import ENVIRONMENTS, Environment, digits_training
from sortition.lab.arena.tournament import rounds_to, run_closed_loop, smooth
from sortition.lab.compare import compare
from sortition.lab.contestants import CONTESTANTS
from sortition.lab.problems.softmax import digits_federation

ROUNDS = 40


def training(**changes):
    settings = {"num_clients": 20, "cohort_size": 3, "num_rounds": ROUNDS, "step_size": 0.2}
    return digits_training(**{**settings, **changes})


def small(names, *, repeats=2, seed=4, jobs=1, progress=None, **changes):
    contestants = {name: CONTESTANTS[name] for name in names}
    return compare(contestants, training(**changes), repeats=repeats, seed=seed, jobs=jobs, progress=progress)


@pytest.fixture(scope="module")
def comparison():
    return small(["proportional", "optimal"])


class TestCurves:
    def test_smooth_is_a_trailing_mean(self):
        curve = np.random.default_rng(0).normal(size=200)
        expected = [curve[max(0, end - 20) : end].mean() for end in range(1, 201)]
        assert smooth(curve) == pytest.approx(np.array(expected))

    def test_short_curves_are_left_alone(self):
        assert smooth(np.array([3.0, 1.0, 2.0])) == pytest.approx(np.array([3.0, 1.0, 2.0]))

    def test_rounds_count_from_one_and_the_first_arrival_counts(self):
        assert rounds_to(np.array([0.5, 2.0]), 1.0) == 1
        assert rounds_to(np.array([2.0, 1.0, 2.0, 0.5]), 1.0) == 2
        assert rounds_to(np.array([2.0, 1.5]), 1.0) is None


class TestRows:
    def test_uniform_is_added_and_comes_first(self, comparison):
        assert [row.name for row in comparison.rows] == ["uniform", "proportional", "optimal"]

    def test_the_order_given_is_kept(self):
        rows = small(["proportional", "uniform"], num_rounds=3, repeats=1).rows
        assert [row.name for row in rows] == ["proportional", "uniform"]

    def test_target_is_uniforms_loss_after_four_fifths_of_the_rounds(self, comparison):
        uniform = comparison.rows[0]
        assert comparison.target_loss == smooth(uniform.losses)[31]
        assert uniform.rounds_to_target is not None
        assert uniform.rounds_to_target <= 32
        assert uniform.rounds_ratio == 1.0

    def test_rounds_are_those_of_the_smoothed_mean_curve(self, comparison):
        for row in comparison.rows:
            assert row.rounds_to_target == rounds_to(smooth(row.losses), comparison.target_loss)
            assert row.rounds_ratio == row.rounds_to_target / comparison.rows[0].rounds_to_target

    def test_curves_are_means_over_the_repeats(self):
        both = small(["uniform"], num_rounds=5).rows[0]
        first = small(["uniform"], num_rounds=5, repeats=1, seed=4).rows[0]
        second = small(["uniform"], num_rounds=5, repeats=1, seed=5).rows[0]
        assert both.losses == pytest.approx((first.losses + second.losses) / 2)
        assert both.final_loss == pytest.approx((first.losses[-1] + second.losses[-1]) / 2)
        assert both.final_loss_spread == pytest.approx(abs(first.losses[-1] - second.losses[-1]) / 2)
        assert both.mean_variance_ratio == pytest.approx(
            (first.mean_variance_ratio + second.mean_variance_ratio) / 2
        )

    def test_the_oracle_has_the_least_variance(self, comparison):
        ratios = {row.name: row.mean_variance_ratio for row in comparison.rows}
        assert ratios["optimal"] == pytest.approx(1.0)
        assert ratios["uniform"] > ratios["proportional"] > 1.0

    def test_a_sampler_that_never_arrives_has_no_rounds(self):
        class Nobody(UniformSampler):
            def draw(self, available=None):
                return Cohort(0, 3, [], [], [], [])

            def observe(self, cohort, norms):
                assert len(norms) == 0

        uniform, nobody = compare(
            {"nobody": lambda trial: Nobody(**trial.common())},
            training(cohort_size=10, step_size=0.05),
            repeats=1,
        ).rows
        assert uniform.rounds_to_target is not None
        assert nobody.final_loss == pytest.approx(np.log(10))
        assert nobody.rounds_to_target is None
        assert nobody.rounds_ratio is None

    def test_the_feedback_bound_is_the_largest_feedback_at_the_start(self):
        bounds = []

        def recording(trial):
            bounds.append(trial.feedback_bound)
            return CONTESTANTS["uniform"](trial)

        compare({"recording": recording}, training(num_rounds=2), repeats=1, seed=6)
        problem = digits_federation(num_clients=20, seed=6)
        norms = problem.all_norms(problem.initial_model(), 0)
        assert bounds == [pytest.approx(max((problem.client_weights * norms) ** 2))]


class TestEnvironment:
    def test_the_default_comparison_is_an_environment_of_the_arena(self):
        assert repr(ENVIRONMENTS["digits-100"].training) == repr(digits_training())

    def test_a_comparison_is_the_closed_loop_of_the_arena(self):
        """The same seed in the same environment: the same verdicts."""
        contestants = {name: CONTESTANTS[name] for name in ("uniform", "optimal")}
        environment = Environment("small", "tune", "twenty clients", training())
        arena = run_closed_loop(contestants, [environment], split="report", seeds=1)
        rows = compare(contestants, training(), repeats=1, seed=1).rows
        for row, score in zip(rows, arena.scores, strict=True):
            assert row.rounds_to_target == score.closed_loop.rounds_to_target
            assert row.rounds_ratio == score.closed_loop.rounds_to_uniform
            assert row.mean_variance_ratio == score.ratio


class TestArguments:
    @pytest.mark.parametrize(
        ("argument", "value"), [("num_rounds", 1), ("repeats", 0), ("jobs", 0), ("cohort_size", 0)]
    )
    def test_bad_arguments_are_named(self, argument, value):
        with pytest.raises(ConfigurationError, match=argument):
            small(["uniform"], **{argument: value})

    def test_nobody_is_an_error(self):
        with pytest.raises(ConfigurationError, match="contestants"):
            small([])


class TestProcesses:
    def test_two_processes_give_the_same_and_count_every_round(self, comparison):
        counts = []
        parallel_run = small(["proportional", "optimal"], jobs=2, progress=counts.append)
        assert counts == sorted(counts)
        assert counts[-1] == 3 * 2 * ROUNDS
        for row, expected in zip(parallel_run.rows, comparison.rows, strict=True):
            assert row.losses == pytest.approx(expected.losses, rel=1e-9)
            assert row.rounds_to_target == expected.rounds_to_target

    def test_one_process_counts_every_round(self):
        counts = []
        small(["uniform"], num_rounds=3, progress=counts.append)
        assert counts == [1, 2, 3, 4, 5, 6]

    def test_an_error_in_a_worker_arrives_as_it_is(self):
        with pytest.raises(ConfigurationError, match="cohort_size"):
            small(["uniform"], cohort_size=21, design="without_replacement", repeats=1, jobs=2)
        assert multiprocessing.active_children() == []

    def test_an_interrupt_ends_the_workers(self):
        def interrupt(rounds):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            small(["uniform"], num_rounds=2000, repeats=1, jobs=2, progress=interrupt)
        assert multiprocessing.active_children() == []

    def test_a_stopped_worker_leaves_at_its_next_tick(self, monkeypatch):
        context = multiprocessing.get_context("spawn")
        count, stop = context.Value("q", 0), context.RawValue("b", 0)
        monkeypatch.setattr(parallel, "_count", count)
        monkeypatch.setattr(parallel, "_stop", stop)
        parallel._tick()
        stop.value = 1
        with pytest.raises(parallel.StoppedError):
            parallel._tick()
        assert count.value == 1
