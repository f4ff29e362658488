r"""The published runs of Figure 1 once more, with the authors' random numbers, drawn in the authors' order.

With other random numbers ten runs scatter around the published means; with theirs the means agree to the last
digit that was published, if all that decides a run is understood. The samplers, the data and the steps are
those of the authors' variant; only chance comes from outside.

One stream of numpy's legacy generator, seeded anew for each :math:`\sigma`, serves all repeats of five
samplers in turn. A round takes from it a mini-batch for each client, then the draws of clients. What learns
takes a mini-batch for each client before its first round, to know its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.designs import weigh_with_replacement
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import log_feedback
from sortition.lab.problems.least_squares import LeastSquares
from sortition.lab.problems.synthetic import AUTHORS_SEED, authors_heterogeneous
from sortition.lab.reproduce.build import Start, make_algorithm, make_sampler
from sortition.lab.reproduce.settings import RunSettings
from sortition.samplers.base import BaseSampler
from sortition.samplers.oracles import OptimalSampler

SAMPLERS = ("uniform", "optimal", "adaptive-osmd", "mabs", "vrb")
"""In the order in which they take from the stream."""
BATCH_SIZE = 10


class DealtLeastSquares(LeastSquares):
    """Least squares whose mini-batches are dealt from outside, whatever the round."""

    def deal(self, rows: IntArray) -> None:
        """Take these rows, so many for each client, until others are dealt."""
        self._dealt: FloatArray = (rows + 0.5) / self.samples  # the uniform numbers that stand for them

    def gradient(self, model: FloatArray, client: int, rows: IntArray) -> FloatArray:
        """The update of one client on these of its rows."""
        features, targets = self.features[client, rows], self.targets[client, rows]
        return np.asarray((features @ model - targets) @ features / len(rows))

    def _round(self, round_index: int) -> FloatArray:
        return self._dealt


def replay(settings: RunSettings, tick: Callable[[], None] = lambda: None) -> dict[str, FloatArray]:
    """All repeats of all ``SAMPLERS``: ``loss`` and cumulated ``regret`` are (repeats, samplers, rounds)."""
    problem = DealtLeastSquares(*authors_heterogeneous(settings.spread), batch_size=BATCH_SIZE)
    stream = np.random.RandomState(AUTHORS_SEED)
    shape = (settings.repeats, len(SAMPLERS), settings.num_rounds)
    losses, gaps = np.empty(shape), np.zeros(shape)
    for repeat in range(settings.repeats):
        for place, sampler in enumerate(SAMPLERS):
            run = replace(settings, problem="heterogeneous", sampler=sampler)
            _replay_one(run, problem, stream, tick, losses[repeat, place], gaps[repeat, place])
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
    uniform = settings.sampler == "uniform"
    model, weights = problem.initial_model(), problem.client_weights
    if uniform or settings.sampler == "optimal":
        problem.deal(np.zeros((problem.num_clients, BATCH_SIZE), dtype=np.int64))  # nothing to be bounded
    else:
        problem.deal(_mini_batches(problem, stream))
    everybody = np.arange(problem.num_clients)
    feedback = (weights * problem.all_norms(model, 0)) ** 2
    sampler = make_sampler(Start(settings, problem, feedback, problem.batch_losses(model, everybody, 0)))
    assert isinstance(sampler, BaseSampler)
    algorithm = make_algorithm(settings)
    for t in range(settings.num_rounds):
        problem.deal(_mini_batches(problem, stream))
        if isinstance(sampler, OptimalSampler):
            sampler.reveal(problem.all_norms(model, t))
        p = sampler.probabilities()
        draws = stream.choice(problem.num_clients, size=settings.cohort_size, p=p)
        if uniform:
            model = model - settings.step_size * _mean_gradient(problem, model, draws, stream)
        else:
            drawn = weigh_with_replacement(draws, p[draws], settings.cohort_size)
            cohort = Cohort(t, settings.cohort_size, *drawn)
            model, fed = algorithm(model, cohort, problem, t)
            sampler.learn(cohort, log_feedback(weights[cohort.clients], fed))
        losses[t] = problem.loss(model)
        if not isinstance(sampler, OptimalSampler):
            roots = weights * problem.all_norms(model, t)
            gaps[t] = np.sum(roots**2 / p) - roots.sum() ** 2
        tick()


def _mini_batches(problem: LeastSquares, stream: np.random.RandomState) -> IntArray:
    """Rows without repetition, for one client after another."""
    return np.array(
        [stream.permutation(problem.samples)[:BATCH_SIZE] for _ in range(problem.num_clients)], dtype=np.int64
    )


def _mean_gradient(
    problem: DealtLeastSquares, model: FloatArray, draws: IntArray, stream: np.random.RandomState
) -> FloatArray:
    """Uniform sampling steps on mini-batches of its own, one for each draw; the others are for its regret."""
    total = np.zeros_like(model)
    for client in draws.tolist():
        total += problem.gradient(model, client, stream.permutation(problem.samples)[:BATCH_SIZE])
    return total / len(draws)
