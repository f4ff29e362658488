"""Compile every kernel, so that no user has to wait for it."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from sortition import Memory
from sortition.core.designs import DESIGNS
from sortition.lab.contestants import CONTESTANTS, INDEPENDENT_ONLY, Trial
from sortition.lab.parallel import Progress
from sortition.lab.training import Oracle

NUM_CLIENTS, COHORT_SIZE = 200, 5
TASKS = tuple(
    (name, design) for name in CONTESTANTS for design in DESIGNS if name not in INDEPENDENT_ONLY
) + (tuple((name, "independent") for name in INDEPENDENT_ONLY))


def warm_up(progress: Progress | None = None) -> None:
    """Play a few rounds with every sampler in every design: all replies, silence, joins, leaves, a memory.

    With torch, the norms of the last layer, too.
    """
    for done, (name, design) in enumerate(TASKS, start=1):
        _play(name, design)
        if progress is not None:
            progress(done)
    cohort = CONTESTANTS["uniform"](_trial("fixed_size")).draw()
    memory = Memory(num_parameters=3, num_clients=NUM_CLIENTS)
    memory.combine(cohort, np.ones((len(cohort), 3)), np.full(len(cohort), 1.0 / NUM_CLIENTS))
    if find_spec("torch") is not None:
        _measure_norms()


def _trial(design: str) -> Trial:
    weights = np.arange(1.0, NUM_CLIENTS + 1.0)
    return Trial(
        client_weights=weights / weights.sum(),
        cohort_size=COHORT_SIZE,
        num_rounds=100,
        feedback_bound=1.0,
        design=design,  # type: ignore[arg-type]  # one of DESIGNS
        seed=0,
    )


def _play(name: str, design: str) -> None:
    sampler = CONTESTANTS[name](_trial(design))
    rng = np.random.default_rng(0)
    for round_index in range(6):
        if isinstance(sampler, Oracle):
            sampler.reveal(np.ones(sampler.num_clients))
        cohort = sampler.draw() if round_index % 2 == 0 else sampler.draw(np.arange(50))
        norms = np.exp(rng.normal(size=len(cohort.clients)))
        if round_index == 4:
            norms[:1] = np.nan
        sampler.observe(cohort, norms)
        if round_index == 2 and not isinstance(sampler, Oracle):
            sampler.add_clients(2)  # type: ignore[attr-defined]  # ours all have it
            sampler.remove_clients([100])  # type: ignore[attr-defined]
    sampler.probabilities()


def _measure_norms() -> None:
    import torch

    from sortition.integrations.torch.last_layer import PRECISE, last_layer_norms

    for dtype in PRECISE:
        last_layer_norms(
            torch.zeros(1, 2, dtype=dtype), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3, dtype=dtype)
        )
