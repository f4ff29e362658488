"""K-Vib and optimal client sampling against their formulas, word for word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition import ConfigurationError, KVibSampler, OptimalClientSampler, OptimalSampler
from sortition.core.designs import inclusion_probabilities
from tests.helpers import positive

M, K = 6, 2


def capped(u: np.ndarray, size: int) -> np.ndarray:
    """The p with sum K, at most one, proportional to u below one: set those above to one, and repeat."""
    p, free = np.ones(len(u)), np.ones(len(u), dtype=bool)
    while True:
        p[free] = (size - np.count_nonzero(~free)) * u[free] / u[free].sum()
        if p.max() <= 1.0 + 1e-12:
            return p
        free &= p <= 1.0
        p[~free] = 1.0


def optimal_client_sampling(u: np.ndarray, size: int) -> np.ndarray:
    """As ``shared/baselines.md`` states it: sort ascending, the largest l with 0 < K+l-M <= sum / u_(l)."""
    order, number = np.argsort(u), len(u)
    ascending = u[order]
    sums = np.cumsum(ascending)
    fitting = [
        count
        for count in range(1, number + 1)
        if 0 < size + count - number <= sums[count - 1] / ascending[count - 1] * (1 + 1e-12)
    ]
    last = max(fitting)
    p = np.ones(number)
    p[order[:last]] = (size + last - number) * ascending[:last] / sums[last - 1]
    return p


class TestKVib:
    @pytest.mark.parametrize("prior", [None, np.array([0.6, 0.1, 0.1, 0.1, 0.05, 0.05])])
    def test_rounds_written_out(self, prior):
        weights = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
        bound, theta = 0.02, 0.3
        sampler = KVibSampler(
            num_clients=M,
            cohort_size=K,
            client_weights=weights,
            num_rounds=30,
            exploration=theta,
            feedback_bound=bound,
            prior=prior,
            guard=None,
            seed=4,
        )
        start = np.full(M, 1 / M) if prior is None else prior
        norms = np.array([0.1, 1.0, 30.0, 2.0, 0.3, 5.0])
        omega = np.zeros(M)
        saw_certain = False
        for _ in range(30):
            p = capped(np.sqrt(omega + (M * start) ** 2 * bound * M / (theta * K)), K)
            tilde = (1 - theta) * p + theta * capped(start, K)
            saw_certain |= p.max() >= 1.0
            assert inclusion_probabilities(sampler.probabilities(), K) == pytest.approx(tilde)
            cohort = sampler.draw()
            assert cohort.probabilities == pytest.approx(tilde[cohort.clients])
            assert cohort.weights == pytest.approx(1 / tilde[cohort.clients])
            sampler.observe(cohort, norms[cohort.clients])
            drawn = cohort.clients
            omega[drawn] += (weights[drawn] * norms[drawn]) ** 2 / tilde[drawn]
        assert saw_certain

    @given(p=positive(M), theta=st.floats(0.01, 1.0))
    def test_the_design_gives_back_its_inclusion_probabilities(self, p, theta):
        tilde = (1 - theta) * capped(p, K) + theta * K / M
        assert tilde.max() <= 1.0 + 1e-9
        assert inclusion_probabilities(tilde / K, K) == pytest.approx(tilde, rel=1e-9)

    def test_exploration_by_default(self):
        def smallest(rounds: int) -> float:
            sampler = KVibSampler(
                num_clients=8, cohort_size=1, num_rounds=rounds, feedback_bound=1e-300, guard=None
            )
            cohort = sampler.draw()
            while not len(cohort):
                sampler.observe(cohort, [])
                cohort = sampler.draw()
            sampler.observe(cohort, np.full(len(cohort), 1e100))
            return sampler.probabilities().min()

        assert smallest(64) == pytest.approx(0.5 / 8)  # theta = (8 / 64)^(1/3)
        assert smallest(8) == pytest.approx(1 / 8)
        assert smallest(1) == pytest.approx(1 / 8)

    def test_a_newcomer_is_like_a_client_that_was_never_drawn(self):
        sampler = KVibSampler(num_clients=4, cohort_size=2, num_rounds=20, feedback_bound=1.0, seed=1)
        cohort = sampler.draw()
        sampler.observe(cohort, np.full(len(cohort), 50.0))
        [newcomer] = sampler.add_clients(1)
        never_drawn = np.setdiff1d(np.arange(4), cohort.clients)
        p = sampler.probabilities()
        assert p.sum() == pytest.approx(1.0)
        assert p[newcomer] == pytest.approx(p[never_drawn[0]])
        sampler.remove_clients([0])
        assert sampler.probabilities()[0] == 0.0
        assert sampler.probabilities().sum() == pytest.approx(1.0)
        cohort = sampler.draw()
        sampler.observe(cohort, np.ones(len(cohort)))
        assert 0 not in cohort.clients


class TestOptimalClientSampling:
    @given(norms=positive(M), size=st.integers(1, M - 1))
    def test_inclusion_by_its_formula(self, norms, size):
        weights = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
        sampler = OptimalClientSampler(num_clients=M, cohort_size=size, client_weights=weights)
        sampler.reveal(norms)
        expected = optimal_client_sampling(weights * norms, size)
        assert inclusion_probabilities(sampler.probabilities(), size) == pytest.approx(expected, rel=1e-9)
        cohort = sampler.draw()
        assert cohort.probabilities == pytest.approx(expected[cohort.clients])

    @pytest.mark.parametrize("make", [OptimalSampler, OptimalClientSampler])
    def test_oracles_follow_joins_and_leaves(self, make):
        sampler = make(num_clients=3, cohort_size=2)
        sampler.reveal([1.0, 2.0, 3.0])
        sampler.draw()
        sampler.add_clients(1)
        sampler.remove_clients([0])
        assert sampler.num_clients == 3
        sampler.reveal([9.0, 1.0, 1.0, 2.0])
        assert sampler.probabilities() == pytest.approx([0.0, 0.25, 0.25, 0.5])


@pytest.mark.parametrize("design", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize(
    "make",
    [lambda **common: KVibSampler(num_rounds=5, **common), lambda **common: OptimalClientSampler(**common)],
)
def test_another_design_is_refused(make, design):
    with pytest.raises(ConfigurationError, match=f"design.*{design}"):
        make(num_clients=5, cohort_size=2, design=design)
    assert make(num_clients=5, cohort_size=2).design == "independent"
