"""Avare: the sampler of El Hanchi and Stephens (2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError
from sortition.core.simplex import project_above_floor
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import positive_number
from sortition.samplers.base import BaseSampler, Common, Config, array, scalar


class AvareSampler(BaseSampler):
    r"""Takes each client's last feedback for its next, above a floor that shrinks.

    With :math:`h_m` the last :math:`\sqrt{a_m}` seen, 0 before,

    .. math:: p = \arg\min_{p \ge \epsilon_t} \sum_m h_m^2 / p_m, \qquad
              \epsilon_t = p_{\min} + \frac{1}{C^{1-\delta/3}\,(C + K(t-1))^{\delta/3}}

    with C = M, :math:`\delta = 1` and :math:`p_{\min} = 0`; uniform while all h are 0. The minimum is
    :math:`\max(\epsilon_t, c\,h_m)`, the same shape as the projection of Algorithm 2, which computes it.
    t counts the rounds that had feedback.

    >>> sampler = AvareSampler(num_clients=4, cohort_size=4)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, np.arange(1.0, len(cohort) + 1.0))
    >>> bool(np.all(np.diff(sampler.probabilities(cohort.clients)) >= 0))
    True
    """

    def __init__(
        self,
        *,
        floor_offset: float | None = None,
        floor_decay: float = 1.0,
        smallest_floor: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        offset = self._num_clients if floor_offset is None else floor_offset
        self._offset = positive_number("floor_offset", offset)
        self._decay = positive_number("floor_decay", floor_decay)
        if not 0.0 <= smallest_floor <= 1.0 / self._num_clients:
            raise ConfigurationError(
                f"smallest_floor must lie in [0, 1/num_clients = {1.0 / self._num_clients}], "
                f"got {smallest_floor!r}"
            )
        self._smallest_floor = float(smallest_floor)
        self._log_roots = np.full(self._num_clients, -np.inf)
        self._learnt_rounds = 0

    def floor(self) -> float:
        """epsilon_t of the next draw."""
        c, third = self._offset, self._decay / 3.0
        shrinking: float = 1.0 / (c ** (1.0 - third) * (c + self._cohort_size * self._learnt_rounds) ** third)
        return min(self._smallest_floor + shrinking, 1.0 / self._num_clients)

    def _probabilities(self, clients: IntArray | None) -> FloatArray:
        everybody = project_above_floor(self._log_roots, np.full(self._num_clients, self.floor()))
        return everybody if clients is None else everybody[clients]

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        self._log_roots[cohort.clients] = 0.5 * log_feedback
        self._learnt_rounds += 1

    def _config(self) -> Config:
        return {
            "floor_offset": self._offset,
            "floor_decay": self._decay,
            "smallest_floor": self._smallest_floor,
        }

    def _state(self) -> dict[str, Any]:
        return {"log_roots": self._log_roots.copy(), "learnt_rounds": self._learnt_rounds}

    def _restore(self, state: Mapping[str, Any]) -> None:
        log_roots = array(state, "log_roots", np.float64, (self._num_clients,))
        self._learnt_rounds = int(scalar(state, "learnt_rounds"))
        self._log_roots = log_roots
