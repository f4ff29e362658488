r"""Pilot trainings of a problem: every choice at the step that suits it, and the rounds that each takes.

*Steps.* From the step of today that of uniform sampling is doubled or halved as long as that lowers its loss
after ``TARGET_SHARE`` of the rounds, and then tried times and over :math:`\sqrt 2`. That loss is the target.
For every other choice the same is done, from there on, for the fewest rounds to the target. This takes
``SEARCHES`` trainings a step.

*Rounds.* Then each choice is trained ``REPEATS`` times at its step, with other draws. Losses are means over
these, of logarithms if all are positive, fitted by the nearest falling curve. A choice that does not reach
the target counts as if it did in the last round. The standard error is that of a jackknife over the draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

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
FINER = math.sqrt(2.0)
SAMPLERS = {UNIFORM: "uniform", PROPORTIONAL: "proportional"}
"""All others are the default sampler."""


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
    trainings = Trainings(problem, cohort_size, num_rounds, seed, tick)
    with np.errstate(all="ignore"):
        steps = trainings.best_steps(choices, step_size, range(SEARCHES))
        if not trainings.final_loss(steps[UNIFORM], range(SEARCHES + REPEATS)) < trainings.first_loss:
            return {}
        return trainings.pilots(steps, range(SEARCHES, SEARCHES + REPEATS))


class Trainings:
    """Trainings of a problem by choice, step and draw, each done once, when it is asked for."""

    def __init__(
        self,
        problem: Problem,
        cohort_size: int,
        num_rounds: int,
        seed: int,
        tick: Tick = lambda: None,
    ) -> None:
        self._problem, self._cohort_size, self._num_rounds = problem, cohort_size, num_rounds
        self._seed, self._tick = seed, tick
        self._apart = max(1, num_rounds // POINTS)
        self._points = num_rounds // self._apart
        self.first_loss = float(problem.loss(problem.initial_model()))
        """That of the initial model."""
        self._known: dict[tuple[str, float, int], FloatArray] = {}
        self._positive = self.first_loss > 0.0

    def best_steps(self, choices: Sequence[str], start: float, draws: Sequence[int]) -> dict[str, float]:
        """Of each choice, the step with the fewest rounds; of uniform sampling, with the least loss."""

        def loss(step: float) -> tuple[float, float]:
            return self._curve(UNIFORM, step, draws).at(TARGET_SHARE * self._points), 0.0

        for _ in range(MOST_HALVINGS):
            if math.isfinite(loss(start)[0]):
                break
            start /= 2.0
        steps = {UNIFORM: _finer(loss, _climb(loss, start))}

        def rounds(choice: str, step: float) -> tuple[float, float]:
            curve = self._curve(choice, step, draws)
            return curve.rounds_to(loss(steps[UNIFORM])[0]) or math.inf, curve.at(self._points)

        for choice in choices:
            if choice != UNIFORM:
                needed = partial(rounds, choice)
                steps[choice] = _finer(needed, _climb(needed, steps[UNIFORM]))
        return steps

    def final_loss(self, step: float, draws: Sequence[int]) -> float:
        """Uniform sampling's, mean over ``draws``; inf if one diverges."""
        return float(np.mean([self._losses(UNIFORM, step, draw)[-1] for draw in draws]))

    def pilots(self, steps: dict[str, float], draws: Sequence[int]) -> dict[str, Pilot]:
        """The rounds of each choice at its step."""
        logs, left_out = self.log_rounds(steps, draws)
        base = list(steps).index(UNIFORM)
        errors = standard_errors(left_out - left_out[:, [base]])
        return {
            choice: Pilot(
                step_size=step,
                rounds=float(np.exp(logs[place])),
                ratio=float(np.exp(logs[place] - logs[base])),
                standard_error=float(errors[place]),
            )
            for place, (choice, step) in enumerate(steps.items())
        }

    def log_rounds(self, steps: dict[str, float], draws: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the rounds by choice; and in each row the same without one of the draws."""
        everybody = list(draws)
        for choice, step in steps.items():
            self._curve(choice, step, everybody)  # then it is known whether all losses are positive
        fewer = [[*everybody[:i], *everybody[i + 1 :]] for i in range(len(everybody))]
        return self._log_rounds(steps, everybody), np.array([self._log_rounds(steps, d) for d in fewer])

    def _log_rounds(self, steps: dict[str, float], draws: Sequence[int]) -> FloatArray:
        target = self._curve(UNIFORM, steps[UNIFORM], draws).at(TARGET_SHARE * self._points)
        found = [self._curve(choice, step, draws).rounds_to(target) for choice, step in steps.items()]
        return np.log([self._apart * (self._points if each is None else each) for each in found])

    def _curve(self, choice: str, step: float, draws: Sequence[int]) -> FallingCurve:
        losses = np.array([self._losses(choice, step, draw) for draw in draws])
        return FallingCurve(np.mean(np.log(losses) if self._positive else losses, axis=0))

    def _losses(self, choice: str, step: float, draw: int) -> FloatArray:
        """The losses of one training; inf once it diverges."""
        known = self._known.get((choice, step, draw))
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
            sampler, self._problem, FedSGD(step, memory), self._num_rounds, measure_every=0
        ):
            self._tick()
            place, between = divmod(done.index + 1, self._apart)
            if between or place > self._points:
                continue
            loss = float(self._problem.loss(done.state))
            if not loss - self.first_loss <= DIVERGED * max(abs(self.first_loss), 1.0):
                break
            losses[place - 1] = loss
        self._positive = self._positive and bool(np.all(losses > 0.0))
        self._known[choice, step, draw] = losses
        return losses


def standard_errors(left_out: FloatArray) -> FloatArray:
    """Of each column: the jackknife's, from rows that each leave out one of the draws."""
    count = len(left_out)
    squares = np.sum((left_out - left_out.mean(axis=0)) ** 2, axis=0)
    return np.asarray(np.sqrt((count - 1) / count * squares))


def _climb(value: Callable[[float], tuple[float, float]], start: float) -> float:
    """The step with the least value among ``start`` times powers of two, downhill from ``start``."""
    best = start
    for factor in (2.0, 0.5):
        while value(best * factor) < value(best):
            best *= factor
        if best != start:
            break
    return best


def _finer(value: Callable[[float], tuple[float, float]], step: float) -> float:
    return min((step, step * FINER, step / FINER), key=value)
