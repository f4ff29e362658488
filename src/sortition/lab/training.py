r"""Training with a sampler: what a federation and an algorithm are, and the one loop that runs them.

Everything in the lab goes through :func:`training_rounds`: comparisons, the arena, the paper's figures, and
the replay of recorded norms. It is the loop that a user of the library writes, with the measurements of an
experiment around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.designs import INCLUSION_DESIGNS, Design, inclusion_probabilities
from sortition.core.errors import ConfigurationError
from sortition.core.protocols import Sampler
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import distribution, whole_number
from sortition.core.variance import optimal_probabilities, variance_loss

DIVERGED = 1e9
"""Training whose loss is this many times the initial one has diverged."""


class Problem(Protocol):
    """A federation: clients with data, a model as one flat array, and what training it reveals.

    What a client computes depends only on the model, the round and the client. So samplers that are compared
    have the same mini-batches.

    A problem may have a method ``all_norms(model, round_index)``, the norms of all clients' updates, where
    these can be computed at less cost than the updates.
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

    def loss(self, model: FloatArray) -> float:
        """The training loss over all the data of all clients."""


def all_norms(problem: Problem, model: FloatArray, round_index: int) -> FloatArray:
    """The norm of every client's update in this round: what only an oracle knows."""
    own = getattr(problem, "all_norms", None)
    if own is not None:
        return np.asarray(own(model, round_index))
    updates = problem.updates(model, np.arange(problem.num_clients), round_index)
    return np.asarray(np.linalg.norm(updates, axis=1))


def check_problem(problem: Any) -> Problem:
    """Return ``problem`` if it is one; otherwise raise an error that says what is missing or wrong.

    >>> check_problem(3)
    Traceback (most recent call last):
    sortition.core.errors.ConfigurationError: problem must have num_clients, got int
    """
    kind = type(problem).__name__
    for member in ("num_clients", "client_weights", "initial_model", "updates", "loss"):
        if not hasattr(problem, member):
            raise ConfigurationError(f"problem must have {member}, got {kind}")
    for member in ("initial_model", "updates", "loss"):
        if not callable(getattr(problem, member)):
            raise ConfigurationError(f"problem must have a method {member}, got {kind}")
    whole_number("num_clients of the problem", problem.num_clients, least=1)
    distribution("client_weights of the problem", problem.client_weights, problem.num_clients)
    model = np.asarray(problem.initial_model())
    if model.ndim != 1 or model.dtype.kind != "f":
        raise ConfigurationError(
            f"initial_model() must be a vector of floats, got {model.dtype} of shape {model.shape}"
        )
    clients, before = np.arange(min(2, problem.num_clients)), model.copy()
    updates = problem.updates(model, clients, 0)
    if not isinstance(updates, np.ndarray) or updates.shape != (len(clients), len(model)):
        raise ConfigurationError(
            f"updates(model, clients, round_index) must give an array with a row of {len(model)} numbers "
            f"for each client, got {type(updates).__name__} of shape {np.shape(updates)}"
        )
    if not np.array_equal(model, before):
        raise ConfigurationError(
            "updates(model, clients, round_index) must not change the model: copy it first"
        )
    if not np.array_equal(updates, problem.updates(model, clients, 0), equal_nan=True):
        raise ConfigurationError(
            "updates(model, clients, round_index) must give the same result when it is called again: what is "
            "random must depend on the round and the client, as in default_rng([seed, round_index, client])"
        )
    first_norms(problem)
    first_loss(problem)
    checked: Problem = problem
    return checked


def first_norms(problem: Problem) -> FloatArray:
    """The norm of every client's update in round 0, where no step was taken: updates must be finite."""
    model = problem.initial_model()
    with np.errstate(over="ignore", invalid="ignore"):
        norms = all_norms(problem, model, 0)
    odd = np.flatnonzero(~np.isfinite(norms))
    if len(odd):
        updates = problem.updates(model, odd, 0)
        rows, columns = np.nonzero(~np.isfinite(updates))
        if len(rows):  # otherwise they are finite, but their squares are not
            raise ConfigurationError(
                f"problem: updates(model, clients, round_index) gave {updates[rows[0], columns[0]]} "
                f"for client {odd[rows[0]]} in round 0, at the initial model"
            )
    return norms


def first_loss(problem: Problem) -> float:
    """The loss of the initial model, which must be finite."""
    loss = problem.loss(problem.initial_model())
    is_number = bool(np.isscalar(loss))
    if not is_number:
        raise ConfigurationError(f"loss(model) must be a number, got {loss!r} at the initial model")
    if not np.isfinite(loss):
        raise ConfigurationError(f"problem: loss(model) gave {loss} at the initial model")
    return float(loss)


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


@runtime_checkable
class AsksLosses(Protocol):
    """A sampler that asks some of the clients for their losses before each draw."""

    def ask(self, losses_of: Callable[[IntArray], FloatArray]) -> None:
        """Take the function that gives the mean loss of client ids at the model of the round to come."""


@runtime_checkable
class HearsLosses(Protocol):
    """A sampler that learns from the losses of the clients that trained."""

    def hear(self, cohort: Cohort, losses: FloatArray) -> None:
        """Learn from the root mean square of each client's sample losses, before ``observe``."""


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
    """What the sampler drew from; None in a round that is not measured."""


