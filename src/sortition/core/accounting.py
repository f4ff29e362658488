r"""Differential privacy of the Gaussian mechanism, exactly.

A release of a value of sensitivity :math:`\Delta` with Gaussian noise of standard deviation
:math:`\sigma\Delta` is :math:`\mu`-Gaussian private with :math:`\mu = 1/\sigma`; n of them, chosen
adaptively, with :math:`\mu = \sqrt n/\sigma` (Dong, Roth and Su 2022, Corollary 2). That is no bound: the
composition of n Gaussian mechanisms is a Gaussian mechanism. n must be fixed beforehand, as a most; not read
off a run in which the releases themselves decided how many there would be.
"""

from __future__ import annotations

import math

from sortition.core.errors import ConfigurationError
from sortition.core.validation import positive_number, whole_number


def gaussian_mu(noise_multiplier: float, releases: int) -> float:
    r""":math:`\mu = \sqrt n / \sigma`, for ``releases`` of one client's value.

    >>> gaussian_mu(2.0, 4)
    1.0
    """
    sigma = positive_number("noise_multiplier", noise_multiplier)
    return math.sqrt(whole_number("releases", releases, least=0)) / sigma


def gaussian_delta(mu: float, epsilon: float) -> float:
    r"""The least :math:`\delta` for which :math:`(\epsilon, \delta)` holds (Balle and Wang 2018, Theorem 8).

    .. math:: \delta = \Phi\Big(\frac\mu2 - \frac\epsilon\mu\Big)
              - e^\epsilon\,\Phi\Big(-\frac\mu2 - \frac\epsilon\mu\Big)

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if mu == 0.0:
        return 0.0
    log_second = epsilon + _log_normal_cdf(-0.5 * mu - epsilon / mu)
    first = math.exp(_log_normal_cdf(0.5 * mu - epsilon / mu))
    return max(0.0, first - math.exp(min(log_second, 0.0)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    r"""The least :math:`\epsilon` for which :math:`(\epsilon, \delta)` holds: ``gaussian_delta`` inverted.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    given: object = delta
    if not (isinstance(given, (int, float)) and 0.0 < given < 1.0):
        raise ConfigurationError(f"delta must lie in (0, 1), got {delta!r}")
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2.0 * high
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


def _log_normal_cdf(x: float) -> float:
    """log Phi(x), also where Phi(x) is too small for a double (Mills' ratio, by continued fraction)."""
    if x > -20.0:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
    fraction = -x
    for k in range(60, 0, -1):
        fraction = -x + k / fraction
    return -0.5 * x * x - 0.5 * math.log(2.0 * math.pi) - math.log(fraction)
