"""The comparison: what its numbers mean, and that processes do not change them."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest

from sortition import Cohort, ConfigurationError, UniformSampler
from sortition.lab import parallel
from sortition.lab.arena.environments import ENVIRONMENTS, Environment, Training, digits_training
from sortition.lab.arena.tournament import rounds_to, run_closed_loop, smooth
from sortition.lab.compare import FallingCurve, compare, rounds_of
from sortition.lab.contestants import CONTESTANTS
from sortition.lab.problems.softmax import digits_federation
from sortition.lab.training import all_norms, check_problem

ROUNDS = 40


SMALL = {"cohort_size": 3, "num_rounds": ROUNDS, "step_size": 0.05}


def twenty(seed):
    return digits_federation(num_clients=20, seed=seed)


def small(samplers, **changes):
    return compare(twenty, samplers, **{**SMALL, "repeats": 2, "seed": 4, **changes})


class Line:
    """Clients that pull a number to their own places, by gradients of a quadratic loss."""

    def __init__(self, seed, num_clients=6, spread=1.0):
        self.places = spread * np.random.default_rng(seed).normal(size=num_clients)
        self.num_clients = num_clients
        self.client_weights = np.full(num_clients, 1.0 / num_clients)

    def initial_model(self):
        return np.array([10.0])

    def updates(self, model, clients, round_index):
        return model - self.places[clients][:, None]

    def loss(self, model):
        return float(np.mean((model - self.places) ** 2))


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


class TestFallingCurve:
    def test_a_falling_curve_is_left_as_it_is(self):
        curve = FallingCurve(np.array([8.0, 4.0, 2.0, 1.0]))
        assert [curve.at(rounds) for rounds in (1, 2, 3, 4)] == [8.0, 4.0, 2.0, 1.0]
        assert [curve.rounds_to(loss) for loss in (8.0, 4.0, 3.0, 1.0)] == [1.0, 2.0, 2.5, 4.0]
        assert curve.rounds_to(0.5) is None
        assert curve.rounds_to(100.0) == 1.0

    def test_a_lucky_dip_does_not_count(self):
        """The mean of rounds 2 to 4 is 5, and they are one stretch around round 3."""
        curve = FallingCurve(np.array([10.0, 1.0, 9.0, 5.0, 0.0]))
        assert curve.at(3) == 5.0
        assert curve.rounds_to(5.0) == 3.0
        assert curve.rounds_to(1.0) == pytest.approx(4.6)

    def test_a_run_that_diverged_never_arrives(self):
        curve = FallingCurve(np.array([1.0, 0.1, np.inf]))
        assert curve.rounds_to(0.5) is None
        assert curve.at(2) == np.inf


class TestRows:
    def test_uniform_is_added_and_comes_first(self, comparison):
        assert [row.name for row in comparison.rows] == ["uniform", "proportional", "optimal"]

    def test_the_order_given_is_kept(self):
        rows = small(["proportional", "uniform"], num_rounds=10, repeats=1).rows
        assert [row.name for row in rows] == ["proportional", "uniform"]

    def test_rounds_are_those_of_the_fitted_curves(self, comparison):
        uniform = FallingCurve(comparison.rows[0].losses)
        assert comparison.target_loss == uniform.at(32)
        for row in comparison.rows:
            assert row.rounds_to_target == FallingCurve(row.losses).rounds_to(comparison.target_loss)
            ratio = row.rounds_to_target / uniform.rounds_to(comparison.target_loss)
            assert row.rounds_ratio == pytest.approx(ratio)

    def test_the_interval_leaves_out_one_repeat_at_a_time(self, comparison):
        """Two repeats: Student's t with one degree of freedom, whose 97.5% quantile is tan(0.475 pi)."""
        alone = [small(["proportional", "optimal"], repeats=1, seed=seed) for seed in (4, 5)]
        for place, row in enumerate(comparison.rows):
            logs = np.log([one.rows[place].rounds_ratio for one in alone])
            assert alone[0].rows[place].interval is None
            half = np.tan(0.475 * np.pi) * abs(logs[0] - logs[1]) / 2
            low, high = np.log(row.rounds_ratio) - half, np.log(row.rounds_ratio) + half
            assert row.interval == pytest.approx((np.exp(low), np.exp(high)))

    def test_curves_are_means_over_the_repeats(self):
        both = small([], num_rounds=10).rows[0]
        first = small([], num_rounds=10, repeats=1, seed=4).rows[0]
        second = small([], num_rounds=10, repeats=1, seed=5).rows[0]
        assert np.array_equal(both.losses_of_repeats, [first.losses, second.losses])
        assert both.losses == pytest.approx((first.losses + second.losses) / 2)
        assert both.losses_spread == pytest.approx(abs(first.losses - second.losses) / 2)
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

        uniform, nobody = small({"nobody": lambda trial: Nobody(**trial.common())}, cohort_size=10).rows
        assert uniform.rounds_to_target is not None
        assert nobody.final_loss == pytest.approx(np.log(10))
        assert nobody.rounds_to_target is None
        assert nobody.rounds_ratio is None
        assert nobody.interval is None

    def test_the_feedback_bound_is_the_largest_feedback_at_the_start(self):
        bounds = []

        def recording(trial):
            bounds.append(trial.feedback_bound)
            return CONTESTANTS["uniform"](trial)

        small({"recording": recording}, num_rounds=10, repeats=1, seed=6, step_size=0.01)
        problem = digits_federation(num_clients=20, seed=6)
        norms = problem.all_norms(problem.initial_model(), 0)
        assert bounds == [pytest.approx(max((problem.client_weights * norms) ** 2))]

    @pytest.mark.parametrize(
        ("interval", "difference"),
        [
            ((0.5, 0.9), "fewer"),
            ((1.1, 1.3), "more"),
            ((0.9, 1.1), "no difference"),
            ((0.3, 1.1), "not shown"),
            (None, ""),
        ],
    )
    def test_a_difference_is_told_by_the_interval(self, comparison, interval, difference):
        assert replace(comparison.rows[1], interval=interval).difference == difference


