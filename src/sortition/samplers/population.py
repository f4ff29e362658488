"""What empirical Bayes learns of the clients as a whole, so that each of them can be shrunk towards it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sortition.core.types import FloatArray, IntArray


@dataclass(frozen=True)
class Constants:
    """The numbers that stay, each with an ablation in ``docs/default-sampler.md``."""

    prior_uniform: float = 0.1
    """Share of the prior that is uniform; the rest goes by the data sizes."""
    least_share: float = 0.12
    """Share of the draws that come from the prior, at first and at least: it bounds the weights."""
    discovery: float = 1.5
    """A round in which the prior's draws were worth more than this multiplies the share by that worth."""
    share_hold: float = 0.3
    """How fast the share falls else: by e^-hold in the time in which everybody could be drawn once."""
    loss_memory: float = 0.9
    """Memory of the running loss that tells a round of much loss from one of little."""
    level_rate: float = 0.1
    """How fast the common level follows."""
    surprise: float = 0.7
    """Two surprises in a row that are alike and beyond this, in standard deviations, shorten the memory."""
    forgetting: float = 0.5
    """What is then left of it."""
    jump: float = 3.0
    """A surprise upwards beyond this makes the client start anew."""
    caution: float = 1.5
    """A surprise downwards counts for at most so many standard deviations."""
    largest_ratio: float = 4.0
    """One client's ratio of seen to expected feedback counts for at most this, where the level follows."""
    first_noise: float = 0.5
    """The variance of one observation around its client's mean, before any was seen twice; counts as two."""
    largest_deviation: float = 5.0
    """One logarithm's distance from its client's mean counts for at most this, where noise is estimated."""


LEAST_SPREAD = 1e-3
"""A variance between clients is taken to be at least this: one divides by it."""
LOWEST, HIGHEST = -60.0, 300.0
"""Bounds of the logarithms, relative to the population's mean and to the level."""


@dataclass
class Population:
    """Running sums; all logarithms are of feedback over the squared prior, relative to the common level."""

    level: float = math.nan
    """The common level that all logarithms are relative to; nan before the first feedback."""
    log_loss: float = math.nan
    """Logarithm of the running estimate of the variance loss."""
    met: float = 0.0
    """Clients met."""
    first_squares: float = 0.0
    """Sum of exp(x) over first sightings: what a stranger is expected to have."""
    means: float = 0.0
    """Sum of the clients' means."""
    square_means: float = 0.0
    """Sum of their squares."""
    inverse_visits: float = 0.0
    """Sum of one over the clients' visits: how much of the means' spread is noise."""
    noise: float = 0.0
    """Sum of squared deviations of observations from their clients' means."""
    noise_count: float = 0.0

    @classmethod
    def before(cls, noise: float) -> Population:
        """Nobody was met; the noise is a guess, which counts for two observations."""
        return cls(noise=2.0 * noise, noise_count=2.0)

    @property
    def noise_variance(self) -> float:
        """Variance of one observation around its client's mean."""
        return self.noise / self.noise_count

    @property
    def mean(self) -> float:
        """The mean of the clients' means."""
        return self.means / self.met if self.met else 0.0

    @property
    def spread(self) -> float:
        """Variance of the clients' means, noise included."""
        return max(self.square_means / self.met - self.mean**2, LEAST_SPREAD)

    @property
    def pseudo_visits(self) -> float:
        """How many visits the population counts for, beside a client's own: noise over signal."""
        noise = self.noise_variance
        signal = self.spread - noise * self.inverse_visits / self.met
        return noise / max(signal, LEAST_SPREAD)

    @property
    def stranger(self) -> float:
        """log E[exp(x)] of a client that was never met."""
        return math.log(self.first_squares / self.met)

    def follow_level(self, ratios: FloatArray, weights: FloatArray, cohort_size: int, rate: float) -> float:
        """Move the level towards what was seen of clients known before, and say by how much."""
        total = float(weights.sum())
        if total == 0.0:
            return 0.0
        mean = float(ratios @ weights) / total
        change = math.log1p(rate * min(1.0, total / cohort_size) * (mean - 1.0))
        self.level += change
        return change

    def count_noise(self, deviations: FloatArray, visits: FloatArray, largest: float) -> None:
        """Take in how far clients known before were from their means."""
        self.noise += float(np.sum(np.minimum(deviations**2, largest**2) * visits / (visits + 1.0)))
        self.noise_count += len(deviations)

    def count_strangers(self, x: FloatArray) -> None:
        """Take in first sightings."""
        self.met += len(x)
        self.first_squares += float(np.exp(x).sum())
        self.means += float(x.sum())
        self.square_means += float((x**2).sum())
        self.inverse_visits += len(x)

    def revise(
        self, before: FloatArray, after: FloatArray, visits_before: FloatArray, visits_after: FloatArray
    ) -> None:
        """Take in that clients' means have moved."""
        self.means += float((after - before).sum())
        self.square_means += float((after**2 - before**2).sum())
        self.inverse_visits += float((1.0 / visits_after - 1.0 / visits_before).sum())


def log_mean_exp(logs: FloatArray, counts: IntArray) -> float:
    """Logarithm of the mean of exp(logs), each counted as often as it was drawn."""
    top = logs.max()
    return float(top + math.log(np.average(np.exp(logs - top), weights=counts)))
