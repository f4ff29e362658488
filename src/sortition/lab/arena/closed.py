"""Closed loop: the sampler really drives the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sortition.lab.algorithms.fedsgd import FedSGD
from sortition.lab.arena.trace import Training
from sortition.lab.compare import BASELINE, TARGET_SHARE, rounds_to, smooth
from sortition.lab.contestants import Contestant, Trial
from sortition.lab.trajectory import Trajectory, run

REFERENCE = "optimal"


@dataclass(frozen=True)
class ClosedLoop:
    """What training with one sampler came to, in one environment."""

    target_loss: float
    """What uniform sampling has come down to after 80% of the rounds, as in ``compare``."""
    rounds_to_target: int | None
    """Rounds until the smoothed mean loss is at most the target; None if it never is."""
    rounds_to_uniform: float | None
    """The same, over that of uniform sampling."""
    reference_loss: float | None
    """What optimal sampling has come down to after 80% of the rounds, where it takes part."""
    rounds_to_reference: int | None
    """Rounds until the smoothed mean loss is at most that of optimal sampling after 80% of the rounds."""
    rounds_to_optimal: float | None
    """The same, over that of optimal sampling."""
    final_loss: float
    """Mean loss over the last tenth of the rounds and the seeds."""


def train(
    contestant: Contestant, training: Training, seed: int, on_round: Callable[[], None] = lambda: None
) -> Trajectory:
    """Train the federation of this seed with the sampler of this seed."""
    problem = training.make_problem(seed)
    norms = problem.all_norms(problem.initial_model(), 0)
    trial = Trial(
        client_weights=problem.client_weights,
        cohort_size=training.cohort_size,
        num_rounds=training.num_rounds,
        feedback_bound=float(np.max((problem.client_weights * norms) ** 2)),
        design="with_replacement",
        seed=seed,
    )
    return run(contestant(trial), problem, FedSGD(training.step_size), training.num_rounds, on_round)


def judge(trajectories: Mapping[str, Sequence[Trajectory]]) -> dict[str, ClosedLoop]:
    """Rounds to what uniform and what optimal sampling reach, and the final loss, for every sampler."""
    curves = {
        name: smooth(np.asarray(np.mean([run.losses for run in runs], axis=0)))
        for name, runs in trajectories.items()
    }
    place = round(TARGET_SHARE * len(curves[BASELINE])) - 1
    targets = {name: float(curves[name][place]) for name in (BASELINE, REFERENCE) if name in curves}

    def rounds(name: str, against: str) -> tuple[int | None, float | None]:
        if against not in targets:
            return None, None
        needed = rounds_to(curves[name], targets[against])
        its_own = rounds_to(curves[against], targets[against])
        return needed, needed / its_own if needed and its_own else None

    return {
        name: ClosedLoop(
            targets[BASELINE],
            *rounds(name, BASELINE),
            targets.get(REFERENCE),
            *rounds(name, REFERENCE),
            final_loss=float(curve[-1]),
        )
        for name, curve in curves.items()
    }
