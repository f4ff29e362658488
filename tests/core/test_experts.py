"""OSMD's step and the mixture of experts, against what Algorithms 1 and 5 define them as."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition import Cohort
from sortition.core.designs import DESIGNS, weigh_with_replacement
from sortition.core.experts import (
    log_expert_losses,
    mixture,
    normalise_log_weights,
    osmd_step,
    reweigh_experts,
)
from tests.helpers import Array, cohorts, dense, positive, simplex

M, K = 4, 3


def above(floor: Array, shape: Array) -> Array:
    """A point of the set that Algorithm 1 minimises over: ``shape`` shrunk to what the floor leaves."""
    return floor + (1.0 - floor.sum()) * shape


@settings(max_examples=60)
@given(
    draws=st.lists(st.integers(0, M - 1), min_size=K, max_size=K),
    shape=simplex(M),
    prior=simplex(M),
    alpha=st.floats(0.05, 0.95),
    feedback=positive(M),
    eta=st.floats(1e-4, 0.1),
    other=simplex(M),
)
def test_osmd_step_solves_line_7_of_algorithm_1(
    draws: list[int], shape: Array, prior: Array, alpha: float, feedback: Array, eta: float, other: Array
) -> None:
    """argmin over A of  eta <p, grad> + D(p || p_t): no feasible direction goes down, no point is lower.

    The objective is convex and A is a polytope with corners floor + (1 - sum floor) e_m, so that the first
    statement, for the directions to all corners, is the optimality condition.
    """
    floor = alpha * prior
    p = above(floor, shape)
    cohort = Cohort(0, K, *weigh_with_replacement(np.array(draws), p[draws], K))
    times = np.array([draws.count(m) for m in range(M)])
    gradient = -feedback * times / (K**2 * p**3)  # Equation 7 at q = p

    def objective(q: Array) -> float:
        return float(eta * q @ gradient + np.sum(q * np.log(q / p) - q + p))

    found = osmd_step(p, floor, np.log(eta), cohort, np.log(feedback[cohort.clients]))
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.all(found >= floor * (1.0 - 1e-12))
    slope = eta * gradient + np.log(found / p)
    scale = max(1.0, np.abs(slope).max())
    for corner in np.eye(M):
        assert slope @ (above(floor, corner) - found) >= -1e-9 * scale
    for step in (1.0, 0.1, 1e-3):
        assert objective(found) <= objective(found + step * (above(floor, other) - found)) + 1e-12 * scale


def test_osmd_step_by_hand() -> None:
    """Two clients at 1/2, K = 1, the first drawn with a = 1, eta = 0.1: exponent 0.1 / 0.125 = 0.8.

    p~ = (e^0.8 / 2, 1 / 2), normalised 0.689974, 0.310026: above a floor of 0.2, below one of 0.35.
    """
    cohort = Cohort(0, 1, [0], [1], [0.5], [2.0])
    for floor, second in ((0.2, 0.3100255), (0.35, 0.35)):
        found = osmd_step(
            np.array([0.5, 0.5]), np.array([floor, floor]), np.log(0.1), cohort, np.array([0.0])
        )
        assert found == pytest.approx([1.0 - second, second], abs=1e-7)


def test_osmd_step_counts_repeated_draws_as_often_as_drawn() -> None:
    """One client drawn twice steps twice as far as if drawn once (Algorithm 2, line 3): N{m in S}."""
    p, floor = np.array([0.5, 0.5]), np.array([0.01, 0.01])
    exponents = []
    for draws in ([0, 1], [0, 0]):
        cohort = Cohort(0, 2, *weigh_with_replacement(np.array(draws), p[draws], 2))
        logs = np.where(cohort.clients == 0, 0.0, -np.inf)  # a = 1, 0
        found = osmd_step(p, floor, np.log(0.25), cohort, logs)
        exponents.append(np.log(found[0] / found[1]))
    assert exponents == pytest.approx([0.5, 1.0])  # 0.25 / (4 * 0.125) a draw


def test_late_cohort_keeps_its_weights_and_meets_the_present_distribution() -> None:
    """Exponent eta / K * weight * a / p^2 with the weight of then and the p of now."""
    late = Cohort(0, 2, [1], [1], [0.25], [2.0])  # drawn at p = 1/4: weight 1 / (2 * 0.25)
    now = np.array([0.4, 0.6])
    found = osmd_step(now, np.full(2, 0.01), np.log(0.09), late, np.log([4.0]))
    # 0.09 / 2 * 2 * 4 / 0.36 = 1
    assert np.log(found / now)[1] - np.log(found / now)[0] == pytest.approx(1.0)


@settings(max_examples=30)
@pytest.mark.parametrize("design", DESIGNS)
@given(experts=st.lists(simplex(M), min_size=2, max_size=3), p=simplex(M), feedback=positive(M))
def test_expert_losses_are_equation_6(design: str, experts: list[Array], p: Array, feedback: Array) -> None:
    for _, cohort in cohorts(design, p, 2):
        weight = dense(cohort, cohort.weights, M)
        losses = [float(np.sum(weight * feedback / q) / 2) for q in experts]
        found = log_expert_losses(np.array(experts), cohort, np.log(feedback[cohort.clients]))
        assert np.exp(found) == pytest.approx(losses, rel=1e-11)


@given(
    theta=simplex(4),
    gamma=st.floats(1e-3, 3.0),
    losses=positive(4, least=1e-3),
)
def test_reweighing_is_line_11_of_algorithm_5(theta: Array, gamma: float, losses: Array) -> None:
    shrunk = theta * np.exp(-gamma * losses)
    found = np.exp(reweigh_experts(np.log(theta), np.log(gamma), np.log(losses)))
    assert found == pytest.approx(shrunk / shrunk.sum(), rel=1e-9)


def test_reweighing_at_the_extremes() -> None:
    theta = np.log([0.5, 0.3, 0.2])
    # no feedback at all: nothing changes
    assert np.array_equal(reweigh_experts(theta, 0.0, np.full(3, -np.inf)), theta)
    # losses of e^2000 and e^2001: the smaller one takes all, the others stay finite in logs
    after = reweigh_experts(theta, 0.0, np.array([2001.0, 2000.0, 2001.0]))
    assert np.exp(after) == pytest.approx([0.0, 1.0, 0.0])
    assert np.all(np.isfinite(after))
    # huge but equal losses: nothing to tell them apart
    assert np.exp(reweigh_experts(theta, 0.0, np.full(3, 2000.0))) == pytest.approx([0.5, 0.3, 0.2])
    # a rate of zero, which OSMD with one expert has
    assert np.exp(reweigh_experts(theta, -np.inf, np.zeros(3))) == pytest.approx([0.5, 0.3, 0.2])


def test_weights_are_normalised_in_logs() -> None:
    assert np.exp(normalise_log_weights(np.log([1.0, 3.0]))) == pytest.approx([0.25, 0.75])
    assert np.exp(normalise_log_weights(np.array([-1e300, -1e300]))) == pytest.approx([0.5, 0.5])
    assert np.exp(normalise_log_weights(np.array([800.0, 0.0]))) == pytest.approx([1.0, 0.0])


@given(theta=simplex(3), experts=st.tuples(simplex(M), simplex(M), simplex(M)))
def test_mixture_is_line_5_of_algorithm_5(theta: Array, experts: tuple[Array, Array, Array]) -> None:
    mixed = sum(weight * expert for weight, expert in zip(theta, experts, strict=True))
    assert mixture(np.log(theta), np.array(experts)) == pytest.approx(mixed, rel=1e-12)
