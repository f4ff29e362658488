"""The diagnosis: its formulas by enumeration, its estimates without bias, its verdict, its files."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import sortition
from sortition import (
    ConfigurationError,
    FixedSampler,
    LedgerError,
    Memory,
    NormPrivacy,
    UniformSampler,
    default_sampler,
    diagnose,
)
from sortition.cli import commands
from sortition.core.cohort import Cohort
from sortition.core.designs import inclusion_probabilities
from sortition.lab.diagnosis.findings import (
    ADAPTIVE,
    BEST,
    CHOICES,
    MEMORY,
    MODEL_ERROR,
    NEAR,
    PROPORTIONAL,
    UNIFORM,
    VERDICTS,
    Diagnosis,
    Pilot,
    StepNoise,
    _percent,
    _range,
    heterogeneity,
    verdict_of,
)
from sortition.lab.diagnosis.known_norms import default_of, measure_norms, smallest_cohort
from sortition.lab.diagnosis.norm_table import NormTable, read_norms
from sortition.lab.diagnosis.pilots import Trainings, standard_errors, train_pilots
from sortition.lab.diagnosis.recorded_run import DrawnRound, _threshold, drawn_rounds, estimates, measure_run
from sortition.lab.diagnosis.trained_problem import measure_problem, true_variances
from sortition.lab.reports.diagnosis_page import rounds_chart
from sortition.lab.versions import versions
from sortition.ledger import open_run, read_run
from sortition.ledger.store import counted

M, K = 4, 2
WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])
NORMS = np.array([5.0, 1.0, 2.0, 0.5])
UPDATES = np.random.default_rng(3).normal(size=(M, 3))


def all_designs():
    """Every cohort of ordered pivotal sampling by ``WEIGHTS``, with its probability: all duels, both ways."""
    inclusion = inclusion_probabilities(WEIGHTS, K)
    law: dict[tuple[int, ...], float] = {}

    def play(client, held, a, taken, chance):
        if chance == 0.0:
            return
        if client == M:
            cohort = tuple(sorted(taken if len(taken) == K else (*taken, held)))
            law[cohort] = law.get(cohort, 0.0) + chance
            return
        b = inclusion[client]
        if a + b < 1.0:
            play(client + 1, held, a + b, taken, chance * a / (a + b))
            play(client + 1, client, a + b, taken, chance * b / (a + b))
            return
        first = (1.0 - b) / (2.0 - a - b)
        play(client + 1, client, a + b - 1.0, (*taken, held), chance * first)
        play(client + 1, held, a + b - 1.0, (*taken, client), chance * (1.0 - first))

    play(0, -1, 0.0, (), 1.0)
    for client in range(M):
        assert sum(p for cohort, p in law.items() if client in cohort) == pytest.approx(inclusion[client])
    return inclusion, list(law.items())


class TestFormulas:
    def test_variance_of_fixed_size_is_that_of_all_draws(self):
        """With every draw in its proportion, the cross terms are exact, and so is S."""
        inclusion, design = all_designs()
        residuals = WEIGHTS[:, None] * UPDATES
        mean, exact, draws = residuals.sum(axis=0), 0.0, []
        for pair, probability in design:
            clients, weights = np.array(pair), 1.0 / inclusion[list(pair)]
            exact += probability * np.sum((weights @ residuals[clients] - mean) ** 2)
            draws += [(clients, weights)] * round(10_000 * probability)
        own, _ = true_variances(residuals, WEIGHTS, K, draws)
        assert own == pytest.approx(exact, rel=1e-3)

    def test_variance_with_replacement_is_that_of_all_draws(self):
        residuals = WEIGHTS[:, None] * UPDATES
        mean = residuals.sum(axis=0)
        exact = 0.0
        for draws in itertools.product(range(M), repeat=K):
            aggregate = sum(residuals[m] / (K * WEIGHTS[m]) for m in draws)
            exact += np.prod(WEIGHTS[list(draws)]) * np.sum((aggregate - mean) ** 2)
        _, replacing = true_variances(residuals, WEIGHTS, K, [(np.arange(M), np.ones(M))])
        assert replacing == pytest.approx(exact)

    def test_norms_alone_give_the_variance_of_independent_draws(self):
        table = NormTable(sizes=WEIGHTS, norms=np.linalg.norm(UPDATES, axis=1))
        noise = measure_norms(table, K, held=1, smallest=False)
        inclusion = inclusion_probabilities(WEIGHTS, K)
        mean, exact = WEIGHTS @ UPDATES, 0.0
        for coins in itertools.product((0.0, 1.0), repeat=M):
            chance = np.prod(np.where(np.array(coins) > 0.0, inclusion, 1.0 - inclusion))
            aggregate = (np.array(coins) / inclusion * WEIGHTS) @ UPDATES
            exact += chance * np.sum((aggregate - mean) ** 2)
        assert noise.sampling[PROPORTIONAL][0] == pytest.approx(exact)

    def test_nothing_is_below_the_best_possible(self):
        rng = np.random.default_rng(0)
        table = NormTable(sizes=WEIGHTS, norms=rng.exponential(size=(30, M)))
        noise = measure_norms(table, K, smallest=False)
        for choice in (UNIFORM, PROPORTIONAL, ADAPTIVE):
            assert np.all(noise.sampling[choice] >= noise.sampling[BEST] - 1e-12)
            assert np.all(noise.replacing[choice] >= noise.replacing[BEST] - 1e-12)

    def test_the_signal_and_minibatch_noise_are_at_most_what_the_norms_allow(self):
        noise = measure_problem(Toy(), K, step_size=0.1, num_rounds=60)
        assert noise.signal is not None
        assert noise.minibatch is not None
        assert np.mean(noise.signal + noise.minibatch) <= np.mean(noise.largest_signal)

    def test_heterogeneity_by_a_grid(self):
        feedback = np.array([[4.0, 1.0, 0.5], [0.2, 3.0, 1.0], [1.0, 1.0, 2.0]])
        found = heterogeneity(feedback, None)
        grid = np.linspace(0.01, 0.98, 98)
        least = min(
            max(np.sum(row / np.array([p, q, 1.0 - p - q])) for row in feedback)
            for p in grid
            for q in grid
            if p + q < 0.995
        )
        assert found.uniform == pytest.approx(3.0 * 5.5)
        assert found.fixed == pytest.approx(least, rel=0.01)
        assert found.dynamic == pytest.approx(max(np.sqrt(row).sum() ** 2 for row in feedback))
        assert found.dynamic <= found.fixed <= found.uniform

    def test_a_fixed_distribution_has_all_of_the_gain_where_nothing_moves(self):
        found = heterogeneity(np.tile([4.0, 1.0, 0.5], (5, 1)), np.full(5, 0.25))
        assert (found.movement, found.fixed_share) == (0.0, pytest.approx(1.0))
        assert found.uniform == pytest.approx(16.5 - 0.25)

    def test_smallest_cohort_by_halving(self):
        for least in range(1, 9):
            assert smallest_cohort(8, lambda size, least=least: size >= least) == least
        assert smallest_cohort(8, lambda size: False) is None


def drawn(clients, weights, feedback, inclusion):
    places = list(clients)
    return DrawnRound(
        clients=np.array(places),
        weights=np.asarray(weights, dtype=float),
        feedback=feedback[places],
        inclusion=inclusion[places],
        num_clients=M,
        num_available=M,
        by_size=inclusion_probabilities(WEIGHTS, K)[places],
        size_shares=WEIGHTS[places],
        sizes=WEIGHTS[places],
        here=np.arange(M),
    )


class TestLedgerEstimates:
    def test_estimates_are_unbiased_over_all_draws(self):
        """E over every cohort of a small run is S of uniform sampling, by size, and of the run itself."""
        feedback = (WEIGHTS * NORMS) ** 2
        inclusion, design = all_designs()
        means = dict.fromkeys((UNIFORM, PROPORTIONAL, "run"), 0.0)
        replacing = dict(means)
        for pair, probability in design:
            found = estimates(drawn(pair, 1.0 / inclusion[list(pair)], feedback, inclusion), K)
            for choice, (own, other) in found.items():
                means[choice] += probability * own
                replacing[choice] += probability * other
        assert means[UNIFORM] == pytest.approx(np.sum(feedback * (M / K - 1.0)))
        assert means[PROPORTIONAL] == pytest.approx(np.sum(feedback * (1.0 / inclusion - 1.0)))
        assert means["run"] == pytest.approx(np.sum(feedback * (1.0 / inclusion - 1.0)))
        assert replacing[UNIFORM] == pytest.approx(np.sum(feedback * M) / K)
        assert replacing[PROPORTIONAL] == pytest.approx(np.sum(feedback / WEIGHTS) / K)

    def test_unbiased_with_equal_silence(self):
        """Each drawn client is silent with the same probability; given one reply at least."""
        feedback = (WEIGHTS * NORMS) ** 2
        inclusion, design = all_designs()
        mean = 0.0
        for pair, probability in design:
            cohort = Cohort(0, K, pair, [1] * K, inclusion[list(pair)], 1.0 / inclusion[list(pair)])
            for mask in ([True, True], [True, False], [False, True]):
                heard = cohort.replied(mask)
                one = drawn(heard.clients, heard.weights, feedback, inclusion)
                mean += probability / 3.0 * estimates(one, K)[UNIFORM][0]
        assert mean == pytest.approx(np.sum(feedback * (M / K - 1.0)))

    def test_the_threshold_is_water_filling(self):
        roots = np.array([4.0, 1.0, 1.0, 0.5])
        theta = _threshold([roots], [np.ones(4)], 2)
        inclusion = np.minimum(1.0, roots / theta)
        assert inclusion == pytest.approx(inclusion_probabilities(roots / roots.sum(), 2))
        assert _threshold([roots], [np.ones(4)], 4) == 0.0

    def test_a_run_is_estimated_as_its_norms_say(self, tmp_path):
        """Norms that never change: the estimates of 400 rounds, against the exact values of the table."""
        norms, sizes = np.exp(np.random.default_rng(1).normal(size=20)), np.arange(1.0, 21.0)

        def make_sampler():
            return FixedSampler(
                num_clients=20,
                cohort_size=4,
                probabilities=np.full(20, 0.05),
                client_weights=sizes / sizes.sum(),
                design="fixed_size",
            )

        with open_run(tmp_path / "run.db", make_sampler) as run:
            for _ in range(400):
                cohort = run.draw()
                run.observe(cohort, norms[cohort.clients])
        with read_run(tmp_path / "run.db") as record:
            found = measure_run(record)
        exact = measure_norms(NormTable(sizes=sizes, norms=norms), 4, smallest=False)
        for choice in (UNIFORM, PROPORTIONAL, BEST):
            assert found.sampling[choice].mean() == pytest.approx(exact.sampling[choice][0], rel=0.15)
        assert found.ratio(ADAPTIVE) == pytest.approx(exact.ratio(ADAPTIVE), rel=0.2)
        error = found.standard_error(PROPORTIONAL)
        assert error is not None
        assert abs(found.ratio(PROPORTIONAL) - exact.ratio(PROPORTIONAL)) < 4.0 * error

    def test_adaptive_sampling_beside_another_is_judged_before_it_learns(self, tmp_path):
        """In the first round by what it begins with; later with an error, as everything that is estimated."""
        path = tmp_path / "run.db"
        keywords = {"num_clients": 4, "cohort_size": 2, "client_weights": WEIGHTS, "seed": 1}
        with open_run(path, lambda: UniformSampler(**keywords)) as run:
            for _ in range(20):
                self.answer(run)
        with read_run(path) as record:
            noise, rounds = measure_run(record, seed=3), list(drawn_rounds(record, 2))
        begins = default_of(WEIGHTS, 2, 3).probabilities()
        first, feedback = rounds[0], rounds[0].feedback * rounds[0].weights
        chances = inclusion_probabilities(begins, 2)[first.clients]
        assert noise.sampling[ADAPTIVE][0] == pytest.approx(np.sum(feedback * (1.0 / chances - 1.0)))
        expected = np.sum(feedback / (2.0 * begins[first.clients]))
        assert noise.replacing[ADAPTIVE][0] == pytest.approx(expected)
        assert noise.standard_error(ADAPTIVE) > 1e-3

    def test_an_own_sampler_keeps_no_client_weights_and_the_error_says_what_to_do(self, tmp_path):
        class Own(UniformSampler):
            pass

        path = tmp_path / "run.db"
        with open_run(path, lambda: Own(num_clients=4, cohort_size=2, client_weights=WEIGHTS)) as run:
            self.answer(run)
        with pytest.raises(
            LedgerError, match=r"client weights of its Own.*Diagnose a table of norms instead"
        ):
            diagnose(path)

    def test_joins_leaves_silence_and_absence(self, tmp_path):
        """The client weights are those of each round's own time."""
        with open_run(
            tmp_path / "run.db", lambda: default_sampler(4, 2, client_weights=WEIGHTS, seed=1)
        ) as run:
            self.answer(run)
            run.add_clients(1, client_weights=[1.0])
            self.answer(run)
            run.remove_clients([0])
            self.answer(run)
            cohort = run.draw(available=[1, 2, 4])
            run.observe(cohort, [math.nan, 2.0])
            cohort = run.draw()
            run.observe(cohort, np.full(len(cohort), math.nan))
            run.draw()  # open: it has no norms yet
        with read_run(tmp_path / "run.db") as record:
            rounds = list(drawn_rounds(record, 2))
            expected = diagnose(record)
        assert [one.num_available for one in rounds] == [4, 5, 4, 3]
        assert expected.noise.num_clients == 4  # not only the three that were available
        totals = (1.0, 2.0, 1.9, 1.9)
        masses = np.array([*WEIGHTS, 1.0])
        told = [1.0 + np.arange(5.0)] * 3 + [np.full(5, 2.0)]
        for one, total, norms in zip(rounds, totals, told, strict=True):
            assert one.feedback == pytest.approx((masses / total * norms)[one.clients] ** 2)
        assert rounds[-1].size_shares == pytest.approx(masses[rounds[-1].clients] / 1.5)
        assert len(rounds[-1].clients) == 1
        assert expected.noise.num_rounds == 4
        assert "Record more rounds" in expected.sentence

    @pytest.mark.parametrize("memory", [None, "memory", "all"])
    def test_a_memory_is_found_where_it_is_attached(self, tmp_path, memory):
        """Residuals are no updates: the run has no verdict, and no end of the range but x1."""
        kept = Memory(num_parameters=3, num_clients=M)
        with open_run(tmp_path / "run.db", lambda: default_sampler(M, K, client_weights=WEIGHTS)) as run:
            for _ in range(12):
                cohort = run.draw()
                _, norms = kept.combine(cohort, UPDATES[cohort.clients], WEIGHTS[cohort.clients])
                state = kept.state_dict()
                if memory == "memory":
                    run.attach(cohort.round_index, memory, state)
                if memory == "all":
                    own = {f"own.{name}": value for name, value in state.items()}
                    run.attach(cohort.round_index, memory, {"model": np.zeros(3), **own})
                run.observe(cohort, norms)
        found = diagnose(tmp_path / "run.db")
        if memory is None:
            assert "No memory was found in the run" in repr(found)
        else:
            assert (found.verdict, found.choice) == ("can't tell", None)
            assert "Can't tell: the run had a memory" in found.sentence
            assert {row.most_rounds for row in found.rows} == {1.0}

    @staticmethod
    def skewed(path, rounds):
        """A run in which one client of ten has norms ten times as large."""
        norms = np.where(np.arange(10) == 3, 10.0, 1.0)
        with open_run(path, lambda: default_sampler(10, 2, seed=2)) as run:
            for _ in range(rounds):
                cohort = run.draw()
                run.observe(cohort, norms[cohort.clients])
        return diagnose(path)

    def test_who_was_clipped_is_counted(self, tmp_path):
        with open_run(tmp_path / "run.db", lambda: default_sampler(20, 5, seed=1)) as run:
            for _ in range(40):
                cohort = run.draw()
                run.observe(cohort, np.where(cohort.clients == 7, 1e6, 1.0))
        assert "The norms of 1 client were clipped by the guard." in repr(diagnose(tmp_path / "run.db"))

    def test_few_rounds_give_no_verdict(self, tmp_path):
        few, many = self.skewed(tmp_path / "few.db", 5), self.skewed(tmp_path / "many.db", 200)
        assert (few.verdict, few.choice) == ("can't tell yet", None)
        assert few.sentence.startswith("Can't tell yet: 5 rounds with replies are too few, 10 are the least.")
        assert "<" not in few.table
        assert json.loads(few.json())["choice"] is None
        assert many.verdict == "adaptive"
        assert "'best possible' is a little off where rounds are few" in repr(many)

    def test_a_sampler_that_has_heard_of_few_clients_has_no_verdict_against_it(self, tmp_path):
        """At most 24 of 400 clients in all: uniform sampling is near, but not because all are alike."""
        norms = np.exp(2.0 * np.random.default_rng(0).normal(size=400))
        with open_run(tmp_path / "run.db", lambda: default_sampler(400, 2, seed=1)) as run:
            for _ in range(12):
                cohort = run.draw()
                run.observe(cohort, norms[cohort.clients])
        found = diagnose(tmp_path / "run.db")
        assert found.noise.ratio(BEST) < 0.5
        assert found.noise.rounds(ADAPTIVE) > 0.95
        assert found.verdict == "can't tell yet"
        assert "6% of the clients have replied, the sampler has yet to learn" in found.sentence

    def test_a_verdict_that_depends_on_single_rounds_is_not_given(self):
        """Uniform sampling is better in 17 rounds of 20, adaptive sampling by far in the other three."""
        adaptive = np.where(np.arange(20) % 7 == 0, -16.0, 2.0)
        noise = replace(
            noise_of(uniform=1.0, adaptive=1.0),
            num_rounds=20,
            sampling={UNIFORM: np.ones(20), ADAPTIVE: adaptive},
            replacing={UNIFORM: np.ones(20), ADAPTIVE: adaptive},
            largest_signal=np.full(20, 1e-12),
            block=20,
            estimated=True,
        )
        assert noise.ratio(ADAPTIVE) == pytest.approx(-0.7)
        found = Diagnosis("it", noise)
        assert found.verdict == "can't tell yet"
        assert "other rounds could give another verdict" in found.sentence
        assert Diagnosis("it", replace(noise, estimated=False)).verdict == "adaptive"

    @staticmethod
    def answer(run):
        cohort = run.draw()
        run.observe(cohort, 1.0 + cohort.clients)

    def test_private_and_empty_runs_are_refused(self, tmp_path):
        privacy = NormPrivacy(noise_multiplier=2.0, norm_bound=1.0)
        with open_run(tmp_path / "private.db", lambda: default_sampler(4, 2, privacy=privacy)) as run:
            self.answer(run)
        with pytest.raises(LedgerError, match="private run: its norms are hidden"):
            diagnose(tmp_path / "private.db")
        with open_run(tmp_path / "empty.db", lambda: default_sampler(4, 2)) as run:
            run.draw()
        with pytest.raises(LedgerError, match="no round with a reply"):
            diagnose(tmp_path / "empty.db")

    def test_another_cohort_size_than_the_runs_is_refused(self, tmp_path):
        with open_run(tmp_path / "run.db", lambda: UniformSampler(num_clients=4, cohort_size=2)) as run:
            self.answer(run)
        with pytest.raises(ConfigurationError, match="its own, 2; leave it out, got 3"):
            diagnose(tmp_path / "run.db", cohort_size=3)


