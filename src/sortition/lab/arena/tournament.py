"""Every sampler against every environment: which runs are made, and what comes out.

In *replay* a sampler hears the norms of a recorded or generated trace, those of the clients it drew. In
*closed loop* it drives the training of a federation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sortition import Cohort, ConfigurationError, Sampler, SortitionError
from sortition.core.designs import Design
from sortition.core.types import FloatArray
from sortition.core.validation import whole_number
from sortition.lab.arena.environments import Environment, Split, Training, seeds_of
from sortition.lab.arena.traces import Trace
from sortition.lab.contestants import BASELINE, Contestant, Trial, make_sampler, with_baseline
from sortition.lab.imported import blaming
from sortition.lab.parallel import Progress, Tick, run_tasks
from sortition.lab.training import Trajectory, design_of, training_rounds, variance_ratio

REFERENCE = "optimal"
TARGET_SHARE = 0.8
SMOOTHING_SHARE = 0.1
EARLY_SHARE = 0.1
SEGMENTS = 20


@dataclass(frozen=True)
class Variance:
    r"""Sampling variance of one run: means over rounds of :math:`l_t(p^t) / l_t(p^\star)`; 1 is perfect."""

    design: Design
    """By which it draws: the optimum is that of the design."""
    mean: float
    """Over all rounds."""
    early: float
    """Over the first tenth of them."""
    segments: tuple[float, ...]
    """Over each of 20 equal parts of the run, or of as many as there are rounds."""

    @classmethod
    def of_run(cls, ratios: FloatArray, design: Design = "with_replacement") -> Variance:
        """The measures of a run with these ratios, round by round.

        >>> Variance.of_run(np.array([4.0, 2.0] + 18 * [1.0])).early
        3.0
        """
        early = ratios[: max(1, round(EARLY_SHARE * len(ratios)))]
        parts = np.array_split(ratios, min(SEGMENTS, len(ratios)))
        segments = tuple(float(part.mean()) for part in parts)
        return cls(design, float(ratios.mean()), float(early.mean()), segments)


@dataclass(frozen=True)
class ClosedLoop:
    """What training with one sampler came to, in one environment."""

    target_loss: float
    """Uniform sampling's loss after 80% of the rounds."""
    rounds_to_target: int | None
    """Rounds until the smoothed mean loss is at most the target; None if it never is."""
    rounds_to_uniform: float | None
    """The same, over that of uniform sampling."""
    reference_loss: float | None
    """Optimal sampling's loss after 80% of the rounds, where it takes part."""
    rounds_to_reference: int | None
    """Rounds until the smoothed mean loss is at most that of optimal sampling after 80% of the rounds."""
    rounds_to_optimal: float | None
    """The same, over that of optimal sampling."""
    final_loss: float
    """Mean loss over the last tenth of the rounds and the seeds."""


@dataclass(frozen=True)
class Score:
    """One sampler in one environment, averaged over the seeds."""

    environment: str
    sampler: str
    design: Design
    ratio: float
    """Variance over the optimum's, mean over rounds and seeds; 1 is perfect."""
    early_ratio: float
    """The same over the first tenth of the rounds."""
    to_uniform: float
    """``ratio`` over that of uniform sampling by the same design; nan where that was not run."""
    early_to_uniform: float
    """``early_ratio`` over that of uniform sampling by the same design."""
    by_seed: tuple[Variance, ...]
    closed_loop: ClosedLoop | None = None
    """What training came to, in closed loop."""


