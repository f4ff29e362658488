"""A memory that the clients hold equals the server's, and algorithms use either."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import EmpiricalBayesSampler, Memory, UniformSampler
from sortition.cli.commands import app
from sortition.core.variance import aggregate
from sortition.lab.algorithms import FedAvg, FedSGD
from sortition.lab.arena.environments import Environment, digits_training
from sortition.lab.arena.tournament import run_closed_loop
from sortition.lab.client_memory import ClientHeldMemory
from sortition.lab.compare import compare
from sortition.lab.contestants import CONTESTANTS
from sortition.lab.problems.softmax import digits_federation
from sortition.lab.training import training_rounds

ROUNDS = 25


@pytest.fixture(scope="module")
def problem():
    return digits_federation(num_clients=20, seed=3)


def server_memory(problem) -> Memory:
    return Memory(
        num_parameters=problem.initial_model().size, num_clients=problem.num_clients, dtype="float64"
    )


def algorithms(memory):
    return FedSGD(0.3, memory), FedAvg(0.05, 3, memory=memory)


@pytest.mark.parametrize("design", ["with_replacement", "without_replacement", "independent", "fixed_size"])
@pytest.mark.parametrize("place", [0, 1])
def test_client_held_equals_server_held(problem, design, place):
    """The same models, norms and b in every round, to rounding: repeated draws and empty cohorts as well."""
    memories = server_memory(problem), ClientHeldMemory(num_parameters=problem.initial_model().size)
    runs = []
    for memory in memories:
        sampler = EmpiricalBayesSampler(
            num_clients=20, cohort_size=4, client_weights=problem.client_weights, design=design, seed=1
        )
        rounds = training_rounds(sampler, problem, algorithms(memory)[place], ROUNDS)
        runs.append([(done.state, done.norms, done.cohort.clients, memory.coefficient) for done in rounds])
    for server, held in zip(*runs, strict=True):
        assert np.array_equal(server[2], held[2])
        for one, other in zip(server, held, strict=True):
            assert other == pytest.approx(one, rel=1e-9, abs=1e-12)
    assert memories[0].coefficient > 0.1
    for client in range(20):
        assert memories[1].remembered(client) == pytest.approx(memories[0].remembered(client))


def test_the_server_sees_sums_alone(problem):
    """The order of the clients makes no difference: sums are all that the estimate takes."""
    memory = ClientHeldMemory(num_parameters=2)
    sampler = UniformSampler(num_clients=4, cohort_size=4, design="fixed_size")
    updates = np.arange(8.0).reshape(4, 2)
    first = memory.combine(sampler.draw(), updates, np.full(4, 0.25))
    assert first[0] == pytest.approx(updates.mean(axis=0))
    second = memory.combine(sampler.draw(), updates[::-1], np.full(4, 0.25))
    assert second[0] == pytest.approx(updates.mean(axis=0))


@pytest.mark.parametrize("place", [0, 1])
def test_the_sampler_hears_the_residuals(problem, place):
    """What ``all_norms`` tells of the cohort before a round is what the sampler hears after it."""
    memory = server_memory(problem)
    algorithm, plain = algorithms(memory)[place], algorithms(None)[place]
    sampler = UniformSampler(num_clients=20, cohort_size=6, client_weights=problem.client_weights, seed=2)
    state, different = algorithm.start(problem), 0
    for round_index in range(10):
        expected = algorithm.all_norms(state, problem, round_index)
        of_updates = plain.all_norms(state, problem, round_index)
        b, old = memory.coefficient, [memory.remembered(client) for client in range(20)]
        cohort = sampler.draw()
        following, norms = algorithm(state, cohort, problem, round_index)
        assert norms == pytest.approx(expected[cohort.clients])
        different += not np.allclose(expected, of_updates)
        everybody = np.arange(20)
        if place == 0:
            updates = problem.updates(state, everybody, round_index)
        else:
            updates = algorithm.updates(state, everybody, problem, round_index)
        residuals = updates - b * np.array(old)
        step = b * problem.client_weights @ np.array(old) + aggregate(
            cohort, problem.client_weights[cohort.clients], residuals[cohort.clients]
        )
        assert following == pytest.approx(state - algorithm.step_size * step)
        sampler.observe(cohort, norms)
        state = following
    assert different >= 5


def test_a_comparison_with_a_memory():
    problem = partial(digits_federation, num_clients=20)
    settings = {"cohort_size": 3, "num_rounds": 20, "step_size": 0.01, "repeats": 1}
    plain, with_memory = (
        compare(problem, ["empirical-bayes"], **settings, memory=memory) for memory in (False, True)
    )
    assert (plain.memory, with_memory.memory) == (False, True)
    assert not np.allclose(plain.rows[1].losses, with_memory.rows[1].losses)
    assert (with_memory.rows[1].variance_ratios >= 1.0 - 1e-9).all()


def test_the_closed_loop_with_a_memory():
    training = digits_training(num_clients=20, cohort_size=3, num_rounds=20)
    environment = Environment("small", "tune", "twenty clients", training)
    changed = environment.trained_by("fixed_size", True)
    assert (changed.training.design, changed.training.memory) == ("fixed_size", True)
    contestants = {"optimal": CONTESTANTS["optimal"]}
    arena = run_closed_loop(contestants, [changed], split="tune", seeds=1)
    assert arena.scores[1].ratio == pytest.approx(1.0)  # the oracle is shown the residuals


def test_the_commands_take_a_memory(tmp_path):
    few = ["--clients", "20", "--cohort", "3", "--rounds", "10", "--repeats", "1", "--step-size", "0.01"]
    out = tmp_path / "out.json"
    result = CliRunner().invoke(app, ["compare", *few, "--jobs", "1", "--memory", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "with a memory" in result.stdout
    assert json.loads(out.read_text())["memory"] is True