class Toy:
    """A quadratic with mini-batch noise; client 0 is far from all others."""

    num_clients = M
    client_weights = WEIGHTS

    def initial_model(self):
        return np.zeros(3)

    def updates(self, model, clients, round_index):
        noise = np.random.default_rng([5, round_index]).normal(size=(M, 3))
        return (model - 10.0 * UPDATES + 0.1 * noise)[clients]

    def loss(self, model):
        return float(np.sum((model - 10.0 * WEIGHTS @ UPDATES) ** 2)) + 1.0


class Quadratic(Toy):
    """The same without noise."""

    def updates(self, model, clients, round_index):
        return (model - 10.0 * UPDATES)[clients]


def make_toy(seed):
    return Toy()


class TestPilots:
    def test_everybody_drawn_is_the_same_for_all(self):
        """No draw differs from another, so there is nothing to estimate."""
        found = train_pilots(Toy(), CHOICES, M, step_size=0.1, num_rounds=40)
        assert list(found) == list(CHOICES)
        for pilot in found.values():
            assert (pilot.ratio, pilot.standard_error) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))
            assert pilot.rounds == pytest.approx(32.0)  # 80%, by which uniform sampling reaches its target
            assert pilot.step_size == found[UNIFORM].step_size

    def test_the_step_is_the_best_of_the_grid(self):
        """Without noise a quadratic is solved by step 1: whatever the start, the search ends there."""
        for start in (1 / 16, 1.0, 2.0**0.5):
            found = train_pilots(Quadratic(), [UNIFORM], M, step_size=start, num_rounds=10)
            assert found[UNIFORM].step_size == pytest.approx(1.0)

    def test_the_jackknife_of_a_mean_is_its_standard_error(self):
        values = np.random.default_rng(0).normal(size=(7, 2))
        left_out = np.array([np.delete(values, i, axis=0).mean(axis=0) for i in range(7)])
        assert standard_errors(left_out) == pytest.approx(values.std(axis=0, ddof=1) / np.sqrt(7))

    def test_each_training_is_done_once_and_by_its_seed(self):
        first, again = (train_pilots(Toy(), CHOICES, K, step_size=0.1, num_rounds=20) for _ in range(2))
        assert first == again
        rounds = []
        trainings = Trainings(Toy(), K, 20, step_size=0.1, seed=0, tick=lambda: rounds.append(1))
        steps = {UNIFORM: (-1, 0, 1), MEMORY: (0, 1, 2)}
        for _ in range(2):
            trainings.log_rounds(steps, range(3))
            trainings.left_out(steps, range(3))
        assert len(rounds) == 2 * 3 * 3 * 20

    def test_a_step_that_is_too_large(self):
        """Refused if training is far from where it was; otherwise the search goes down to a better one."""
        with pytest.raises(
            ConfigurationError, match="step_size 30 is too large: training goes from a loss of"
        ):
            diagnose(Toy(), cohort_size=K, step_size=30.0, num_rounds=20)
        found = train_pilots(Quadratic(), [UNIFORM], M, step_size=1024.0, num_rounds=10)
        assert found[UNIFORM].step_size == pytest.approx(1.0)

    def test_an_update_that_is_not_finite_is_not_blamed_on_the_step(self):
        broken = Toy()
        broken.updates = lambda *asked: np.where(asked[1][:, None] == 3, np.nan, Toy().updates(*asked))
        with pytest.raises(ConfigurationError, match=r"problem: updates\(.* nan for client 3 in round 0"):
            diagnose(broken, cohort_size=K, step_size=0.02, num_rounds=20)

    def test_losses_below_zero(self):
        lower = Toy()
        lower.loss = lambda model: Toy.loss(lower, model) - 100.0
        found = train_pilots(lower, CHOICES, K, step_size=0.1, num_rounds=40)
        assert all(0.0 < pilot.ratio < math.inf for pilot in found.values())

    def test_what_was_not_trained_is_named(self):
        found = diagnose(Toy(), cohort_size=K, step_size=0.1, num_rounds=20)
        trained = {row.choice for row in found.rows if row.pilot is not None}
        assert trained == {row.choice for row in found.rows} - {BEST}
        assert "'best possible' is not trained" in repr(found)
        predicted = diagnose(Toy(), cohort_size=K, step_size=0.1, num_rounds=20, pilots=False)
        assert "'best possible' is not trained" not in repr(predicted)

    def test_training_that_goes_nowhere_has_no_pilots(self):
        still = Toy()
        still.loss = lambda model: 1.0
        found = diagnose(still, cohort_size=K, step_size=0.1, num_rounds=10)
        assert not found.noise.pilots
        assert "Training does not lower the loss" in repr(found)
        assert "in pilots" not in found.table

    @pytest.mark.parametrize("diverging", [1, 2, 8])
    def test_no_pilots_where_uniform_sampling_diverges_with_some_draws(self, diverging, monkeypatch):
        """At every step. Without a target every other choice would reach it at once."""
        plain = Trainings._losses

        def losses(self, choice, place, draw):
            found = plain(self, choice, place, draw)
            return np.full_like(found, np.inf) if choice == UNIFORM and draw < diverging else found

        monkeypatch.setattr(Trainings, "_losses", losses)
        assert train_pilots(Toy(), CHOICES, K, step_size=0.1, num_rounds=20) == {}

    def test_the_jackknife_finds_the_step_again(self, monkeypatch):
        """One draw prefers another step: without it the step, and so the rounds, are those of the others."""
        falling = np.log(np.linspace(1.0, 0.1, 21)[1:])

        def losses(self, choice, place, draw):
            if choice == UNIFORM:
                return np.exp(falling)
            best = -1 if draw == 0 else 1
            return np.exp(falling * (2.0 if place == best else 1.5 if place == 0 else 1.0))

        monkeypatch.setattr(Trainings, "_losses", losses)
        trainings = Trainings(Toy(), K, 20, step_size=0.1, seed=0)
        steps, draws = {UNIFORM: (-1, 0, 1), MEMORY: (-1, 0, 1)}, range(3)

        def rounds(factor):
            """To uniform sampling's loss after 16 rounds, by a curve that falls so much faster."""
            return np.log(np.interp(-falling[15], -factor * falling, np.arange(1, 21)))

        assert trainings.log_rounds(steps, draws)[MEMORY] == pytest.approx(rounds(5 / 3))  # at 1
        expected = [rounds(2.0), rounds(1.5), rounds(1.5)]
        assert trainings.left_out(steps, draws)[:, 1] == pytest.approx(expected)

    def test_a_missed_target_is_a_bound_without_an_error(self, monkeypatch):
        """Where sampling by size stands still."""
        plain = Trainings._losses

        def losses(self, choice, place, draw):
            found = plain(self, choice, place, draw)
            return np.full_like(found, self.first_loss) if choice == PROPORTIONAL else found

        monkeypatch.setattr(Trainings, "_losses", losses)
        found = diagnose(Toy(), cohort_size=K, step_size=0.1, num_rounds=40)
        pilot = found.noise.pilots[PROPORTIONAL]
        assert (pilot.rounds, pilot.ratio, pilot.bounded) == (None, None, False)
        assert pilot.more_than == pytest.approx(1.25)
        row = next(row for row in found.cells() if row[0].startswith(PROPORTIONAL))
        assert row.count("> x1.25") == 2
        assert "&gt; x1.25" in found.page()
        told = json.loads(found.json())["rows"][1]
        assert (told["choice"], told["pilot"]["ratio"], told["most_rounds"]) == (PROPORTIONAL, None, None)
        assert [told["pilot"]["more_than"], told["fewest_rounds"]] == pytest.approx([1.25, 1.25])
        assert found.choice != PROPORTIONAL

    def test_a_target_that_hangs_on_one_training_leaves_the_range_open(self):
        noise = measure_problem(Toy(), K, step_size=0.1, num_rounds=20, smallest=False)
        pilot = Pilot(1.0, 8, rounds=20.0, ratio=1.2, standard_error=0.1, bounded=False)
        low, high = replace(noise, pilots={ADAPTIVE: pilot}).rounds_range(ADAPTIVE)
        assert low < 1.2
        assert high == math.inf

    def test_pilots_and_the_model_count_by_their_precision(self):
        noise = measure_problem(Toy(), K, step_size=0.1, num_rounds=20, smallest=False)
        model = math.log(noise.rounds(MEMORY))
        for error in (0.0, MODEL_ERROR, 1e6):
            pilot = Pilot(1.0, 8, rounds=1.0, ratio=0.2, standard_error=error, bounded=True)
            both = replace(noise, pilots={MEMORY: pilot})
            expected = {0.0: math.log(0.2), MODEL_ERROR: (math.log(0.2) + model) / 2, 1e6: model}[error]
            assert math.log(both.rounds(MEMORY)) == pytest.approx(expected)
        pilot = Pilot(1.0, 8, rounds=1.0, ratio=0.2, standard_error=MODEL_ERROR, bounded=True)
        low, high = replace(noise, pilots={MEMORY: pilot}).rounds_range(MEMORY)
        assert math.log(high / low) == pytest.approx(2 * 2.365 * MODEL_ERROR / math.sqrt(2), rel=1e-3)

    def test_they_are_in_the_table_and_can_be_left_out(self):
        found = diagnose(Toy(), cohort_size=K, step_size=0.1, num_rounds=20)
        assert found.columns[4:6] == ("in pilots", "best step")
        assert json.loads(found.json())["rows"][0]["pilot"]["ratio"] == 1.0
        assert (
            "in pilots"
            not in diagnose(Toy(), cohort_size=K, step_size=0.1, num_rounds=20, pilots=False).table
        )


