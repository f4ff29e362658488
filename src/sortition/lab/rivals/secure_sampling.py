"""Optimal client sampling where the server sees sums only (Chen, Horvath and Richtarik, TMLR 2022)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.designs import Design, Weighed, weigh_by_inclusion
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import one_of, whole_number
from sortition.samplers.oracles import OptimalSampler


def approximate_inclusion(norms: FloatArray, cohort_size: int, iterations: int) -> FloatArray:
    r"""Inclusion probabilities that need sums over the clients only (AOCS, Algorithm 2).

    .. math:: p_i = \min(1, K u_i / \textstyle\sum_j u_j), \qquad \text{then } j_{\max} \text{ times} \quad
              C = \frac{K - M + I}{P}, \quad p_i \leftarrow \min(1, C p_i) \text{ where } p_i < 1

    with :math:`u_i = \lambda_i \|g_i\|` = ``norms``, and I and P the number and the sum of those below one.
    It ends when :math:`C \le 1`: then nobody was cut off, the sum is K, and p is optimal.

    >>> approximate_inclusion(np.array([1.0, 3.0, 9.0]), 2, iterations=0)
    array([0.15384615, 0.46153846, 1.        ])
    >>> approximate_inclusion(np.array([1.0, 3.0, 9.0]), 2, iterations=1)
    array([0.25, 0.75, 1.  ])
    """
    p = np.minimum(1.0, cohort_size * (norms / norms.sum()))
    for _ in range(iterations):
        below = p < 1.0
        total = float(p[below].sum())
        if total <= 0.0:
            break
        factor = (cohort_size - len(p) + np.count_nonzero(below)) / total
        if factor <= 1.0:
            break
        p = np.where(below, np.minimum(1.0, factor * p), p)
    return np.asarray(p)


class SecureOptimalSampler(OptimalSampler):
    r"""AOCS: each client tosses its own coin, with a probability from secure sums (Algorithm 2). Unbiased.

    **All available clients train in every round**, to know their norms; only some send their updates, K on
    average or less. It saves uploads, and no training: ``reveal`` the norms before each draw, as to an
    oracle. ``iterations`` is :math:`j_{\max}`, 4 in the paper's experiments.

    >>> sampler = SecureOptimalSampler(num_clients=3, cohort_size=2)
    >>> sampler.reveal([1.0, 3.0, 9.0])
    >>> bool(2 in sampler.draw().clients)
    True
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        iterations: int = 4,
        design: Design = "independent",
        seed: int = 0,
    ) -> None:
        one_of("design", design, ("independent",))
        self._iterations = whole_number("iterations", iterations, least=0)
        super().__init__(
            num_clients=num_clients,
            cohort_size=cohort_size,
            client_weights=client_weights,
            design=design,
            seed=seed,
        )
        self.settings |= {"iterations": self._iterations}

    def _weighed_draw(self, available: IntArray | None) -> Weighed:
        ids = self._everybody() if available is None else available
        if len(ids) <= self._cohort_size:
            return self._draw_from(ids)
        shares = self._distribution.look_up(ids)
        if not shares.any():
            shares = np.ones(len(ids))
        p = approximate_inclusion(shares, self._cohort_size, self._iterations)
        tossed = self._generator.of_round(self._round_index).random(len(ids)) < p
        return weigh_by_inclusion(ids[tossed], p[tossed])
