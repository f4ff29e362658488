"""Every sampler against every environment: who is run where, and what comes out."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sortition.core.errors import ConfigurationError
from sortition.core.protocols import Sampler
from sortition.core.validation import whole_number
from sortition.lab.arena.closed import ClosedLoop, judge, train
from sortition.lab.arena.replay import Variance, replay, summarise
from sortition.lab.arena.trace import Environment, Split, seeds_of
from sortition.lab.compare import BASELINE
from sortition.lab.contestants import CONTESTANTS, Contestant, Trial, uniform
from sortition.lab.parallel import Progress, Tick, run_tasks
from sortition.lab.trajectory import Trajectory


@dataclass(frozen=True)
class Score:
    """One sampler in one environment, averaged over the seeds."""

    environment: str
    sampler: str
    ratio: float
    """Variance over the optimum's, mean over rounds and seeds; 1 is perfect."""
    early_ratio: float
    """The same over the first tenth of the rounds."""
    to_uniform: float
    """``ratio`` over that of uniform sampling."""
    early_to_uniform: float
    """``early_ratio`` over that of uniform sampling."""
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


def find_contestant(name: str) -> Contestant:
    """A contestant by name, or ``package.module:factory``: a callable that makes a sampler from a Trial."""
    if name in CONTESTANTS:
        return CONTESTANTS[name]
    module, colon, factory = name.partition(":")
    if not colon:
        raise ConfigurationError(
            f"samplers must be out of {', '.join(CONTESTANTS)}, or package.module:factory, got {name!r}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Contestant = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: :x and .a:b
        raise ConfigurationError(f"samplers: {name!r} can't be found: {error}") from error
    return found


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

    The first ``skip`` seeds of the split are left out: those that somebody has looked at. ``progress`` is
    called with the rounds done so far. A trace is made once; its seed is also the sampler's.
    """
    everybody, numbers = _checked(contestants, environments, split, seeds, skip, jobs)
    tasks = [
        partial(_replay_all, everybody, environment, seed) for environment in environments for seed in numbers
    ]
    outcomes = run_tasks(tasks, jobs, progress)
    scores = []
    for place, environment in enumerate(environments):
        of_seeds = outcomes[place * len(numbers) : (place + 1) * len(numbers)]
        runs = {name: tuple(outcome[name] for outcome in of_seeds) for name in everybody}
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
    """Let every contestant drive the training, in those of the environments where there is training."""
    trained = [environment for environment in environments if environment.training is not None]
    everybody, numbers = _checked(contestants, trained, split, seeds, skip, jobs)
    tasks = [
        partial(_train_one, name, contestant, environment, seed)
        for environment in trained
        for name, contestant in everybody.items()
        for seed in numbers
    ]
    outcomes = iter(run_tasks(tasks, jobs, progress))
    scores = []
    for environment in trained:
        trajectories = {name: [next(outcomes) for _ in numbers] for name in everybody}
        verdicts = judge(trajectories)
        runs = {
            name: tuple(summarise(trajectory.variance_ratios) for trajectory in of_name)
            for name, of_name in trajectories.items()
        }
        scores += [_score(environment.name, name, runs, verdicts[name]) for name in everybody]
    return Arena("closed", split, tuple(numbers), tuple(trained), tuple(everybody), tuple(scores))


def _checked(
    contestants: Mapping[str, Contestant],
    environments: Sequence[Environment],
    split: Split,
    seeds: int,
    skip: int,
    jobs: int,
) -> tuple[dict[str, Contestant], list[int]]:
    whole_number("jobs", jobs, least=1)
    whole_number("skip", skip, least=0)
    numbers = seeds_of(split, whole_number("seeds", seeds, least=1), skip)
    for name, given in (("contestants", contestants), ("environments", environments)):
        if not given:
            raise ConfigurationError(f"{name} must name at least one, got none")
    everybody = dict(contestants) if BASELINE in contestants else {BASELINE: uniform, **contestants}
    return everybody, numbers


def _replay_all(
    contestants: Mapping[str, Contestant], environment: Environment, seed: int, tick: Tick
) -> dict[str, Variance]:
    trace = environment.trace(seed)
    outcome = {}
    for name, contestant in contestants.items():
        sampler = _make(name, contestant, environment, trace.trial(seed))
        outcome[name] = summarise(replay(sampler, trace, tick))
    return outcome


def _train_one(
    name: str, contestant: Contestant, environment: Environment, seed: int, tick: Tick
) -> Trajectory:
    training = environment.training
    assert training is not None, "filtered by the caller"
    return train(partial(_make, name, contestant, environment), training, seed, tick)


def _make(name: str, contestant: Contestant, environment: Environment, trial: Trial) -> Sampler:
    """The contestant's sampler; what its factory raises, which may be anybody's, is said in one line."""
    try:
        sampler = contestant(trial)
    except Exception as error:
        said = " ".join(str(error).split())
        raise ConfigurationError(
            f"samplers: {name!r} raised {type(error).__name__}: {said} in environment {environment.name}"
        ) from error
    if not isinstance(sampler, Sampler):
        raise ConfigurationError(f"samplers: {name!r} must make a Sampler, got {type(sampler).__name__}")
    return sampler


def _score(
    environment: str,
    name: str,
    runs: Mapping[str, Sequence[Variance]],
    closed_loop: ClosedLoop | None = None,
) -> Score:
    ratio, early = _means(runs[name])
    uniform_ratio, uniform_early = _means(runs[BASELINE])
    return Score(
        environment,
        name,
        ratio,
        early,
        ratio / uniform_ratio,
        early / uniform_early,
        tuple(runs[name]),
        closed_loop,
    )


def _means(runs: Sequence[Variance]) -> tuple[float, float]:
    return float(np.mean([run.mean for run in runs])), float(np.mean([run.early for run in runs]))
