"""Everybody alike: what federations do by default."""

from __future__ import annotations

from typing import Unpack

from numpy.typing import ArrayLike

from sortition.core.validation import distribution, require_support
from sortition.engine.clients import Roster
from sortition.engine.fixed import Prior
from sortition.samplers.base import Common, Config, UnmovedSampler, fingerprint


class UniformSampler(UnmovedSampler):
    r"""Draws uniformly, :math:`p_m = 1/M`, and learns nothing.

    Its keywords are those of every sampler: ``num_clients``, ``cohort_size``, ``client_weights``, ``design``,
    ``seed``, ``guard`` and ``privacy``.

    >>> sampler = UniformSampler(num_clients=4, cohort_size=2, seed=1)
    >>> sampler.probabilities()
    array([0.25, 0.25, 0.25, 0.25])
    >>> sampler.draw().weights.sum()
    np.float64(4.0)
    """

    def __init__(self, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self._distribution = Prior(self._roster)


class FixedSampler(UnmovedSampler):
    r"""Draws from ``probabilities``, whatever happens.

    With :math:`p_m \propto \lambda_m L_m`, :math:`L_m` the smoothness constant of client m's loss, this is
    the importance sampling :math:`p^{\mathrm{IS}}` of Section 7.4. Further keywords are those of every
    sampler: ``client_weights``, ``design``, ``seed``, ``guard`` and ``privacy``.

    >>> sampler = FixedSampler(num_clients=2, cohort_size=1, probabilities=[0.2, 0.8])
    >>> sampler.probabilities([1])
    array([0.8])
    """

    def __init__(self, *, probabilities: ArrayLike, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self._fixed = distribution("probabilities", probabilities, self._initial_clients)
        require_support("probabilities", self._fixed, self._given_weights)
        self._roster = Roster(self._initial_clients, self._fixed)
        self._distribution = Prior(self._roster)

    def _config(self) -> Config:
        return {"probabilities": fingerprint(self._fixed)}


class ProportionalSampler(UnmovedSampler):
    r"""Draws by data size, :math:`p_m = \lambda_m` (Li et al. 2020); uniform without ``client_weights``.

    >>> ProportionalSampler(num_clients=2, cohort_size=1, client_weights=[0.25, 0.75]).probabilities()
    array([0.25, 0.75])
    """

    def __init__(self, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self._roster = Roster(self._initial_clients, self._given_weights)
        self._distribution = Prior(self._roster)