def training_rounds(
    sampler: Sampler,
    problem: Any,
    algorithm: Algorithm,
    num_rounds: int,
    *,
    measure_every: int = 1,
    available: Callable[[int], IntArray] | None = None,
) -> Iterator[TrainingRound]:
    """Train, and hand out each round when it is finished.

    In the rounds 0, ``measure_every``, 2 ``measure_every``, ... the norms of all clients and the sampler's
    distribution are recorded; 0 records nothing. Only an oracle is shown the norms. Losses are given to
    samplers that want them, if the problem has ``client_losses(model, clients, power)``: the mean loss of all
    the training data of these clients, or the power mean. ``available`` gives the clients that are online in
    a round; without it everybody is.
    """
    state = algorithm.start(problem)
    oracle = sampler if isinstance(sampler, Oracle) else None
    asking = sampler if isinstance(sampler, AsksLosses) else None
    hearing = sampler if isinstance(sampler, HearsLosses) else None
    for round_index in range(num_rounds):
        measured = measure_every > 0 and round_index % measure_every == 0
        norms = probabilities = None
        if measured or oracle is not None:
            norms = algorithm.all_norms(state, problem, round_index)
        if oracle is not None and norms is not None:
            oracle.reveal(norms)
        model = getattr(state, "model", state)
        if asking is not None:
            asking.ask(partial(problem.client_losses, model))
        if measured:
            probabilities = sampler.probabilities()
        cohort = sampler.draw() if available is None else sampler.draw(available(round_index))
        state, cohort_norms = algorithm(state, cohort, problem, round_index)
        if hearing is not None:
            hearing.hear(cohort, problem.client_losses(model, cohort.clients, power=2.0))
        sampler.observe(cohort, cohort_norms)
        yield TrainingRound(round_index, cohort, state, norms, probabilities)


@dataclass(frozen=True)
class Trajectory:
    """What a training run leaves, one entry a round."""

    losses: FloatArray
    """Training loss after the round's step; inf from the round on in which it diverges."""
    variance_ratios: FloatArray
    r""":math:`l_t(p^t) / l_t(p^\star)`: 1 is the best that any distribution can do in this round."""
    initial_loss: float = np.inf
    """The loss of the initial model."""
    design: Design = "with_replacement"
    """By which the sampler draws."""


def train(
    sampler: Sampler,
    problem: Problem,
    algorithm: Algorithm,
    num_rounds: int,
    on_round: Callable[[], None] = lambda: None,
) -> Trajectory:
    """Train an algorithm whose state is the model; ``on_round`` is called after each round.

    Training that diverges ends: the losses of the rounds that are left are inf.
    """
    losses, ratios = np.full(num_rounds, np.inf), np.full(num_rounds, np.nan)
    initial_loss = first_loss(problem)
    most = DIVERGED * max(abs(initial_loss), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        for done in training_rounds(sampler, problem, algorithm, num_rounds):
            assert done.norms is not None
            assert done.probabilities is not None
            loss = float(problem.loss(done.state))
            if not loss <= most:
                break
            losses[done.index] = loss
            ratios[done.index] = variance_ratio(
                done.probabilities,
                problem.client_weights,
                done.norms,
                design_of(sampler),
                done.cohort.cohort_size,
            )
            on_round()
    for _ in range(int(np.isinf(losses).sum())):
        on_round()
    return Trajectory(losses, ratios, initial_loss, design_of(sampler))


def design_of(sampler: Sampler) -> Design:
    """The sampler's design; draws with replacement for a sampler that does not tell."""
    design: Design = getattr(sampler, "design", "with_replacement")
    return design


def sampling_variance(
    probabilities: FloatArray, feedback: FloatArray, design: Design, cohort_size: int
) -> float:
    r"""What the choice of probabilities decides in the variance of the aggregate, by design.

    With inclusion probabilities :math:`\pi_m = \min(1, c\,p_m)` (independent draws, fixed size) it is
    :math:`\sum_m a_m (1/\pi_m - 1)`; otherwise :math:`l_t(p)`.

    >>> sampling_variance(np.array([0.25, 0.75]), np.array([1.0, 3.0]), "independent", 1)
    4.0
    """
    if design not in INCLUSION_DESIGNS:
        return variance_loss(probabilities, feedback, cohort_size)
    inclusion = inclusion_probabilities(probabilities, cohort_size)
    seen = feedback > 0.0
    with np.errstate(divide="ignore"):
        return float(np.sum(feedback[seen] * (1.0 / inclusion[seen] - 1.0)))


def variance_ratio(
    probabilities: FloatArray,
    client_weights: FloatArray,
    norms: FloatArray,
    design: Design = "with_replacement",
    cohort_size: int = 1,
) -> float:
    r"""The sampling variance over that of the design's optimum, :math:`l_t(p) / l_t(p^\star)` (Section 3.1).

    The optimum is :math:`p \propto \sqrt a`. Where inclusion probabilities are at most one this is
    water-filling, :math:`\pi_m = \min(1, c \sqrt{a_m})`; otherwise the cohort size cancels. If the optimum
    has no variance, every distribution without variance is optimal.

    >>> variance_ratio(np.array([0.5, 0.5]), np.array([0.5, 0.5]), np.array([1.0, 3.0]))
    1.25
    """
    feedback = (client_weights * norms) ** 2
    own = sampling_variance(probabilities, feedback, design, cohort_size)
    best = sampling_variance(optimal_probabilities(feedback), feedback, design, cohort_size)
    if best > 0.0:
        return own / best
    return 1.0 if own <= 0.0 else float("inf")
