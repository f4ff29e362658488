"""Avare's distribution against its formula, where heights jump and jump back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sortition import AvareSampler, StateError
from sortition.core.designs import Design
from sortition.engine import expert_trees, floored
from sortition.engine.clients import Roster
from sortition.engine.expert_trees import ExpertTrees
from sortition.engine.floored import FlooredProportional


def expected(heights: np.ndarray, masses: np.ndarray, exploration: float) -> np.ndarray:
    """max(exploration * prior, c h), with the c that makes it sum to one; by bisection in logarithms."""
    floor = exploration * masses / masses.sum()
    low, high = -1000.0, 1000.0
    for _ in range(200):
        c = 0.5 * (low + high)
        low, high = (c, high) if np.maximum(floor, np.exp(c + heights)).sum() < 1.0 else (low, c)
    return np.maximum(floor, np.exp(low + heights))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_it_is_its_formula_through_any_jumps(seed: int, own: bool) -> None:
    rng = np.random.default_rng(seed)
    masses = rng.lognormal(size=60) if own else np.ones(60)
    roster = Roster(60, masses if own else None)
    distribution, heights = FlooredProportional(roster), np.full(60, -np.inf)
    for turn in range(120):
        clients = rng.choice(60, size=5, replace=False)
        logs = rng.normal(size=5) * (30.0 if turn % 3 == 0 else 1.0)
        if turn % 7 == 0:
            logs[0] = -np.inf
        exploration = 1.0 / (1.1 + turn) ** rng.uniform(0.0, 1.0)
        distribution.set_heights(clients, logs, exploration=exploration)
        heights[clients] = logs
        if np.any(heights > -np.inf):
            want = expected(heights, masses, exploration)
            assert distribution.everybody() == pytest.approx(want, rel=1e-9)
            assert distribution.summed() == pytest.approx(1.0, rel=1e-9)
        if turn % 10 == 9:
            state, distribution = distribution.state(), FlooredProportional(roster)
            distribution.restore(state)


@pytest.mark.parametrize("num_clients", [5, 8, 9, 60])
@pytest.mark.parametrize("seed", range(10))
def test_a_resumed_one_is_the_unbroken_one_to_the_bit(seed: int, num_clients: int) -> None:
    """However much room its trees have; with heights of 0, equal heights and heights at the floor."""
    rng = np.random.default_rng(seed)
    unbroken, resumed = (FlooredProportional(Roster(num_clients, None)) for _ in range(2))
    for turn in range(100):
        clients = rng.choice(num_clients, size=2, replace=False)
        if turn > 50:
            clients = clients[clients != 3]
        logs = rng.choice([-np.inf, 0.0, 0.0, 0.7, -690.0, 20.0], size=len(clients))
        for one in (unbroken, resumed):
            one.set_heights(clients, logs, exploration=0.5)
            if turn == 50:
                one.remove(np.array([3]))
            if turn == 60:
                one.raise_all(0.1)
        state, resumed = resumed.state(), FlooredProportional(resumed.roster)
        resumed.restore(state)
        for name, value in unbroken.state().items():
            assert np.asarray(value).tobytes() == np.asarray(resumed.state()[name]).tobytes(), name


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("design", ["with_replacement", "independent", "fixed_size"])
def test_a_billion_clients_and_spikes(design: Design) -> None:
    sampler = AvareSampler(num_clients=10**9, cohort_size=1, design=design)
    for index in range(20):
        cohort = sampler.draw()
        sampler.observe(cohort, np.full(len(cohort), 1e9 if index % 2 else 1.0))


@pytest.mark.parametrize("name", ["scales", "bases"])
@pytest.mark.parametrize("number", [0.0, 1e308])
def test_what_a_state_says_of_the_expert_without_weight_does_not_matter(name: str, number: float) -> None:
    rng = np.random.default_rng(0)
    sampler, other = (AvareSampler(num_clients=50, cohort_size=5) for _ in range(2))
    for index in range(61):
        cohort = sampler.draw()
        sampler.observe(cohort, rng.lognormal(size=len(cohort)) * (1e6 if index % 2 else 1.0))
    state = sampler.state_dict()
    state[name] = np.where(state["log_expert_weights"] < 0.0, number, state[name])
    other.load_state_dict(state)
    for one in (sampler, other):
        one.remove_clients([7])
    assert np.array_equal(other.probabilities(), sampler.probabilities())
    assert np.array_equal(other.draw().clients, sampler.draw().clients)


@pytest.mark.parametrize("jump", [10.0, 1e4, 1e9])
def test_a_floor_that_jumps_back_finds_everybody_where_they_were(
    jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds cross the floor in every round; only those heard, and few others, are moved, there or back."""
    moved, sweep = [], expert_trees.sweep

    def counted(trees: ExpertTrees, *limits: Any) -> None:
        before = trees.ratios.copy()
        sweep(trees, *limits)
        moved.append(np.count_nonzero((trees.ratios != before).any(axis=1)))

    monkeypatch.setattr(floored, "_settle", floored._settle.py_func)
    monkeypatch.setattr(expert_trees, "sweep", counted)
    rng, num_clients = np.random.default_rng(0), 2000
    distribution = FlooredProportional(Roster(num_clients, None))
    distribution.set_heights(np.arange(num_clients), rng.normal(size=num_clients), exploration=0.5)
    for turn in range(20):
        clients = np.append(0, rng.choice(np.arange(1, num_clients), size=4, replace=False))
        logs = np.append(np.log(num_clients * (jump if turn % 2 else 1.0)), rng.normal(size=4))
        p = distribution.everybody()
        moved.clear()
        distribution.set_heights(clients, logs, exploration=0.5)
        crossed = np.count_nonzero((p > 0.5 / num_clients) != (distribution.everybody() > 0.5 / num_clients))
        if turn > 2:
            assert crossed > 100
            assert sum(moved) < 30


def test_one_expert_has_all_the_weight_in_a_state() -> None:
    distribution = FlooredProportional(Roster(5, None))
    state = {**distribution.state(), "log_expert_weights": np.log([0.5, 0.5])}
    with pytest.raises(StateError, match="'log_expert_weights' that are not 0 and -inf"):
        distribution.restore(state)


def test_heavy_clients_are_those_of_the_expert_in_use() -> None:
    """The other one has hundreds above a floor that was; none of them is looked at."""
    distribution, num_clients = FlooredProportional(Roster(2000, None)), 2000
    logs = np.random.default_rng(0).normal(size=num_clients)
    distribution.set_heights(np.arange(num_clients), logs, exploration=0.5)
    distribution.set_heights(np.array([0]), np.log([1e9]), exploration=0.5)
    assert distribution.heavy(0.6 / num_clients).tolist() == [0]
