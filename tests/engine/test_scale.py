"""A billion clients: build, draw, observe, save, load, join, leave, in memory for the clients seen."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    Guard,
    MABSSampler,
    OSMDSampler,
    ProportionalSampler,
    Sampler,
    UniformSampler,
    VRBSampler,
)
from sortition.core import designs
from sortition.core.designs import DESIGNS
from sortition.core.types import FloatArray, IntArray
from sortition.engine.drawing import MOST_DRAWS
from sortition.engine.fixed import Prior

BILLION = 10**9
PROPORTIONAL = ("osmd", "adaptive", "doubling", "proportional")
"""Where the others keep their proportions when a client joins or leaves."""
BUILD: dict[str, Callable[..., Sampler]] = {
    "uniform": UniformSampler,
    "proportional": ProportionalSampler,
    "osmd": lambda **common: OSMDSampler(learning_rate=1e-27, **common),
    "adaptive": lambda **common: AdaptiveOSMDSampler(num_rounds=1000, **common),
    "doubling": DoublingOSMDSampler,
    "mabs": lambda **common: MABSSampler(num_rounds=1000, **common),
    "vrb": VRBSampler,
    "avare": AvareSampler,
    "empirical-bayes": EmpiricalBayesSampler,
}


def norms_of(clients: np.ndarray) -> np.ndarray:
    return 1.0 + 100.0 * (clients % 7 == 0)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("name", BUILD)
def test_a_billion_clients(name: str, design: str) -> None:
    def build() -> Sampler:
        return BUILD[name](num_clients=BILLION, cohort_size=20, design=design, seed=1)

    def train(sampler: Sampler, rounds: int) -> list[int]:
        drawn = []
        for _ in range(rounds):
            cohort = sampler.draw()
            assert len(cohort) <= 20 or design == "independent"
            assert len(cohort) == 20 or design != "fixed_size"
            sampler.observe(cohort, norms_of(cohort.clients))
            drawn += cohort.clients.tolist()
        return drawn

    build().draw()  # compiled before memory is counted
    tracemalloc.start()
    sampler = build()
    drawn = train(sampler, 20)
    state = sampler.state_dict()
    resumed = build()
    resumed.load_state_dict(state)
    assert train(sampler, 5) == train(resumed, 5)
    newcomers = sampler.add_clients(3)
    assert newcomers.tolist() == [BILLION, BILLION + 1, BILLION + 2]
    sampler.remove_clients([drawn[0], 5, BILLION + 1])
    assert sampler.num_clients == BILLION
    assert sampler.probabilities([drawn[0], 5, BILLION + 1]).tolist() == [0.0, 0.0, 0.0]
    assert (sampler.probabilities([6, BILLION, *drawn[-3:]]) > 0.0).all()
    train(sampler, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6, f"{peak} bytes for what a hundred thousand clients would fill"
    size = sum(value.nbytes for value in state.values() if isinstance(value, np.ndarray))
    assert size < 500_000, "a state is as big as the number of clients seen"


@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("name", BUILD)
def test_a_fixed_size_of_a_billion(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a guard, with extreme norms, after joins and leaves: never from a vector of all clients."""

    dense = designs.draw_fixed_size

    def of_few(p: np.ndarray, *rest: Any) -> designs.Weighed:
        assert len(p) < BILLION, "a vector of all clients"
        return dense(p, *rest)

    monkeypatch.setattr(designs, "draw_fixed_size", of_few)
    rng = np.random.default_rng(5)
    for guard in (None, Guard(), Guard(largest_gain=2.0, clip_factor=1e9)):
        sampler = BUILD[name](num_clients=BILLION, cohort_size=size, design="fixed_size", seed=2, guard=guard)
        sampler.draw()  # compiled before memory is counted
        tracemalloc.start()
        for t in range(12):
            cohort = sampler.draw()
            assert len(cohort) == len(set(cohort.clients.tolist())) == size
            assert (cohort.probabilities > 0.0).all()
            assert (cohort.probabilities <= 1.0).all()
            assert cohort.weights == pytest.approx(1.0 / cohort.probabilities, rel=1e-12)
            sampler.observe(cohort, 10.0 ** rng.uniform(-300.0, 300.0, size))
            if t == 6:
                sampler.add_clients([1e-3, 1e-9, 1e-30])
                sampler.remove_clients([int(cohort.clients[0]), 5])
            few = sampler.draw(available=range(t, 10**4, 7))
            assert len(few) == len(set(few.clients.tolist())) == size
            assert (few.clients % 7 == t % 7).all()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5e6


