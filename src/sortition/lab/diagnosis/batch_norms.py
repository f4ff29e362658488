"""The noise of a step with mini-batches, from the norms that a batch sampler has observed."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.core.variance import variance_loss
from sortition.lab.diagnosis.findings import ADAPTIVE, UNIFORM, StepNoise
from sortition.lab.training import sampling_variance


class BatchSampler(Protocol):
    """What is asked of ``sortition.integrations.torch.AdaptiveBatchSampler``."""

    batch_size: int

    def norms(self) -> FloatArray:
        """Of each example; nan if it is not known."""

    def probabilities(self) -> FloatArray:
        """Of each example, in the next epoch; 0 if it is another rank's."""

    def moments(self) -> tuple[float, float, float] | None:
        """Means of w g^2, (w g)^2 and w g over the last draws, w = 1 / (n p); None after a plain epoch."""


NOTES = (
    "Early in training norms are often alike: ask again once the loss has fallen.",
    "Uniform draws are those of a plain shuffle, one batch at a time.",
    "Mislabelled examples have large norms, too: adaptive batches draw them more often.",
)


def measure_batches(sampler: BatchSampler) -> StepNoise:
    r"""S is :math:`\sum_i a_i (1/\pi_i - 1)`, as in ``measure_norms``, for one batch.

    Within a batch, random reshuffling is uniform sampling without replacement: "uniform" here. Over an epoch
    it is better than that, since each example comes once. So is importance reshuffling over some epochs, in
    which each example counts once an epoch; its errors cancel later, which is felt at small steps.

    Judged are the draws of the last epoch of which half was heard: p was fixed before their norms were seen.
    With the weight w = 1 / (n p) of a draw and its norm g, the means of :math:`w g^2` and :math:`w^2 g^2`
    over the draws estimate :math:`n \sum_i a_i` and :math:`\sum_i a_i / p_i`. After a plain shuffle there is
    no such p. What was learnt is then judged by the norms that it was learnt from: provisionally.

    There is no "best possible": who has seen a norm once can't tell what of it is chance.
    """
    p = sampler.probabilities()
    size = int(np.count_nonzero(p > 0.0))
    batch = min(sampler.batch_size, size)
    measured = sampler.moments()
    if measured is None:
        return _provisional(sampler, p, batch)
    squares, own, mean = measured
    moments = {UNIFORM: squares, ADAPTIVE: own}
    return StepNoise(
        num_clients=size,
        cohort_size=batch,
        num_rounds=1,
        sampling={
            name: np.array([max(moment / batch - squares / size, 0.0)]) for name, moment in moments.items()
        },
        replacing={name: np.array([moment / batch]) for name, moment in moments.items()},
        minibatch=None,
        signal=None,
        largest_signal=np.array([mean**2]),
        notes=("Measured on the last draws, whose probabilities were fixed before.", *NOTES),
        of_examples=True,
    )


def _provisional(sampler: BatchSampler, p: FloatArray, batch: int) -> StepNoise:
    """By the norms of each example that p was learnt from."""
    norms = sampler.norms()
    known = (p > 0.0) & ~np.isnan(norms)
    if not np.any(norms[known] > 0.0):
        raise ConfigurationError(
            "source has observed no norms above 0: call ticket.observe(norms) in every step, and diagnose a "
            "batch sampler after its first epoch"
        )
    size, all_examples = int(known.sum()), int(np.count_nonzero(p > 0.0))
    batch = min(batch, size)
    feedback = (norms[known] / size) ** 2
    choices = {UNIFORM: np.full(size, 1.0 / size), ADAPTIVE: p[known] / p[known].sum()}
    silent = all_examples - size
    unheard = (f"{silent} examples were not observed yet, and are left out.",) if silent else ()
    return StepNoise(
        num_clients=size,
        cohort_size=batch,
        num_rounds=1,
        sampling={
            name: np.array([sampling_variance(q, feedback, "fixed_size", batch)])
            for name, q in choices.items()
        },
        replacing={name: np.array([variance_loss(q, feedback, batch)]) for name, q in choices.items()},
        minibatch=None,
        signal=None,
        largest_signal=np.array([float(np.sqrt(feedback).sum() ** 2)]),
        notes=(*NOTES, *unheard),
        heard=size / all_examples,
        of_examples=True,
        provisional=True,
    )
