r"""The paper's regret bounds as functions (Theorems 6, 8 and 10), to set measured regret against them.

``comparators`` is :math:`q^{1:T}`, one row a round; ``exploration`` is :math:`\alpha`, and
:math:`\mathcal A = \{p : p_m \ge \alpha/M\}`.
"""

from __future__ import annotations

import math

import numpy as np

from sortition.core.rates import num_experts
from sortition.core.types import FloatArray


def total_variation(comparators: FloatArray) -> float:
    r""":math:`\mathrm{TV}(q^{1:T}) = \sum_{t<T} \|q^{t+1} - q^t\|_1` (Section 5).

    >>> total_variation(np.array([[0.5, 0.5], [0.75, 0.25], [0.75, 0.25]]))
    0.5
    """
    return float(np.abs(np.diff(comparators, axis=0)).sum())


def best_above_floor(feedback: FloatArray, exploration: float) -> FloatArray:
    r"""The best comparators of :math:`\mathcal A`: :math:`\arg\min_{q \in \mathcal A} l_t(q)`, a row a round.

    It is :math:`q_m = \max(\alpha/M,\; c\sqrt{a_m})`: sort :math:`\sqrt a` ascending and lift the smallest
    to the floor until the first that need not be.

    >>> best_above_floor(np.array([[0.0, 1.0, 1.0]]), exploration=0.3)
    array([[0.1 , 0.45, 0.45]])
    """
    rounds, clients = feedback.shape
    floor = exploration / clients
    roots = np.sqrt(feedback)
    order = np.argsort(roots, axis=1)
    ascending = np.take_along_axis(roots, order, axis=1)
    above = np.cumsum(ascending[:, ::-1], axis=1)[:, ::-1]  # sum of the roots from here on
    left = 1.0 - floor * np.arange(clients)  # the mass that those before leave
    stays = (ascending * left >= floor * above) & (above > 0.0)
    first = np.where(stays.any(axis=1), np.argmax(stays, axis=1), clients)
    lifted = np.arange(clients) < first[:, None]
    each = np.minimum(first, clients - 1)
    scale = left[each] / np.maximum(above[np.arange(rounds), each], np.finfo(float).tiny)
    values = np.where(lifted, floor, ascending * scale[:, None])
    values[first == clients] = 1.0 / clients  # no feedback at all: everybody is as good
    result = np.empty_like(values)
    np.put_along_axis(result, order, values, axis=1)
    return np.asarray(result)


def distance_to_floor(comparators: FloatArray, exploration: float) -> tuple[FloatArray, FloatArray]:
    r""":math:`\psi(q^t, \alpha)` and :math:`\phi(q^t, \alpha)`: how far q is outside (Equation 19).

    .. math:: \psi = \sum_m (\alpha/M - q_m)^+, \qquad
              \omega = \frac{\psi}{\sum_m (q_m - \alpha/M)^+}, \qquad
              \phi = \frac{\omega}{1 - \omega(1 - \alpha/M)}

    Both are 0 inside. For :math:`\alpha = 1` the text's :math:`\omega` is 0/0 at the uniform distribution,
    which is inside: 0.

    >>> psi, phi = distance_to_floor(np.array([[0.5, 0.5], [0.0, 1.0]]), exploration=0.5)
    >>> psi, phi.round(4)
    (array([0.  , 0.25]), array([0.    , 0.4444]))
    """
    floor = exploration / comparators.shape[1]
    psi = np.maximum(floor - comparators, 0.0).sum(axis=1)
    above = np.maximum(comparators - floor, 0.0).sum(axis=1)
    omega = np.divide(psi, above, out=np.zeros_like(psi), where=above > 0.0)
    return psi, omega / (1.0 - omega * (1.0 - floor))


def osmd_regret_bound(
    comparators: FloatArray,
    feedback: FloatArray,
    *,
    cohort_size: int,
    exploration: float,
    learning_rate: float,
) -> float:
    r"""What the dynamic regret of OSMD is at most, for any comparators (Theorem 6).

    .. math:: & \frac{\log M}{\eta} + \frac{2\log(M/\alpha)}{\eta}\mathrm{TV}(q^{1:T})
              + \frac{\eta M^6}{2K^2\alpha^6} \sum_t (a^t_{\max})^2 \\
              & + \frac{8\log(M/\alpha)}{\eta} \sum_t \psi(q^t, \alpha) + \sum_t \phi(q^t, \alpha)\, l_t(q^t)

    The last two terms are the projection error, 0 for comparators in :math:`\mathcal A`.

    Deviation: the text has 1/K before the last sum. Its proof ends with :math:`\frac1K \sum_m a_m/q_m \le
    \frac1K l_t(q)`, but :math:`l_t(q)` is the left side already, so that factor is not proven; without it the
    bound is larger, and holds.
    """
    clients = feedback.shape[1]
    spread = math.log(clients / exploration)
    psi, phi = distance_to_floor(comparators, exploration)
    intrinsic = (
        math.log(clients) / learning_rate
        + 2.0 * spread / learning_rate * total_variation(comparators)
        + learning_rate
        * clients**6
        / (2.0 * cohort_size**2 * exploration**6)
        * float(np.sum(feedback.max(axis=1) ** 2))
    )
    outside = phi > 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(feedback > 0.0, feedback / comparators, 0.0)
    excess = float(np.sum(phi[outside] * ratios[outside].sum(axis=1))) / cohort_size
    return float(intrinsic + 8.0 * spread / learning_rate * psi.sum() + excess)


def adaptive_regret_bound(
    num_clients: int,
    cohort_size: int,
    num_rounds: int,
    exploration: float,
    feedback_bound: float,
    variation: float,
) -> float:
    r"""What the dynamic regret of Adaptive-OSMD is at most, for comparators above the floor (Theorem 8).

    With :math:`\beta \ge \mathrm{TV}(q^{1:T})` = ``variation``,

    .. math:: \frac{3M^3 A_{\max}}{K\alpha^3} \sqrt{T\big[\tfrac12\log M + \beta\log(M/\alpha)\big]}
              + \frac M\alpha \sqrt{\frac{T A_{\max}}{8K}}\,(1 + 2\log E)

    the regret of the best expert, and that of the meta-algorithm against it.

    >>> round(adaptive_regret_bound(2, 1, 1, 1.0, feedback_bound=8.0, variation=0.0), 3)
    115.031
    """
    spread = 0.5 * math.log(num_clients) + variation * math.log(num_clients / exploration)
    expert = 3.0 * num_clients**3 * feedback_bound / (cohort_size * exploration**3)
    experts = num_experts(num_clients, num_rounds, exploration)
    meta = num_clients / exploration * math.sqrt(num_rounds * feedback_bound / (8.0 * cohort_size))
    return expert * math.sqrt(num_rounds * spread) + meta * (1.0 + 2.0 * math.log(experts))


def doubling_regret_bound(
    num_clients: int,
    cohort_size: int,
    num_rounds: int,
    exploration: float,
    feedback_bound: float,
    variation: float,
) -> float:
    r"""The same for the doubling version: both terms times :math:`2 / (\sqrt2 - 1)` (Theorem 10).

    >>> bound = doubling_regret_bound(2, 1, 1, 1.0, feedback_bound=8.0, variation=0.0)
    >>> round(bound / adaptive_regret_bound(2, 1, 1, 1.0, feedback_bound=8.0, variation=0.0), 3)
    4.828
    """
    setting = (num_clients, cohort_size, num_rounds, exploration, feedback_bound, variation)
    return 2.0 / (math.sqrt(2.0) - 1.0) * adaptive_regret_bound(*setting)
