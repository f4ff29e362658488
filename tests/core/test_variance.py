"""The variance loss: its minimum, its logarithms, its edges. That its estimates are unbiased: tests/paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from sortition import Cohort
from sortition.core.designs import weigh_with_replacement
from sortition.core.variance import (
    aggregate,
    aggregate_variance,
    dynamic_regret,
    estimated_loss,
    log_estimated_loss,
    log_feedback,
    optimal_probabilities,
    variance_loss,
)
from tests.helpers import Array, positive, simplex

M = 5


@given(feedback=positive(M, least=0.0), other=simplex(M))
def test_optimal_probabilities_are_not_beaten(feedback: Array, other: Array) -> None:
    """l(p*) <= l(q) for every q (Section 3.1)."""
    best = variance_loss(optimal_probabilities(feedback), feedback, cohort_size=2)
    assert best <= variance_loss(other, feedback, cohort_size=2) * (1.0 + 1e-12)


@settings(max_examples=50)
@given(feedback=positive(M))
def test_optimal_probabilities_have_the_optimal_value(feedback: Array) -> None:
    """l(p*) = (sum sqrt a)^2 / K, and p* = sqrt(a) / sum sqrt(a)."""
    best = optimal_probabilities(feedback)
    assert best == pytest.approx(np.sqrt(feedback) / np.sqrt(feedback).sum(), rel=1e-14)
    assert variance_loss(best, feedback, 3) == pytest.approx(np.sqrt(feedback).sum() ** 2 / 3, rel=1e-12)


@settings(max_examples=10)
@given(feedback=positive(M, least=0.1))
def test_a_general_solver_finds_the_optimal_probabilities(feedback: Array) -> None:
    found = minimize(
        lambda q: np.sum(feedback / q),
        np.full(M, 1.0 / M),
        jac=lambda q: -feedback / q**2,
        method="SLSQP",
        bounds=[(1e-4, 1.0)] * M,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1.0, "jac": lambda q: np.ones(M)},
        options={"ftol": 1e-13, "maxiter": 500},
    )
    assert optimal_probabilities(feedback) == pytest.approx(found.x, abs=1e-4)


def test_optimal_probabilities_without_any_feedback_are_uniform() -> None:
    assert optimal_probabilities(np.zeros(4)).tolist() == [0.25] * 4


def test_variance_loss_of_an_impossible_client() -> None:
    """A client that counts and can't be drawn: infinite. One that doesn't count: nothing."""
    p = np.array([1.0, 0.0])
    assert variance_loss(p, np.array([2.0, 1.0]), 1) == np.inf
    assert variance_loss(p, np.array([2.0, 0.0]), 1) == 2.0


@settings(max_examples=50)
@given(
    draws=st.lists(st.integers(0, M - 1), min_size=1, max_size=4),
    p=simplex(M),
    q=simplex(M),
    feedback=positive(M, least=0.0),
)
def test_log_of_the_estimated_loss(draws: list[int], p: Array, q: Array, feedback: Array) -> None:
    cohort = Cohort(0, len(draws), *weigh_with_replacement(np.array(draws), p[draws], len(draws)))
    drawn = cohort.clients
    with np.errstate(divide="ignore"):
        logs = np.log(feedback[drawn])
    in_logs = log_estimated_loss(np.log(q[drawn]), logs, cohort.weights, len(draws))
    assert np.exp(in_logs) == pytest.approx(estimated_loss(q[drawn], cohort, feedback[drawn]), rel=1e-12)


def test_log_of_the_estimated_loss_beyond_doubles() -> None:
    """Two terms of e^2000 and a quarter each: their mean is e^2000 / 4."""
    logs = np.array([2000.0, 2000.0])
    found = log_estimated_loss(np.log([1.0, 1.0]), logs, np.array([0.25, 0.25]), cohort_size=2)
    assert found == pytest.approx(2000.0 - np.log(4.0), rel=1e-15)
    assert log_estimated_loss(np.zeros(0), np.zeros(0), np.zeros(0), 2) == -np.inf


def test_log_feedback() -> None:
    """a = lambda^2 norm^2: (0.5 * 3)^2 and (0.25 * 4)^2."""
    logs = log_feedback([0.5, 0.25, 0.25], [3.0, 4.0, 0.0])
    assert np.exp(logs) == pytest.approx(np.array([2.25, 1.0, 0.0]))
    assert log_feedback(1.0, [1e300])[0] == pytest.approx(600 * np.log(10.0))


def test_aggregate_by_hand() -> None:
    """0.2 * 1.5 * (1, 2) + 0.4 * 0.5 * (3, -1) = (0.3 + 0.6, 0.6 - 0.2)."""
    cohort = Cohort(0, 2, [1, 4], [1, 1], [0.3, 0.5], [1.5, 0.5])
    step = aggregate(cohort, np.array([0.2, 0.4]), np.array([[1.0, 2.0], [3.0, -1.0]]))
    assert step == pytest.approx(np.array([0.9, 0.4]))


@settings(max_examples=30)
@given(p=simplex(3))
def test_heterogeneity_is_the_variance_of_one_draw(p: Array) -> None:
    """Equations 8 and 9: V(p, w) = E || grad F_m / (M p_m) - grad F ||^2, at uniform p the usual zeta^2."""
    gradients = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 3.0]])
    mean = gradients.mean(axis=0)
    by_definition = sum(p[m] * np.sum((gradients[m] / (3 * p[m]) - mean) ** 2) for m in range(3))
    thirds = np.full(3, 1 / 3)
    assert aggregate_variance(p, thirds, gradients, cohort_size=1) == pytest.approx(by_definition)
    usual = np.mean(np.sum((gradients - mean) ** 2, axis=1))
    assert aggregate_variance(thirds, thirds, gradients, cohort_size=1) == pytest.approx(usual)


def test_dynamic_regret_by_hand() -> None:
    """Losses 5, 4, 3 against 2, 5, 1: regret 3, then 3 - 1 = 2, then 2 + 2 = 4 (Equation 18)."""
    assert dynamic_regret(np.array([5.0, 4.0, 3.0]), np.array([2.0, 5.0, 1.0])).tolist() == [3.0, 2.0, 4.0]
