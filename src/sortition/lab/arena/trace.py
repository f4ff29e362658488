"""What a sampler meets in the arena: an environment, and the trace of all norms that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np

from sortition.core.types import FloatArray
from sortition.lab.algorithms.fedsgd import FedSGD
from sortition.lab.contestants import Trial
from sortition.lab.problems.protocol import Problem
from sortition.samplers.oracles import OptimalSampler

Half: TypeAlias = Literal["tune", "report"]
Split: TypeAlias = Literal["tune", "report", "all"]
SPLITS: tuple[str, ...] = get_args(Split)

CACHED_TRACES = 24
"""Traces kept in memory; the largest takes 50 MB, most take less than 1 MB."""


@dataclass(frozen=True)
class Trace:
    """The norms of all clients in all rounds, whoever is drawn."""

    client_weights: FloatArray
    """lambda, of shape (M,)."""
    cohort_size: int
    norms: FloatArray
    """Of shape (T, M)."""
    measured_every: int = 1
    """The variance is measured in rounds 0, n, 2n, ...: where there are many clients, not in all of them."""

    @property
    def num_rounds(self) -> int:
        """T."""
        return len(self.norms)

    def trial(self, seed: int) -> Trial:
        """What a sampler may know; the bound is the largest feedback of round 0, as in ``compare``."""
        return Trial(
            client_weights=self.client_weights,
            cohort_size=self.cohort_size,
            num_rounds=self.num_rounds,
            feedback_bound=float(np.max((self.client_weights * self.norms[0]) ** 2)),
            design="with_replacement",
            seed=seed,
        )


class TraceSource(Protocol):
    """Generates norms."""

    @property
    def num_rounds(self) -> int:
        """T."""

    def __call__(self, seed: int) -> Trace:
        """The trace of this seed."""


@dataclass(frozen=True)
class Training:
    """A federation to be trained: what closed loop runs, and replay has recorded.

    The recording run draws from the optimal distribution, so that training gets on and no sampler's
    mistakes are in the trace.
    """

    make_problem: Callable[[int], Problem]
    cohort_size: int
    num_rounds: int
    step_size: float

    def __call__(self, seed: int) -> Trace:
        """The norms of all clients in a training run under optimal sampling."""
        problem = self.make_problem(seed)
        algorithm, model = FedSGD(self.step_size), problem.initial_model()
        sampler = OptimalSampler(
            num_clients=problem.num_clients,
            cohort_size=self.cohort_size,
            client_weights=problem.client_weights,
            seed=seed,
        )
        norms = np.empty((self.num_rounds, problem.num_clients))
        for round_index in range(self.num_rounds):
            norms[round_index] = problem.all_norms(model, round_index)
            sampler.reveal(norms[round_index])
            model, _ = algorithm(model, sampler.draw(), problem, round_index)
        return Trace(problem.client_weights, self.cohort_size, norms)


@dataclass(frozen=True)
class Environment:
    """A named, seedable place to compete in."""

    name: str
    half: Half
    """Whether constants may be chosen on it ("tune"), or only be judged ("report")."""
    about: str
    source: TraceSource

    @property
    def num_rounds(self) -> int:
        """T."""
        return self.source.num_rounds

    @property
    def training(self) -> Training | None:
        """What a closed loop trains; None where norms are generated and there is nothing to train."""
        return self.source if isinstance(self.source, Training) else None

    def trace(self, seed: int) -> Trace:
        """The trace of this seed, made once and then kept."""
        return _trace(self, seed)


@lru_cache(maxsize=CACHED_TRACES)
def _trace(environment: Environment, seed: int) -> Trace:
    return environment.source(seed)


def seeds_of(split: Split, count: int, skip: int = 0) -> list[int]:
    """Even seeds to choose by, odd ones to report; the first ``skip`` of them are left out.

    >>> seeds_of("tune", 3), seeds_of("report", 2, skip=10)
    ([0, 2, 4], [21, 23])
    """
    return [2 * index + (split != "tune") for index in range(skip, skip + count)]