class TestTarget:
    def test_training_that_gets_nowhere_is_refused(self):
        with pytest.raises(ConfigurationError, match="there is nothing to compare"):
            small(["proportional"], step_size=1.0, num_rounds=10)

    def test_more_clients_than_there_are_can_only_be_drawn_with_replacement(self):
        with pytest.raises(ConfigurationError, match="cohort_size must be at most 6, got 7"):
            compare(Line, ["uniform"], cohort_size=7, num_rounds=5, step_size=0.1, repeats=1)
        options = {"num_rounds": 5, "step_size": 0.1, "repeats": 1, "jobs": 1}
        found = compare(Line, ["uniform"], cohort_size=7, design="with_replacement", **options)
        assert found.cohort_size == 7

    def test_training_that_diverges_is_refused(self):
        with pytest.raises(ConfigurationError, match="has a loss of inf"):
            compare(Line, [], cohort_size=2, num_rounds=400, step_size=9.0, repeats=1)

    def test_who_tunes_is_not_told_to_tune(self):
        settings = {"cohort_size": 2, "num_rounds": 20, "step_size": 1e300, "repeats": 1}
        with pytest.raises(ConfigurationError, match=r"step_size must lower the loss, .* or tune"):
            compare(Line, [], **settings)
        with pytest.raises(ConfigurationError, match=r"got 1e\+300, tuned to .* smaller step to tune from$"):
            compare(Line, [], **settings, tune=True)

    def test_a_flat_end_is_said(self):
        text = repr(compare(Line, [], cohort_size=3, num_rounds=100, step_size=0.5, repeats=1))
        assert "hardly falls" in text
        assert "hardly falls" not in repr(small(["proportional"]))


