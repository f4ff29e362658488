"""The entropic step and the projection above a floor (Algorithm 2, Proposition 12)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from sortition.core.simplex import LARGEST_STEP, mirror_steps, project_above_floor
from tests.helpers import Array, positive, project_by_bisection, simplex

M = 5
logs = st.lists(st.floats(-6.0, 6.0), min_size=M, max_size=M).map(np.array)
extreme = st.one_of(
    st.floats(-6.0, 6.0), st.sampled_from([-np.inf, -1e300, -1e6, -800.0, 800.0, 1e6, 1e300, LARGEST_STEP])
)
extreme_logs = st.lists(extreme, min_size=M, max_size=M).map(np.array)
alphas = st.one_of(st.floats(0.01, 1.0), st.just(1.0))


def assert_projection(found: Array, log_values: Array, floor: Array) -> None:
    """The optimality conditions: p = max(floor, c v) for one c, and the sum is one.

    For a convex problem these are necessary and sufficient: log(p / v) is one number where p is above its
    floor, and no less where p is at it.
    """
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.all(found >= floor * (1.0 - 1e-12))
    if not np.isfinite(log_values.max()):
        return
    values = np.exp(log_values - log_values.max())
    above = found > floor * (1.0 + 1e-9)
    if above.any():
        factors = found[above] / values[above]
        assert factors == pytest.approx(np.full(above.sum(), factors[0]), rel=1e-9)
        assert np.all(factors[0] * values[~above] <= floor[~above] * (1.0 + 1e-8))
    else:
        assert floor.sum() == pytest.approx(1.0, abs=1e-7)


@given(log_values=logs, prior=simplex(M), alpha=alphas)
def test_optimality_with_a_floor_of_its_own_for_each_client(
    log_values: Array, prior: Array, alpha: float
) -> None:
    floor = alpha * prior
    assert_projection(project_above_floor(log_values, floor), log_values, floor)


@given(log_values=extreme_logs, prior=simplex(M), alpha=alphas)
@example(log_values=np.full(M, 1e300), prior=np.full(M, 0.2), alpha=0.4)
@example(log_values=np.full(M, -np.inf), prior=np.array([0.1, 0.2, 0.2, 0.2, 0.3]), alpha=0.4)
@example(log_values=np.array([-np.inf] * 4 + [0.0]), prior=np.full(M, 0.2), alpha=0.4)
@example(log_values=np.array([1e300, 1e300, 0.0, -1e300, -np.inf]), prior=np.full(M, 0.2), alpha=0.1)
def test_optimality_at_the_extremes(log_values: Array, prior: Array, alpha: float) -> None:
    floor = alpha * prior
    assert_projection(project_above_floor(log_values, floor), log_values, floor)


def test_extremes_by_hand() -> None:
    """Winners beyond all doubles share what the floors leave; with no value at all its shape stays."""
    tenths = np.full(4, 0.1)
    winners = project_above_floor(np.array([1e300, 0.0, 1e300, -np.inf]), tenths)
    assert winners == pytest.approx([0.4, 0.1, 0.4, 0.1])
    # equal winners whose floors differ: alike would be 0.365 each, but the last must have 0.54
    uneven = project_above_floor(np.array([0.0, 1e300, 1e300]), np.array([0.27, 0.09, 0.54]))
    assert uneven == pytest.approx([0.27, 0.19, 0.54])
    nothing = project_above_floor(np.full(3, -np.inf), np.array([0.1, 0.1, 0.2]))
    assert nothing == pytest.approx([0.25, 0.25, 0.5])


@given(log_values=logs, prior=simplex(M), alpha=alphas)
def test_same_as_bisection(log_values: Array, prior: Array, alpha: float) -> None:
    """Another way to the same point: find c with sum max(floor, c v) = 1 by halving."""
    floor = alpha * prior
    found = project_above_floor(log_values, floor)
    assert found == pytest.approx(project_by_bisection(np.exp(log_values), floor), abs=1e-12)


@settings(max_examples=15)
@given(log_values=st.lists(st.floats(-2.0, 2.0), min_size=M, max_size=M).map(np.array), prior=simplex(M, 0.2))
def test_a_general_solver_finds_no_better_point(log_values: Array, prior: Array) -> None:
    """Minimise the Bregman divergence of the negative entropy with a solver that knows nothing of it."""
    floor = 0.5 * prior

    def divergence(p: Array) -> float:
        return float(np.sum(p * (np.log(p) - log_values) - p))

    found = project_above_floor(log_values, floor)
    solved = minimize(
        divergence,
        floor + 0.5 / M,
        jac=lambda p: np.log(p) - log_values,
        method="SLSQP",
        bounds=[(least, 1.0) for least in floor],
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1.0, "jac": lambda p: np.ones(M)},
        options={"ftol": 1e-12, "maxiter": 300},
    )
    assert divergence(found) <= solved.fun + 1e-9
    assert found == pytest.approx(solved.x, abs=1e-4)


def algorithm_2(raised: Array, alpha: float) -> Array:
    """Lines 4 to 8 of Algorithm 2 as printed, for a uniform floor.

    In line 8 the text writes "if pi(m) < m*" where the position of m in the sorted order is meant, as in the
    sum that follows and in the proof.
    """
    num_clients = len(raised)
    pi = np.argsort(raised, kind="stable")
    v = [raised[pi[m - 1]] * (1 - (m - 1) / num_clients * alpha) for m in range(1, num_clients + 1)]
    u = [alpha / num_clients * raised[pi[m - 1 :]].sum() for m in range(1, num_clients + 1)]
    star = next(m for m in range(1, num_clients + 1) if v[m - 1] > u[m - 1])
    result = np.empty(num_clients)
    for position in range(1, num_clients + 1):
        client = pi[position - 1]
        if position < star:
            result[client] = alpha / num_clients
        else:
            left = 1 - (star - 1) / num_clients * alpha
            result[client] = left * raised[client] / raised[pi[star - 1 :]].sum()
    return result


@given(values=positive(7, least=1e-4), alpha=st.floats(0.01, 0.99))
def test_projection_is_algorithm_2(values: Array, alpha: float) -> None:
    found = project_above_floor(np.log(values), np.full(7, alpha / 7))
    assert found == pytest.approx(algorithm_2(values, alpha), rel=1e-10)


def test_projection_by_hand() -> None:
    """v = 1, 3, 8 and floors 0.05, 0.3, 0.1: the second needs lifting, the others share 0.7 as 1 : 8."""
    found = project_above_floor(np.log([1.0, 3.0, 8.0]), np.array([0.05, 0.3, 0.1]))
    assert found == pytest.approx([0.7 / 9, 0.3, 5.6 / 9])


def test_what_is_in_the_set_already_stays() -> None:
    p = np.array([0.1, 0.2, 0.3, 0.4])
    assert project_above_floor(np.log(p), np.full(4, 0.1)) == pytest.approx(p, abs=1e-15)


def test_a_client_without_floor_takes_no_part() -> None:
    found = project_above_floor(np.log([5.0, 1.0, 3.0]), np.array([0.0, 0.1, 0.1]))
    assert found == pytest.approx([0.0, 0.25, 0.75])


@given(
    eta=st.floats(1e-6, 1.0),
    counts=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    p=simplex(3),
    feedback=positive(3),
)
def test_mirror_steps_are_line_3_of_algorithm_2(
    eta: float, counts: list[int], p: Array, feedback: Array
) -> None:
    """log(p~ / p) = N{m in S} eta a_m / (K^2 p_m^3)."""
    cohort_size = sum(counts)
    times = np.array(counts)
    steps = mirror_steps(np.log(eta), np.log(p), np.log(feedback), times / (cohort_size * p), cohort_size)
    assert steps == pytest.approx(times * eta * feedback / (cohort_size**2 * p**3), rel=1e-10)


def test_mirror_steps_at_the_extremes() -> None:
    """No feedback, no step; and a step that no double can hold is cut, not infinite."""
    found = mirror_steps(
        0.0, np.log([0.5, 0.5]), np.array([-np.inf, 1400.0]), np.array([1.0, 1.0]), cohort_size=1
    )
    assert found[0] == 0.0
    assert found[1] == pytest.approx(LARGEST_STEP)