class TestProblem:
    def test_signal_and_minibatch_noise_are_what_they_are(self):
        """B = sum lambda^2 sigma^2 d, and the first G is that of the initial model."""
        noise = measure_problem(Toy(), K, step_size=0.1, num_rounds=50, smallest=False)
        assert noise.minibatch is not None
        assert noise.signal is not None
        exact = 3 * 0.01 * np.sum(WEIGHTS**2)
        assert noise.minibatch.mean() == pytest.approx(exact, rel=0.25)  # 600 squares: 6%
        assert noise.signal[0] == pytest.approx(np.sum((10.0 * WEIGHTS @ UPDATES) ** 2), rel=0.1)

    def test_a_memory_wins_where_updates_hardly_change(self):
        found = diagnose(Toy(), cohort_size=K, step_size=0.02, num_rounds=200)
        assert found.verdict == "adaptive with memory"
        assert found.noise.ratio(MEMORY) < 0.5 * found.noise.ratio(ADAPTIVE)

    @pytest.mark.parametrize("num_rounds", [2, 12, 101])
    def test_no_round_is_asked_for_that_is_not_trained(self, num_rounds):
        """A problem may have a list of mini-batches, one a round; a round and its other one differ."""
        asked = set()

        class Listed(Toy):
            def updates(self, model, clients, round_index):
                asked.add(range(num_rounds)[round_index])
                return super().updates(model, clients, round_index)

        noise = measure_problem(Listed(), K, step_size=0.1, num_rounds=num_rounds, smallest=False)
        assert asked == set(range(num_rounds))
        assert noise.minibatch is not None
        assert np.all(noise.minibatch > 0.0)

    def test_a_step_that_is_too_large(self):
        with (
            pytest.raises(ConfigurationError, match=r"step_size 1e\+200 is too large"),
            np.errstate(all="ignore"),
        ):
            diagnose(Toy(), cohort_size=K, step_size=1e200)

    def test_without_minibatches_sampling_is_all_of_the_noise(self):
        """Also where the variance of a round comes out as 0: it is a mean over few draws."""
        found = diagnose(Quadratic(), cohort_size=K, step_size=0.3, num_rounds=60, pilots=False)
        assert any(np.any(own == 0.0) for own in found.noise.sampling.values())
        assert {row.sampling_share for row in found.rows} == {1.0}

    @pytest.mark.parametrize("problem", [Toy(), Quadratic()])
    def test_where_everybody_is_drawn_sampling_adds_nothing(self, problem):
        """And what rounding leaves of that nothing is not shown."""
        found = diagnose(problem, cohort_size=M, step_size=0.1, num_rounds=20, pilots=False)
        assert found.verdict == "nothing to gain"
        for row in found.rows:
            assert (row.variance, row.sampling_share, row.smallest_cohort) == (1.0, 0.0, None)
            assert row.variance_with_replacement == math.inf
            assert (row.fewest_rounds, row.most_rounds) == (1.0, 1.0)
        assert any(fact.startswith("Everybody is drawn") for fact in found.facts)
        assert not any(fact.startswith("Sampling is") for fact in found.facts)

    @pytest.mark.parametrize("num_rounds", [1, 9])
    def test_too_few_rounds_to_learn_from_give_no_verdict(self, num_rounds):
        found = diagnose(Toy(), cohort_size=K, step_size=0.1, num_rounds=num_rounds, pilots=False)
        assert (found.verdict, found.choice) == ("can't tell yet", None)
        assert "fewer than 10 rounds are too few to learn from. Train more rounds." in found.sentence
        assert found.source == f"Toy, {counted(num_rounds, 'round')} at step 0.1"

    def test_too_many_rounds_are_refused(self):
        with pytest.raises(ConfigurationError, match="num_rounds must be at most 1000000, got 1000000000000"):
            diagnose(Toy(), cohort_size=K, step_size=0.1, num_rounds=10**12)

    def test_what_is_missing_is_named(self):
        with pytest.raises(ConfigurationError, match="step_size must be given"):
            diagnose(Toy(), cohort_size=K)
        with pytest.raises(ConfigurationError, match="cohort_size must be given"):
            diagnose(Toy(), step_size=0.1)
        with pytest.raises(ConfigurationError, match="or a problem, got int"):
            diagnose(3)


