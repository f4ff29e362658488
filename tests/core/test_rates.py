"""The paper's rates against numbers worked out by hand from its formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.core.rates import (
    doubling_epoch,
    expert_rates,
    initial_expert_weights,
    learning_rate,
    meta_rate,
    num_experts,
)

federations = {
    "num_clients": st.integers(2, 10_000),
    "cohort_size": st.integers(1, 100),
    "alpha": st.floats(0.01, 1.0),
    "bound": st.floats(1e-6, 1e6),
}


def test_learning_rate_by_hand() -> None:
    """Equation 20 with M = 100, K = 5, T = 1000, alpha = 0.4, A = 1.

    K alpha^3 / M^3 = 5 * 0.064 / 10^6 = 3.2e-7; log 100 = 4.605170, log 250 = 5.521461.
    """
    # beta = 0: sqrt(9.210340 / 1000) = 0.0959705, times 3.2e-7
    assert learning_rate(100, 5, 1000, 0.4, 1.0, variation=0.0) == pytest.approx(3.0710566e-8, rel=1e-7)
    # beta = 3: sqrt((9.210340 + 12 * 5.521461) / 1000) = sqrt(0.07546787) = 0.2747142, times 3.2e-7
    assert learning_rate(100, 5, 1000, 0.4, 1.0, variation=3.0) == pytest.approx(8.7908532e-8, rel=1e-7)
    # inversely proportional to A
    assert learning_rate(100, 5, 1000, 0.4, 0.01, variation=0.0) == pytest.approx(3.0710566e-6, rel=1e-7)


def test_learning_rate_of_mini_batch_sgd_and_of_fedavg() -> None:
    """Equations 13 and 16: K alpha^3 / (M G^2) and / (M B G^2), with A_max = G^2 / M^2 and B G^2 / M^2."""
    M, K, T, alpha, G, B, beta = 50, 4, 200, 0.3, 7.0, 10, 1.5
    root = math.sqrt((2 * math.log(M) + 4 * beta * math.log(M / alpha)) / T)
    mini_batch = K * alpha**3 / (M * G**2) * root
    fedavg = K * alpha**3 / (M * B * G**2) * root
    assert learning_rate(M, K, T, alpha, G**2 / M**2, beta) == pytest.approx(mini_batch, rel=1e-12)
    assert learning_rate(M, K, T, alpha, B * G**2 / M**2, beta) == pytest.approx(fedavg, rel=1e-12)


@pytest.mark.parametrize(
    ("num_clients", "num_rounds", "exploration", "experts"),
    [
        # 4 log 250 / log 100 = 4.795880; 1 + 4.795880 * 999 = 4792.084; log2 = 12.2264; half 6.11; up 7; + 1
        (100, 1000, 0.4, 8),
        # nothing to vary over one round: log2(1) = 0; + 1
        (100, 1, 0.4, 1),
        # 1 + 4.795880 = 5.795880; log2 = 2.5350; half 1.2675; up 2; + 1
        (100, 2, 0.4, 3),
        # alpha = 1: 4 log M / log M = 4; 1 + 4 * 9 = 37; log2 = 5.2095; half 2.60; up 3; + 1
        (20, 10, 1.0, 4),
        # log 10^5 / log 10^4 = 5/4; 1 + 5 * 3 = 16; log2 = 4; half 2, nothing to round; + 1
        (10_000, 4, 0.1, 3),
        # one client: nothing to learn
        (1, 1000, 0.4, 1),
    ],
)
def test_num_experts_by_hand(num_clients: int, num_rounds: int, exploration: float, experts: int) -> None:
    assert num_experts(num_clients, num_rounds, exploration) == experts


def test_expert_rates_by_hand() -> None:
    """Equation 22 in the paper's setting: 3.0710566e-8 and seven doublings, the last 128 times the first."""
    rates = expert_rates(100, 5, 1000, 0.4, feedback_bound=1.0)
    assert rates == pytest.approx(3.0710566e-8 * np.array([1, 2, 4, 8, 16, 32, 64, 128]), rel=1e-7)