class TestTuning:
    def test_each_sampler_gets_a_step_of_its_own_from_other_seeds(self):
        """On a line with all clients in every round, gradient descent arrives at once with step 1."""
        seeds = []

        class Watched(Line):
            def __init__(self, seed):
                super().__init__(seed, spread=0.0)
                seeds.append(seed)

        tuned = compare(
            Watched, ["proportional"], cohort_size=6, num_rounds=20, step_size=0.125, repeats=2, tune=True
        )
        assert [row.step_size for row in tuned.rows] == [1.0, 1.0]
        assert tuned.tuned
        assert "step size" in repr(tuned)
        assert sorted(set(seeds)) == [0, 1, 2, 3]

    def test_the_progress_bar_knows_all_rounds(self):
        counts = []
        options = {
            "cohort_size": 2,
            "num_rounds": 5,
            "step_size": 0.1,
            "repeats": 1,
            "progress": counts.append,
        }
        compare(Line, [], **options, tune=True)
        assert counts == list(range(1, rounds_of(1, 5, 1, tune=True) + 1))


class TestEnvironment:
    def test_the_default_comparison_is_an_environment_of_the_arena(self):
        assert repr(ENVIRONMENTS["digits-100"].training) == repr(digits_training())

    def test_a_comparison_trains_as_the_closed_loop_of_the_arena(self):
        """The same seed in the same environment: the same runs."""
        contestants = {name: CONTESTANTS[name] for name in ("uniform", "optimal")}
        training = Training(twenty, **SMALL, design="fixed_size")
        environment = Environment("small", "tune", "twenty clients", training)
        arena = run_closed_loop(contestants, [environment], split="report", seeds=1)
        rows = small(["uniform", "optimal"], repeats=1, seed=1).rows
        for row, score in zip(rows, arena.scores, strict=True):
            assert row.mean_variance_ratio == score.ratio
            assert smooth(row.losses)[-1] == score.closed_loop.final_loss


def _add_one(model):
    model += 1.0