def noise_of(**rounds):
    """One measured round with these variances and nothing else."""
    sampling = {name.replace("_", " "): np.array([value]) for name, value in rounds.items()}
    return StepNoise(
        num_clients=M,
        cohort_size=K,
        num_rounds=1,
        sampling=sampling,
        replacing=sampling,
        minibatch=None,
        signal=None,
        largest_signal=np.array([1e-12]),
    )


class TestVerdict:
    @pytest.mark.parametrize("choice", CHOICES)
    def test_the_simplest_that_is_near_the_best(self, choice):
        place = CHOICES.index(choice)
        rounds = {name: 0.5 * (NEAR - 0.001 if i >= place else 1.2) for i, name in enumerate(CHOICES)}
        rounds[CHOICES[-1]] = 0.5
        assert verdict_of(rounds) == choice
        assert (
            Diagnosis("it", noise_of(**{c.replace(" ", "_"): r for c, r in rounds.items()})).verdict
            == (VERDICTS[choice])
        )

    def test_an_oracle_is_no_choice(self):
        assert verdict_of({UNIFORM: 1.0, BEST: 0.1}) == UNIFORM

    def test_minibatch_noise_that_stays_makes_saving_useless(self):
        norms = np.array([9.0, 1.0, 1.0, 1.0])
        quiet = diagnose(NormTable(sizes=np.ones(4), norms=norms), cohort_size=1)
        loud = diagnose(NormTable(sizes=np.ones(4), norms=norms, noise=np.full(4, 100.0)), cohort_size=1)
        assert (quiet.verdict, loud.verdict) == ("adaptive", "nothing to gain")
        assert "the larger part stays" in repr(loud)

    def test_alike_clients_have_nothing_to_gain(self):
        found = diagnose(NormTable(sizes=np.ones(8), norms=np.ones((40, 8))), cohort_size=2)
        assert found.verdict == "nothing to gain"
        assert found.rows[0].smallest_cohort is None

    def test_sizes_that_explain_the_norms_are_enough(self):
        sizes = np.array([50.0, 20.0, 10.0, 5.0, 1.0, 1.0, 1.0, 1.0])
        found = diagnose(NormTable(sizes=sizes, norms=np.ones((60, 8))), cohort_size=2)
        assert found.verdict == "sample by size and be done"

    def test_everybody_drawn(self):
        found = diagnose(NormTable(sizes=WEIGHTS, norms=NORMS), cohort_size=M)
        assert found.verdict == "nothing to gain"
        assert [row[2] for row in found.cells()] == ["-"] * 4
        assert "no sampling variance but in draws with replacement" in repr(found)
        assert json.loads(found.json())["rows"][0]["variance_with_replacement"] is None
        assert "Everybody is drawn" in found.page()

    def test_a_gain_that_is_hardly_one_is_not_counted_out(self):
        found = diagnose(NormTable(sizes=np.ones(4), norms=[1.0, 1.0, 1.0, 1.003]), cohort_size=2)
        assert found.noise.rounds(ADAPTIVE) < 1.0
        assert found.sentence == (
            "Nothing to gain: no choice saves as much as 1% of the rounds of uniform sampling."
        )

    def test_shares_are_whole_percents(self):
        assert [_percent(share) for share in (0.0, 3e-6, 0.0149, 0.995, 1.0, -0.001)] == [
            *("0%", "less than 1%", "1%", "100%", "100%", "0%")
        ]
        assert [_range(*ends) for ends in ((-0.1, 0.002), (-0.1, 0.2), (0.002, 0.2))] == [
            *("less than 1%", "at most 20%", "less than 1% to 20%")
        ]


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    norms = rng.exponential(size=(20, 6)) * np.array([9.0, 1, 1, 1, 1, 1])
    return diagnose(NormTable(sizes=np.arange(1.0, 7.0), norms=norms, noise=0.1 * norms), cohort_size=2)


