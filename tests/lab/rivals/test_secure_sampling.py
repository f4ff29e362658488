"""AOCS against optimal client sampling."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.core.designs import inclusion_probabilities
from sortition.lab.rivals.secure_sampling import SecureOptimalSampler, approximate_inclusion
from sortition.testing import check_sampler

norms_of_six = st.lists(st.floats(0.01, 1000.0), min_size=6, max_size=6).map(np.array)


@given(norms=norms_of_six, cohort_size=st.integers(1, 5))
def test_is_optimal_after_as_many_iterations_as_clients_can_be_certain(norms, cohort_size):
    """Each iteration that changes anything makes a client certain or ends, so K of them are enough."""
    optimal = inclusion_probabilities(norms / norms.sum(), cohort_size)
    assert approximate_inclusion(norms, cohort_size, cohort_size) == pytest.approx(optimal)


@given(norms=norms_of_six, cohort_size=st.integers(1, 5))
def test_more_iterations_come_closer_from_below(norms, cohort_size):
    """No client has more than its optimal probability, and the expected cohort grows up to K."""
    optimal = inclusion_probabilities(norms / norms.sum(), cohort_size)
    rows = np.array([approximate_inclusion(norms, cohort_size, j) for j in range(cohort_size + 1)])
    assert np.all(np.diff(rows, axis=0) >= -1e-12)
    assert np.all(rows <= optimal + 1e-9)
    assert rows[-1].sum() == pytest.approx(cohort_size)


def test_the_estimate_is_unbiased():
    """The sum over all coins of four clients."""
    updates, weights = np.random.default_rng(0).normal(size=(4, 3)), np.array([0.4, 0.1, 0.3, 0.2])
    norms = weights * np.linalg.norm(updates, axis=1)
    p = approximate_inclusion(norms, 2, iterations=1)
    mean = np.zeros(3)
    for coins in product((False, True), repeat=4):
        up = np.array(coins)
        chance = np.prod(np.where(up, p, 1.0 - p))
        mean += chance * ((weights / p)[up] @ updates[up])
    assert mean == pytest.approx(weights @ updates)


def test_sampler_draws_with_these_probabilities():
    sampler = SecureOptimalSampler(num_clients=4, cohort_size=2, iterations=1, seed=1)
    norms = np.array([1.0, 2.0, 3.0, 40.0])
    p = approximate_inclusion(norms, 2, 1)
    for _ in range(50):
        sampler.reveal(norms)
        cohort = sampler.draw()
        assert cohort.probabilities == pytest.approx(p[cohort.clients])
        assert cohort.weights == pytest.approx(1.0 / p[cohort.clients])


def test_keeps_every_promise():
    check_sampler(
        lambda seed: SecureOptimalSampler(num_clients=7, cohort_size=3, seed=seed),
        before_draw=lambda sampler: sampler.reveal(np.exp(np.arange(7.0) / 2.0)),
    )
