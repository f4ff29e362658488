r"""Pilot trainings of a problem: every choice at the step that suits it, and the rounds that each takes.

*Steps.* From the step of today that of uniform sampling is doubled or halved as long as that lowers its loss
after ``TARGET_SHARE`` of the rounds, with ``SEARCHES`` trainings a step; then it is multiplied or divided by
:math:`\sqrt 2` as long as that helps, with ``REPEATS`` trainings a step. That loss is the target. For every
other choice the same is done, from there on, for the fewest rounds to the target.

*Rounds.* Those at the best of the last three steps. Losses are means over the trainings, of logarithms if all
are positive, fitted by the nearest falling curve. The standard error is that of a jackknife over the draws:
without each of them in turn, all steps, the target and the rounds are found again. A choice that misses the
target has no rounds: they are more than all. Where it only does without one of the draws, that counts as all
rounds in the jackknife, and the rounds have no upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from sortition import Memory, Sampler
from sortition.core.types import FloatArray
from sortition.lab.algorithms import FedSGD
from sortition.lab.arena.tournament import TARGET_SHARE
from sortition.lab.compare import FallingCurve
from sortition.lab.contestants import CONTESTANTS, Trial
from sortition.lab.diagnosis.findings import MEMORY, PROPORTIONAL, UNIFORM, Pilot
from sortition.lab.parallel import Tick
from sortition.lab.training import Problem, training_rounds

SEARCHES, REPEATS = 3, 8
POINTS = 40
"""Rounds in which the loss is computed, at most about."""
DIVERGED = 1e6
"""A loss of so many times the first is a divergence."""
MOST_HALVINGS = 30
"""Of a first step at which uniform sampling diverges."""
SAMPLERS = {UNIFORM: "uniform", PROPORTIONAL: "proportional"}
"""All others are the default sampler."""
Steps: TypeAlias = dict[str, tuple[int, int, int]]
"""By choice, places on the grid of steps: the best, between those on both sides."""


def train_pilots(
    problem: Problem,
    choices: Sequence[str],
    cohort_size: int,
    *,
    step_size: float,
    num_rounds: int,
    seed: int = 0,
    tick: Tick = lambda: None,
) -> dict[str, Pilot]:
    """Find each choice's step, and its rounds over those of uniform sampling.

    Nothing, if training with uniform sampling does not lower the loss at any step, or diverges with one of
    the draws at the best: then there is no target.
    """
    trainings = Trainings(problem, cohort_size, num_rounds, step_size, seed, tick)
    with np.errstate(all="ignore"):
        return trainings.pilots(choices, range(REPEATS))


class Trainings:
    """Trainings of a problem by choice, step and draw, each done once, when it is asked for."""

    def __init__(
        self,
        problem: Problem,
        cohort_size: int,
        num_rounds: int,
        step_size: float,
        seed: int,
        tick: Tick = lambda: None,
    ) -> None:
        self._problem, self._cohort_size, self._num_rounds = problem, cohort_size, num_rounds
        self._start, self._seed, self._tick = step_size, seed, tick
        self._apart = max(1, num_rounds // POINTS)
        self._points = num_rounds // self._apart
        self.first_loss = float(problem.loss(problem.initial_model()))
        """That of the initial model."""
        self._known: dict[tuple[str, int, int], FloatArray] = {}
        self._positive = self.first_loss > 0.0

    def step(self, place: int) -> float:
        """The step at a place of the grid; 0 is that of today."""
        return float(self._start * 2.0 ** (place / 2))

    def best_steps(self, choices: Sequence[str], draws: Sequence[int]) -> Steps:
        """Of each choice, the places of the best step and of those on both sides."""
        start, steps, few = 0, Steps(), draws[:SEARCHES]
        for _ in range(MOST_HALVINGS):
            if math.isfinite(self._cost(UNIFORM, few, math.inf, start)[0]):
                break
            start -= 2
        for choice in (UNIFORM, *(each for each in choices if each != UNIFORM)):
            rough = _climb(partial(self._cost, choice, few, self._target(steps, few)), start, 2)
            best = _climb(partial(self._cost, choice, draws, self._target(steps, draws)), rough, 1)
            steps[choice] = best - 1, best, best + 1
            start = steps[UNIFORM][1]
        return steps

    def pilots(self, choices: Sequence[str], draws: Sequence[int]) -> dict[str, Pilot]:
        """The rounds of each choice; nothing, if uniform sampling does not lower the loss with each draw."""
        steps = self.best_steps(choices, draws)
        uniform = [self._losses(UNIFORM, steps[UNIFORM][1], draw)[-1] for draw in draws]
        if not float(np.mean(uniform)) < self.first_loss:
            return {}
        logs, left_out = self.log_rounds(steps, draws), self.left_out(steps, draws)
        most, base = math.log(self._apart * self._points), logs[UNIFORM]
        errors = standard_errors(
            np.minimum(left_out, most) - np.minimum(left_out, most)[:, [list(steps).index(UNIFORM)]]
        )
        return {
            choice: Pilot(
                step_size=self.step(self._best(choice, places, draws, self._target(steps, draws))),
                trainings=len(draws),
                rounds=math.exp(logs[choice]),
                ratio=math.exp(logs[choice] - base),
                standard_error=float(errors[column]),
                bounded=bool(np.all(np.isfinite(left_out[:, column]))),
            )
            if math.isfinite(logs[choice])
            else Pilot(
                step_size=self.step(places[1]),
                trainings=len(draws),
                standard_error=float(errors[column]),
                more_than=math.exp(most - base),
            )
            for column, (choice, places) in enumerate(steps.items())
        }

    def log_rounds(self, steps: Steps, draws: Sequence[int]) -> dict[str, float]:
        """By choice, the logarithm of the rounds at its best step, found with these draws; inf if missed."""
        target = self._target(steps, draws)
        found = {}
        for choice, places in steps.items():
            best = self._best(choice, places, draws, target)
            rounds = self._curve(choice, best, draws).rounds_to(target)
            found[choice] = math.inf if rounds is None else math.log(self._apart * rounds)
        return found

    def left_out(self, steps: Steps, draws: Sequence[int]) -> FloatArray:
        """The same without each of the draws in turn, a row each."""
        fewer = [[*draws[:i], *draws[i + 1 :]] for i in range(len(draws))]
        return np.array([list(self.log_rounds(steps, some).values()) for some in fewer])

    def _target(self, steps: Steps, draws: Sequence[int]) -> float:
        """Uniform sampling's loss after ``TARGET_SHARE`` of the rounds; inf if it has no steps yet."""
        return min(
            (self._cost(UNIFORM, draws, math.inf, each)[0] for each in steps.get(UNIFORM, ())),
            default=math.inf,
        )

    def _best(self, choice: str, places: Sequence[int], draws: Sequence[int], target: float) -> int:
        return min(places, key=partial(self._cost, choice, draws, target))

    def _cost(self, choice: str, draws: Sequence[int], target: float, place: int) -> tuple[float, float]:
        """The rounds to the target, and the last loss; of uniform sampling the loss that is the target."""
        curve = self._curve(choice, place, draws)
        if choice == UNIFORM:
            return curve.at(TARGET_SHARE * self._points), 0.0
        return curve.rounds_to(target) or math.inf, curve.at(self._points)

    def _curve(self, choice: str, place: int, draws: Sequence[int]) -> FallingCurve:
        losses = np.array([self._losses(choice, place, draw) for draw in draws])
        return FallingCurve(np.mean(np.log(losses) if self._positive else losses, axis=0))

    def _losses(self, choice: str, place: int, draw: int) -> FloatArray:
        """The losses of one training; inf once it diverges."""
        known = self._known.get((choice, place, draw))
        if known is not None:
            return known
        weights = np.asarray(self._problem.client_weights, dtype=float)
        seed = int(np.random.SeedSequence([self._seed, draw]).generate_state(1)[0])
        trial = Trial(weights, self._cohort_size, 1, 0.0, "fixed_size", seed)
        sampler: Sampler = CONTESTANTS[SAMPLERS.get(choice, "empirical-bayes")](trial)
        parameters = self._problem.initial_model().size
        memory = Memory(num_parameters=parameters, num_clients=len(weights)) if choice == MEMORY else None
        losses = np.full(self._points, np.inf)
        for done in training_rounds(
            sampler, self._problem, FedSGD(self.step(place), memory), self._num_rounds, measure_every=0
        ):
            self._tick()
            point, between = divmod(done.index + 1, self._apart)
            if between or point > self._points:
                continue
            loss = float(self._problem.loss(done.state))
            if not loss - self.first_loss <= DIVERGED * max(abs(self.first_loss), 1.0):
                break
            losses[point - 1] = loss
        self._positive = self._positive and bool(np.all(losses > 0.0))
        self._known[choice, place, draw] = losses
        return losses


def standard_errors(left_out: FloatArray) -> FloatArray:
    """Of each column: the jackknife's, from rows that each leave out one of the draws."""
    count = len(left_out)
    squares = np.sum((left_out - left_out.mean(axis=0)) ** 2, axis=0)
    return np.asarray(np.sqrt((count - 1) / count * squares))


def _climb(cost: Callable[[int], tuple[float, float]], start: int, stride: int) -> int:
    """The place with the least cost, downhill from ``start``."""
    best = start
    for step in (stride, -stride):
        while cost(best + step) < cost(best):
            best += step
        if best != start:
            break
    return best
