r"""Other ways to combine a cohort's updates: FedVARP, MIFA and FedAU.

They take the place of ``sortition.Memory`` in an algorithm: ``combine`` gives the aggregate, and the norms
that a sampler may learn from. All clients of a cohort must reply. The papers have equal weights, 1/M; here
client m has :math:`\lambda_m`.
"""

from __future__ import annotations

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray
from sortition.core.validation import whole_number


class LastUpdates:
    r"""The last update of each client, and their weighted sum :math:`\sum_m \lambda_m y_m`."""

    coefficient = 1.0
    """b: memories count in full."""

    def __init__(self, *, num_parameters: int) -> None:
        self._sum = np.zeros(whole_number("num_parameters", num_parameters, least=1))
        self._rows: dict[int, FloatArray] = {}

    def remembered(self, client: int) -> FloatArray:
        """y of ``client``: zeros if it has never trained."""
        return self._rows.get(client, np.zeros_like(self._sum))

    def _residuals(self, cohort: Cohort, updates: FloatArray) -> tuple[FloatArray, FloatArray]:
        """:math:`g_m - y_m`, one row a client, and their norms."""
        residuals = updates - np.array([self.remembered(c) for c in cohort.clients.tolist()]).reshape(
            updates.shape
        )
        return residuals, np.sqrt((residuals * residuals).sum(axis=1))

    def _remember(
        self, cohort: Cohort, updates: FloatArray, residuals: FloatArray, client_weights: FloatArray
    ) -> None:
        for client, update in zip(cohort.clients.tolist(), updates, strict=True):
            self._rows[client] = np.array(update, dtype=np.float64)
        self._sum = self._sum + client_weights @ residuals


class FedVARP(LastUpdates):
    r"""Variance reduction by last updates (Jhunjhunwala et al., UAI 2022, Algorithm 1). Unbiased.

    .. math:: g = \sum_m \lambda_m y_m + \sum_{m \in S} \lambda_m\,\mathrm{weight}_m\,(g_m - y_m), \qquad
              y_m \leftarrow g_m \text{ for } m \in S

    This is ``sortition.Memory`` with b = 1, moved all of the way to every update. With uniform subsets the
    weights are M/K, as in the paper.

    >>> cohort = Cohort(0, 1, clients=[2], counts=[1], probabilities=[0.25], weights=[4.0])
    >>> FedVARP(num_parameters=2).combine(cohort, np.array([[3.0, 4.0]]), np.array([0.25]))
    (array([3., 4.]), array([5.]))
    """

    def combine(
        self, cohort: Cohort, updates: FloatArray, client_weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The aggregate, and the norms of the residuals; then remember the updates."""
        residuals, norms = self._residuals(cohort, updates)
        combined = self._sum + (client_weights * cohort.weights) @ residuals
        self._remember(cohort, updates, residuals, client_weights)
        return combined, norms


class MIFA(LastUpdates):
    r"""The mean of everybody's last update (Gu et al., NeurIPS 2021, Algorithm 1). **Biased.**

    .. math:: y_m \leftarrow g_m \text{ for } m \in S, \qquad g = \sum_m \lambda_m y_m

    The cohort's weights play no part: it is made for clients that come and go as they like, and uses stale
    updates in full. The paper has everybody take part in the first round; here a client that never trained
    counts as 0.

    >>> cohort = Cohort(0, 1, clients=[2], counts=[1], probabilities=[0.25], weights=[4.0])
    >>> MIFA(num_parameters=2).combine(cohort, np.array([[3.0, 4.0]]), np.array([0.25]))
    (array([0.75, 1.  ]), array([5.]))
    """

    def combine(
        self, cohort: Cohort, updates: FloatArray, client_weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Remember the updates; then the mean of all memories, and the norms of the residuals."""
        residuals, norms = self._residuals(cohort, updates)
        self._remember(cohort, updates, residuals, client_weights)
        return self._sum.copy(), norms


class FedAU:
    r"""Weights from how often a client took part (Wang and Ji, ICLR 2024, Algorithms 1 and 2). **Biased.**

    .. math:: g = \sum_{m \in S} \lambda_m\,\omega_m\,g_m, \qquad
              \omega_m = \text{mean of client m's participation intervals so far}

    An interval is the number of rounds from one participation to the next, and it is cut off, and counted
    as finished, at ``cutoff`` rounds (K in the paper, 50 in its experiments). :math:`\omega_m = 1` before
    the first. It estimates :math:`1/p_m` where the probabilities are not known. The cohort's weights play no
    part. It is biased while the intervals are few, and by the cutoff where clients are drawn more rarely.

    >>> fedau = FedAU(num_clients=2)
    >>> fedau.take_part([1]), fedau.take_part([1]), fedau.take_part([0, 1])
    (array([1., 1.]), array([1., 1.]), array([1., 1.]))
    >>> fedau.take_part([0, 1])  # client 0 was in after three rounds, client 1 in every round
    array([3., 1.])
    """

    coefficient = 0.0
    """There is no memory of updates."""

    def __init__(self, *, num_clients: int, cutoff: int = 50) -> None:
        size = whole_number("num_clients", num_clients, least=1)
        self._cutoff = whole_number("cutoff", cutoff, least=1)
        self._weights = np.ones(size)
        self._intervals = np.zeros(size, dtype=np.int64)
        self._length = np.zeros(size, dtype=np.int64)
        self._was_in: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None

    def remembered(self, client: int) -> FloatArray:
        """Nothing."""
        return np.zeros(1)

    def take_part(self, clients: object) -> FloatArray:
        r""":math:`\omega` of this round, from the rounds before; ``clients`` are in this round's cohort."""
        if self._was_in is not None:
            self._length += 1
            done = self._was_in | (self._length == self._cutoff)
            count, length = self._intervals[done], self._length[done]
            self._weights[done] = np.where(
                count > 0, (count * self._weights[done] + length) / (count + 1), length
            )
            self._intervals[done] += 1
            self._length[done] = 0
        self._was_in = np.zeros(len(self._weights), dtype=np.bool_)
        self._was_in[np.asarray(clients, dtype=np.int64)] = True
        return self._weights.copy()

    def combine(
        self, cohort: Cohort, updates: FloatArray, client_weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The aggregate, and the norms of the updates."""
        weights = self.take_part(cohort.clients)[cohort.clients]
        return (client_weights * weights) @ updates, np.sqrt((updates * updates).sum(axis=1))
