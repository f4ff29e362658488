"""Samplers whose rates need a bound on the feedback, and where they take it from."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, FeedbackError
from sortition.core.state import count, number
from sortition.core.types import FloatArray
from sortition.core.validation import client_ids, norms_of, positive_number
from sortition.core.variance import log_feedback as log_feedback_of
from sortition.samplers.base import BaseSampler, Common, Config

FURTHEST_LOG = 3000.0
"""No feedback that is made of doubles has a logarithm further from 0."""


class Bounded(Common, total=False):
    """The keywords of a sampler that needs a bound on the feedback."""

    feedback_bound: float | None
    """A_max; the largest of the first feedback if not given."""


class BoundedSampler(BaseSampler):
    r"""Base of the samplers that need :math:`A_{\max}`, a bound on :math:`a_m = \lambda_m^2 \|g_m\|^2`.

    It is given, or set by ``calibrate``, or the largest of the first feedback seen. It is kept as a
    logarithm: norms of 1e300 make a feedback that no double can hold.
    """

    def __init__(self, *, feedback_bound: float | None = None, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self._given_bound = (
            None if feedback_bound is None else positive_number("feedback_bound", feedback_bound)
        )
        self._log_first_bound = math.nan if self._given_bound is None else math.log(self._given_bound)

    def _start_anew(self) -> None:
        self._log_bound = self._log_first_bound  # nan, if it is to be that of the first feedback
        self._learnt_rounds = 0

    def calibrate(self, norms: ArrayLike, clients: ArrayLike | None = None) -> None:
        r"""Set the bound from a pre-training pass, :math:`\max_{m \in S^0} a^0_m` (Section 6).

        ``norms`` are those of all clients, or of ``clients``; nan for who did not respond. To be called
        before the first feedback. With a guard, none of them counts for more than the guard's clip by these
        norms alone. Not with ``privacy``: give ``feedback_bound`` instead, or let the first feedback decide.

        Deviation: the text writes :math:`\lambda_m \|g^0_m\|^2` here; the bound that its theorems ask for
        is one on :math:`a_m = \lambda_m^2 \|g_m\|^2`, and that is what we take.
        """
        self._defences.refuse_raw_norms("calibrate")
        if self._learnt_rounds:
            raise ConfigurationError(
                f"calibrate must be called before the first feedback, got {self._learnt_rounds} rounds of it"
            )
        asked = (
            np.arange(self._roster.ids)
            if clients is None
            else client_ids("clients", clients, self._roster.ids)
        )
        values = norms_of("norms", norms, len(asked), "each client asked")
        responded = ~np.isnan(values)
        believed = self._defences.moderated(values[responded])
        feedback = log_feedback_of(self._weights_of(asked[responded]), believed)
        largest = feedback.max(initial=-math.inf)
        if largest == -math.inf:
            raise FeedbackError("norms must hold at least one that is above 0, got none")
        self._log_bound = self._log_first_bound = float(largest)

    @property
    def feedback_bound(self) -> float | None:
        """A_max, or None before it is known (inf where no double can hold it)."""
        if math.isnan(self._log_bound):
            return None
        return math.exp(self._log_bound) if self._log_bound < 709.0 else math.inf

    @abstractmethod
    def _learn_bounded(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Take in feedback, the bound being known."""

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        if math.isnan(self._log_bound):
            if log_feedback.max() == -math.inf:
                return  # zeros alone: no bound to be had, and no step to take
            self._log_bound = float(log_feedback.max())
        self._learn_bounded(cohort, log_feedback)
        self._learnt_rounds += 1

    def _membership_changed(self, weight_factor: float) -> None:
        self._log_bound += 2.0 * math.log(weight_factor)  # the feedback goes with lambda squared
        self._log_first_bound += 2.0 * math.log(weight_factor)

    def _config(self) -> Config:
        return {"feedback_bound": "from feedback" if self._given_bound is None else self._given_bound}

    def _state(self) -> dict[str, Any]:
        return {
            "log_feedback_bound": self._log_bound,
            "log_first_bound": self._log_first_bound,
            "learnt_rounds": self._learnt_rounds,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        given = self._given_bound is not None
        first = number(state, "log_first_bound", least=-FURTHEST_LOG, most=FURTHEST_LOG, nan=not given)
        known = not math.isnan(first)
        bound = number(state, "log_feedback_bound", least=-FURTHEST_LOG, most=FURTHEST_LOG, nan=not known)
        self._learnt_rounds = count(state, "learnt_rounds")
        self._log_bound, self._log_first_bound = bound, first
