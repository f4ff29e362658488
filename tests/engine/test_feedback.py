"""The compiled feedback is that of the specification, for whoever is there."""

from __future__ import annotations

import numpy as np
import pytest

from sortition.core.variance import log_feedback as specified
from sortition.engine.clients import Roster
from sortition.engine.feedback import log_feedback


@pytest.mark.parametrize("masses", [None, np.array([0.5, 0.0, 0.25, 0.125, 0.125])], ids=["alike", "own"])
def test_feedback_equals_the_specification(masses: np.ndarray | None) -> None:
    """Zeros, norms whose squares no double holds, newcomers, and some who have left."""
    weights = Roster(5, masses)
    weights.add(np.array([0.5, 2.0]))
    weights.remove(np.array([3, 5]))
    clients = np.array([6, 0, 2, 4, 1])
    norms = np.array([1e300, 0.0, 1e-300, 3.0, 2.0])
    of_everybody = weights.masses(None) / weights.total
    with np.errstate(divide="ignore"):
        expected = specified(of_everybody[clients], norms)
    assert log_feedback(weights, clients, norms) == pytest.approx(expected, rel=1e-14)
