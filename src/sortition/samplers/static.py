"""Samplers that learn nothing: uniform, fixed, by data size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.guard_settings import Guard
from sortition.core.types import FloatArray
from sortition.core.validation import distribution, require_support
from sortition.engine.clients import Roster
from sortition.engine.fixed import Prior
from sortition.samplers.base import BaseSampler
from sortition.samplers.privacy import NormPrivacy


class StaticSampler(BaseSampler):
    """Base of the samplers that draw from the masses of their roster, whatever the feedback."""

    def _begin(self) -> None:
        self._distribution = Prior(self._roster)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Nothing to learn."""

    def _state(self) -> dict[str, Any]:
        return {}

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class UniformSampler(StaticSampler):
    r"""Draws uniformly, :math:`p_m = 1/M`: what federations do by default.

    >>> sampler = UniformSampler(num_clients=4, cohort_size=2, seed=1)
    >>> sampler.probabilities()
    array([0.25, 0.25, 0.25, 0.25])
    >>> sampler.draw().weights.sum()
    np.float64(4.0)
    """

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
        self._begin()


class FixedSampler(StaticSampler):
    r"""Draws from ``probabilities``, whatever happens.

    With :math:`p_m \propto \lambda_m L_m`, :math:`L_m` the smoothness constant of client m's loss, this is
    the importance sampling :math:`p^{\mathrm{IS}}` of Section 7.4.

    >>> sampler = FixedSampler(num_clients=2, cohort_size=1, probabilities=[0.2, 0.8])
    >>> sampler.probabilities([1])
    array([0.8])
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        probabilities: ArrayLike,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        fixed = distribution("probabilities", probabilities, self._initial_clients)
        require_support("probabilities", fixed, self._given_weights)
        self._roster = Roster(self._initial_clients, fixed)
        self.settings |= {"probabilities": fixed}
        self._begin()


class ProportionalSampler(StaticSampler):
    r"""Draws by data size, :math:`p_m = \lambda_m` (Li et al. 2020); uniform without ``client_weights``.

    >>> ProportionalSampler(num_clients=2, cohort_size=1, client_weights=[0.25, 0.75]).probabilities()
    array([0.25, 0.75])
    """

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
        self._roster = Roster(self._initial_clients, self._given_weights)
        self._begin()