class TestOutput:
    def test_lazily_at_the_top(self):
        assert sortition.diagnose is diagnose

    def test_words(self, found):
        text = repr(found)
        for jargon in ("with repl.", "total variation", "a signal", "distribution", "consistent", "unbiased"):
            assert jargon not in text
        assert f"Verdict: {found.verdict.upper()}" in text
        assert found.sentence in text
        assert found.table in text
        assert len({len(line.rstrip()) for line in found.table.splitlines()}) == 1

    def test_json_has_it_all(self, found):
        content = json.loads(found.json())
        assert content["verdict"] == found.verdict
        assert [row["choice"] for row in content["rows"]] == [UNIFORM, PROPORTIONAL, ADAPTIVE, BEST]
        assert content["rows"][0]["variance"] == 1.0
        assert content["heterogeneity"]["dynamic"] <= content["heterogeneity"]["fixed"]
        assert (content["seed"], content["versions"]) == (0, versions())

    def test_page(self, found):
        page = found.page()
        assert found.sentence in page
        assert f"by sortition {sortition.__version__}, python " in page
        assert ", seed 0." in page
        assert page.count('class="chart"') == 3
        assert "the geometric middle (the root of the product of both ends)" in page
        for value in rounds_chart(found)["data"]["values"]:
            assert value["middle"] == pytest.approx(math.sqrt(value["low"] * value["high"]), rel=1e-3)


