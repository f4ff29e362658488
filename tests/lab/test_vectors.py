"""The true error of the aggregate: by hand, by enumeration, and as a command."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from typer.testing import CliRunner

from sortition import Cohort, ConfigurationError, Memory
from sortition.cli.commands import app
from sortition.core.designs import inclusion_probabilities, weigh_by_inclusion, weigh_with_replacement
from sortition.core.variance import aggregate, optimal_probabilities
from sortition.lab.algorithms import all_residuals
from sortition.lab.arena import vectors
from sortition.lab.arena.vectors import (
    Arm,
    RunningArm,
    VectorEnvironment,
    arms_of,
    draws_for_distinct,
    inner_products,
    least_variance,
    measure,
    mnist_environments,
    ratio_of_means,
    run_vectors,
    squared_error,
    vector_environments,
)
from sortition.lab.problems.softmax import digits_federation
from sortition.lab.reports.standings import vector_table, vectors_json
from sortition.lab.training import sampling_variance, variance_ratio
from tests.helpers import positive, simplex

WEIGHTS = np.array([0.5, 0.3, 0.2])
UPDATES = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
TINY = VectorEnvironment(
    "tiny", "twelve clients", lambda *, seed: digits_federation(num_clients=12, seed=seed), 0.3, num_rounds=6
)


def running(design: str, memory: bool = False, cohort_size: int = 2, num_draws: int = 3) -> RunningArm:
    arm = Arm("empirical-bayes", design, memory, cohort_size)
    return RunningArm(arm, WEIGHTS, np.linalg.norm(UPDATES, axis=1), 2, 10, num_draws, seed=1)


def with_replacement_cohorts(probabilities, cohort_size):
    """Every draw with its probability."""
    for draws in product(range(len(probabilities)), repeat=cohort_size):
        chance = np.prod(probabilities[list(draws)])
        weighed = weigh_with_replacement(np.array(draws), probabilities[list(draws)], cohort_size)
        yield chance, Cohort(0, cohort_size, *weighed)


class TestByHand:
    def test_the_unit_of_a_round(self):
        """|g| = 1, 2, sqrt 10: (0.5 + 0.6 + 0.2 sqrt 10)^2 - |(1.1, 0.8)|^2, over K = 2."""
        products = inner_products(WEIGHTS, UPDATES)
        expected = ((1.1 + 0.2 * np.sqrt(10.0)) ** 2 - (1.1**2 + 0.8**2)) / 2
        assert least_variance(products, 2) == pytest.approx(expected)

    def test_the_unit_is_the_least_variance_of_draws_with_replacement(self):
        products = inner_products(WEIGHTS, UPDATES)
        best = optimal_probabilities(np.diag(products))
        total = sum(
            chance * squared_error(cohort, products) for chance, cohort in with_replacement_cohorts(best, 2)
        )
        assert total == pytest.approx(least_variance(products, 2))

    def test_a_round_counts_in_units(self):
        arm = running("with_replacement")
        products = inner_products(WEIGHTS, UPDATES)
        probabilities = arm.sampler.probabilities()
        arm.round(UPDATES, products)
        error = sum(
            chance * squared_error(cohort, products)
            for chance, cohort in with_replacement_cohorts(probabilities, 2)
        )
        assert arm.outcome().error == pytest.approx(error / least_variance(products, 2))
        draws = draws_for_distinct(probabilities, 2)
        assert arm.outcome().error_equal_trainings == pytest.approx(arm.outcome().error * 2 / draws)

    def test_squared_error_is_the_distance_of_the_aggregates(self):
        cohort = Cohort(0, 2, [0, 2], [1, 1], [0.5, 0.25], [1.5, 2.5])
        distance = aggregate(cohort, WEIGHTS[[0, 2]], UPDATES[[0, 2]]) - WEIGHTS @ UPDATES
        assert squared_error(cohort, inner_products(WEIGHTS, UPDATES)) == pytest.approx(distance @ distance)

    @given(probabilities=simplex(3))
    def test_draws_for_distinct_clients(self, probabilities):
        """The distinct clients of x draws, expected over every draw of x = 2, are those asked for."""
        expected = sum(chance * len(cohort) for chance, cohort in with_replacement_cohorts(probabilities, 2))
        logs = np.log1p(-probabilities)
        draws = draws_for_distinct(probabilities, 2)
        assert -np.expm1(draws * logs).sum() == pytest.approx(2.0)
        assert -np.expm1(2.0 * logs).sum() == pytest.approx(expected)
        assert draws >= 2.0

    def test_a_ratio_of_means(self):
        above, below = np.array([1.0, 2.0, 6.0]), np.array([1.0, 4.0, 4.0])
        ratio, error = ratio_of_means(above, below)
        assert ratio == 1.0
        without = np.array([8 / 8, 7 / 5, 3 / 5])
        assert error == pytest.approx(np.sqrt(2 / 3 * np.sum((without - 1.0) ** 2)))
        assert np.isnan(ratio_of_means(above[:1], below[:1])[1])


class TestErrors:
    @given(probabilities=simplex(3))
    def test_exact_with_replacement(self, probabilities):
        products = inner_products(WEIGHTS, UPDATES)
        enumerated = sum(
            chance * squared_error(cohort, products)
            for chance, cohort in with_replacement_cohorts(probabilities, 2)
        )
        arm = running("with_replacement")
        assert arm.mean_squared_error(probabilities, products, np.ones(3)) == pytest.approx(enumerated)

    @given(probabilities=simplex(3))
    def test_exact_for_independent_draws(self, probabilities):
        products = inner_products(WEIGHTS, UPDATES)
        inclusion = inclusion_probabilities(probabilities, 2)
        enumerated = 0.0
        for taken in product((False, True), repeat=3):
            chance = np.prod(np.where(taken, inclusion, 1.0 - inclusion))
            drawn = np.flatnonzero(taken)
            cohort = Cohort(0, 2, *weigh_by_inclusion(drawn, inclusion[drawn]))
            enumerated += chance * squared_error(cohort, products)
        arm = running("independent")
        assert arm.mean_squared_error(probabilities, products, np.ones(3)) == pytest.approx(enumerated)

    def test_fixed_size_over_every_draw(self):
        """One of three with probability 1/3: a mean over the three draws is the expectation."""

        class InTurn:
            def __init__(self):
                self.turn = -1

            def draw(self):
                self.turn += 1
                return Cohort(0, 1, [self.turn], [1], [1 / 3], [3.0])

        products = inner_products(WEIGHTS, UPDATES)
        arm = running("fixed_size", cohort_size=1, num_draws=3)
        arm.sampler = InTurn()
        distances = 3.0 * WEIGHTS[:, None] * UPDATES - WEIGHTS @ UPDATES
        expected = np.mean(np.sum(distances**2, axis=1))
        assert arm.mean_squared_error(np.full(3, 1 / 3), products, np.ones(3)) == pytest.approx(expected)

    def test_everybody_in_has_no_error(self):
        arm = running("fixed_size", cohort_size=3)
        assert arm.mean_squared_error(
            np.full(3, 1 / 3), inner_products(WEIGHTS, UPDATES), np.ones(3)
        ) == pytest.approx(0.0, abs=1e-12)


class TestMemory:
    @given(probabilities=simplex(3))
    def test_the_estimate_is_unbiased(self, probabilities):
        """Over every draw of two, whatever the memory holds; and its error is that of the residuals."""
        arm = running("with_replacement", memory=True)
        rng = np.random.default_rng(0)
        for _ in range(12):
            updates = UPDATES + 2.0 * rng.normal(size=UPDATES.shape)
            arm.round(updates, inner_products(WEIGHTS, updates))
        memory = arm.memory
        assert 0.0 < memory.coefficient < 1.0, "b must matter"
        mean, error = np.zeros(2), 0.0
        for chance, cohort in with_replacement_cohorts(probabilities, 2):
            estimate, _ = copy.deepcopy(memory).combine(
                replace(cohort, round_index=12), UPDATES[cohort.clients], WEIGHTS[cohort.clients]
            )
            mean += chance * estimate
            error += chance * np.sum((estimate - WEIGHTS @ UPDATES) ** 2)
        assert mean == pytest.approx(WEIGHTS @ UPDATES)
        products = inner_products(WEIGHTS, all_residuals(UPDATES, memory))
        assert arm.mean_squared_error(probabilities, products, np.ones(3)) == pytest.approx(error)

    def test_a_perfect_memory_leaves_nothing_to_the_draw(self):
        """Updates that stay the same: once all are remembered, b is 1 and the error 0."""
        arm = running("fixed_size", memory=True)
        for _ in range(30):
            arm.round(UPDATES, inner_products(WEIGHTS, UPDATES))
        assert arm.memory.coefficient == pytest.approx(1.0)
        assert all_residuals(UPDATES, arm.memory) == pytest.approx(np.zeros((3, 2)), abs=1e-6)


class TestDesign:
    @given(probabilities=simplex(4), client_weights=simplex(4), norms=positive(4))
    def test_nothing_beats_water_filling(self, probabilities, client_weights, norms):
        for design in ("independent", "fixed_size"):
            assert variance_ratio(probabilities, client_weights, norms, design, 2) >= 1.0 - 1e-9

    def test_water_filling_by_hand(self):
        """sqrt(a) = 1, 3, 9 and K = 2: the third is certain, the others share one."""
        feedback = np.array([1.0, 9.0, 81.0])
        best = sampling_variance(optimal_probabilities(feedback), feedback, "fixed_size", 2)
        assert best == pytest.approx(1.0 * 3.0 + 9.0 / 3.0)
        assert variance_ratio(np.full(3, 1 / 3), np.ones(3), np.sqrt(feedback), "fixed_size", 2) == (
            pytest.approx(91.0 * 0.5 / 6.0)
        )

    def test_no_variance_at_all(self):
        one = np.array([1.0, 0.0]), np.full(2, 0.5), np.array([1.0, 0.0])
        assert variance_ratio(*one, "fixed_size", 1) == 1.0
        assert variance_ratio(np.array([0.5, 0.5]), *one[1:], "fixed_size", 1) == np.inf

    def test_the_oracle_is_optimal_by_its_design(self):
        arms = measure(TINY, ["optimal"], ["fixed_size", "independent"], False, [0.25], 2, seed=1)
        for run in arms.values():
            assert run.variance_ratio == pytest.approx(1.0)


class TestRun:
    def test_arms(self):
        arms = arms_of(["uniform"], ["fixed_size"], True, [3])
        assert [(arm.design, arm.memory) for arm in arms] == [
            ("with_replacement", False),
            ("fixed_size", False),
            ("fixed_size", True),
        ]
        assert len(arms_of(["uniform"], ["with_replacement"], True, [3, 5])) == 4

    def test_scores(self):
        counts = []
        arena = run_vectors(
            ["uniform", "empirical-bayes"],
            [TINY],
            split="report",
            designs=["fixed_size"],
            memory=True,
            shares=[0.25, 0.5],
            num_draws=2,
            seeds=2,
            progress=counts.append,
        )
        assert arena.seeds == (1, 3)
        assert counts[-1] == 2 * TINY.num_rounds
        assert len(arena.scores) == 2 * 2 * 3
        for score in arena.scores:
            if score.arm.design == "with_replacement":
                assert (score.error_to_base, score.error_to_no_memory, score.time_to_base) == (1.0, 1.0, 1.0)
                assert score.equal_trainings_to_base >= 1.0
            if not score.arm.memory:
                assert score.coefficient == 0.0
        stored = json.loads(vectors_json(arena))["vectors"]
        assert len(stored["scores"]) == 12
        assert stored["scores"][0]["by_seed"][1]["error"] > 0.0
        assert len(vector_table(arena).rows) == 12

    def test_draws_that_are_not_learnt_from_leave_no_trace(self):
        """The base's figures are exact, and those of a sampler that learns do not depend on the draws."""
        few, many = (
            measure(TINY, ["empirical-bayes"], ["with_replacement"], False, [0.25], draws, seed=1)
            for draws in (1, 5)
        )
        assert [run.error for run in few.values()] == [run.error for run in many.values()]

    def test_names(self):
        assert len(vector_environments()) >= 8
        assert [env.name for env in vector_environments(["sgd-digits"])] == ["sgd-digits"]
        with pytest.raises(ConfigurationError, match="environments"):
            vector_environments(["digits-100"])
        with pytest.raises(ConfigurationError, match="designs"):
            run_vectors(["uniform"], [TINY], split="all", designs=["best"])
        with pytest.raises(ConfigurationError, match="environments"):
            run_vectors(["uniform"], [], split="all")
        with pytest.raises(ConfigurationError, match="samplers"):
            run_vectors([], [TINY], split="all")

    @pytest.mark.parametrize("name", vectors.VECTOR_ENVIRONMENTS)
    def test_the_seed_decides(self, name):
        environment = vectors.VECTOR_ENVIRONMENTS[name]
        if environment.needs:
            pytest.importorskip(environment.needs)
        first, again, other = (environment.make_problem(seed=seed) for seed in (2, 2, 3))
        assert first.num_clients == vectors.NUM_CLIENTS
        clients = np.arange(0, 300, 50)
        updates = first.updates(first.initial_model(), clients, 1)
        assert np.array_equal(updates, again.updates(again.initial_model(), clients, 1))
        assert not np.array_equal(updates, other.updates(other.initial_model(), clients, 1))