class TestOwnProblem:
    def test_norms_of_all_clients_come_from_the_updates(self):
        problem = Line(3)
        assert all_norms(problem, np.array([2.0]), 0) == pytest.approx(abs(2.0 - problem.places))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"num_clients": 0}, "num_clients"),
            ({"client_weights": np.ones(6)}, "client_weights of the problem must sum to one"),
            ({"loss": lambda model: np.nan}, r"problem: loss\(model\) gave nan at the initial model"),
            ({"loss": lambda model: np.zeros(2)}, "loss.* must be a number"),
            ({"loss": 3.0}, "method loss"),
            ({"initial_model": lambda: np.zeros((2, 2))}, "initial_model"),
            ({"updates": lambda model, clients, round_index: np.zeros(3)}, "a row of 1 numbers for each"),
            ({"updates": lambda model, clients, round_index: [[0.0]] * len(clients)}, "an array"),
            ({"updates": lambda model, clients, round_index: np.random.rand(len(clients), 1)}, "the same"),
            ({"updates": lambda model, clients, round_index: (_add_one(model), np.zeros((2, 1)))[1]}, "copy"),
            ({"updates": lambda model, clients: np.zeros(3)}, "TypeError"),
            (
                {"updates": lambda model, clients, round_index: np.full((len(clients), 1), np.nan)},
                "gave nan for client 0 in round 0, at the initial model",
            ),
            (
                {"updates": lambda model, ids, round_index: np.where(ids[:, None] == 4, -np.inf, 1)},
                r"problem: updates\(.*\) gave -inf for client 4 in round 0",
            ),
        ],
    )
    def test_what_is_wrong_with_a_problem_is_said(self, change, message):
        def broken(seed):
            problem = Line(seed)
            vars(problem).update(change)
            return problem

        with pytest.raises(ConfigurationError, match=message):
            compare(broken, [], cohort_size=2, num_rounds=5, step_size=0.1)

    @pytest.mark.parametrize("member", ["updates", "loss"])
    def test_what_is_not_finite_in_a_later_repeat_is_not_blamed_on_the_step(self, member):
        def broken(seed):
            problem = Line(seed)
            if seed == 2:
                problem.places[5] = np.nan
                if member == "loss":
                    problem.updates = Line(seed).updates
            return problem

        with pytest.raises(ConfigurationError, match=rf"problem: {member}\(.*\) gave nan .*initial model"):
            compare(broken, [], cohort_size=2, num_rounds=5, step_size=0.1, repeats=3)

    def test_large_updates_are_finite(self):
        problem = Line(0, spread=1e200)
        problem.loss = lambda model: 1.0
        assert check_problem(problem) is problem

    def test_what_is_no_problem_is_refused(self):
        for wrong in (3, lambda seed: 3, lambda: Line(0)):
            with pytest.raises(ConfigurationError, match="problem"):
                compare(wrong, [], cohort_size=2, num_rounds=5, step_size=0.1)

    def test_a_sampler_of_another_number_of_clients_is_named(self):
        def three(trial):
            return UniformSampler(num_clients=3, cohort_size=2)

        with pytest.raises(ConfigurationError, match="'three' must make a sampler of 6 clients"):
            compare(Line, {"three": three}, cohort_size=2, num_rounds=5, step_size=0.1)

    def test_a_sampler_of_another_cohort_size_is_named(self):
        def one(trial):
            return UniformSampler(**{**trial.common(), "cohort_size": 1})

        with pytest.raises(
            ConfigurationError, match=r"'one' must make a sampler of cohort_size 2 .* got one of 1"
        ):
            compare(Line, {"one": one}, cohort_size=2, num_rounds=5, step_size=0.1)

    def test_a_federation_must_depend_on_its_seed_only(self):
        def fresh(seed):
            return Line(np.random.default_rng().integers(2**60))

        sizes = iter(range(3, 9))

        def growing(seed):
            return Line(seed, num_clients=next(sizes))

        def last(seed):
            problem = Line(seed, num_clients=200)
            problem.places[-1] = np.random.default_rng().normal()
            problem.loss = lambda model: 1.0
            return problem

        for problem in (fresh, growing, last):
            expected = rf"{problem.__name__}\(seed=0\) must make the same federation when it is called again"
            with pytest.raises(ConfigurationError, match=expected):
                compare(problem, [], cohort_size=2, num_rounds=5, step_size=0.1)

    def test_a_federation_of_real_data_may_ignore_its_seed(self):
        """Then repeats differ in their draws alone, and that is said."""

        def real(seed):
            return Line(0)

        options = {"cohort_size": 2, "num_rounds": 20, "step_size": 0.1}
        assert compare(real, [], **options, repeats=2).ignores_seed
        assert not compare(real, [], **options, repeats=1).ignores_seed
        assert not compare(Line, [], **options, repeats=2).ignores_seed

    def test_one_that_is_defined_in_a_notebook_reaches_the_workers(self):
        """Classes of __main__ go by value: here one that no worker can import."""

        class Here(Line):
            pass

        options = {"cohort_size": 2, "num_rounds": 20, "step_size": 0.1, "repeats": 2}
        one, two = (compare(Here, ["proportional"], **options, jobs=jobs) for jobs in (1, 2))
        assert repr(two) == repr(one)


class TestArguments:
    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("num_rounds", 1),
            ("num_rounds", 10**20),
            ("repeats", 0),
            ("repeats", 10**20),
            ("jobs", 0),
            ("cohort_size", 0),
        ],
    )
    def test_bad_arguments_are_named(self, argument, value):
        with pytest.raises(ConfigurationError, match=argument):
            small(["uniform"], **{argument: value})

    def test_nobody_but_uniform(self):
        assert [row.name for row in small([], num_rounds=10).rows] == ["uniform"]


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
        small(["uniform"], num_rounds=8, progress=counts.append)
        assert counts == list(range(1, 17))

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
