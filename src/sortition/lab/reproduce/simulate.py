r"""One run of a figure: its rounds, and the curves that the figure shows.

The published runs of Figures 1, 2, 3 and 7 can also be replayed with the authors' random numbers, drawn in
the authors' order. With other random numbers ten runs scatter around the published means; with theirs the
means agree to the last published digit, if everything that decides a run is understood. Samplers, data and
steps are those of the authors' variant; only the random numbers differ. One stream of numpy's legacy
generator, seeded anew for each :math:`\sigma` and each of three programs, serves all runs of the program:
the repeats of five samplers in turn; all repeats of one alpha after another, after a pass over all clients
whose result is not used; the repeats of draws without replacement. A round takes from it a mini-batch for
each client, then the draws of clients. A sampler that learns takes a mini-batch for each client before its
first round, for its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sortition import Cohort, OptimalSampler
from sortition.core.designs import weigh_with_replacement, weigh_without_replacement
from sortition.core.theory import adaptive_regret_bound, best_above_floor, total_variation
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import log_feedback
from sortition.lab.algorithms import FedSGD, ScaffoldState
from sortition.lab.problems.least_squares import AUTHORS_SEED, LeastSquares, authors_heterogeneous
from sortition.lab.problems.softmax import SoftmaxFederation
from sortition.lab.reproduce.figures import REPLAYED, RunSettings
from sortition.lab.reproduce.published import EXPLORATIONS
from sortition.lab.reproduce.variants import (
    Start,
    authors_image_loss,
    make_algorithm,
    make_problem,
    make_sampler,
)
from sortition.lab.training import Problem, training_rounds

DIVERGED = 1e100
"""A loss beyond this one, or none at all, ends a run: from there on it counts as infinite."""
OTHER_BATCHES = ("uniform", "optimal")
"""Samplers whose regret the authors measure on mini-batches that were not stepped on, or not at all."""
SAMPLERS = ("uniform", "optimal", "adaptive-osmd", "mabs", "vrb")
"""Replayed samplers of Figures 1 and 2, in the order in which they take from the stream."""
BATCH_SIZE = 10
"""Of the replayed runs."""


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
        return replay_published(settings, tick)
    problem = make_problem(settings, data)
    algorithm = make_algorithm(settings)
    initial, everybody = problem.initial_model(), np.arange(problem.num_clients)
    measured, authors = settings.regret_is_measured(), settings.variant == "authors"
    norms = np.zeros((settings.num_rounds, problem.num_clients)) if measured else np.zeros((0, 0))
    probabilities = np.zeros_like(norms)
    start = Start(
        settings,
        problem,
        (problem.client_weights * problem.all_norms(initial, 0)) ** 2,
        problem.batch_losses(initial, everybody, 0),
    )
    evaluated: list[tuple[int, float, float]] = []
    for done in training_rounds(
        make_sampler(start), problem, algorithm, settings.num_rounds, measure_every=int(measured)
    ):
        number = done.index + 1
        if number % settings.evaluate_every == 0 or number == settings.num_rounds:
            model = done.state.model if isinstance(done.state, ScaffoldState) else done.state
            evaluated.append((number, *_evaluate(settings, problem, model)))
            if not evaluated[-1][1] < DIVERGED:
                break
        if measured:
            probabilities[done.index] = done.probabilities
            norms[done.index] = done.norms
            if authors:
                same_batches = settings.sampler not in OTHER_BATCHES
                norms[done.index] = algorithm.all_norms(
                    done.state, problem, done.index if same_batches else number
                )
        tick()

    rounds, losses, accuracies = (np.array(column, dtype=float) for column in zip(*evaluated, strict=True))
    if losses[-1] >= DIVERGED or np.isnan(losses[-1]):
        return _diverged(settings, rounds, losses, measured, tick)
    curves = {"rounds": rounds, "loss": losses}
    if measured:
        curves |= _regret(settings, start.bound, (problem.client_weights * norms) ** 2, probabilities)
        curves["regret"] = curves["regret"][rounds.astype(int) - 1]
    else:
        curves["accuracy"] = accuracies
    return curves


def _evaluate(
    settings: RunSettings, problem: LeastSquares | SoftmaxFederation, model: FloatArray
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
    """The curves of a run that diverged: infinite from there on."""
    every = np.arange(settings.evaluate_every, settings.num_rounds + 1, settings.evaluate_every, dtype=float)
    whole = np.full(len(every), np.inf)
    whole[: len(losses) - 1] = losses[:-1]
    for _ in range(settings.num_rounds - int(rounds[-1]) + 1):
        tick()
    return {"rounds": every, "loss": whole, "regret" if measured else "accuracy": np.full(len(every), np.inf)}


# The published runs, with the authors' random numbers -----------------------------------------------------


class DealtLeastSquares(LeastSquares):
    """Least squares whose mini-batches come from the authors' stream, anew whenever the round changes."""

    def __init__(self, features: FloatArray, targets: FloatArray, stream: np.random.RandomState) -> None:
        super().__init__(features, targets, batch_size=BATCH_SIZE)
        self._stream = stream
        self.begin_run()

    def begin_run(self) -> None:
        """Deal again, whatever the next round."""
        self._dealt_for: int | None = None

    def mini_batch(self) -> IntArray:
        """The rows of one client's mini-batch, without repetition."""
        return np.asarray(self._stream.permutation(self.samples)[:BATCH_SIZE])

    def gradient(self, model: FloatArray, client: int, rows: IntArray) -> FloatArray:
        """The update of one client on these of its rows."""
        features, targets = self.features[client, rows], self.targets[client, rows]
        return np.asarray((features @ model - targets) @ features / len(rows))

    def _round(self, round_index: int) -> FloatArray:
        if self._dealt_for != round_index:
            rows = np.array([self.mini_batch() for _ in range(self.num_clients)], dtype=np.int64)
            self._dealt: FloatArray = (rows + 0.5) / self.samples  # the uniform numbers that stand for them
            self._dealt_for = round_index
        return self._dealt