def test_mnist_with_label_skew(tmp_path):
    """Images of one label are drawn from those that have it; the two environments differ in local steps."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 28, 28), dtype=np.uint8)
    labels = np.arange(200, dtype=np.uint8) % 10
    images[:, 0, 0] = labels
    (tmp_path / "mnist").mkdir()
    for kind, array, dimensions in (("images-idx3", images, 3), ("labels-idx1", labels, 1)):
        header = bytes([0, 0, 8, dimensions]) + np.array(array.shape, dtype=">i4").tobytes()
        (tmp_path / "mnist" / f"t10k-{kind}-ubyte").write_bytes(header + array.tobytes())
    sgd, fedavg = (environment.make_problem(seed=1) for environment in mnist_environments(tmp_path))
    assert (sgd.num_clients, fedavg.num_clients) == (300, 300)
    assert np.array_equal(sgd.client_weights, fedavg.client_weights)
    assert sgd.client_sizes.max() <= 400
    pixels = sgd._features[:, 0] * 255.0
    assert np.array_equal(np.rint(pixels).astype(np.int64), sgd.labels)
    kinds = [len(np.unique(sgd.client_labels(client))) for client in range(300)]
    assert 1.0 < np.mean(kinds) < 4.0


class TestCommand:
    @pytest.fixture(autouse=True)
    def tiny(self, monkeypatch):
        monkeypatch.setitem(vectors.VECTOR_ENVIRONMENTS, "sgd-digits", replace(TINY, name="sgd-digits"))

    def invoke(self, *arguments: str):
        chosen = ["arena", "--environments", "sgd-digits", "--seeds", "1", "--jobs", "1"]
        return CliRunner().invoke(app, [*chosen, *arguments])

    def test_a_table_and_a_file(self, tmp_path):
        result = self.invoke(
            "--mode", "vectors", "--designs", "fixed_size", "--memory", "--out", str(tmp_path)
        )
        assert result.exit_code == 0, result.output
        assert "fixed_size + memory" in result.stdout
        stored = json.loads((tmp_path / "arena.json").read_text())["vectors"]
        assert stored["seeds"] == [1]
        assert {score["arm"]["sampler"] for score in stored["scores"]} == {"empirical-bayes"}

    def test_an_environment_without_vectors_is_named(self):
        result = self.invoke("--mode", "replay")
        assert result.exit_code == 2
        assert "sgd-digits" in result.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--mode", "replay", "--memory"),
            ("--mode", "replay", "--designs", "fixed_size"),
            ("--mode", "closed", "--designs", "fixed_size,independent"),
            ("--mode", "vectors", "--designs", "best"),
            ("--mode", "vectors", "--data", "."),
            ("--mode", "vectors", "--data", "no/such/place"),
        ],
    )
    def test_options_that_do_not_fit(self, arguments):
        assert self.invoke(*arguments).exit_code == 2


def test_bytes_of_a_memory():
    """One vector of float32 for each client that was seen, against one a client of the cohort."""
    assert Memory(num_parameters=650, num_clients=300).bytes_needed == 300 * 650 * 4
