r"""Norms by formula: heterogeneity, noise, sizes, and how they change in time.

The logarithm of client m's norm in round t is a level, noise, and what a *shape* makes of them,

.. math:: \log \|g^t_m\| = \mathrm{shape}(\mathrm{spread} \cdot \xi_m + \mathrm{noise} \cdot \epsilon^t_m),
          \qquad \xi, \epsilon \sim N(0, 1) \text{ i.i.d.}

and :math:`\lambda_m` comes from a distribution of data sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sortition.core.types import FloatArray
from sortition.lab.arena.trace import Trace

Sizes: TypeAlias = Callable[[np.random.Generator, int], FloatArray]
Shape: TypeAlias = Callable[[np.random.Generator, FloatArray, FloatArray], FloatArray]
"""From (generator, log norms of shape (T, M), log lambda less its mean) to log norms."""


def equal(rng: np.random.Generator, clients: int) -> FloatArray:
    """All clients have as much data."""
    return np.ones(clients)


def pareto(rng: np.random.Generator, clients: int) -> FloatArray:
    """A Pareto tail with exponent 1.5: the mean exists, the variance does not."""
    return np.asarray(1.0 + rng.pareto(1.5, clients))


def zipf(rng: np.random.Generator, clients: int) -> FloatArray:
    """Size proportional to 1 / rank."""
    return np.asarray(1.0 / (1.0 + rng.permutation(clients)))


def unchanged(rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
    """Levels stay as they are."""
    return logs


@dataclass(frozen=True)
class Synthetic:
    """Generated norms; the seed decides levels, noise, sizes and shape."""

    clients: int = 100
    cohort_size: int = 5
    num_rounds: int = 500
    spread: float = 1.5
    noise: float = 0.3
    sizes: Sizes = equal
    shape: Shape = unchanged
    measured_every: int = 1

    def __call__(self, seed: int) -> Trace:
        """The trace of this seed."""
        rng = np.random.default_rng([seed, 20_250_507])
        sizes = self.sizes(rng, self.clients)
        weights = sizes / sizes.sum()
        logs = self.spread * rng.standard_normal(self.clients) + self.noise * rng.standard_normal(
            (self.num_rounds, self.clients)
        )
        log_sizes = np.log(weights)
        shaped = self.shape(rng, logs, log_sizes - log_sizes.mean())
        return Trace(weights, self.cohort_size, np.exp(shaped), self.measured_every)


@dataclass(frozen=True)
class RandomWalk:
    r"""Every level wanders on its own, by ``total`` (a standard deviation) over the run."""

    total: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Add the walk."""
        steps = rng.standard_normal(logs.shape) * (self.total / math.sqrt(len(logs)))
        return logs + np.cumsum(steps, axis=0)


@dataclass(frozen=True)
class Waves:
    """Every level swings by ``amplitude``, so many times in a run, each at its own phase and pace."""

    amplitude: float
    cycles: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Add a sine."""
        time = np.arange(len(logs))[:, None] / len(logs)
        cycles = self.cycles * rng.uniform(0.5, 1.5, logs.shape[1])
        phases = rng.uniform(0.0, 2.0 * np.pi, logs.shape[1])
        return np.asarray(logs + self.amplitude * np.sin(2.0 * np.pi * cycles * time + phases))


@dataclass(frozen=True)
class Permuted:
    """A share of the clients swap their levels among themselves, at the given times (shares of the run)."""

    times: tuple[float, ...]
    share: float = 1.0

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Permute all that follows."""
        result = logs.copy()
        clients = logs.shape[1]
        for time in self.times:
            first = int(time * len(logs))
            chosen = rng.permutation(clients)[: round(self.share * clients)]
            result[first:, chosen] = result[first:, rng.permutation(chosen)]
        return result


@dataclass(frozen=True)
class HeavyTailed:
    """Mini-batch noise with a Pareto tail of the given exponent: some norms are far above their level."""

    exponent: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Multiply by Pareto noise: the logarithm of a Pareto variable is exponential."""
        return np.asarray(logs + rng.standard_exponential(logs.shape) / self.exponent)


@dataclass(frozen=True)
class Bursts:
    """A client's norm is ``factor`` times as large for some ``length`` rounds, ``per_run`` times a run."""

    factor: float
    length: float
    per_run: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Let the states of a Markov chain for each client raise its norms."""
        begin, end = self.per_run / len(logs), 1.0 / self.length
        coins = rng.random(logs.shape)
        state = coins[0] < begin * self.length
        raised = np.empty(logs.shape, dtype=bool)
        for round_index, coin in enumerate(coins):
            state = np.where(state, coin >= end, coin < begin)
            raised[round_index] = state
        return np.asarray(logs + math.log(self.factor) * raised)


@dataclass(frozen=True)
class AgainstSizes:
    r"""Norms fall with the data: :math:`\|g_m\| \propto \lambda_m^{-\mathrm{power}}`."""

    power: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Take off ``power`` times the logarithm of the size."""
        return logs - self.power * log_sizes


@dataclass(frozen=True)
class Decay:
    """All norms fall together, exponentially, to ``last`` times what they were."""

    last: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Add a falling line."""
        return logs + math.log(self.last) * np.arange(len(logs))[:, None] / len(logs)


@dataclass(frozen=True)
class Jumps:
    """All norms change together by a factor at each time: a step size is cut, a task is changed."""

    jumps: tuple[tuple[float, float], ...]

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Add a step function."""
        result = logs.copy()
        for time, factor in self.jumps:
            result[int(time * len(logs)) :] += math.log(factor)
        return result


@dataclass(frozen=True)
class Fading:
    """Client after client is fitted: from its own time on its norm falls to ``last`` times within a tenth."""

    last: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Add a ramp that begins at a random time for each client; some begin after the end."""
        time = np.arange(len(logs))[:, None] / len(logs)
        begin = rng.uniform(0.0, 1.25, logs.shape[1])
        return np.asarray(logs + math.log(self.last) * np.clip((time - begin) / 0.1, 0.0, 1.0))


@dataclass(frozen=True)
class Growing:
    """Clients start alike and grow apart: the spread goes from 0 to what it is."""

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Scale levels with time, and noise as well."""
        return np.asarray(logs * (np.arange(len(logs))[:, None] + 1.0) / len(logs))


@dataclass(frozen=True)
class Newcomers:
    """A share of the clients sends nothing until ``begin``, and then ``factor`` times what others do."""

    share: float
    begin: float
    factor: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Norms of 0 first, then heavier ones."""
        new = rng.permutation(logs.shape[1])[: round(self.share * logs.shape[1])]
        first = int(self.begin * len(logs))
        result = logs.copy()
        result[:first, new] = -np.inf
        result[first:, new] += math.log(self.factor)
        return result


@dataclass(frozen=True)
class Zeros:
    """In any round a client has nothing to send with the given probability."""

    probability: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Put norms of 0."""
        return np.where(rng.random(logs.shape) < self.probability, -np.inf, logs)


@dataclass(frozen=True)
class Clusters:
    """A share of the clients has ``factor`` times the norms of the others."""

    share: float
    factor: float

    def __call__(self, rng: np.random.Generator, logs: FloatArray, log_sizes: FloatArray) -> FloatArray:
        """Raise the norms of a random few, at least one."""
        clients = logs.shape[1]
        heavy = rng.permutation(clients)[: max(1, round(self.share * clients))]
        result = logs.copy()
        result[:, heavy] += math.log(self.factor)
        return result