@dataclass(frozen=True)
class Arena:
    """The outcome of one mode: a score for each environment and each sampler, in this order."""

    mode: str
    split: Split
    seeds: tuple[int, ...]
    environments: tuple[Environment, ...]
    samplers: tuple[str, ...]
    scores: tuple[Score, ...]

    def table(self, measure: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """One measure of the scores, environments by samplers."""
        values = [getattr(score, measure) for score in self.scores]
        return np.array(values, dtype=float).reshape(len(self.environments), len(self.samplers))


def run_replay(
    contestants: Mapping[str, Contestant],
    environments: Sequence[Environment],
    *,
    split: Split,
    seeds: int = 2,
    skip: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Arena:
    """Replay every environment's traces to every contestant, and to uniform sampling if it is missing.

    The first ``skip`` seeds of the split are left out, for example because they were used before.
    ``progress`` is called with the rounds done so far. A trace is made once; its seed is also the sampler's.
    """
    numbers = _checked_seeds(environments, split, seeds, skip, jobs)
    everybody = with_baseline(contestants)
    tasks = [
        partial(_replay_all, everybody, environment, seed) for environment in environments for seed in numbers
    ]
    outcomes = run_tasks(tasks, jobs, progress)
    scores = []
    for place, environment in enumerate(environments):
        of_seeds = outcomes[place * len(numbers) : (place + 1) * len(numbers)]
        runs = {name: tuple(outcome[name] for outcome in of_seeds) for name in of_seeds[0]}
        scores += [_score(environment.name, name, runs) for name in everybody]
    return Arena("replay", split, tuple(numbers), tuple(environments), tuple(everybody), tuple(scores))


def run_closed_loop(
    contestants: Mapping[str, Contestant],
    environments: Sequence[Environment],
    *,
    split: Split,
    seeds: int = 2,
    skip: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Arena:
    """Let every contestant drive the training; environments without training are left out."""
    trained = {environment: environment.training for environment in environments}
    trainings = {environment.name: training for environment, training in trained.items() if training}
    chosen = tuple(environment for environment in environments if environment.name in trainings)
    if environments and not chosen:
        names = ", ".join(environment.name for environment in environments)
        raise ConfigurationError(
            f"environments must name at least one that mode closed can run; {names} "
            f"{'has' if len(environments) == 1 else 'have'} replay only"
        )
    numbers = _checked_seeds(chosen, split, seeds, skip, jobs)
    everybody = with_baseline(contestants)
    scores = []
    for name, trajectories in train_all(everybody, trainings, numbers, jobs, progress).items():
        verdicts = judge(trajectories)
        runs = {
            sampler: tuple(Variance.of_run(run.variance_ratios, run.design) for run in of_sampler)
            for sampler, of_sampler in trajectories.items()
        }
        scores += [_score(name, sampler, runs, verdicts[sampler]) for sampler in everybody]
    return Arena("closed", split, tuple(numbers), chosen, tuple(everybody), tuple(scores))


def train_all(
    contestants: Mapping[str, Contestant],
    trainings: Mapping[str, Training],
    seeds: Sequence[int],
    jobs: int = 1,
    progress: Progress | None = None,
) -> dict[str, dict[str, list[Trajectory]]]:
    """Train with every contestant in every environment: by environment and sampler, a run for each seed."""
    tasks = [
        partial(train_one, name, contestant, environment, training, seed)
        for environment, training in trainings.items()
        for name, contestant in contestants.items()
        for seed in seeds
    ]
    outcomes = iter(run_tasks(tasks, jobs, progress))
    return {
        environment: {name: [next(outcomes) for _ in seeds] for name in contestants}
        for environment in trainings
    }


def judge(trajectories: Mapping[str, Sequence[Trajectory]]) -> dict[str, ClosedLoop]:
    """Rounds to the losses of uniform and of optimal sampling, and the final loss, for every sampler."""
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


def smooth(curve: FloatArray) -> FloatArray:
    """Mean over a trailing window of 10% of the rounds, at least one; at the start, over what there is.

    From the first value on that is not finite, it is inf.

    >>> smooth(np.arange(30.0))[:4]
    array([0. , 0.5, 1. , 2. ])
    """
    window = max(1, round(SMOOTHING_SHARE * len(curve)))
    finite = int(np.argmin(np.append(np.isfinite(curve), False)))
    sums = np.concatenate([[0.0], np.cumsum(curve[:finite])])
    ends = np.arange(1, finite + 1)
    starts = np.maximum(ends - window, 0)
    smoothed = np.full(len(curve), np.inf)
    smoothed[:finite] = (sums[ends] - sums[starts]) / (ends - starts)
    return smoothed


def rounds_to(curve: FloatArray, target: float) -> int | None:
    """The number of rounds after which ``curve`` first is at most ``target``; None if it never is.

    >>> rounds_to(np.array([3.0, 2.0, 1.0]), 2.0), rounds_to(np.array([3.0, 2.0]), 1.0)
    (2, None)
    """
    reached = np.flatnonzero(curve <= target)
    return int(reached[0]) + 1 if len(reached) else None


@dataclass(frozen=True)
class Replay:
    """An algorithm that trains nothing: clients report the norms of a trace. The state is None."""

    def start(self, problem: Trace) -> None:
        """Nothing."""

    def all_norms(self, state: None, problem: Trace, round_index: int) -> FloatArray:
        """The norms of the round; a client that would not reply has no part in the aggregate."""
        return np.asarray(np.nan_to_num(problem.norms[round_index]))

    def __call__(
        self, state: None, cohort: Cohort, problem: Trace, round_index: int
    ) -> tuple[None, FloatArray]:
        """The norms of the cohort; nan for no reply."""
        return None, problem.norms[round_index][cohort.clients]


def replay(sampler: Sampler, trace: Trace, on_round: Callable[[], None] = lambda: None) -> FloatArray:
    r"""The variance ratio :math:`l_t(p^t) / l_t(p^\star)` of a sampler in each measured round of a trace.

    An oracle is shown the round's norms before it draws; other samplers see only the norms of their cohorts.
    """
    ratios = []
    for done in training_rounds(
        sampler, trace, Replay(), trace.num_rounds, measure_every=trace.measured_every
    ):
        if done.probabilities is not None and done.norms is not None:
            ratios.append(
                variance_ratio(
                    done.probabilities,
                    trace.client_weights,
                    done.norms,
                    design_of(sampler),
                    done.cohort.cohort_size,
                )
            )
        on_round()
    return np.array(ratios)


def _checked_seeds(
    environments: Sequence[Environment], split: Split, seeds: int, skip: int, jobs: int
) -> list[int]:
    whole_number("jobs", jobs, least=1)
    whole_number("skip", skip, least=0)
    if not environments:
        raise ConfigurationError("environments must name at least one, got none")
    return seeds_of(split, whole_number("seeds", seeds, least=1), skip)


def _replay_all(
    contestants: Mapping[str, Contestant], environment: Environment, seed: int, tick: Tick
) -> dict[str, Variance]:
    """The runs of all contestants, and of uniform sampling by each of their designs."""
    trace = environment.trace(seed)
    trial, outcome = trace.trial(seed), {}
    for name, contestant in contestants.items():
        sampler = _make(name, contestant, environment.name, trial)
        with blaming(f"sampler {name!r}, environment {environment.name}"):
            outcome[name] = Variance.of_run(replay(sampler, trace, tick), design_of(sampler))
    for design in {run.design for run in outcome.values()} - {outcome[BASELINE].design}:
        sampler = contestants[BASELINE](replace(trial, design=design))
        outcome[_uniform_by(design)] = Variance.of_run(replay(sampler, trace), design)
    return outcome


def _uniform_by(design: Design) -> str:
    """The name of the runs of uniform sampling by a design that is not the baseline's."""
    return f"{BASELINE}, {design}"


def train_one(
    name: str, contestant: Contestant, environment: str, training: Training, seed: int, tick: Tick
) -> Trajectory:
    """One run of one contestant; ``name`` and ``environment`` are for errors."""
    with blaming(f"sampler {name!r}, environment {environment}"):
        return training.train(partial(_make, name, contestant, environment), seed, tick)


def _make(name: str, contestant: Contestant, environment: str, trial: Trial) -> Sampler:
    """The contestant's sampler, of the size that the trial asks for."""
    try:
        sampler = make_sampler(name, contestant, trial)
    except SortitionError as error:
        error.add_note(f"in environment {environment}")
        raise
    if sampler.num_clients != len(trial.client_weights):
        raise ConfigurationError(
            f"samplers: {name!r} must make a sampler of {len(trial.client_weights)} clients "
            f"(trial.common() has them), got one of {sampler.num_clients}"
        )
    if sampler.cohort_size != trial.cohort_size:
        raise ConfigurationError(
            f"samplers: {name!r} must make a sampler of cohort_size {trial.cohort_size} (trial.common() has "
            f"it), got one of {sampler.cohort_size}"
        )
    return sampler


def _score(
    environment: str,
    name: str,
    runs: Mapping[str, Sequence[Variance]],
    closed_loop: ClosedLoop | None = None,
) -> Score:
    design = runs[name][0].design
    ratio, early = _means(runs[name])
    uniform_ratio, uniform_early = math.nan, math.nan
    if (against := BASELINE if design == runs[BASELINE][0].design else _uniform_by(design)) in runs:
        uniform_ratio, uniform_early = _means(runs[against])
    return Score(
        environment,
        name,
        design,
        ratio,
        early,
        ratio / uniform_ratio,
        early / uniform_early,
        tuple(runs[name]),
        closed_loop,
    )


def _means(runs: Sequence[Variance]) -> tuple[float, float]:
    return float(np.mean([run.mean for run in runs])), float(np.mean([run.early for run in runs]))
