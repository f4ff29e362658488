r"""The authors' variant: where their published code departs from their text, kept out of the library proper.

The departures are those of ``docs/reproduction.md``: what the samplers are fed, their rates, how repeated
draws count, and the batch size on image data. Each is built on the library's own parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import aggregate
from sortition.lab.algorithms.fedsgd import FedSGD
from sortition.lab.problems.images import ImageFederation
from sortition.lab.problems.least_squares import LeastSquares
from sortition.lab.problems.protocol import Problem
from sortition.samplers.osmd import AdaptiveOSMDSampler


def authors_rate_scale(cohort_size: int) -> float:
    r"""The authors' expert rates over the text's: K/2.

    .. math:: \frac{K^2\alpha^3}{M^3 A}\sqrt{\frac{\ln M}{2T}} \Big/
              \frac{K\alpha^3}{M^3 A}\sqrt{\frac{2\ln M}{T}} = \frac K2

    >>> authors_rate_scale(5)
    2.5
    """
    return cohort_size / 2.0


class AuthorsAdaptiveOSMDSampler(AdaptiveOSMDSampler):
    """Adaptive-OSMD that counts repeated draws once in its gradient estimate, and all in its loss estimate.

    Draws without replacement are weighted as if they were with. Two passes over the experts: the first has
    rates of zero, and only reweighs them by their losses; the second takes the mirror steps, and has a meta
    rate of zero.
    """

    def _learn_bounded(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        log_rates, log_meta_rate = self._log_rates()
        clients, size = cohort.clients, self._cohort_size
        once = 1.0 / (size * cohort.probabilities)
        still = np.full_like(log_rates, -np.inf)
        self._experts.advance(clients, cohort.counts * once, log_feedback, size, still, log_meta_rate)
        self._experts.advance(clients, once, log_feedback, size, log_rates, -math.inf)


@dataclass(frozen=True)
class SummedSGD(FedSGD):
    """Mini-batch SGD that reports the norm of the mini-batch **sum**: B times that of the mean."""

    def __call__(
        self, model: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model as in ``FedSGD``, and the norms times the batch size."""
        following, norms = super().__call__(model, cohort, problem, round_index)
        assert isinstance(problem, LeastSquares)
        return following, norms * problem.batch_size


@dataclass(frozen=True)
class LossSGD(FedSGD):
    """Mini-batch SGD that reports the clients' mini-batch **losses** in the place of norms (VRB)."""

    def __call__(
        self, model: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model as in ``FedSGD``, and the losses at the current one."""
        following, _ = super().__call__(model, cohort, problem, round_index)
        assert isinstance(problem, (LeastSquares, ImageFederation))
        return following, problem.batch_losses(model, cohort.clients, round_index)


@dataclass
class ShrinkingSGD:
    """Mini-batch SGD on images whose batch size is cut to a drawn client's size, **for good**.

    Clients are visited in the order of their ids. Not a pure function: the batch size is remembered, which is
    the departure. Reports the norms of the mini-batch sums, or the losses.
    """

    step_size: float
    report_losses: bool
    batch_size: int = field(default=0)

    def __call__(
        self, model: FloatArray, cohort: Cohort, problem: ImageFederation, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model, and what the sampler is fed."""
        sizes = self._shrink(problem, cohort.clients)
        updates = problem.updates(model, cohort.clients, round_index, sizes)
        step = aggregate(cohort, problem.client_weights[cohort.clients], updates)
        following = model - self.step_size * step
        if self.report_losses:
            return following, problem.batch_losses(model, cohort.clients, round_index)
        return following, np.linalg.norm(updates, axis=1) * sizes

    def _shrink(self, problem: ImageFederation, clients: IntArray) -> IntArray:
        start = self.batch_size or problem.batch_size
        sizes = np.minimum.accumulate(np.minimum(start, problem.client_sizes[clients]))
        self.batch_size = int(sizes[-1])
        return np.asarray(sizes)


def authors_image_loss(problem: ImageFederation, model: FloatArray) -> float:
    """Batch-mean losses added up and divided by the number of **samples**: far below the mean cross-entropy.

    A client's images are taken as one batch; how the authors cut them into batches is not recorded.
    """
    return float(problem.client_losses(model).sum() / problem.num_training)
