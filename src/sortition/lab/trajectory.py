"""One sampler on one federation: the loop of the library, with the diagnostics of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sortition.core.designs import inclusion_probabilities
from sortition.core.protocols import Sampler
from sortition.core.types import FloatArray
from sortition.core.variance import optimal_probabilities, variance_loss
from sortition.lab.algorithms.protocol import Algorithm
from sortition.lab.problems.protocol import Problem
from sortition.samplers.oracles import OptimalSampler


@dataclass(frozen=True)
class Trajectory:
    """What a run leaves behind, one entry a round."""

    losses: FloatArray
    """Training loss after the round's step."""
    variance_ratios: FloatArray
    r""":math:`l_t(p^t) / l_t(p^\star)`: 1 is the best that any distribution can do in this round."""


def run(
    sampler: Sampler,
    problem: Problem,
    algorithm: Algorithm,
    num_rounds: int,
    on_round: Callable[[], None] = lambda: None,
) -> Trajectory:
    r"""Train for ``num_rounds`` rounds; ``on_round`` is called after each.

    The norms of all clients are computed in every round, to know the optimum
    :math:`p^\star \propto \sqrt{a^t}`. Only an ``OptimalSampler`` is shown them.
    """
    losses, ratios = np.empty(num_rounds), np.empty(num_rounds)
    model = problem.initial_model()
    for round_index in range(num_rounds):
        all_norms = problem.all_norms(model, round_index)
        if isinstance(sampler, OptimalSampler):
            sampler.reveal(all_norms)
        ratios[round_index] = variance_ratio(shares(sampler), problem.client_weights, all_norms)
        cohort = sampler.draw()
        model, norms = algorithm(model, cohort, problem, round_index)
        sampler.observe(cohort, norms)
        losses[round_index] = problem.loss(model)
        on_round()
    return Trajectory(losses, ratios)


def shares(sampler: Sampler) -> FloatArray:
    r"""The distribution that the sampler is measured by.

    That of its draws; for independent draws :math:`\pi / \sum \pi`, the normalised inclusion probabilities.
    Their variance is another one, :math:`\sum_m a_m (1/\pi_m - 1)`; l_t of these shares is what can be
    compared with the others.
    """
    probabilities = sampler.probabilities()
    if getattr(sampler, "design", None) != "independent":
        return probabilities
    inclusion = inclusion_probabilities(probabilities, sampler.cohort_size)
    return np.asarray(inclusion / inclusion.sum())


def variance_ratio(probabilities: FloatArray, client_weights: FloatArray, norms: FloatArray) -> float:
    r"""How many times the optimum's the sampling variance is: :math:`l_t(p) / l_t(p^\star)` (Section 3.1).

    The cohort size cancels. Where no client has anything left to send, every distribution is optimal.

    >>> variance_ratio(np.array([0.5, 0.5]), np.array([0.5, 0.5]), np.array([1.0, 3.0]))
    1.25
    """
    feedback = (client_weights * norms) ** 2
    best = variance_loss(optimal_probabilities(feedback), feedback, cohort_size=1)
    return variance_loss(probabilities, feedback, cohort_size=1) / best if best > 0.0 else 1.0
