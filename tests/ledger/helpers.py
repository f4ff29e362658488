"""Runs and samplers to test with."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sortition import AdaptiveOSMDSampler, Cohort, EmpiricalBayesSampler
from sortition.ledger import RecordedSampler, open_run
from sortition.ledger.encoding import pack

CLIENTS, COHORT_SIZE = 30, 4


def make(seed: int = 0) -> AdaptiveOSMDSampler:
    """A sampler that learns quickly."""
    return AdaptiveOSMDSampler(
        num_clients=CLIENTS, cohort_size=COHORT_SIZE, num_rounds=50, rate_scale=30.0, seed=seed
    )


def norms_of(cohort: Cohort) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Norms that differ between clients and rounds; client 3 never replies."""
    norms = np.exp(np.sin(cohort.round_index + 1.7 * cohort.clients))
    norms[cohort.clients == 3] = np.nan
    return np.asarray(norms)


def play(sampler: Any, rounds: int) -> list[Cohort]:
    """Whole rounds."""
    cohorts = []
    for _ in range(rounds):
        cohort = sampler.draw()
        sampler.observe(cohort, norms_of(cohort))
        cohorts.append(cohort)
    return cohorts


def recorded(path: Path, rounds: int, **options: Any) -> list[Cohort]:
    """A run on disk, closed; the cohorts that were drawn."""
    with open_run(path, make, **options) as run:
        return play(run, rounds)


def state_bytes(sampler: Any) -> bytes:
    """All that a sampler knows, to the bit."""
    return pack(sampler.state_dict())


def crash(run: RecordedSampler) -> None:
    """Let go of the files as a process that dies does: no snapshot, no goodbye."""
    run._abandon()


def guarded() -> EmpiricalBayesSampler:
    """A sampler that finds liars."""
    return EmpiricalBayesSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE)


class OwnSampler(EmpiricalBayesSampler):
    """A user's own: the library can't build it."""


def own() -> OwnSampler:
    """A sampler that a record can't say how to build."""
    return OwnSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE)


class Strange:
    """A sampler that has the protocol and nothing else."""

    def __init__(self, inner: EmpiricalBayesSampler) -> None:
        self.inner = inner
        self.draw, self.observe = inner.draw, inner.observe
        self.num_clients, self.cohort_size = inner.num_clients, inner.cohort_size
        self.probabilities = inner.probabilities

    def state_dict(self) -> dict[str, Any]:
        """The state of the one within, without what it was built with."""
        return {name: v for name, v in self.inner.state_dict().items() if not name.startswith("config.")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``state_dict`` gave."""
        own = self.inner.state_dict()
        kept = {name: value for name, value in own.items() if name.startswith("config.")}
        self.inner.load_state_dict({**kept, **state})


def rows_of(path: Path) -> list[tuple[object, ...]]:
    """The rows as SQLite gives them."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT * FROM events ORDER BY number").fetchall()
    finally:
        connection.close()
