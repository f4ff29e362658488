r"""Training with a sampler: what a federation and an algorithm are, and the one loop that runs them.

Everything in the lab goes through :func:`training_rounds`: comparisons, the arena, the paper's figures, and
the replay of recorded norms. It is the loop that a user of the library writes, with the measurements of an
experiment around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.designs import inclusion_probabilities
from sortition.core.protocols import Sampler
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import optimal_probabilities, variance_loss


class Problem(Protocol):
    """A federation: clients with data, a model as one flat array, and what training it reveals.

    What a client computes depends only on the model, the round and the client. So samplers that are compared
    have the same mini-batches.
    """

    @property
    def num_clients(self) -> int:
        """M, the number of clients."""

    @property
    def client_weights(self) -> FloatArray:
        """lambda_m, the share of client m's loss in the training loss; they sum to one."""

    def initial_model(self) -> FloatArray:
        """The model before the first round."""

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """g_m of each of ``clients``, one row a client."""

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        """The norm of every client's update in this round: what only an oracle knows."""

    def loss(self, model: FloatArray) -> float:
        """The training loss over all the data of all clients."""


class LocalProblem(Problem, Protocol):
    """A federation whose clients can also take local steps."""

    def local_gradients(
        self, models: FloatArray, clients: IntArray, round_index: int, step: int
    ) -> FloatArray:
        """The stochastic gradient of each client's local step, at its own model (a row of ``models``)."""


class Algorithm(Protocol):
    """A federated algorithm: what it starts from, and one round as a pure function of state and cohort.

    The state is the model, or the model and whatever else the algorithm carries from round to round.
    """

    def start(self, problem: Any) -> Any:
        """The state before the first round."""

    def all_norms(self, state: Any, problem: Any, round_index: int) -> FloatArray:
        """The norm that each client would report in this round, drawn or not."""

    def __call__(self, state: Any, cohort: Cohort, problem: Any, round_index: int) -> tuple[Any, FloatArray]:
        """The next state, and the norms that the cohort reports, aligned with ``cohort.clients``."""


@runtime_checkable
class Oracle(Protocol):
    """A sampler that is shown the norms of all clients before each draw."""

    def reveal(self, norms: FloatArray) -> None:
        """Show the norms of the round to come."""


@dataclass(frozen=True)
class TrainingRound:
    """One finished round."""

    index: int
    cohort: Cohort
    state: Any
    """The algorithm's state after the round's step."""
    norms: FloatArray | None
    """What every client would have reported; None if it was not computed."""
    probabilities: FloatArray | None
    """What the sampler drew from (see :func:`drawn_shares`); None in a round that is not measured."""


def training_rounds(
    sampler: Sampler,
    problem: Any,
    algorithm: Algorithm,
    num_rounds: int,
    *,
    measure_every: int = 1,
) -> Iterator[TrainingRound]:
    """Train, and hand out each round when it is finished.

    In the rounds 0, ``measure_every``, 2 ``measure_every``, ... the norms of all clients and the sampler's
    distribution are recorded; 0 records nothing. Only an oracle is shown the norms.
    """
    state = algorithm.start(problem)
    oracle = sampler if isinstance(sampler, Oracle) else None
    for round_index in range(num_rounds):
        measured = measure_every > 0 and round_index % measure_every == 0
        norms = probabilities = None
        if measured or oracle is not None:
            norms = algorithm.all_norms(state, problem, round_index)
        if oracle is not None and norms is not None:
            oracle.reveal(norms)
        if measured:
            probabilities = drawn_shares(sampler)
        cohort = sampler.draw()
        state, cohort_norms = algorithm(state, cohort, problem, round_index)
        sampler.observe(cohort, cohort_norms)
        yield TrainingRound(round_index, cohort, state, norms, probabilities)


@dataclass(frozen=True)
class Trajectory:
    """What a training run leaves, one entry a round."""

    losses: FloatArray
    """Training loss after the round's step."""
    variance_ratios: FloatArray
    r""":math:`l_t(p^t) / l_t(p^\star)`: 1 is the best that any distribution can do in this round."""


def train(
    sampler: Sampler,
    problem: Problem,
    algorithm: Algorithm,
    num_rounds: int,
    on_round: Callable[[], None] = lambda: None,
) -> Trajectory:
    """Train an algorithm whose state is the model; ``on_round`` is called after each round."""
    losses, ratios = np.empty(num_rounds), np.empty(num_rounds)
    for done in training_rounds(sampler, problem, algorithm, num_rounds):
        assert done.norms is not None
        assert done.probabilities is not None
        ratios[done.index] = variance_ratio(done.probabilities, problem.client_weights, done.norms)
        losses[done.index] = problem.loss(done.state)
        on_round()
    return Trajectory(losses, ratios)


def drawn_shares(sampler: Sampler) -> FloatArray:
    r"""The distribution that the sampler is measured by: that of its draws.

    For independent draws it is :math:`\pi / \sum \pi`, the normalised inclusion probabilities. The variance
    of independent draws is :math:`\sum_m a_m (1/\pi_m - 1)`, which is not comparable with the others; l_t
    of these shares is.
    """
    probabilities = sampler.probabilities()
    if getattr(sampler, "design", None) != "independent":
        return probabilities
    inclusion = inclusion_probabilities(probabilities, sampler.cohort_size)
    return np.asarray(inclusion / inclusion.sum())


def variance_ratio(probabilities: FloatArray, client_weights: FloatArray, norms: FloatArray) -> float:
    r"""The sampling variance over that of the optimum: :math:`l_t(p) / l_t(p^\star)` (Section 3.1).

    The cohort size cancels. If all norms are zero, every distribution is optimal.

    >>> variance_ratio(np.array([0.5, 0.5]), np.array([0.5, 0.5]), np.array([1.0, 3.0]))
    1.25
    """
    feedback = (client_weights * norms) ** 2
    best = variance_loss(optimal_probabilities(feedback), feedback, cohort_size=1)
    return variance_loss(probabilities, feedback, cohort_size=1) / best if best > 0.0 else 1.0