class TestTables:
    def write(self, tmp_path, text):
        path = tmp_path / "norms.csv"
        path.write_text(text)
        return path

    def test_rounds_and_noise(self, tmp_path):
        lines = "round,client,size,norm,noise\n1,a,2,1,0.5\n1,b,6,3,0\n2,b,6,,0.1\n\n2,a,2,2,0.25\n"
        table = read_norms(self.write(tmp_path, lines))
        assert table.client_weights.tolist() == [0.25, 0.75]
        assert table.norms.tolist()[0] == [1.0, 3.0]
        assert table.norms[1, 0] == 2.0
        assert np.isnan(table.norms[1, 1])
        assert table.noise is not None
        assert table.noise.tolist() == [[0.5, 0.0], [0.25, 0.1]]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", "line 1: the columns must be client, size, norm"),
            ("client,size\na,1\n", "line 1: the columns must be"),
            ("client,size,norm,colour\na,1,1,red\n", "got client, size, norm, colour"),
            ("client,size,norm\na,1,1\nb,1\n", "line 3: expected 3 values, got 2"),
            ("client,size,norm\na,1,1\nb,x,1\n", "line 3, column size: expected a finite number .* got 'x'"),
            ("client,size,norm\na,1,-1\nb,1,1\n", "line 2, column norm: .* got '-1'"),
            ("client,size,norm\na,1,inf\nb,1,1\n", "line 2, column norm: .* got 'inf'"),
            ("client,size,norm,noise\na,1,1,\nb,1,1,1\n", "line 2, column noise: .* got ''"),
            ("client,size,norm\n,1,1\n", "line 2, column client: expected a name"),
            (
                "client,size,norm\na,1,1\na,1,1\n",
                "line 3, column client: a is there twice; add a column round",
            ),
            ("client,size,norm,round\na,1,1,1\na,2,1,2\n", "line 3, column size: client a had size 1 before"),
            ("client,size,norm,round\na,1,1,1\nb,1,1,1\na,1,1,2\n", "round 2 has no line for client b"),
            ("client,size,norm\na,1,1\n", "expected two clients or more, got 1"),
            ("client,size,norm\na,1,0\nb,1,0\n", "norms must not all be 0"),
        ],
    )
    def test_errors_name_line_and_column(self, tmp_path, text, expected):
        with pytest.raises(ConfigurationError, match=expected):
            read_norms(self.write(tmp_path, text))

    def test_files_that_can_not_be_read(self, tmp_path):
        with pytest.raises(ConfigurationError, match="can't be read: No such file"):
            diagnose(tmp_path / "none.csv", cohort_size=1)
        (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ConfigurationError, match="no text in UTF-8"):
            read_norms(tmp_path / "binary.csv")

    def test_arrays_of_other_shapes(self):
        with pytest.raises(ConfigurationError, match="for 2 clients, got shape"):
            NormTable(sizes=[1, 1], norms=[1, 2, 3])
        with pytest.raises(ConfigurationError, match="noise must have the shape of norms"):
            NormTable(sizes=[1, 1], norms=[[1, 2], [1, 2]], noise=[1, 2])
        with pytest.raises(ConfigurationError, match="sizes must be finite and at least 0"):
            NormTable(sizes=[1, -1], norms=[1, 2])


