"""Several samplers in one training environment, side by side, and what each is worth in rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sortition.core.designs import Design
from sortition.core.types import FloatArray
from sortition.core.validation import whole_number
from sortition.lab.arena.environments import Training
from sortition.lab.arena.tournament import ClosedLoop, judge, smooth, train_all
from sortition.lab.contestants import BASELINE, Contestant, with_baseline
from sortition.lab.parallel import Progress
from sortition.lab.training import Trajectory


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
    memory: bool
    seed: int
    target_loss: float
    rows: tuple[Row, ...]


def compare(
    contestants: Mapping[str, Contestant],
    training: Training,
    *,
    repeats: int = 3,
    seed: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    r"""Train with every contestant on the same ``repeats`` federations, and with uniform sampling.

    This is the arena's closed loop in one environment, with the curves kept. Repeat r uses seed + r for the
    federation and for the sampler, so that within a repeat all samplers have the same data, the same
    mini-batches and the same initial model.

    *Target loss.* Uniform sampling's loss after 80% of the rounds. It asks "how many rounds does this
    sampler need for what uniform sampling gives me?", and leaves slower samplers a quarter more rounds to
    get there. Losses are averaged over the repeats and then over a trailing window of 10% of the rounds, so
    that neither a lucky dip of a sampler nor a spike of uniform sampling at that very moment decides. With
    the five repeats of 500 rounds that the command line makes by default, the ratios of rounds still vary
    by 0.02 to 0.04 (standard deviation over 8 x 5 repeats), most of it in common, since all are relative to
    the same uniform run.

    ``progress`` is called with the rounds done so far, out of ``num_rounds * repeats`` for each sampler.
    With ``jobs`` above 1 the runs are spread over that many processes, and ``contestants`` and ``training``
    must be picklable; the result is the same.
    """
    num_rounds = whole_number("num_rounds", training.num_rounds, least=2)
    repeats = whole_number("repeats", repeats, least=1)
    jobs = whole_number("jobs", jobs, least=1)
    everybody = with_baseline(contestants)
    seeds = [seed + repeat for repeat in range(repeats)]
    (runs,) = train_all(everybody, {"of the comparison": training}, seeds, jobs, progress).values()
    verdicts = judge(runs)
    rows = tuple(_row(name, runs[name], verdicts[name]) for name in everybody)
    return Comparison(
        training.cohort_size,
        num_rounds,
        repeats,
        training.design,
        training.memory,
        seed,
        verdicts[BASELINE].target_loss,
        rows,
    )


def _row(name: str, trajectories: Sequence[Trajectory], verdict: ClosedLoop) -> Row:
    variance_ratios = _mean([trajectory.variance_ratios for trajectory in trajectories])
    final_losses = [smooth(trajectory.losses)[-1] for trajectory in trajectories]
    return Row(
        name=name,
        rounds_to_target=verdict.rounds_to_target,
        rounds_ratio=verdict.rounds_to_uniform,
        final_loss=float(np.mean(final_losses)),
        final_loss_spread=float(np.std(final_losses)),
        mean_variance_ratio=float(variance_ratios.mean()),
        losses=_mean([trajectory.losses for trajectory in trajectories]),
        variance_ratios=variance_ratios,
    )


def _mean(curves: Sequence[FloatArray]) -> FloatArray:
    return np.asarray(np.mean(np.stack(curves), axis=0))
