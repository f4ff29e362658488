"""Replay: a recorded or generated trace, fed back to a sampler as the bandit feedback it would have had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sortition.core.protocols import Sampler
from sortition.core.types import FloatArray
from sortition.lab.arena.trace import Trace
from sortition.lab.trajectory import shares, variance_ratio
from sortition.samplers.oracles import OptimalSampler

EARLY_SHARE = 0.1
SEGMENTS = 20


@dataclass(frozen=True)
class Variance:
    r"""Sampling variance of one run: means over rounds of :math:`l_t(p^t) / l_t(p^\star)`; 1 is perfect."""

    mean: float
    """Over all rounds."""
    early: float
    """Over the first tenth of them."""
    segments: tuple[float, ...]
    """Over each of 20 equal parts of the run, or of as many as there are rounds."""


def replay(sampler: Sampler, trace: Trace, on_round: Callable[[], None] = lambda: None) -> FloatArray:
    r"""The variance ratio :math:`l_t(p^t) / l_t(p^\star)` of a sampler in each measured round of a trace.

    An oracle is shown the round's norms before it draws; nobody else sees more than those it drew.
    """
    ratios = []
    for round_index, norms in enumerate(trace.norms):
        if isinstance(sampler, OptimalSampler):
            sampler.reveal(norms)
        if round_index % trace.measured_every == 0:
            ratios.append(variance_ratio(shares(sampler), trace.client_weights, norms))
        cohort = sampler.draw()
        sampler.observe(cohort, norms[cohort.clients])
        on_round()
    return np.array(ratios)


def summarise(ratios: FloatArray) -> Variance:
    """The measures of a run.

    >>> summarise(np.array([4.0, 2.0] + 18 * [1.0])).early, summarise(np.full(20, 2.0)).mean
    (3.0, 2.0)
    """
    early = ratios[: max(1, round(EARLY_SHARE * len(ratios)))]
    parts = np.array_split(ratios, min(SEGMENTS, len(ratios)))
    return Variance(float(ratios.mean()), float(early.mean()), tuple(float(part.mean()) for part in parts))