class StreamSampler:
    """A sampler whose draws come from the authors' stream."""

    def __init__(self, sampler: Any, client_weights: FloatArray, stream: np.random.RandomState) -> None:
        self.num_clients, self.cohort_size = sampler.num_clients, sampler.cohort_size
        self.draws: IntArray = np.zeros(0, dtype=np.int64)
        """The last draws in their order, a client as often as it was drawn."""
        self._sampler, self._client_weights, self._stream = sampler, client_weights, stream
        self._round_index = 0

    def probabilities(self) -> FloatArray:
        """Those of the sampler."""
        return np.asarray(self._sampler.probabilities())

    def draw(self) -> Cohort:
        """The next cohort, with replacement, or one after another without."""
        p = self.probabilities()
        if self._sampler.design == "without_replacement":
            left = p.copy()
            for place in range(self.cohort_size):
                client = self._stream.choice(self.num_clients, size=1, p=left / left.sum())[0]
                self.draws = np.append(self.draws[:place], client)
                left[client] = 0.0
            drawn = weigh_without_replacement(self.draws, p[self.draws], self.cohort_size)
        else:
            self.draws = self._stream.choice(self.num_clients, size=self.cohort_size, p=p)
            drawn = weigh_with_replacement(self.draws, p[self.draws], self.cohort_size)
        cohort = Cohort(self._round_index, self.cohort_size, *drawn)
        self._round_index += 1
        return cohort

    def observe(self, cohort: Cohort, norms: FloatArray) -> None:
        """Let the sampler learn."""
        self._sampler.learn(cohort, log_feedback(self._client_weights[cohort.clients], norms))


class StreamOracle(StreamSampler):
    """Optimal sampling whose draws come from the authors' stream."""

    def reveal(self, norms: FloatArray) -> None:
        """Show the norms of the round to come."""
        self._sampler.reveal(norms)


@dataclass(frozen=True)
class UniformSGD(FedSGD):
    """The authors' uniform sampling: its steps use mini-batches of their own, one for each draw."""

    sampler: StreamSampler = field(kw_only=True)

    def __call__(
        self, state: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model; norms of one, from which uniform sampling learns nothing."""
        assert isinstance(problem, DealtLeastSquares)
        total = np.zeros_like(state)
        for client in self.sampler.draws.tolist():
            total += problem.gradient(state, client, problem.mini_batch())
        return state - self.step_size * (total / len(self.sampler.draws)), np.ones(len(cohort))


def replay_published(settings: RunSettings, tick: Callable[[], None] = lambda: None) -> dict[str, FloatArray]:
    """All repeats of all lines of a program: ``loss`` and cumulated ``regret``, (repeats, lines, rounds)."""
    stream = np.random.RandomState(AUTHORS_SEED)
    problem = DealtLeastSquares(*authors_heterogeneous(settings.spread), stream)
    run = replace(settings, problem="heterogeneous", sampler="adaptive-osmd")
    repeats = range(settings.repeats)
    if settings.sampler == "alphas":
        lines = [replace(run, exploration=exploration) for exploration in EXPLORATIONS]
        order = [(repeat, place) for place in range(len(lines)) for repeat in repeats]
        for _ in range(problem.num_clients):
            problem.mini_batch()  # for a bound that is not used
    else:
        lines = [replace(run, design="without_replacement")]
        if settings.sampler == "all":
            lines = [replace(run, sampler=name) for name in SAMPLERS]
        order = [(repeat, place) for repeat in repeats for place in range(len(lines))]
    shape = (settings.repeats, len(lines), settings.num_rounds)
    losses, gaps = np.empty(shape), np.zeros(shape)
    for repeat, place in order:
        _replay_one(lines[place], problem, stream, tick, losses[repeat, place], gaps[repeat, place])
    rounds = np.arange(1.0, settings.num_rounds + 1.0)
    return {"rounds": rounds, "loss": losses, "regret": np.cumsum(gaps, axis=2)}


def _replay_one(
    settings: RunSettings,
    problem: DealtLeastSquares,
    stream: np.random.RandomState,
    tick: Callable[[], None],
    losses: FloatArray,
    gaps: FloatArray,
) -> None:
    """One run; ``losses`` and ``gaps``, the regret of each round, are filled in."""
    weights, everybody = problem.client_weights, np.arange(problem.num_clients)
    problem.begin_run()
    feedback = first_losses = np.zeros(problem.num_clients)
    if settings.sampler not in OTHER_BATCHES:  # the others have no bound to know
        model = problem.initial_model()
        feedback = (weights * problem.all_norms(model, -1)) ** 2
        first_losses = problem.batch_losses(model, everybody, -1)
    built = make_sampler(Start(settings, problem, feedback, first_losses))
    kind = StreamOracle if isinstance(built, OptimalSampler) else StreamSampler
    sampler: Any = kind(built, weights, stream)
    uniform = settings.sampler == "uniform"
    algorithm = UniformSGD(settings.step_size, sampler=sampler) if uniform else make_algorithm(settings)
    for done in training_rounds(sampler, problem, algorithm, settings.num_rounds):
        losses[done.index] = problem.loss(done.state)
        if settings.sampler != "optimal" and done.probabilities is not None:
            roots = weights * problem.all_norms(done.state, done.index)
            gaps[done.index] = np.sum(roots**2 / done.probabilities) - roots.sum() ** 2
        tick()