@pytest.mark.parametrize("design", DESIGNS)
def test_inclusion_at_scale_is_what_the_weights_say(design: str) -> None:
    """5,000 clients, 3 with most of the mass: frequencies over 3,000 rounds, within 6 standard errors."""
    sampler = AdaptiveOSMDSampler(
        num_clients=5000,
        cohort_size=10,
        num_rounds=100,
        exploration=0.5,
        rate_scale=30.0,
        design=design,
        seed=2,
    )
    for _ in range(60):
        cohort = sampler.draw()
        sampler.observe(cohort, 1.0 + 50.0 * (cohort.clients < 3))
    rounds, heavy = 3000, np.argsort(sampler.probabilities())[-5:]
    total_weight, sums, squares = np.zeros(5), 0.0, 0.0
    for _ in range(rounds):
        cohort = sampler.draw()
        everything = cohort.weights.sum() / 5000  # estimates 1
        sums += everything
        squares += everything**2
        for i, client in enumerate(heavy):
            total_weight[i] += cohort.weights[cohort.clients == client].sum()
    p = sampler.probabilities()[heavy]
    error = np.sqrt(np.maximum(1.0 / (10 * p), 1.0) / rounds)
    assert (np.abs(total_weight / rounds - 1.0) < 6.0 * error).all()
    spread = np.sqrt(squares / rounds - (sums / rounds) ** 2)
    assert abs(sums / rounds - 1.0) < 6.0 * spread / np.sqrt(rounds)


@pytest.mark.parametrize("name", [name for name in BUILD if name != "uniform"])
def test_others_keep_their_proportions(name: str) -> None:
    sampler = BUILD[name](num_clients=40, cohort_size=4, seed=3)
    for _ in range(30):
        cohort = sampler.draw()
        sampler.observe(cohort, norms_of(cohort.clients))
    before = sampler.probabilities()
    leaving = [int(before.argmax()), 11]
    kept = np.setdiff1d(np.arange(40), leaving)
    sampler.remove_clients(leaving)
    after = sampler.probabilities()
    assert after.sum() == pytest.approx(1.0)
    if name in PROPORTIONAL:
        assert after[kept] == pytest.approx(before[kept] / before[kept].sum(), rel=1e-9)
    sampler.add_clients(2)
    grown = sampler.probabilities()
    if name in PROPORTIONAL:
        assert grown[kept] == pytest.approx(after[kept] * grown[kept].sum(), rel=1e-9)
    assert grown.shape == (42,)
    assert grown.sum() == pytest.approx(1.0)
    for _ in range(10):
        cohort = sampler.draw()
        assert not np.isin(cohort.clients, leaving).any()
        sampler.observe(cohort, norms_of(cohort.clients))
    assert sampler.probabilities().sum() == pytest.approx(1.0)


def test_feedback_of_a_client_that_has_left_is_not_learnt() -> None:
    sampler = OSMDSampler(num_clients=6, cohort_size=3, learning_rate=0.1, seed=0)
    cohort = sampler.draw()
    sampler.remove_clients([int(cohort.clients[0])])
    sampler.observe(cohort, np.full(len(cohort), 5.0))
    assert sampler.probabilities()[cohort.clients[0]] == 0.0
    assert sampler.probabilities().sum() == pytest.approx(1.0)


def test_a_cohort_that_is_nearly_always_the_same_takes_few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without replacement the second of two clients of a billionth each would take a billion draws."""
    p = np.array([1.0 - 2e-9, 1e-9, 1e-9])
    asked = []
    draw = Prior.draw

    def counted(self: Prior, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        asked.append(len(uniforms))
        return draw(self, uniforms)

    monkeypatch.setattr(Prior, "draw", counted)
    sampler = ProportionalSampler(
        num_clients=3, cohort_size=2, client_weights=p, design="without_replacement"
    )
    chosen = [sampler.draw().clients[1] for _ in range(200)]
    assert sum(asked) < 200 * 2 * 2 * MOST_DRAWS
    assert 60 < chosen.count(1) < 140
