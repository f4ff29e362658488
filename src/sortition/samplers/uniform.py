"""Everybody alike: what federations do by default."""

from __future__ import annotations

from typing import Unpack

from sortition.engine.prior import Prior
from sortition.samplers.base import Common
from sortition.samplers.unmoved import UnmovedSampler


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