def invoke(*arguments):
    return CliRunner().invoke(commands.app, ["diagnose", *map(str, arguments)])


class TestCommand:
    LINES = "client,size,norm\na,1,9\nb,1,1\nc,1,1\nd,1,1\n"

    def test_sampling_by_size_names_the_design_that_was_measured(self, tmp_path):
        """Norms are alike, sizes are not. Other samplers than the default draw with replacement."""
        (tmp_path / "norms.csv").write_text("client,size,norm\na,9,1\nb,1,1\nc,1,1\nd,1,1\n")
        result = invoke(tmp_path / "norms.csv", "--cohort", 1)
        assert "Verdict: SAMPLE BY SIZE AND BE DONE" in result.stdout
        assert 'Take ProportionalSampler(..., design="fixed_size")' in result.stdout

    def test_norms_with_files(self, tmp_path):
        path = tmp_path / "norms.csv"
        path.write_text(self.LINES)
        result = invoke(path, "--cohort", 1, "--json", tmp_path / "a.json", "--report", tmp_path / "a.html")
        assert result.exit_code == 0
        assert result.stdout.startswith(
            "norms.csv, one pass: 4 clients, 1 drawn a round\nVerdict: ADAPTIVE\n"
        )
        assert json.loads((tmp_path / "a.json").read_text())["choice"] == "adaptive"
        assert "<h1>Diagnosis: adaptive</h1>" in (tmp_path / "a.html").read_text()

    def test_a_run(self, tmp_path):
        with open_run(tmp_path / "run.db", lambda: default_sampler(4, 2)) as run:
            TestLedgerEstimates.answer(run)
        result = invoke(tmp_path / "run.db")
        assert result.exit_code == 0
        assert result.stdout.startswith("run.db, 1 rounds of EmpiricalBayesSampler: 4 clients, 2 drawn")

    def test_a_problem(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "toys.py").write_text(
            "from tests.lab.test_diagnosis import Toy\n\n\ndef make(seed):\n    return Toy()\n"
        )
        result = invoke("toys:make", "--cohort", 2, "--step-size", 0.1, "--rounds", 20)
        assert result.exit_code == 0
        assert result.stdout.startswith("Toy, 20 rounds at step 0.1: 4 clients, 2 drawn a round\n")

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("norms.csv",), "sortition: --cohort must be given"),
            (("norms.csv", "--cohort", 5), "sortition: --cohort must be at most 4"),
            (("tests.lab.test_diagnosis:make_toy", "--cohort", 2), "sortition: --step-size must be given"),
            (("nothing.csv", "--cohort", 1), "got 'nothing.csv', and there is no such file"),
            (("nothing.db",), "got 'nothing.db', and there is no such file"),
            (("no_such_module:make", "--cohort", 1), "'no_such_module:make' can't be found"),
            (("norms.csv", "--cohort", 1, "--rounds", 10), "--rounds and --step-size are for a problem"),
            (("norms.csv", "--cohort", 1, "--step-size", 1), "--rounds and --step-size are for a problem"),
        ],
    )
    def test_errors_are_one_line(self, tmp_path, monkeypatch, arguments, expected):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "norms.csv").write_text(self.LINES)
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert expected in result.stderr
        assert result.stderr.count("\n") == 1

    def test_a_comparison_says_what_to_expect(self):
        tiny = ["--clients", "20", "--cohort", "3", "--rounds", "40", "--repeats", "2", "--jobs", "1"]
        result = CliRunner().invoke(
            commands.app, ["compare", *tiny, "--samplers", "proportional", "--diagnose"]
        )
        assert result.exit_code == 0
        above = result.stdout.partition("digits_federation: 20 clients")[0]
        assert "rounds at tuned steps" in above
        assert "sampling variance" in above
        assert "'<' marks the verdict" in above
        assert "'least K' has the variance" in above
