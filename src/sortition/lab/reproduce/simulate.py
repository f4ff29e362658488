"""One run: the rounds, and what the figures show of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sortition.core.theory import adaptive_regret_bound, best_above_floor, total_variation
from sortition.core.types import FloatArray
from sortition.lab.algorithms.scaffold import Scaffold, ScaffoldState
from sortition.lab.problems.images import ImageFederation
from sortition.lab.problems.least_squares import LeastSquares
from sortition.lab.reproduce.authors import authors_image_loss
from sortition.lab.reproduce.build import Start, make_algorithm, make_problem, make_sampler
from sortition.lab.reproduce.replay import replay
from sortition.lab.reproduce.settings import REPLAYED, RunSettings
from sortition.samplers.oracles import OptimalSampler

DIVERGED = 1e100
"""A loss beyond this one, or none at all, ends a run: from there on it counts as infinite."""
OTHER_BATCHES = ("uniform", "optimal")
"""Samplers whose regret the authors measure on mini-batches that were not stepped on, or not at all."""


def simulate(
    settings: RunSettings, data: Path | None = None, tick: Callable[[], None] = lambda: None
) -> dict[str, FloatArray]:
    r"""Run, and return curves over the ``rounds`` at which they were evaluated.

    ``loss`` is the training loss after a round's step, ``accuracy`` that on validation images. ``regret``
    is cumulated: in the text's variant :math:`\sum_t l_t(p^t) - l_t(p^t_\star)` with the round's own updates,
    in the authors' :math:`\sum_t \sum_m a_m/p_m - (\sum_m \sqrt{a_m})^2`, without 1/K, at the model after the
    step, on the mini-batches of that step (uniform sampling: on others). Of Adaptive-OSMD by the text there
    is also ``floor_regret``, that against the best comparators in :math:`\mathcal A`, with their
    ``variation`` and the ``bound`` of Theorem 8.
    """
    if settings.problem == REPLAYED:
        return replay(settings, tick)
    problem = make_problem(settings, data)
    state: Any = problem.initial_model()
    algorithm = make_algorithm(settings)
    everybody = np.arange(problem.num_clients)
    measured, authors = settings.regret_is_measured(), settings.variant == "authors"
    feedback = np.zeros((settings.num_rounds, problem.num_clients)) if measured else np.zeros((0, 0))
    probabilities = np.zeros_like(feedback)

    norms = problem.all_norms(state, 0)
    start = Start(
        settings, problem, (problem.client_weights * norms) ** 2, problem.batch_losses(state, everybody, 0)
    )
    sampler = make_sampler(start)
    if isinstance(algorithm, Scaffold):
        assert isinstance(problem, LeastSquares)
        state = ScaffoldState.start(problem)
        norms = _all_norms(algorithm, problem, state, 0)
    model: FloatArray = problem.initial_model()

    evaluated: list[tuple[int, float, float]] = []
    for round_index in range(settings.num_rounds):
        if isinstance(sampler, OptimalSampler):
            sampler.reveal(norms)
        if measured:
            feedback[round_index] = norms  # in the authors' variant replaced after the step
            probabilities[round_index] = sampler.probabilities()
        cohort = sampler.draw()
        state, cohort_norms = algorithm(state, cohort, problem, round_index)
        sampler.observe(cohort, cohort_norms)
        model = state.model if isinstance(state, ScaffoldState) else state
        done = round_index + 1
        if done % settings.evaluate_every == 0 or done == settings.num_rounds:
            evaluated.append((done, *_evaluate(settings, problem, model)))
            if not evaluated[-1][1] < DIVERGED:
                break
        if measured:
            again = authors and settings.sampler not in OTHER_BATCHES
            norms = _all_norms(algorithm, problem, state, round_index if again else done)
            if authors:
                feedback[round_index] = norms
        tick()

    rounds, losses, accuracies = (np.array(column, dtype=float) for column in zip(*evaluated, strict=True))
    if losses[-1] >= DIVERGED or np.isnan(losses[-1]):
        return _diverged(settings, rounds, losses, measured, tick)
    curves = {"rounds": rounds, "loss": losses}
    if measured:
        feedback = (problem.client_weights * feedback) ** 2
        curves |= _regret(settings, start.bound, feedback, probabilities)
        curves["regret"] = curves["regret"][rounds.astype(int) - 1]
    else:
        curves["accuracy"] = accuracies
    return curves


def _all_norms(algorithm: Any, problem: Any, state: Any, round_index: int) -> FloatArray:
    """What every client's norm would be in this round, drawn or not."""
    if isinstance(state, ScaffoldState):
        updates = algorithm.updates(state, np.arange(problem.num_clients), problem, round_index)
        return np.asarray(np.linalg.norm(updates, axis=1))
    return np.asarray(problem.all_norms(state, round_index))


def _evaluate(
    settings: RunSettings, problem: LeastSquares | ImageFederation, model: FloatArray
) -> tuple[float, float]:
    """The loss, and the accuracy where there is one."""
    if isinstance(problem, LeastSquares):
        return problem.loss(model), 0.0
    authors = settings.variant == "authors"
    loss = authors_image_loss(problem, model) if authors else problem.loss(model)
    return loss, problem.accuracy(model)


def _regret(
    settings: RunSettings, bound: float, feedback: FloatArray, probabilities: FloatArray
) -> dict[str, FloatArray]:
    if settings.variant == "authors":
        gaps = np.sum(feedback / probabilities, axis=1) - np.sqrt(feedback).sum(axis=1) ** 2
        return {"regret": np.cumsum(gaps)}
    size, seen = settings.cohort_size, feedback > 0.0
    losses = np.divide(feedback, probabilities, out=np.zeros_like(feedback), where=seen).sum(axis=1) / size
    curves = {"regret": np.cumsum(losses - np.sqrt(feedback).sum(axis=1) ** 2 / size)}
    if settings.sampler == "adaptive-osmd" and settings.design == "with_replacement":
        best = best_above_floor(feedback, settings.exploration)
        variation = total_variation(best)
        highest = max(bound, float(feedback.max()))
        theorem = adaptive_regret_bound(
            feedback.shape[1], size, settings.num_rounds, settings.exploration, highest, variation
        )
        curves["floor_regret"] = np.array([np.sum(losses - np.sum(feedback / best, axis=1) / size)])
        curves["variation"], curves["bound"] = np.array([variation]), np.array([theorem])
    return curves


def _diverged(
    settings: RunSettings, rounds: FloatArray, losses: FloatArray, measured: bool, tick: Callable[[], None]
) -> dict[str, FloatArray]:
    """The curves of a run that left the numbers: infinite from there on."""
    every = np.arange(settings.evaluate_every, settings.num_rounds + 1, settings.evaluate_every, dtype=float)
    whole = np.full(len(every), np.inf)
    whole[: len(losses) - 1] = losses[:-1]
    for _ in range(settings.num_rounds - int(rounds[-1]) + 1):
        tick()
    return {"rounds": every, "loss": whole, "regret" if measured else "accuracy": np.full(len(every), np.inf)}
