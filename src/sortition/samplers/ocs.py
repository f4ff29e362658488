"""Optimal client sampling: the oracle of Chen, Horvath and Richtarik for independent draws."""

from __future__ import annotations

from typing import Unpack

from sortition.samplers.base import Common
from sortition.samplers.kvib import require_independent
from sortition.samplers.optimal import OptimalSampler


class OptimalClientSampler(OptimalSampler):
    r"""Takes each client independently, with the inclusion probabilities of least variance.

    All norms are known (``reveal`` them before each draw). With :math:`u = \sqrt a` ascending and l the
    largest number with :math:`0 < K + l - M \le \sum_{j \le l} u_{(j)} / u_{(l)}`,

    .. math:: \pi_m = \frac{(K + l - M)\,u_m}{\sum_{j \le l} u_{(j)}} \text{ for the smallest } l, \qquad
              \pi_m = 1 \text{ for the rest}

    which minimises the variance :math:`\sum_m a_m (1/\pi_m - 1)` of independent draws. This is
    :math:`\min(1, c\,u_m)` with sum K, what the independent design makes of :math:`p \propto u`; so it is
    :class:`OptimalSampler` in that design, and ``probabilities()`` are the shares :math:`u / \sum u`.

    >>> sampler = OptimalClientSampler(num_clients=3, cohort_size=2)
    >>> sampler.reveal([1.0, 3.0, 9.0])
    >>> sampler.draw().probabilities  # the third is certain, the others have 1/4 and 3/4
    array([0.25, 0.75, 1.  ])
    """

    def __init__(self, **common: Unpack[Common]) -> None:
        require_independent("OptimalClientSampler", common)
        super().__init__(**common)
