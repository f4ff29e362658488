r"""The bound :math:`A_{\max}` on the feedback, which several samplers scale their rates by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sortition.core.errors import ConfigurationError, FeedbackError
from sortition.core.state import count, number
from sortition.core.types import FloatArray
from sortition.core.validation import positive_number

LARGEST_LOG_FEEDBACK = 3000.0
"""No feedback that is made of doubles has a logarithm further from 0."""
LARGEST_EXPONENT = 709.0
"""exp of more is no double."""


class FeedbackBound:
    r"""A bound on :math:`a_m = \lambda_m^2 \|g_m\|^2`: given, calibrated, or the first feedback's largest.

    It is kept as a logarithm: norms of 1e300 make a feedback that no double can hold.

    >>> import numpy as np
    >>> bound = FeedbackBound(None)
    >>> bound.value is None
    True
    >>> bound.known_from(np.log([1.0, 4.0])), bound.value
    (True, 4.0)
    """

    def __init__(self, given: float | None) -> None:
        self.given = None if given is None else positive_number("feedback_bound", given)
        self._log_first = math.nan if self.given is None else math.log(self.given)
        self.begin()

    def begin(self) -> None:
        """Forget the feedback, but not what was given or calibrated."""
        self.log = self._log_first  # nan: take it from the first feedback
        self.learnt_rounds = 0  # rounds of feedback that were learnt from

    @property
    def value(self) -> float | None:
        """A_max; None before it is known, inf where no double can hold it."""
        if math.isnan(self.log):
            return None
        return math.exp(self.log) if self.log < LARGEST_EXPONENT else math.inf

    def calibrate(self, largest_log_feedback: float) -> None:
        r"""Set the bound from a pre-training pass, :math:`\max_{m \in S^0} a^0_m` (Section 6).

        A sampler's ``calibrate(norms, clients)`` takes the norms of all clients, or of ``clients``, with nan
        for no reply. It must come before the first feedback. With a guard, the norms are clipped by their
        own bound. It can't be used with ``privacy``: give ``feedback_bound``, or let the first feedback
        decide.

        Deviation: the text writes :math:`\lambda_m \|g^0_m\|^2` here; the bound that its theorems ask for
        is one on :math:`a_m = \lambda_m^2 \|g_m\|^2`, and that is what we take.
        """
        if self.learnt_rounds:
            raise ConfigurationError(
                f"calibrate must come before the first feedback; there were {self.learnt_rounds} rounds of it"
            )
        if largest_log_feedback == -math.inf:
            raise FeedbackError("norms must hold at least one that is above 0, got none")
        self.log = self._log_first = largest_log_feedback

    def known_from(self, log_feedback: FloatArray) -> bool:
        """Whether the bound is known, by this feedback at the latest; not if all of it is 0."""
        if math.isnan(self.log):
            largest = float(log_feedback.max())
            if largest == -math.inf:
                return False
            self.log = largest
        return True

    def rescale(self, weight_factor: float) -> None:
        """Every lambda was multiplied by ``weight_factor``: the feedback goes with its square."""
        self.log += 2.0 * math.log(weight_factor)
        self._log_first += 2.0 * math.log(weight_factor)

    def state(self) -> dict[str, Any]:
        """All that it holds."""
        return {
            "log_feedback_bound": self.log,
            "log_first_bound": self._log_first,
            "learnt_rounds": self.learnt_rounds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""
        given = self.given is not None
        first = number(
            state, "log_first_bound", least=-LARGEST_LOG_FEEDBACK, most=LARGEST_LOG_FEEDBACK, nan=not given
        )
        known = not math.isnan(first)
        log = number(
            state, "log_feedback_bound", least=-LARGEST_LOG_FEEDBACK, most=LARGEST_LOG_FEEDBACK, nan=not known
        )
        self.learnt_rounds = count(state, "learnt_rounds")
        self.log, self._log_first = log, first
