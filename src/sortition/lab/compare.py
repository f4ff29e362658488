"""Several samplers on the same federations, and what each is worth in rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from sortition.core.designs import Design
from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.core.validation import whole_number
from sortition.lab.algorithms.protocol import Algorithm
from sortition.lab.contestants import Contestant, Trial, uniform
from sortition.lab.parallel import Progress, Tick, run_tasks
from sortition.lab.problems.protocol import Problem
from sortition.lab.trajectory import Trajectory, run

BASELINE = "uniform"
TARGET_SHARE = 0.8
SMOOTHING_SHARE = 0.1


class ProblemFactory(Protocol):
    """Builds the federation of one repeat."""

    def __call__(self, *, seed: int) -> Problem:
        """The federation of this seed."""


@dataclass(frozen=True)
class Row:
    """One sampler, averaged over the repeats."""

    name: str
    rounds_to_target: int | None
    """Rounds until the smoothed loss is at most the target; None if it never is."""
    rounds_ratio: float | None
    """``rounds_to_target`` over that of uniform sampling: 0.5 means half the rounds."""
    final_loss: float
    """Mean loss over the last rounds (the smoothing window)."""
    final_loss_spread: float
    """Standard deviation of the final loss between repeats."""
    mean_variance_ratio: float
    """Sampling variance over that of the optimal distribution, mean over the rounds; 1 is the optimum."""
    losses: FloatArray
    """Training loss after each round, mean over the repeats."""
    variance_ratios: FloatArray
    """The variance ratio in each round, mean over the repeats."""


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, and what they were measured against."""

    cohort_size: int
    num_rounds: int
    repeats: int
    design: Design
    seed: int
    target_loss: float
    rows: tuple[Row, ...]


def compare(
    contestants: Mapping[str, Contestant],
    make_problem: ProblemFactory,
    algorithm: Algorithm,
    *,
    cohort_size: int,
    num_rounds: int,
    repeats: int = 3,
    design: Design = "with_replacement",
    seed: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    r"""Run every contestant on the same ``repeats`` federations, and uniform sampling too if it is missing.

    Repeat r uses seed + r for the federation and for the sampler, so that within a repeat all samplers
    meet the same data, the same mini-batches and the same initial model.

    *Target loss.* What uniform sampling has come down to after 80% of the rounds. It asks "how many rounds
    does this sampler need for what uniform sampling gives me?", leaves slower samplers a quarter more
    rounds to get there, and is not ours to choose in anybody's favour. Losses are averaged over the repeats
    and then over a trailing window of 10% of the rounds, so that neither a lucky dip of a sampler nor a spike
    of uniform sampling at that very moment decides. With the five repeats of 500 rounds that the command
    line does by default, the ratios of rounds still vary by 0.02 to 0.04 (standard deviation over 8 x 5
    repeats), most of it in common, since all are relative to the same uniform run.

    ``progress`` is called with the rounds done so far, out of ``num_rounds * repeats`` for each sampler.
    With ``jobs`` above 1 the runs are spread over that many processes, and contestants, ``make_problem``
    and ``algorithm`` must be picklable; the result is the same.
    """
    num_rounds = whole_number("num_rounds", num_rounds, least=2)
    repeats = whole_number("repeats", repeats, least=1)
    jobs = whole_number("jobs", jobs, least=1)
    if not contestants:
        raise ConfigurationError("contestants must name at least one sampler, got none")
    everybody = dict(contestants) if BASELINE in contestants else {BASELINE: uniform, **contestants}
    tasks = [
        partial(_run_one, contestant, make_problem, algorithm, cohort_size, num_rounds, design, seed + repeat)
        for contestant in everybody.values()
        for repeat in range(repeats)
    ]
    trajectories = run_tasks(tasks, jobs, progress)
    runs = {
        name: trajectories[place * repeats : (place + 1) * repeats] for place, name in enumerate(everybody)
    }

    baseline = smooth(_mean([trajectory.losses for trajectory in runs[BASELINE]]))
    target_loss = float(baseline[round(TARGET_SHARE * num_rounds) - 1])
    baseline_rounds = rounds_to(baseline, target_loss)
    rows = tuple(_row(name, runs[name], target_loss, baseline_rounds) for name in everybody)
    return Comparison(cohort_size, num_rounds, repeats, design, seed, target_loss, rows)


def smooth(curve: FloatArray) -> FloatArray:
    """Mean over a trailing window of 10% of the rounds, at least one; at the start, over what there is.

    >>> smooth(np.arange(30.0))[:4]
    array([0. , 0.5, 1. , 2. ])
    """
    window = max(1, round(SMOOTHING_SHARE * len(curve)))
    sums = np.concatenate([[0.0], np.cumsum(curve)])
    ends = np.arange(1, len(curve) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def rounds_to(curve: FloatArray, target: float) -> int | None:
    """The number of rounds after which ``curve`` first is at most ``target``; None if it never is.

    >>> rounds_to(np.array([3.0, 2.0, 1.0]), 2.0), rounds_to(np.array([3.0, 2.0]), 1.0)
    (2, None)
    """
    reached = np.flatnonzero(curve <= target)
    return int(reached[0]) + 1 if len(reached) else None


def _run_one(
    contestant: Contestant,
    make_problem: ProblemFactory,
    algorithm: Algorithm,
    cohort_size: int,
    num_rounds: int,
    design: Design,
    seed: int,
    tick: Tick,
) -> Trajectory:
    problem = make_problem(seed=seed)
    initial_norms = problem.all_norms(problem.initial_model(), 0)
    trial = Trial(
        client_weights=problem.client_weights,
        cohort_size=cohort_size,
        num_rounds=num_rounds,
        feedback_bound=float(np.max((problem.client_weights * initial_norms) ** 2)),
        design=design,
        seed=seed,
    )
    return run(contestant(trial), problem, algorithm, num_rounds, tick)


def _row(
    name: str, trajectories: Sequence[Trajectory], target_loss: float, baseline_rounds: int | None
) -> Row:
    losses = _mean([trajectory.losses for trajectory in trajectories])
    variance_ratios = _mean([trajectory.variance_ratios for trajectory in trajectories])
    final_losses = [smooth(trajectory.losses)[-1] for trajectory in trajectories]
    rounds = rounds_to(smooth(losses), target_loss)
    return Row(
        name=name,
        rounds_to_target=rounds,
        rounds_ratio=rounds / baseline_rounds if rounds and baseline_rounds else None,
        final_loss=float(np.mean(final_losses)),
        final_loss_spread=float(np.std(final_losses)),
        mean_variance_ratio=float(variance_ratios.mean()),
        losses=losses,
        variance_ratios=variance_ratios,
    )


def _mean(curves: Sequence[FloatArray]) -> FloatArray:
    return np.asarray(np.mean(np.stack(curves), axis=0))