def test_expert_rates_cover_every_variation() -> None:
    """What Equation 23 is for: whatever the variation, some expert's rate is the best up to a factor of two.

    T distributions vary by at most 2 (T - 1), and the fastest expert covers that (proof of Theorem 8).
    """
    rates = expert_rates(100, 5, 1000, 0.4, feedback_bound=1.0)
    for variation in (0.0, 0.1, 1.0, 10.0, 100.0, 999.0, 1998.0):
        best = learning_rate(100, 5, 1000, 0.4, 1.0, variation)
        assert np.any((rates <= best * (1.0 + 1e-12)) & (best < 2.0 * rates))
    assert rates[-2] < best <= rates[-1], "one expert fewer would not do, one more is not needed"


def test_meta_rate_by_hand() -> None:
    """Theorem 8: 0.4 / 100 * sqrt(8 * 5 / 1000) = 0.004 * 0.2 for A = 1; a quarter of A doubles it."""
    assert meta_rate(100, 5, 1000, 0.4, feedback_bound=1.0) == pytest.approx(0.0008, rel=1e-14)
    assert meta_rate(100, 5, 1000, 0.4, feedback_bound=0.25) == pytest.approx(0.0016, rel=1e-14)


def test_initial_expert_weights_by_hand() -> None:
    """Algorithm 5, line 3, E = 3: 4/3 * (1/2, 1/6, 1/12)."""
    assert initial_expert_weights(3) == pytest.approx([2 / 3, 2 / 9, 1 / 9])
    assert initial_expert_weights(1).tolist() == [1.0]


@given(experts=st.integers(1, 60))
def test_initial_expert_weights_sum_to_one(experts: int) -> None:
    weights = initial_expert_weights(experts)
    assert weights.sum() == pytest.approx(1.0, abs=1e-14)
    assert np.all(np.diff(weights) < 0.0)


@given(b=st.integers(1, 20), **federations)
def test_doubling_rates_are_equations_27_and_28(
    b: int, num_clients: int, cohort_size: int, alpha: float, bound: float
) -> None:
    """Equations 22 and 23 with T = 2^(b-1), against 27 and 28 as printed."""
    M, K, A = num_clients, cohort_size, bound
    spread = 4 * math.log(M / alpha) / math.log(M)
    length = math.ceil(0.5 * math.log2(1 + spread * (2 ** (b - 1) - 1))) + 1
    base = K * alpha**3 * math.sqrt(2 * math.log(M)) / (M**3 * A)
    printed = [2 ** (e - b / 2 - 1 / 2) * base for e in range(1, length + 1)]
    assert num_experts(M, 2 ** (b - 1), alpha) == length
    assert expert_rates(M, K, 2 ** (b - 1), alpha, A) == pytest.approx(printed, rel=1e-12)


def test_doubling_rates_by_hand() -> None:
    """Equation 27, b = 3, M = 100, K = 5, alpha = 0.4, A = 1: 2^(e-2) * 3.2e-7 * sqrt(9.210340), E = 3.

    sqrt(9.210340) = 3.0348543, times 3.2e-7 is 9.7115337e-7, and 2^(e-2) is 1/2, 1, 2.
    """
    rates = expert_rates(100, 5, 4, 0.4, feedback_bound=1.0)
    assert rates == pytest.approx(9.7115337e-7 * np.array([0.5, 1.0, 2.0]), rel=1e-7)


def test_epochs_of_the_doubling_trick() -> None:
    """Epoch b begins at round 2^(b-1) and is as long: 1 | 2 3 | 4 5 6 7 | 8 ..."""
    assert [doubling_epoch(t) for t in range(1, 17)] == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5]
    assert doubling_epoch(2**70) == 71
