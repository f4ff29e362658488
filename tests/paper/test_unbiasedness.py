"""Sections 1 to 3 and Appendix A.2 by enumeration: every outcome of a small draw, no tolerance on luck."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition import Cohort
from sortition.core.designs import DESIGNS, restrict, weigh_with_replacement
from sortition.core.variance import (
    aggregate,
    aggregate_variance,
    estimated_gradient,
    estimated_loss,
    optimal_probabilities,
    variance_loss,
)
from tests.helpers import Array, cohorts, dense, expectation, outcomes, positive, simplex, vectors

M, K = 4, 3
EXACT = 1e-12
designs = pytest.mark.parametrize("design", DESIGNS)
moderate = settings(max_examples=30)


@designs
@moderate
@given(p=simplex(M))
def test_enumeration_is_complete(design: str, p: Array) -> None:
    """The probabilities of all outcomes sum to one, or nothing below would mean anything."""
    assert sum(probability for probability, _ in cohorts(design, p, K)) == pytest.approx(1.0, abs=EXACT)


@designs
@moderate
@given(p=simplex(M))
def test_weights_have_mean_one(design: str, p: Array) -> None:
    mean = expectation(design, p, K, lambda cohort: dense(cohort, cohort.weights, M))
    assert mean == pytest.approx(np.ones(M), abs=EXACT)


@designs
@moderate
@given(p=simplex(M), client_weights=simplex(M), updates=vectors(M, 3))
def test_aggregate_is_unbiased(design: str, p: Array, client_weights: Array, updates: Array) -> None:
    """E[g] = J = sum lambda_m g_m (Equation 2; Proposition 11 for draws without replacement)."""
    mean = expectation(
        design,
        p,
        K,
        lambda cohort: aggregate(cohort, client_weights[cohort.clients], updates[cohort.clients]),
    )
    assert mean == pytest.approx(client_weights @ updates, abs=EXACT)


@designs
@moderate
@given(p=simplex(M), q=simplex(M), feedback=positive(M))
def test_loss_estimate_is_unbiased(design: str, p: Array, q: Array, feedback: Array) -> None:
    """E[l_hat(q; p)] = l(q) (Equations 4 and 6)."""
    mean = expectation(
        design, p, K, lambda cohort: estimated_loss(q[cohort.clients], cohort, feedback[cohort.clients])
    )
    loss = sum(feedback[m] / q[m] for m in range(M)) / K
    assert variance_loss(q, feedback, cohort_size=K) == pytest.approx(loss, rel=EXACT)
    assert mean == pytest.approx(loss, rel=EXACT)


@designs
@moderate
@given(p=simplex(M), q=simplex(M), feedback=positive(M))
def test_gradient_estimate_is_unbiased(design: str, p: Array, q: Array, feedback: Array) -> None:
    """E[grad l_hat(q; p)]_m = -a_m / (K q_m^2) (Equation 7)."""

    def gradient(cohort: Cohort) -> Array:
        drawn = cohort.clients
        return dense(cohort, estimated_gradient(q[drawn], cohort, feedback[drawn]), M)

    assert expectation(design, p, K, gradient) == pytest.approx(-feedback / (K * q**2), rel=EXACT)


@moderate
@given(p=simplex(M), q=simplex(M), feedback=positive(M))
def test_estimates_are_the_papers_to_the_letter(p: Array, q: Array, feedback: Array) -> None:
    """Equations 6 and 7 as printed, with N{m in S}, for every draw with replacement: repeats count."""
    for draws in product(range(M), repeat=K):
        times = np.array([draws.count(m) for m in range(M)])
        loss = sum(feedback[m] * times[m] / (q[m] * p[m]) for m in range(M)) / K**2
        gradient = -feedback * times / (q**2 * p) / K**2
        cohort = Cohort(0, K, *weigh_with_replacement(np.array(draws), p[list(draws)], K))
        drawn = cohort.clients
        assert estimated_loss(q[drawn], cohort, feedback[drawn]) == pytest.approx(loss, rel=EXACT)
        ours = estimated_gradient(q[drawn], cohort, feedback[drawn])
        assert dense(cohort, ours, M) == pytest.approx(gradient, rel=EXACT)


@designs
@moderate
@given(p=simplex(6), available=st.sets(st.integers(0, 5), min_size=4))
def test_restricted_to_the_available_it_is_unbiased_for_them(
    design: str, p: Array, available: set[int]
) -> None:
    """Appendix D.2: weights have mean one for each client that is available, and nobody else is drawn."""
    here = np.array(sorted(available))
    mean = np.zeros(6)
    for probability, (chosen, _, _, weights) in outcomes(design, restrict(p[here]), K):
        mean[here[chosen]] += probability * weights
    assert mean == pytest.approx(np.isin(np.arange(6), here).astype(float), abs=EXACT)


@designs
@moderate
@given(p=simplex(M), failure=st.floats(0.0, 0.99))
def test_clients_that_replied_keep_mean_one_weights(design: str, p: Array, failure: float) -> None:
    """E[weight of the replied | cohort, somebody replied] = weight, for one failure probability of all.

    For every cohort, those with repeated draws included, over every set of repliers.
    """
    for _, cohort in cohorts(design, p, K):
        mean, somebody = np.zeros(M), 0.0
        for mask in product((False, True), repeat=len(cohort)):
            replies = sum(mask)
            if replies == 0:
                continue
            probability = (1.0 - failure) ** replies * failure ** (len(cohort) - replies)
            heard = cohort.replied(np.array(mask))
            assert heard.clients.tolist() == cohort.clients[list(mask)].tolist()
            mean += probability * dense(heard, heard.weights, M)
            somebody += probability
        if len(cohort):
            assert mean / somebody == pytest.approx(dense(cohort, cohort.weights, M), rel=1e-11, abs=EXACT)


@moderate
@given(p=simplex(M), client_weights=simplex(M), updates=vectors(M, 2))
def test_variance_of_the_aggregate(p: Array, client_weights: Array, updates: Array) -> None:
    """E ||g - J||^2, summed over every draw, is Equation 3: 1/K (sum a_m / p_m - ||J||^2)."""
    oracle = client_weights @ updates

    def squared_error(cohort: Cohort) -> float:
        drawn = cohort.clients
        return float(np.sum((aggregate(cohort, client_weights[drawn], updates[drawn]) - oracle) ** 2))

    feedback = client_weights**2 * np.sum(updates**2, axis=1)
    printed = (sum(feedback[m] / p[m] for m in range(M)) - oracle @ oracle) / K
    assert aggregate_variance(p, client_weights, updates, K) == pytest.approx(printed, rel=1e-9, abs=EXACT)
    assert expectation("with_replacement", p, K, squared_error) == pytest.approx(printed, rel=1e-9, abs=EXACT)


def test_optimum_without_replacement_for_parallel_updates() -> None:
    """Proposition 11: p proportional to sqrt(a) minimises the variance without replacement too.

    With updates that all point one way it is zero there: every draw gives J. With others it is not the
    minimum for K > 1, as the next test shows: the proposition overlooks that p also decides which clients
    are left for the later draws.
    """
    updates = np.outer([1.0, 2.0, 3.0, 6.0], [0.6, -0.8])
    best = optimal_probabilities(np.sum(updates**2, axis=1))
    assert without_replacement_variance(best, updates, 3) == pytest.approx(0.0, abs=EXACT)
    assert without_replacement_variance(np.full(M, 0.25), updates, 3) > 1.0


def test_optimum_without_replacement_is_only_near_for_other_updates() -> None:
    """A counterexample to the second half of Proposition 11, by enumeration: M = 4, K = 2."""
    updates = np.array([[3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.0]])
    best = optimal_probabilities(np.sum(updates**2, axis=1))  # (1/2, 1/6, 1/6, 1/6)
    other = np.array([0.55, 0.15, 0.15, 0.15])
    assert without_replacement_variance(best, updates, 2) == pytest.approx(34 / 3)
    assert without_replacement_variance(other, updates, 2) == pytest.approx(11.3182, abs=1e-4)  # less
    # of a single draw it is the optimum: (3 + 1 + 1 + 1)^2 - 2^2
    assert without_replacement_variance(best, updates, 1) == pytest.approx(32)
    assert without_replacement_variance(other, updates, 1) > 32


def without_replacement_variance(p: Array, updates: Array, cohort_size: int) -> float:
    """E ||g - J||^2 over every ordered draw, lambda = 1 (Algorithm 7)."""
    oracle = updates.sum(axis=0)
    return sum(
        probability * float(np.sum((weights @ updates[clients] - oracle) ** 2))
        for probability, (clients, _, _, weights) in outcomes("without_replacement", p, cohort_size)
    )
