"""Oracles: samplers that are told every norm before the draw. They are for measuring, not for use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.errors import FeedbackError
from sortition.core.guard_settings import Guard
from sortition.core.state import array, number
from sortition.core.types import BoolArray, FloatArray
from sortition.core.validation import norms_of, one_of
from sortition.engine.fixed import Dense
from sortition.samplers.base import BaseSampler
from sortition.samplers.privacy import NormPrivacy


class OptimalSampler(BaseSampler):
    r"""Draws from the best distribution there is, :math:`p^t_m \propto \sqrt{a^t_m} = \lambda_m \|g^t_m\|`.

    It needs the norms of all clients before each draw (Section 3.1): ``reveal`` them, then ``draw``. A client
    whose update is zero is never drawn, and is not missed.

    >>> sampler = OptimalSampler(num_clients=3, cohort_size=1)
    >>> sampler.reveal([1.0, 2.0, 5.0])
    >>> sampler.probabilities()
    array([0.125, 0.25 , 0.625])
    """

    _dense: Dense

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        self._revealed_for = -1
        self._begin()

    def _begin(self) -> None:
        """What was revealed stays: there is nothing learnt to be forgotten."""
        revealed = self._dense.masses if hasattr(self, "_dense") else None
        self._distribution = self._dense = Dense(self._roster)
        if revealed is not None and len(revealed) == self._roster.ids:
            self._dense.set(revealed)
        self._lambda: FloatArray | None = None  # of everybody, until somebody joins or leaves

    def reveal(self, norms: ArrayLike) -> None:
        """Tell the update norms of all clients in the next round, by id; clients that left are ignored."""
        self._refuse_raw_norms("reveal")
        values = norms_of("norms", norms, self._roster.ids, "each client")
        if self._roster.anybody_left:
            values = np.where(self._here(), values, 0.0)
        largest = np.maximum.reduce(values)
        if math.isnan(largest):
            unknown = np.flatnonzero(np.isnan(values))
            raise FeedbackError(f"norms must be known for every client, got nan for client {unknown[0]}")
        if largest > 0.0:  # relative to the largest: the norms may be as small as a double can be
            values = values / largest
        if self._lambda is None:
            self._lambda = self.client_weights()
        roots = self._lambda * values
        self._dense.set(roots if roots.any() else self._here().astype(float))
        self._revealed_for = self._round_index

    def draw(self, available: ArrayLike | None = None) -> Cohort:
        """Draw the next cohort, for which the norms must have been revealed."""
        if self._revealed_for != self._round_index:
            raise FeedbackError(
                f"reveal(norms) must come before each draw, but not for round {self._round_index} yet"
            )
        return super().draw(available)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Nothing to learn: all norms were revealed."""

    def _membership_changed(self, weight_factor: float) -> None:
        self._revealed_for = -1
        self._lambda = None

    def _here(self) -> BoolArray:
        """Which clients have not left, by id."""
        return self._roster.present(np.arange(self._roster.ids))

    def _state(self) -> dict[str, Any]:
        return {"optimal": self._dense.masses, "revealed_for": self._revealed_for}

    def _restore(self, state: Mapping[str, Any]) -> None:
        optimal = array(state, "optimal", np.float64, (self._roster.ids,))
        self._revealed_for = int(number(state, "revealed_for", least=-1.0))
        self._dense.set_checked(optimal)


class OptimalClientSampler(OptimalSampler):
    r"""Takes each client independently, with the inclusion probabilities of least variance.

    All norms are known (``reveal`` them before each draw). With :math:`u = \sqrt a` ascending and l the
    largest number with :math:`0 < K + l - M \le \sum_{j \le l} u_{(j)} / u_{(l)}`,

    .. math:: \pi_m = \frac{(K + l - M)\,u_m}{\sum_{j \le l} u_{(j)}} \text{ for the smallest } l, \qquad
              \pi_m = 1 \text{ for the rest}

    which minimises the variance :math:`\sum_m a_m (1/\pi_m - 1)` of independent draws. This is
    :math:`\min(1, c\,u_m)` with sum K, what the independent design makes of :math:`p \propto u`; so it is
    :class:`OptimalSampler` in that design, and ``probabilities()`` are the shares :math:`u / \sum u`.

    Chen, Horváth and Richtárik, *Optimal Client Sampling for Federated Learning*, TMLR 2022.

    >>> sampler = OptimalClientSampler(num_clients=3, cohort_size=2)
    >>> sampler.reveal([1.0, 3.0, 9.0])
    >>> sampler.draw().probabilities  # the third is certain, the others have 1/4 and 3/4
    array([0.25, 0.75, 1.  ])
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        design: Design = "independent",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        one_of("design", design, ("independent",))
        super().__init__(
            num_clients=num_clients,
            cohort_size=cohort_size,
            client_weights=client_weights,
            design=design,
            seed=seed,
            guard=guard,
            privacy=privacy,
        )
