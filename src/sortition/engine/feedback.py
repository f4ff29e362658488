"""Norms and the feedback that they make, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from sortition.core.types import FloatArray, IntArray
from sortition.engine.clients import Masses, Roster, mass_of


@njit(cache=True)
def all_replied(norms: FloatArray) -> bool:
    """Whether all norms are finite and not negative: none is out of bounds, and none nan, for no reply."""
    for norm in norms:  # noqa: SIM110 - numba has no generator expressions
        if not 0.0 <= norm < np.inf:
            return False
    return True


@njit(cache=True)
def _log_feedback(clients: IntArray, norms: FloatArray, total: float, weights: Masses) -> FloatArray:
    logs = np.empty(clients.size)
    for i in range(clients.size):
        mass = mass_of(weights, clients[i])
        known = mass > 0.0 and norms[i] > 0.0
        logs[i] = 2.0 * (np.log(mass / total) + np.log(norms[i])) if known else -np.inf
    return logs


def log_feedback(weights: Roster, clients: IntArray, norms: FloatArray) -> FloatArray:
    r"""``core.variance.log_feedback`` of ``clients`` who are there, :math:`\lambda` being their ``weights``.

    >>> log_feedback(Roster(2, None), np.array([0, 1]), np.array([0.0, 2.0]))
    array([-inf,   0.])
    """
    logs: FloatArray = _log_feedback(clients, norms, weights.total, weights.of_all)
    return logs
