r"""OSMD and its meta-algorithm, dense: every entry of every expert, in numpy (Algorithms 1, 2 and 5).

This is the specification. It costs :math:`O(E M \log M)` a round.
"""

from __future__ import annotations

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.simplex import LARGEST_STEP, mirror_steps, project_above_floor
from sortition.core.types import FloatArray
from sortition.core.variance import log_estimated_loss


def osmd_step(
    probabilities: FloatArray,
    floor: FloatArray,
    log_learning_rate: float,
    cohort: Cohort,
    log_feedback: FloatArray,
) -> FloatArray:
    r"""One step of online stochastic mirror descent (Algorithm 1, line 7).

    .. math:: \hat p^{t+1} = \arg\min_{p \in \mathcal A}\;
              \eta\,\langle p, \nabla\hat l_t(\hat p^t)\rangle + D_\Phi(p \,\|\, \hat p^t)

    ``floor`` is :math:`\alpha` times the prior, :math:`\alpha / M` in the paper; ``log_feedback`` is aligned
    with ``cohort.clients``. A late cohort carries the weights of its own time, and the gradient is taken
    where the distribution is now.

    >>> cohort = Cohort(0, 1, clients=[0], counts=[1], probabilities=[0.5], weights=[2.0])
    >>> half, floor = np.array([0.5, 0.5]), np.array([0.1, 0.1])
    >>> osmd_step(half, floor, np.log(0.25), cohort, np.array([0.0])).round(6)
    array([0.880797, 0.119203])
    """
    with np.errstate(divide="ignore"):
        log_values = np.log(probabilities)
    drawn = cohort.clients
    log_values[drawn] += mirror_steps(
        log_learning_rate, log_values[drawn], log_feedback, cohort.weights, cohort.cohort_size
    )
    return project_above_floor(log_values, floor)


def log_expert_losses(
    expert_probabilities: FloatArray, cohort: Cohort, log_feedback: FloatArray
) -> FloatArray:
    r"""Logarithms of the experts' estimated losses :math:`\hat l_t(\hat p^t_e; \hat p^t)` (Equation 6)."""
    with np.errstate(divide="ignore"):  # a client without feedback may be one that an expert never draws
        logs = np.log(expert_probabilities[:, cohort.clients])
    return np.array(
        [log_estimated_loss(drawn, log_feedback, cohort.weights, cohort.cohort_size) for drawn in logs]
    )


def reweigh_experts(
    log_expert_weights: FloatArray, log_meta_rate: float, log_losses: FloatArray
) -> FloatArray:
    r"""Exponential weights: experts lose weight by their losses (Algorithm 5, line 11).

    .. math:: \theta^{t+1}_e \propto \theta^t_e \exp\{-\gamma\,\hat l_t(\hat p^t_e; \hat p^t)\}

    Only differences of losses matter, and these are formed in logs. The result sums to one.

    >>> np.exp(reweigh_experts(np.log([0.5, 0.5]), 0.0, np.log([1.0, 1.0 + np.log(3.0)])))
    array([0.75, 0.25])
    """
    best = log_losses.min()
    if best == -np.inf:  # no feedback: a zero loss for everybody
        return log_expert_weights
    with np.errstate(divide="ignore"):
        log_excess = log_meta_rate + best + np.log(np.expm1(log_losses - best))
    excess = np.exp(np.minimum(log_excess, np.log(LARGEST_STEP)))
    return normalise_log_weights(np.maximum(log_expert_weights - excess, -LARGEST_STEP))


def normalise_log_weights(log_weights: FloatArray) -> FloatArray:
    """Shift logarithms so that what they stand for sums to one."""
    shifted = log_weights - log_weights.max()  # first, or -1e300 would swallow the logarithm of the sum
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted))), dtype=float)


def mixture(log_expert_weights: FloatArray, expert_probabilities: FloatArray) -> FloatArray:
    r"""The distribution to draw from: :math:`\hat p^t = \sum_e \theta^t_e \hat p^t_e` (Algorithm 5, line 5).

    >>> mixture(np.log([0.5, 0.5]), np.array([[0.2, 0.8], [0.6, 0.4]]))
    array([0.4, 0.6])
    """
    return np.asarray(np.exp(log_expert_weights) @ expert_probabilities, dtype=float)
