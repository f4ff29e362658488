r"""A memory that the clients hold: the server keeps one vector, and sees nothing but sums.

The estimate is that of :class:`sortition.Memory`. Client m keeps its own :math:`y_m`. In a round the server
tells b to the cohort, and to each client its weight in the aggregate and its factor in the variance. A client
answers with four parts, and secure aggregation may add up each of them over the cohort before the server sees
it:

.. math:: \lambda_m\,\mathrm{weight}_m\,(g_m - b\,y_m), \qquad \lambda_m\,(y_m^{new} - y_m), \qquad
          f_m \langle g_m, y_m\rangle, \qquad f_m \|y_m\|^2

The first is added to :math:`b \sum_m \lambda_m y_m`, the one vector that the server keeps, and the second
updates that vector. The two scalars are the sums behind b. The sampler hears the norm of the residual, as it
hears the norm of an update where there is no memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray
from sortition.core.validation import whole_number
from sortition.memory import STEP, Coefficient, variance_factors


class UpdateMemory(Protocol):
    """A memory that an algorithm can use: ``sortition.Memory``, or one that the clients hold."""

    @property
    def coefficient(self) -> float:
        """b of the next round."""

    def remembered(self, client: int) -> FloatArray:
        """y of ``client``: zeros if nothing is remembered."""

    def combine(
        self, cohort: Cohort, updates: FloatArray, client_weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The aggregate, and the norms of the residuals; then remember the updates."""


class Answer(NamedTuple):
    """What a client sends. All but ``norm`` are needed as sums over the cohort only."""

    residual: FloatArray
    change: FloatArray
    product: float
    square: float
    norm: float


@dataclass
class RememberingClient:
    """The client's side."""

    remembered: FloatArray | None = None

    def answer(
        self, update: FloatArray, b: float, client_weight: float, weight: float, factor: float
    ) -> Answer:
        """Answer in a round, and move the memory half of the way to the update, all of it the first time."""
        old = np.zeros_like(update) if self.remembered is None else self.remembered
        new = update.copy() if self.remembered is None else old + STEP * (update - old)
        residual = update - b * old
        self.remembered = new
        return Answer(
            residual=client_weight * weight * residual,
            change=client_weight * (new - old),
            product=client_weight**2 * factor * float(update @ old),
            square=client_weight**2 * factor * float(old @ old),
            norm=math.sqrt(float(residual @ residual)),
        )


class ClientHeldMemory:
    """The server's side, with the clients of a simulation; it is used as ``sortition.Memory`` is.

    >>> memory = ClientHeldMemory(num_parameters=2)
    >>> cohort = Cohort(0, 1, clients=[2], counts=[1], probabilities=[0.25], weights=[4.0])
    >>> memory.combine(cohort, np.array([[3.0, 4.0]]), np.array([0.25]))
    (array([3., 4.]), array([5.]))
    """

    def __init__(self, *, num_parameters: int) -> None:
        self._clients: dict[int, RememberingClient] = {}  # each on its own device
        self._sum = np.zeros(whole_number("num_parameters", num_parameters, least=1))
        self._coefficient = Coefficient()

    @property
    def coefficient(self) -> float:
        """b of the next round."""
        return self._coefficient.value

    def remembered(self, client: int) -> FloatArray:
        """y of ``client``: zeros if it remembers nothing. A real server can't ask for it."""
        known = self._clients.get(client)
        if known is None or known.remembered is None:
            return np.zeros_like(self._sum)
        return known.remembered

    def combine(
        self, cohort: Cohort, updates: FloatArray, client_weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The aggregate, and the norms of the residuals for the sampler; all of the cohort must reply."""
        b = self.coefficient
        answers = [
            self._clients.setdefault(client, RememberingClient()).answer(update, b, lam, weight, factor)
            for client, update, lam, weight, factor in zip(
                cohort.clients.tolist(),
                updates,
                client_weights.tolist(),
                cohort.weights.tolist(),
                variance_factors(cohort).tolist(),
                strict=True,
            )
        ]
        aggregate = b * self._sum + sum(answer.residual for answer in answers)
        self._sum = self._sum + sum(answer.change for answer in answers)
        self._coefficient.learn(
            sum(answer.product for answer in answers), sum(answer.square for answer in answers)
        )
        return aggregate, np.array([answer.norm for answer in answers])
