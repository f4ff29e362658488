"""The base of samplers that draw in a way of their own, and uniform subsets, the way of FedAvg."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Weighed, restrict, weigh_by_inclusion
from sortition.core.types import FloatArray, IntArray
from sortition.engine.clients import Roster
from sortition.engine.fixed import Prior
from sortition.samplers.base import BaseSampler


class SubsetSampler(BaseSampler):
    r"""Base of samplers that no design describes: a subclass says how it chooses, in ``_choose``.

    ``probabilities()`` are :math:`\lambda`. If no more than K clients are available, all of them take part,
    with weight one. Clients without a weight are never drawn.
    """

    def __init__(
        self, num_clients: int, cohort_size: int, client_weights: ArrayLike | None, seed: int
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, seed=seed)
        self._roster = Roster(self._initial_clients, self._given_weights)

    @abstractmethod
    def _choose(self, ids: IntArray, shares: FloatArray, generator: np.random.Generator) -> Weighed:
        r"""Choose out of more than K clients; ``shares`` are their :math:`\lambda`, which sum to one."""

    def _weighed_draw(self, available: IntArray | None) -> Weighed:
        ids = self._everybody() if available is None else available
        shares = restrict(self._weights.shares(ids))
        if len(ids) > self._cohort_size:
            ids, shares = ids[shares > 0.0], shares[shares > 0.0]
        if len(ids) <= self._cohort_size:
            ones = np.ones(len(ids))
            return ids, ones.astype(np.int64), ones, ones.copy()
        return self._choose(ids, shares, self._generator.of_round(self._round_index))

    def _begin(self) -> None:
        self._distribution = Prior(self._roster)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Norms teach nothing here."""

    def _state(self) -> dict[str, Any]:
        return {}

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class UniformSubsetSampler(SubsetSampler):
    r"""K of M clients, every subset as likely as any other: FedAvg's way (McMahan et al. 2017, Algorithm 1).

    A client is in with probability K/M and has the weight M/K, so the aggregate is unbiased. (FedAvg itself
    divides by the data of the cohort, which is biased where sizes differ.) FedVARP, MIFA and FedAU are
    stated for these cohorts.

    >>> UniformSubsetSampler(num_clients=6, cohort_size=2).draw().weights
    array([3., 3.])
    """

    def __init__(
        self, *, num_clients: int, cohort_size: int, client_weights: ArrayLike | None = None, seed: int = 0
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, seed)
        self._begin()

    def _choose(self, ids: IntArray, shares: FloatArray, generator: np.random.Generator) -> Weighed:
        chosen = generator.choice(ids, self._cohort_size, replace=False, shuffle=False)
        return weigh_by_inclusion(chosen, np.full(len(chosen), self._cohort_size / len(ids)))


def draw_in_turn(masses: FloatArray, size: int, generator: np.random.Generator) -> IntArray:
    """``size`` places out of all, one after another, each in proportion to the masses that are left.

    Exponential clocks with these rates ring in just this order.
    """
    with np.errstate(divide="ignore"):
        times = generator.standard_exponential(len(masses)) / masses
    return np.argsort(times, kind="stable")[:size]
