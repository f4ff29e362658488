"""Empirical Bayes, the default sampler: each client is shrunk towards what is known of all clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.state import array, check, number
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import named_keywords
from sortition.engine.clients import Roster
from sortition.engine.reweighted import ReweightedPrior
from sortition.samplers.base import BaseSampler
from sortition.samplers.guard import Guard
from sortition.samplers.privacy import NormPrivacy

GUARD = Guard()
"""The guard of the default sampler unless told otherwise."""


@dataclass(frozen=True)
class Constants:
    """The constants, each with an ablation in ``docs/default-sampler.md``."""

    prior_uniform: float = 0.1
    """Share of the prior that is uniform; the rest is proportional to the data sizes."""
    least_share: float = 0.12
    """Share of the draws that come from the prior, at first and at least: it bounds the weights."""
    discovery: float = 1.5
    """A round in which the prior's draws were worth more than this multiplies the share by that worth."""
    share_hold: float = 0.3
    """Otherwise the share falls, by e^-hold in the time in which everybody could be drawn once."""
    loss_memory: float = 0.9
    """Memory of the running loss, which tells a round of much loss from one of little."""
    level_rate: float = 0.1
    """How fast the common level follows."""
    surprise: float = 0.7
    """Two surprises in a row with one sign, both beyond this many standard deviations, shorten the memory."""
    forgetting: float = 0.5
    """The factor by which they do."""
    jump: float = 3.0
    """A surprise upwards beyond this makes the client start anew."""
    caution: float = 1.5
    """A surprise downwards counts for at most this many standard deviations."""
    largest_ratio: float = 4.0
    """Bound on a client's ratio of seen to expected feedback, when the level follows."""
    first_noise: float = 0.5
    """The variance of an observation around its client's mean before any is known; counts as two."""
    largest_deviation: float = 5.0
    """Bound on the distance of a logarithm from its client's mean, when noise is estimated."""


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
    seen: float = 0.0
    """Clients seen."""
    first_squares: float = 0.0
    """Sum of exp(x) over first visits: what an unseen client is expected to have."""
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
        """Before the first reply; the noise is a guess, which counts for two observations."""
        return cls(noise=2.0 * noise, noise_count=2.0)

    @property
    def noise_variance(self) -> float:
        """Variance of one observation around its client's mean."""
        return self.noise / self.noise_count

    @property
    def mean(self) -> float:
        """The mean of the clients' means."""
        return self.means / self.seen if self.seen else 0.0

    @property
    def spread(self) -> float:
        """Variance of the clients' means, noise included."""
        return max(self.square_means / self.seen - self.mean**2, LEAST_SPREAD)

    @property
    def pseudo_visits(self) -> float:
        """How many visits the population counts for, beside a client's own: noise over signal."""
        noise = self.noise_variance
        signal = self.spread - noise * self.inverse_visits / self.seen
        return noise / max(signal, LEAST_SPREAD)

    @property
    def unseen(self) -> float:
        """log E[exp(x)] of a client that was never seen."""
        return math.log(self.first_squares / self.seen)

    def follow_level(self, ratios: FloatArray, weights: FloatArray, cohort_size: int, rate: float) -> float:
        """Move the level towards what clients known before have sent, and return by how much."""
        total = float(weights.sum())
        if total == 0.0:
            return 0.0
        mean = float(ratios @ weights) / total
        change = math.log1p(rate * min(1.0, total / cohort_size) * (mean - 1.0))
        self.level += change
        return change

    def count_noise(self, deviations: FloatArray, visits: FloatArray, largest: float) -> None:
        """Add how far clients known before were from their means."""
        self.noise += float(np.sum(np.minimum(deviations**2, largest**2) * visits / (visits + 1.0)))
        self.noise_count += len(deviations)

    def count_first_visits(self, x: FloatArray) -> None:
        """Add first visits."""
        self.seen += len(x)
        self.first_squares += float(np.exp(x).sum())
        self.means += float(x.sum())
        self.square_means += float((x**2).sum())
        self.inverse_visits += len(x)

    def revise(
        self, before: FloatArray, after: FloatArray, visits_before: FloatArray, visits_after: FloatArray
    ) -> None:
        """Replace clients' old means by the new ones."""
        self.means += float((after - before).sum())
        self.square_means += float((after**2 - before**2).sum())
        self.inverse_visits += float((1.0 / visits_after - 1.0 / visits_before).sum())


def log_mean_exp(logs: FloatArray, counts: IntArray) -> float:
    """Logarithm of the mean of exp(logs), each counted as often as it was drawn."""
    top = logs.max()
    return float(top + math.log(np.average(np.exp(logs - top), weights=counts)))


