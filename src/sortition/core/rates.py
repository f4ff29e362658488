r"""The paper's learning rates: of OSMD, of the experts, of the meta-algorithm, and the doubling schedule.

Logarithms are natural except where the base is written. With one client there is nothing to learn and
:math:`\log M = 0`: the rates are then 0 and one expert is enough.
"""

from __future__ import annotations

import math

import numpy as np

from sortition.core.types import FloatArray
from sortition.core.validation import whole_number

MOST_ROUNDS = 2**53
"""More could not be told apart by a double."""


def learning_rate(
    num_clients: int,
    cohort_size: int,
    num_rounds: int,
    exploration: float,
    feedback_bound: float,
    variation: float,
) -> float:
    r"""The rate of OSMD for comparators of total variation at most :math:`\beta` = ``variation``.

    .. math:: \eta = \frac{K\alpha^3}{M^3 A_{\max}}
              \sqrt{\frac{2\log M + 4\beta\log(M/\alpha)}{T}}            (Equation 20)

    Equations 13 and 16 are this one with :math:`A_{\max} = G^2/M^2` and :math:`B G^2 / M^2`.

    >>> round(learning_rate(10, 2, 100, 0.5, feedback_bound=1.0, variation=0.0), 8)
    5.365e-05
    """
    scale = cohort_size * exploration**3 / (num_clients**3 * feedback_bound)
    spread = 2.0 * math.log(num_clients) + 4.0 * variation * math.log(num_clients / exploration)
    return scale * math.sqrt(spread / num_rounds)


def num_experts(num_clients: int, num_rounds: int, exploration: float) -> int:
    r"""How many experts cover every possible variation of the comparators.

    .. math:: E = \Big\lceil \tfrac12 \log_2\Big(1 + \frac{4\log(M/\alpha)}{\log M}(T-1)\Big)
              \Big\rceil + 1            (Equation 23)

    >>> num_experts(100, 1000, 0.4)
    8
    """
    whole_number("num_rounds", num_rounds, least=1, most=MOST_ROUNDS)
    if num_clients == 1:
        return 1
    spread = 4.0 * math.log(num_clients / exploration) / math.log(num_clients)
    return math.ceil(0.5 * math.log2(1.0 + spread * (num_rounds - 1))) + 1


def expert_rates(
    num_clients: int,
    cohort_size: int,
    num_rounds: int,
    exploration: float,
    feedback_bound: float,
    experts: int | None = None,
) -> FloatArray:
    r"""One rate an expert, each twice the one before.

    .. math:: \eta_e = 2^{e-1}\frac{K\alpha^3}{M^3 A_{\max}}\sqrt{\frac{2\log M}{T}},
              \quad e = 1, \dots, E            (Equation 22)

    with E of Equation 23, unless ``experts`` are given.

    >>> expert_rates(10, 2, 2, 0.5, feedback_bound=1.0).round(6)
    array([0.000379, 0.000759, 0.001517])
    """
    slowest = learning_rate(num_clients, cohort_size, num_rounds, exploration, feedback_bound, 0.0)
    count = num_experts(num_clients, num_rounds, exploration) if experts is None else experts
    doublings = np.arange(count, dtype=np.float64)
    return np.exp2(doublings) * slowest


def initial_expert_weights(experts: int) -> FloatArray:
    r"""Weights to start from: :math:`\theta^1_e = (1 + 1/E) / (e (e+1))`, which sum to one (Algorithm 5).

    >>> initial_expert_weights(2)
    array([0.75, 0.25])
    """
    e = np.arange(1, experts + 1)
    return (1.0 + 1.0 / experts) / (e * (e + 1.0))


def meta_rate(
    num_clients: int, cohort_size: int, num_rounds: int, exploration: float, feedback_bound: float
) -> float:
    r"""The rate at which experts gain or lose weight (Theorem 8).

    .. math:: \gamma = \frac{\alpha}{M}\sqrt{\frac{8K}{T A_{\max}}}

    >>> round(meta_rate(10, 2, 100, 0.5, feedback_bound=4.0), 12)
    0.01
    """
    return exploration / num_clients * math.sqrt(8.0 * cohort_size / (num_rounds * feedback_bound))


def doubling_epoch(round_number: int) -> int:
    r"""The epoch b of round t = 1, 2, ...: it holds :math:`2^{b-1} \le t < 2^b` (Appendix A.1).

    An epoch runs Adaptive-OSMD with T set to its length :math:`2^{b-1}`: put that into Equations 22 and 23
    and they are Equations 27 and 28.

    >>> [doubling_epoch(t) for t in (1, 2, 3, 4, 7, 8)]
    [1, 2, 2, 3, 3, 4]
    """
    return round_number.bit_length()
