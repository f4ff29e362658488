"""The Gaussian mechanism's (epsilon, delta), against quadrature and published values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from sortition import ConfigurationError
from sortition.core.accounting import gaussian_delta, gaussian_epsilon, gaussian_mu


@given(mu=st.floats(0.05, 4.0), epsilon=st.floats(0.0, 6.0))
def test_delta_by_its_definition(mu: float, epsilon: float) -> None:
    """delta = sup over events of P(S) - e^eps Q(S): the integral of (P - e^eps Q)^+ for N(mu,1), N(0,1)."""
    cross = epsilon / mu + mu / 2.0  # where the densities are in the ratio e^eps
    expected = integrate.quad(
        lambda x: stats.norm.pdf(x, mu) - np.exp(epsilon) * stats.norm.pdf(x), cross, cross + 40.0, limit=200
    )[0]
    assert gaussian_delta(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [
        (1.0, 0.126937, 1.0),  # Dong, Roth and Su: 1-GDP is (1, 0.127)-DP
        (0.5, 0.197413, 0.0),  # the total variation of N(0,1) and N(1/2,1): 2 Phi(1/4) - 1
    ],
)
def test_known_values(mu: float, delta: float, epsilon: float) -> None:
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, abs=1e-6)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, abs=1e-4)


@given(mu=st.floats(0.05, 100.0), exponent=st.floats(-12.0, -1.0))
def test_epsilon_inverts_delta(mu: float, exponent: float) -> None:
    delta = 10.0**exponent
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta * (1.0 + 1e-6)
    if epsilon > 1e-6:
        assert gaussian_delta(mu, epsilon * (1.0 - 1e-4)) >= delta * (1.0 - 1e-3)


@given(sigma=st.floats(0.5, 10.0), releases=st.integers(1, 1000), exponent=st.floats(-9.0, -3.0))
def test_the_exact_composition_is_within_the_bound_of_zero_concentrated_privacy(
    sigma: float, releases: int, exponent: float
) -> None:
    """zCDP: rho = n / (2 sigma^2), and epsilon <= rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016)."""
    delta = 10.0**exponent
    rho = releases / (2.0 * sigma**2)
    bound = rho + 2.0 * np.sqrt(rho * np.log(1.0 / delta))
    assert gaussian_epsilon(gaussian_mu(sigma, releases), delta) <= bound * (1.0 + 1e-9)


def test_nothing_released_costs_nothing() -> None:
    assert gaussian_epsilon(gaussian_mu(1.0, 0), 1e-5) == 0.0


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="noise_multiplier"):
        gaussian_mu(0.0, 1)
    with pytest.raises(ConfigurationError, match="delta"):
        gaussian_epsilon(1.0, 0.0)