KEPT = 3
"""What is kept of a client that was seen: mean, visits, last surprise."""


class EmpiricalBayesSampler(BaseSampler):
    r"""Draws in proportion to the root of the *expected* squared norm, given all that was seen.

    The prior is :math:`\pi = (1-\rho)\lambda + \rho/M`. Let :math:`x = \log(a / \pi^2)`, relative to a
    common level that follows the run: the best distribution is :math:`\pi e^{x/2}`. Of each client seen, a
    running mean y of x over n visits is kept, and shrunk towards the population, which counts for
    :math:`\kappa` visits:

    .. math:: p = (1-\alpha)\,q + \alpha\,\pi, \qquad q_m \propto \pi_m e^{h_m}, \qquad
              2 h_m = w\,y_m + (1-w)\,2 h_u, \qquad w = \frac{n}{n + \kappa}

    where :math:`\kappa` is the variance of x around a client's mean over the spread of the means, and
    :math:`2 h_u = \log E[e^x]` is that of a client never seen. The share :math:`\alpha` of the
    prior rises when large feedback comes from clients that are hardly ever drawn, and falls slowly.
    ``docs/default-sampler.md`` explains each part and shows what it is worth.

    >>> sampler = EmpiricalBayesSampler(num_clients=100, cohort_size=5)
    >>> for _ in range(200):
    ...     cohort = sampler.draw()
    ...     sampler.observe(cohort, 1.0 + 9.0 * (cohort.clients == 3))
    >>> bool(sampler.probabilities([3]) > 0.05)
    True
    """

    constants: ClassVar[Constants] = Constants()

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        design: Design = "fixed_size",
        seed: int = 0,
        guard: Guard | None = GUARD,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        uniform = self.constants.prior_uniform
        if self._given_weights is not None:
            mixed = (1.0 - uniform) * self._given_weights + uniform / self._initial_clients
            self._roster = Roster(self._initial_clients, mixed)
        self._begin()

    def _begin(self) -> None:
        self._distribution = self._reweighted = ReweightedPrior(
            self._roster, share=self.constants.least_share
        )
        self._population = Population.before(self.constants.first_noise)
        self._seen = np.zeros((0, KEPT))  # one row a slot

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        c, people = self.constants, self._population
        clients = cohort.clients
        masses = self._roster.masses(clients)
        prior = masses / self._roster.total
        # in units that stay the same when clients join or leave
        log_feedback = log_feedback + 2.0 * math.log(self._weights.total)
        log_ratios = log_feedback - 2.0 * np.log(masses)
        if math.isnan(people.level):
            if log_ratios.max() == -math.inf:
                return  # all zeros: there is no level yet
            people.level = log_mean_exp(log_ratios, cohort.counts)
        p = self._effective_distribution().look_up(clients)
        learnt = np.maximum(p - self._reweighted.weights[0] * prior, 0.0)  # beyond the prior's share
        self._tune_share(cohort.weights, log_feedback, p, prior)
        expected = 2.0 * self._reweighted.logs(clients)
        slots = self._see(clients)
        mean, visits, last_surprise = self._seen[slots].T
        known = visits > 0.0
        x = self._cautious(log_ratios - people.level, known, mean, visits)

        if known.any():
            ratios = np.exp(np.minimum(x - expected, math.log(c.largest_ratio)))
            weights = self._cohort_size * cohort.weights * learnt
            x = x - people.follow_level(ratios[known], weights[known], self._cohort_size, c.level_rate)
            people.count_noise((x - mean)[known], visits[known], c.largest_deviation)
        people.count_first_visits(x[~known])

        deviation = np.sqrt(people.noise_variance * (1.0 + 1.0 / np.maximum(visits, 1.0)))
        surprise = np.where(known, (x - mean) / deviation, 0.0)
        twice = np.minimum(surprise * np.sign(last_surprise), np.abs(last_surprise)) > c.surprise
        new_visits = visits + 1.0
        new_visits = np.where(twice, np.maximum(c.forgetting * new_visits, 1.0), new_visits)
        new_visits = np.where(surprise > c.jump, 1.0, new_visits)
        new_mean = np.where(known, mean + (x - mean) / new_visits, x)
        people.revise(mean[known], new_mean[known], visits[known], new_visits[known])
        self._seen[slots] = np.stack((new_mean, new_visits, surprise), axis=1)

        own = new_visits / (new_visits + people.pseudo_visits)
        logs = 0.5 * (own * new_mean + (1.0 - own) * people.unseen)
        self._reweighted.reweight(clients, logs, 0.5 * people.unseen)

    def _admit(self, masses: FloatArray, client_weights: FloatArray | None) -> IntArray:
        """The prior of a newcomer depends on its lambda, too, if that is given."""
        if client_weights is not None:
            uniform = self.constants.prior_uniform
            masses = (1.0 - uniform) * client_weights + uniform * masses
        return super()._admit(masses, client_weights)

    def _cautious(self, x: FloatArray, known: Any, mean: FloatArray, visits: FloatArray) -> FloatArray:
        """Bound x; a single feedback may not be too far below what was expected.

        A client with a low estimate is hardly drawn again, so one low value must not decide. A client with a
        high estimate is soon drawn again, and corrected.
        """
        people, caution = self._population, self.constants.caution
        x = np.clip(x, people.mean + LOWEST, HIGHEST)
        if not people.seen:
            return x
        noise = people.noise_variance
        of_known = mean - caution * np.sqrt(noise * (1.0 + 1.0 / np.maximum(visits, 1.0)))
        of_unseen = people.mean - caution * math.sqrt(max(people.spread, noise))
        return np.maximum(x, np.where(known, of_known, of_unseen))

    def _tune_share(
        self, weights: FloatArray, log_feedback: FloatArray, p: FloatArray, prior: FloatArray
    ) -> None:
        r"""Raise the prior's share when its draws were worth more than others; otherwise let it fall slowly.

        With :math:`v_m = \mathrm{weight}_m a_m / p_m`, whose sum V estimates the loss, the slope of the loss
        in the share has the sign of :math:`1 - r`, :math:`r = \sum_m v_m \pi_m / p_m \big/ V`: with r above 1
        the share is too small. A round of little loss says little: r is mixed with 1 by V over the running
        loss.
        """
        c, people = self.constants, self._population
        log_parts = np.log(weights) + log_feedback - np.log(p)
        top = log_parts.max()
        if top == -math.inf:
            return
        log_loss = float(top + math.log(np.exp(log_parts - top).sum()))
        if math.isnan(people.log_loss):
            people.log_loss = log_loss
        kept = math.log(c.loss_memory) + people.log_loss
        people.log_loss = float(np.logaddexp(kept, math.log1p(-c.loss_memory) + log_loss))
        scale = max(log_loss, people.log_loss)
        worth = float(np.exp(log_parts - scale) @ (prior / p)) + 1.0 - math.exp(log_loss - scale)
        falling = math.exp(-c.share_hold * self._cohort_size / self.num_clients)
        factor = worth if worth > c.discovery else falling
        self._reweighted.share = min(max(factor * self._reweighted.share, c.least_share), 1.0)

    def _see(self, clients: IntArray) -> IntArray:
        slots = self._reweighted.see(clients)
        missing = len(self._reweighted.trees.ratios) - len(self._seen)
        if missing > 0:
            self._seen = np.concatenate((self._seen, np.zeros((missing, KEPT))))
        return slots

    def _state(self) -> dict[str, Any]:
        seen = self._seen[: self._reweighted.count].copy()
        return {**self._reweighted.state(), **asdict(self._population), "visits": seen}

    def _restore(self, state: Mapping[str, Any]) -> None:
        unknown = ("level", "log_loss")  # before the first feedback
        population = Population(
            **{f.name: number(state, f.name, nan=f.name in unknown) for f in fields(Population)}
        )
        clients = array(state, "seen_clients", np.int64, (None,))
        seen = array(state, "visits", np.float64, (len(clients), KEPT))
        check("visits", seen, np.isfinite(seen), "finite")
        self._reweighted.restore(state)
        self._population, self._seen = population, seen


@named_keywords
def default_sampler(
    num_clients: int,
    cohort_size: int,
    client_weights: ArrayLike | None = None,
    *,
    design: Design = "fixed_size",
    seed: int = 0,
    guard: Guard | None = GUARD,
    privacy: NormPrivacy | None = None,
) -> EmpiricalBayesSampler:
    """The best sampler that we know of, with nothing to tune: ``EmpiricalBayesSampler``.

    It draws ``cohort_size`` distinct clients in each round (``design="fixed_size"``), or all if there are no
    more. ``client_weights`` is what each client counts for in the aggregate, such as its share of the data;
    equal if not given. ``seed`` fixes all randomness of a run. ``guard`` defends against clients that lie
    about their norms. ``privacy`` clips and noises the norms before anything is learnt from them.

    >>> default_sampler(100, 5).draw().cohort_size
    5
    """
    return EmpiricalBayesSampler(
        num_clients=num_clients,
        cohort_size=cohort_size,
        client_weights=client_weights,
        design=design,
        seed=seed,
        guard=guard,
        privacy=privacy,
    )
