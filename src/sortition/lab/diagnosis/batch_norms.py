"""The noise of a step with mini-batches, from the norms that a batch sampler has observed."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.core.variance import optimal_probabilities, variance_loss
from sortition.lab.diagnosis.findings import ADAPTIVE, BEST, UNIFORM, StepNoise
from sortition.lab.training import sampling_variance


class BatchSampler(Protocol):
    """What is asked of ``sortition.integrations.torch.AdaptiveBatchSampler``."""

    batch_size: int

    def norms(self) -> FloatArray:
        """Of each example; nan if it is not known."""

    def probabilities(self) -> FloatArray:
        """Of each example, in the next epoch; 0 if it is another rank's."""


def measure_batches(sampler: BatchSampler) -> StepNoise:
    r"""S is :math:`\sum_i a_i (1/\pi_i - 1)`, as in ``measure_norms``, for one batch.

    Within a batch, random reshuffling is uniform sampling without replacement: "uniform" here. Over an epoch
    it is better than that, since each example comes once; so is importance reshuffling.
    """
    p, norms = sampler.probabilities(), sampler.norms()
    known = (p > 0.0) & ~np.isnan(norms)
    if not np.any(norms[known] > 0.0):
        raise ConfigurationError(
            "source has observed no norms above 0: call ticket.observe(norms) in every step, and diagnose a "
            "batch sampler after its first epoch"
        )
    size = int(known.sum())
    feedback = (norms[known] / size) ** 2
    own = p[known] / p[known].sum()
    batch = min(sampler.batch_size, size)
    choices = {
        UNIFORM: np.full(size, 1.0 / size),
        ADAPTIVE: own,
        BEST: optimal_probabilities(feedback),
    }
    silent = int(np.count_nonzero(p > 0.0)) - size
    notes = [
        "The norms are taken to stay as they were. Early in training they are often alike: ask again "
        "once the loss has fallen.",
        "Uniform draws are those of a plain shuffle, one batch at a time: over an epoch it has less noise.",
        "Mislabelled examples have large norms, too: adaptive batches draw them more often.",
    ]
    if silent:
        notes.append(f"{silent} examples were not observed yet, and are left out.")
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
        notes=tuple(notes),
        of_examples=True,
    )
