"""The engine equals the dense specification: same draws, same feedback, same probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from sortition.core.cohort import Cohort
from sortition.core.designs import weigh_with_replacement
from sortition.core.experts import (
    log_expert_losses,
    mixture,
    normalise_log_weights,
    osmd_step,
    reweigh_experts,
)
from sortition.core.rates import initial_expert_weights
from sortition.engine import expert_trees
from sortition.engine.clients import Roster
from sortition.engine.osmd_experts import OSMDExperts

TOLERANCE = 1e-10


@dataclass
class Dense:
    """The specification: every entry of every expert."""

    masses: np.ndarray  # of the prior, 0 for a client that left
    floor: float
    experts: int

    def __post_init__(self) -> None:
        self.start(self.experts, self.prior)

    @property
    def prior(self) -> np.ndarray:
        return self.masses / self.masses.sum()

    def start(self, experts: int, at: np.ndarray) -> None:
        self.probabilities = np.tile(at, (experts, 1))
        self.log_weights = np.log(initial_expert_weights(experts))

    def everybody(self) -> np.ndarray:
        return mixture(self.log_weights, self.probabilities)

    def advance(
        self, cohort: Cohort, log_feedback: np.ndarray, log_rates: np.ndarray, log_meta: float
    ) -> None:
        losses = log_expert_losses(self.probabilities, cohort, log_feedback)
        self.probabilities = np.array(
            [
                osmd_step(expert, self.floor * self.prior, rate, cohort, log_feedback)
                for expert, rate in zip(self.probabilities, log_rates, strict=True)
            ]
        )
        self.log_weights = reweigh_experts(self.log_weights, log_meta, losses)

    def add(self, masses: np.ndarray) -> None:
        """A newcomer stands at the lowest ratio to the prior, which is that of a client never drawn."""
        ratios = np.where(self.masses > 0.0, self.probabilities / np.maximum(self.masses, 1e-300), np.inf)
        joined = ratios.min(axis=1)[:, None] * masses
        self.probabilities = np.concatenate((self.probabilities, joined), axis=1)
        self.masses = np.concatenate((self.masses, masses))
        self.renormalise()

    def remove(self, clients: np.ndarray) -> None:
        self.masses[clients] = 0.0
        self.probabilities[:, clients] = 0.0
        self.renormalise()

    def renormalise(self) -> None:
        """Every expert sums to one again, and the mixture keeps its proportions."""
        totals = self.probabilities.sum(axis=1)
        self.probabilities /= totals[:, None]
        self.log_weights = normalise_log_weights(self.log_weights + np.log(totals))


def log_feedback_of(size: int, rng: np.random.Generator, spikes: bool) -> np.ndarray:
    """Heavy-tailed feedback; with ``spikes`` also zeros, and values that no double can hold."""
    logs = 3.0 * rng.normal(size=size)
    if spikes:
        logs[rng.random(size) < 0.05] = -np.inf
        if rng.random() < 0.05:
            logs[0] = rng.choice([50.0, 300.0, 700.0, 1381.0, -1381.0])
        if rng.random() < 0.02:
            logs[:] = 1381.0
    return logs


def assert_same(engine: OSMDExperts, dense: Dense, where: str) -> None:
    expected, got = dense.everybody(), engine.everybody()
    present = expected > 0.0
    assert np.array_equal(present, got > 0.0), where
    worst = np.abs(got[present] / expected[present] - 1.0).max()
    assert worst < TOLERANCE, f"{where}: {worst}"


@pytest.mark.parametrize(("clients", "draws"), [(10, 3), (200, 20)])
@pytest.mark.parametrize("prior", ["uniform", "skewed", "extreme"])
@pytest.mark.parametrize("spikes", [False, True])
@pytest.mark.parametrize(("rate", "floor"), [(0.1, 0.4), (3.0, 0.1), (0.5, 1.0), (0.01, 1e-6)])
def test_engine_equals_the_specification(
    clients: int, draws: int, prior: str, spikes: bool, rate: float, floor: float
) -> None:
    """300 rounds with repeats, silence, falls to the floor, restarts of both kinds and changes of number."""
    rng = np.random.default_rng([clients, int(spikes), int(1e6 * rate)])
    masses = {
        "uniform": np.ones(clients),
        "skewed": rng.dirichlet(np.full(clients, 0.5)) + 1e-4,
        "extreme": 10.0 ** rng.uniform(-95.0, 0.0, size=clients),
    }[prior]
    masses = masses if prior == "uniform" else masses / masses.sum()
    engine = OSMDExperts(
        Roster(clients, None if prior == "uniform" else masses), exploration=floor, experts=5
    )
    dense = Dense(masses.copy(), floor, 5)
    for t in range(300):
        ids, probabilities = engine.draw(rng.random((draws, 2)))
        cohort = Cohort(t, draws, *weigh_with_replacement(ids, probabilities, draws))
        if rng.random() < 0.2:
            cohort = cohort.replied(rng.random(len(cohort)) < 0.7)
        if not len(cohort):
            continue
        logs = log_feedback_of(len(cohort), rng, spikes)
        experts = len(engine.experts.scales)
        log_rates = np.log(rate * 2.0 ** np.arange(experts)) - 3.0 * np.log(clients)
        dense.advance(cohort, logs, log_rates, np.log(1e-3 / clients))
        engine.advance(cohort.clients, cohort.weights, logs, draws, log_rates, np.log(1e-3 / clients))
        assert_same(engine, dense, f"round {t}")
        if t in (60, 120, 180):  # fewer experts, and more
            mixed = t != 120
            dense.start(t // 30, dense.everybody() if mixed else dense.prior)
            engine.restart(t // 30, at_mixture=mixed)
            assert_same(engine, dense, f"restart in round {t}")
    assert_same(engine, dense, "end")


@pytest.mark.parametrize("prior", ["uniform", "skewed"])
def test_joining_and_leaving(prior: str) -> None:
    """The engine goes on equalling the specification, in which the others keep their proportions."""
    rng = np.random.default_rng(3)
    masses = np.ones(40) if prior == "uniform" else np.linspace(0.2, 1.8, 40)
    engine = OSMDExperts(Roster(40, None if prior == "uniform" else masses), exploration=0.3, experts=3)
    dense = Dense(masses.copy(), 0.3, 3)
    log_rates = np.log([0.05, 0.5, 5.0]) - 3.0 * np.log(40)
    for t in range(200):
        ids, probabilities = engine.draw(rng.random((8, 2)))
        cohort = Cohort(t, 8, *weigh_with_replacement(ids, probabilities, 8))
        logs = log_feedback_of(len(cohort), rng, spikes=True)
        dense.advance(cohort, logs, log_rates, -10.0)
        engine.advance(cohort.clients, cohort.weights, logs, 8, log_rates, -10.0)
        if t % 7 == 3:
            newcomers = rng.uniform(0.1, 3.0, size=1 + t % 4)
            engine.add(newcomers)
            dense.add(newcomers)
        if t % 5 == 2:
            present = np.flatnonzero(dense.masses)
            leaving = rng.choice(present, size=2, replace=False)
            engine.remove(leaving)
            dense.remove(leaving)
        assert_same(engine, dense, f"round {t}")


def test_one_expert_keeps_proportions_exactly() -> None:
    rng = np.random.default_rng(5)
    engine = OSMDExperts(Roster(30, None), exploration=0.2, experts=1)
    for _ in range(40):
        ids, p = engine.draw(rng.random((5, 2)))
        clients, _, _, weights = weigh_with_replacement(ids, p, 5)
        engine.advance(clients, weights, rng.normal(size=len(clients)), 5, np.array([-9.0]), -np.inf)
    before = engine.everybody()
    engine.add(np.array([1.0, 2.5]))
    engine.remove(np.array([int(before.argmax()), 3]))
    after = engine.everybody()
    assert after.sum() == pytest.approx(1.0)
    kept = np.setdiff1d(np.arange(30), [int(before.argmax()), 3])
    assert after[kept] / before[kept] == pytest.approx(
        np.full(28, after[kept[0]] / before[kept[0]]), rel=1e-12
    )
    lowest = (before / 1.0).min()
    assert after[30] / lowest == pytest.approx(after[kept[0]] / before[kept[0]])  # like one never drawn
    assert after[31] == pytest.approx(2.5 * after[30])


def test_draws_follow_the_mixture() -> None:
    """Every cell of a fine grid of uniforms counts once: the shares are the probabilities, to the grid."""
    rng = np.random.default_rng(8)
    engine = OSMDExperts(Roster(12, np.linspace(1.0, 3.0, 12)), exploration=0.3, experts=3)
    for _ in range(30):
        ids, p = engine.draw(rng.random((4, 2)))
        clients, _, _, weights = weigh_with_replacement(ids, p, 4)
        engine.advance(
            clients, weights, rng.normal(size=len(clients)), 4, np.log([0.01, 0.1, 1.0]) - 3.0, -9.0
        )
    fine = 1000
    grid = (np.stack(np.meshgrid(np.arange(fine), np.arange(fine)), axis=-1).reshape(-1, 2) + 0.5) / fine
    draws, probabilities = engine.draw(grid)
    expected = engine.everybody()
    assert expected.max() / expected.min() > 5.0  # it has adapted, or this would show little
    assert probabilities == pytest.approx(expected[draws], rel=1e-12)
    shares = np.bincount(draws, minlength=12) / fine**2
    # one boundary cell along each axis, in the prior and in each of three experts
    assert np.abs(shares - expected).max() < 2.0 * 4 / fine


def test_heavy_finds_every_heavy_client() -> None:
    rng = np.random.default_rng(9)
    engine = OSMDExperts(Roster(300, rng.dirichlet(np.full(300, 0.3)) + 1e-6), exploration=0.2, experts=4)
    for _ in range(100):
        ids, p = engine.draw(rng.random((10, 2)))
        clients, _, _, weights = weigh_with_replacement(ids, p, 10)
        engine.advance(
            clients, weights, 3.0 * rng.normal(size=len(clients)), 10, np.arange(-17.0, -13.0), -9.0
        )
        p = engine.everybody()
        for threshold in (0.5, 0.05, 0.005):
            assert np.isin(np.flatnonzero(p >= threshold), engine.heavy(threshold)).all()
            assert len(engine.heavy(threshold)) <= 5 / threshold  # and few others


def test_a_thousand_spikes_in_a_row() -> None:
    """After a spike no other client counts. The lazy scale is rebased, and nothing overflows."""
    rng = np.random.default_rng(1)
    engine = OSMDExperts(Roster(50, None), exploration=0.1, experts=3)
    for _ in range(1000):
        client = np.array([rng.integers(50)])
        engine.advance(client, np.ones(1), np.array([1381.0]), 1, np.log([1.0, 2.0, 4.0]), -np.inf)
        p = engine.everybody()
        assert p[client[0]] == pytest.approx(1.0 - 0.1 * 49 / 50)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)


def test_nodes_are_always_those_of_their_children() -> None:
    """After any history the trees equal, to the bit, trees grown anew from the same leaves."""
    rng = np.random.default_rng(2)
    engine = OSMDExperts(Roster(5000, None), exploration=0.4, experts=4)
    for _ in range(200):
        ids, p = engine.draw(rng.random((50, 2)))
        clients, _, _, weights = weigh_with_replacement(ids, p, 50)
        logs = log_feedback_of(len(clients), rng, spikes=True)
        engine.advance(clients, weights, logs, 50, np.arange(-24.0, -20.0), -9.0)
        grown = engine.trees._replace(nodes=np.zeros_like(engine.trees.nodes))
        expert_trees.rebuild(grown)
        assert np.array_equal(grown.nodes, engine.trees.nodes)


def test_a_huge_step_that_ends_below_one() -> None:
    """From a mass of 1e-95 even a step of 205 in logs makes no more than 1e-6."""
    masses = np.array([1.0 - 1e-95, 1e-95])
    engine = OSMDExperts(Roster(2, masses), exploration=0.4, experts=1)
    dense = Dense(masses.copy(), 0.4, 1)
    log_rate = np.array([np.log(205.0) - 190.0 * np.log(10.0)])
    cohort = Cohort(0, 1, [1], [1], [1.0], [1.0])
    engine.advance(cohort.clients, cohort.weights, np.zeros(1), 1, log_rate, -np.inf)
    dense.advance(cohort, np.zeros(1), log_rate, -np.inf)
    assert_same(engine, dense, "one step")
    assert 1e-7 < dense.everybody()[1] < 1e-5
