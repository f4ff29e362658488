"""The oracle that every sampler is measured against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.errors import FeedbackError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import norms_of
from sortition.core.variance import log_feedback
from sortition.samplers.base import BaseSampler, Common, array


class OptimalSampler(BaseSampler):
    r"""Draws from the best distribution there is, :math:`p^t_m \propto \sqrt{a^t_m} = \lambda_m \|g^t_m\|`.

    It needs the norms of all clients before each draw (Section 3.1), so it is for measuring, not for use:
    ``reveal`` them, then ``draw``. A client whose update is zero is never drawn, and is not missed.

    >>> sampler = OptimalSampler(num_clients=3, cohort_size=1)
    >>> sampler.reveal([1.0, 2.0, 5.0])
    >>> sampler.probabilities()
    array([0.125, 0.25 , 0.625])
    """

    def __init__(self, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self._optimal = np.full(self._num_clients, 1.0 / self._num_clients)
        self._revealed_for = -1

    def reveal(self, norms: ArrayLike) -> None:
        """Tell the update norms of all clients in the round to come."""
        values = norms_of("norms", norms, self._num_clients, "each client")
        if np.isnan(values).any():
            raise FeedbackError(
                f"norms must be known for every client, got nan at {np.argmax(np.isnan(values))}"
            )
        roots = 0.5 * log_feedback(self._weights_of(np.arange(self._num_clients)), values)
        top = roots.max()
        scaled = np.exp(roots - top) if np.isfinite(top) else np.ones(self._num_clients)
        self._optimal = scaled / scaled.sum()
        self._revealed_for = self._round_index

    def draw(self, available: ArrayLike | None = None) -> Cohort:
        """Draw the next cohort, for which the norms must have been revealed."""
        if self._revealed_for != self._round_index:
            raise FeedbackError(
                f"reveal(norms) must be called before each draw, got none for round {self._round_index}"
            )
        return super().draw(available)

    def _probabilities(self, clients: IntArray | None) -> FloatArray:
        return self._optimal.copy() if clients is None else self._optimal[clients]

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Nothing to learn: all was known."""

    def _state(self) -> dict[str, Any]:
        return {"optimal": self._optimal.copy(), "revealed_for": self._revealed_for}

    def _restore(self, state: Mapping[str, Any]) -> None:
        optimal = array(state, "optimal", np.float64, (self._num_clients,))
        self._revealed_for = int(state["revealed_for"])
        self._optimal = optimal
