"""The environments: half of them to choose by, half to report on, both halves of the same kinds.

An environment is a federation to train, or a formula that generates norms. A training environment also
makes a trace: the norms of all clients in a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np

from sortition import ConfigurationError, Memory, OptimalSampler
from sortition.core.designs import Design
from sortition.core.types import FloatArray, IntArray
from sortition.lab.algorithms import FedAvg, FedSGD
from sortition.lab.arena import traces
from sortition.lab.arena.traces import GeneratedNorms, Trace
from sortition.lab.contestants import Contestant, Trial
from sortition.lab.problems.least_squares import (
    LARGEST_SCALE,
    NOISE,
    LeastSquares,
    authors_heterogeneous,
    diagonal,
    heterogeneous,
    one_coordinate,
)
from sortition.lab.problems.softmax import STEP_SIZE, digits_federation, gaussian_federation
from sortition.lab.training import LocalProblem, Problem, Trajectory, first_norms, train, training_rounds

Half: TypeAlias = Literal["tune", "report"]
Split: TypeAlias = Literal["tune", "report", "all"]
SPLITS: tuple[str, ...] = get_args(Split)

CACHED_TRACES = 24
"""Traces kept in memory; the largest takes 50 MB, most take less than 1 MB."""


class TraceSource(Protocol):
    """Makes traces."""

    @property
    def num_rounds(self) -> int:
        """T."""

    def __call__(self, seed: int) -> Trace:
        """The trace of this seed."""


class ProblemFactory(Protocol):
    """Builds federations."""

    def __call__(self, *, seed: int) -> Problem:
        """The federation of this seed."""


@dataclass(frozen=True)
class Training:
    """A federation to train with mini-batch SGD."""

    make_problem: ProblemFactory
    cohort_size: int
    num_rounds: int
    step_size: float
    design: Design = "with_replacement"
    memory: bool = False
    """Whether the aggregate uses a memory of earlier updates."""

    def train(
        self, contestant: Contestant, seed: int, on_round: Callable[[], None] = lambda: None
    ) -> Trajectory:
        """Let the sampler of this seed drive the training of the federation of this seed."""
        problem = self.make_problem(seed=seed)
        trial = Trial.at_start(
            problem.client_weights,
            first_norms(problem),
            cohort_size=self.cohort_size,
            num_rounds=self.num_rounds,
            design=self.design,
            seed=seed,
        )
        memory = None
        if self.memory:
            parameters = problem.initial_model().size
            memory = Memory(num_parameters=parameters, num_clients=problem.num_clients)
        algorithm = FedSGD(self.step_size, memory)
        return train(contestant(trial), problem, algorithm, self.num_rounds, on_round)

    def __call__(self, seed: int) -> Trace:
        """The norms of all clients in a training run under optimal sampling.

        Training gets on under optimal sampling, and the trace has no sampler's mistakes in it.
        """
        problem = self.make_problem(seed=seed)
        sampler = OptimalSampler(
            num_clients=problem.num_clients,
            cohort_size=self.cohort_size,
            client_weights=problem.client_weights,
            seed=seed,
        )
        norms = np.empty((self.num_rounds, problem.num_clients))
        for done in training_rounds(
            sampler, problem, FedSGD(self.step_size), self.num_rounds, measure_every=0
        ):
            norms[done.index] = done.norms
        return Trace(problem.client_weights, self.cohort_size, norms)


@dataclass(frozen=True)
class Environment:
    """A named, seedable place to compare samplers in."""

    name: str
    half: Half
    """Whether constants may be chosen on it ("tune"), or only be judged ("report")."""
    about: str
    source: TraceSource

    @property
    def num_rounds(self) -> int:
        """T."""
        return self.source.num_rounds

    @property
    def training(self) -> Training | None:
        """What a closed loop trains; None where norms are generated and there is nothing to train."""
        return self.source if isinstance(self.source, Training) else None

    def trained_by(self, design: Design, memory: bool) -> Environment:
        """The same where training draws by ``design``, with or without a memory."""
        if self.training is None:
            return self
        return replace(self, source=replace(self.training, design=design, memory=memory))

    def trace(self, seed: int) -> Trace:
        """The trace of this seed, made once and then kept."""
        return _trace(self, seed)


@lru_cache(maxsize=CACHED_TRACES)
def _trace(environment: Environment, seed: int) -> Trace:
    return environment.source(seed)


def seeds_of(split: Split, count: int, skip: int = 0) -> list[int]:
    """Even seeds to choose by, odd ones to report; the first ``skip`` of them are left out.

    >>> seeds_of("tune", 3), seeds_of("report", 2, skip=10)
    ([0, 2, 4], [21, 23])
    """
    return [2 * index + (split != "tune") for index in range(skip, skip + count)]


class LocalUpdates:
    r"""A federation in which an update is the outcome of several local steps (Algorithm 4, FedAvg).

    From :math:`w^{t,0}_m = w^t` client m takes B local steps of size :math:`\mu`; its update is

    .. math:: g^t_m = \frac{w^t - w^{t,B}_m}{B\,\mu}

    the mean of its local gradients, so that norms and step sizes are those of gradients. ``FedSGD`` at step
    size :math:`B\,\mu` then is ``FedAvg``, with norms in another unit, which makes no difference to a
    sampler.
    """

    def __init__(self, problem: LocalProblem, steps: int, step_size: float) -> None:
        self._problem, self._scale = problem, steps * step_size
        self._algorithm = FedAvg(step_size, steps)
        self.num_clients, self.client_weights = problem.num_clients, problem.client_weights

    def initial_model(self) -> FloatArray:
        """That of the federation."""
        return self._problem.initial_model()

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """The mean local gradient of each of ``clients``, one row a client."""
        moves = self._algorithm.updates(model, clients, self._problem, round_index)
        return np.asarray(moves / self._scale)

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        """The norm of the update that each client would send in this round, drawn or not."""
        updates = self.updates(model, np.arange(self.num_clients), round_index)
        return np.asarray(np.linalg.norm(updates, axis=1))

    def loss(self, model: FloatArray) -> float:
        """That of the federation."""
        return self._problem.loss(model)


def paper_least_squares(*, seed: int, spread: float) -> Problem:
    """The paper's least squares in the scaling of the authors' data, which gives the published curves."""
    return LeastSquares(*authors_heterogeneous(spread, seed=seed), seed=seed)


def paper_one_coordinate(*, seed: int, spread: float) -> Problem:
    """Clients that know one coordinate each (Section 7.4)."""
    return LeastSquares(*one_coordinate(spread, seed), seed=seed)


def many_least_squares(*, seed: int, spread: float, num_clients: int, samples: int = 20) -> Problem:
    """The least squares of the paper's text with more clients and fewer samples a client."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(10.0, np.sqrt(3.0), len(diagonal()))
    scales = np.exp(rng.normal(0.0, spread, num_clients))
    scales *= LARGEST_SCALE / scales.max()
    features = np.sqrt(scales[:, None, None] * diagonal()) * rng.standard_normal(
        (num_clients, samples, len(truth))
    )
    targets = features @ truth + rng.normal(0.0, NOISE, (num_clients, samples))
    return LeastSquares(features, targets, seed=seed)


def fedavg_least_squares(*, seed: int) -> Problem:
    """FedAvg on the paper's least squares (the text's, sigma = 1): 5 local steps of one sample."""
    return LocalUpdates(LeastSquares(*heterogeneous(1.0, seed), seed=seed), steps=5, step_size=0.01)


def fedavg_softmax(*, seed: int) -> Problem:
    """FedAvg on label-skewed softmax regression with Pareto sizes: 10 local steps."""
    problem = gaussian_federation(concentration=0.3, tail=1.5, seed=seed)
    return LocalUpdates(problem, steps=10, step_size=0.05)


def digits_training(
    *,
    num_clients: int = 100,
    cohort_size: int = 5,
    num_rounds: int = 500,
    step_size: float = STEP_SIZE,
    design: Design = "with_replacement",
    memory: bool = False,
) -> Training:
    """Handwritten digits over clients of skewed sizes: what ``sortition compare`` trains, too."""
    problem = partial(digits_federation, num_clients=num_clients)
    return Training(problem, cohort_size, num_rounds, step_size, design, memory)


def _least_squares(spread: float) -> Training:
    problem = partial(paper_least_squares, spread=spread)
    return Training(problem, cohort_size=5, num_rounds=1000, step_size=0.1)


def _one_coordinate(spread: float) -> Training:
    problem = partial(paper_one_coordinate, spread=spread)
    return Training(problem, cohort_size=5, num_rounds=500, step_size=0.5)


def _many_least_squares(clients: int, spread: float, rounds: int, cohort: int) -> Training:
    problem = partial(many_least_squares, spread=spread, num_clients=clients)
    return Training(problem, cohort_size=cohort, num_rounds=rounds, step_size=0.1)


def _softmax(concentration: float, tail: float) -> Training:
    problem = partial(gaussian_federation, concentration=concentration, tail=tail)
    return Training(problem, cohort_size=5, num_rounds=500, step_size=0.3)


RARE: dict[int, Half] = {20: "tune", 5: "tune", 30: "report", 10: "report", 3: "report"}
"""In how many per cent of the rounds a client sends something large."""

ALL: tuple[Environment, ...] = (
    # Training runs -------------------------------------------------------------------------------------
    Environment("ls-sigma-1", "tune", "the paper's least squares, sigma = 1", _least_squares(1.0)),
    Environment("ls-sigma-3", "report", "the paper's least squares, sigma = 3", _least_squares(3.0)),
    Environment("ls-sigma-10", "tune", "the paper's least squares, sigma = 10", _least_squares(10.0)),
    Environment(
        "ls-2000-clients",
        "report",
        "least squares, sigma = 2, 2,000 clients, 20 drawn in each of only 200 rounds",
        _many_least_squares(2000, 2.0, rounds=200, cohort=20),
    ),
    Environment(
        "ls-1000-clients",
        "tune",
        "least squares, sigma = 1, 1,000 clients, 10 drawn in each of only 200 rounds",
        _many_least_squares(1000, 1.0, rounds=200, cohort=10),
    ),
    Environment("coordinate-nu-1", "report", "one coordinate a client, nu = 1", _one_coordinate(1.0)),
    Environment("coordinate-nu-3", "tune", "one coordinate a client, nu = 3", _one_coordinate(3.0)),
    Environment("coordinate-nu-5", "report", "one coordinate a client, nu = 5", _one_coordinate(5.0)),
    Environment("coordinate-nu-10", "report", "one coordinate a client, nu = 10", _one_coordinate(10.0)),
    Environment("coordinate-nu-20", "tune", "one coordinate a client, nu = 20", _one_coordinate(20.0)),
    Environment("digits-100", "tune", "images, 100 clients of skewed sizes", digits_training()),
    Environment(
        "digits-500",
        "report",
        "images, 500 clients of skewed sizes",
        digits_training(num_clients=500, cohort_size=10),
    ),
    Environment(
        "softmax-pareto",
        "report",
        "softmax regression, a label or two a client, Pareto sizes",
        _softmax(0.1, tail=1.2),
    ),
    Environment(
        "softmax-mild",
        "tune",
        "softmax regression, some labels a client, sizes of a lighter tail",
        _softmax(1.0, tail=2.5),
    ),
    Environment(
        "fedavg-ls",
        "report",
        "FedAvg, 5 local steps on least squares, sigma = 1",
        Training(fedavg_least_squares, cohort_size=5, num_rounds=500, step_size=0.05),
    ),
    Environment(
        "fedavg-softmax",
        "tune",
        "FedAvg, 10 local steps on label-skewed softmax regression, Pareto sizes",
        Training(fedavg_softmax, cohort_size=5, num_rounds=500, step_size=0.5),
    ),
    # Generated norms -----------------------------------------------------------------------------------
    Environment("steady", "tune", "levels that stay, little noise", GeneratedNorms(noise=0.2)),
    Environment(
        "steady-pareto",
        "report",
        "levels that stay, little noise, Pareto sizes",
        GeneratedNorms(noise=0.2, sizes=traces.pareto),
    ),
    Environment(
        "drift-walk",
        "tune",
        "slow drift: each level wanders by a factor e over the run",
        GeneratedNorms(shape=traces.RandomWalk(1.0)),
    ),
    Environment(
        "drift-waves",
        "report",
        "slow drift: levels swing by a factor e each way, twice a run",
        GeneratedNorms(shape=traces.Waves(1.0, 2.0)),
    ),
    Environment(
        "permuted-half-time",
        "report",
        "all levels are permuted at half time",
        GeneratedNorms(shape=traces.Permuted((0.5,))),
    ),
    Environment(
        "permuted-quarters",
        "tune",
        "a third of the levels is permuted at each quarter",
        GeneratedNorms(shape=traces.Permuted((0.25, 0.5, 0.75), share=1 / 3)),
    ),
    Environment(
        "permuted-often",
        "report",
        "a tenth of the levels is permuted at each tenth",
        GeneratedNorms(shape=traces.Permuted(tuple(tenth / 10 for tenth in range(1, 10)), share=0.1)),
    ),
    Environment("noise-normal", "tune", "mini-batch noise by a factor e", GeneratedNorms(noise=1.0)),
    Environment(
        "noise-pareto",
        "report",
        "mini-batch noise with a Pareto tail (exponent 2)",
        GeneratedNorms(noise=0.1, shape=traces.HeavyTailed(2.0)),
    ),
    Environment(
        "bursts",
        "report",
        "bursts: ten times the norm for 20 rounds, twice a run",
        GeneratedNorms(spread=1.0, shape=traces.Bursts(10.0, 20.0, 2.0)),
    ),
    Environment(
        "spikes",
        "tune",
        "bursts of 2 rounds, thirty times the norm, twice a run",
        GeneratedNorms(spread=1.0, shape=traces.Bursts(30.0, 2.0, 2.0)),
    ),
    Environment("alike", "tune", "no heterogeneity at all", GeneratedNorms(spread=0.0, noise=0.2)),
    Environment(
        "alike-noisy",
        "report",
        "no heterogeneity, much mini-batch noise",
        GeneratedNorms(spread=0.0, noise=0.8),
    ),
    Environment(
        "sizes-mislead",
        "report",
        "the smaller the client, the larger its norm: norms go with 1/size^1.5, Pareto sizes",
        GeneratedNorms(spread=0.3, sizes=traces.pareto, shape=traces.AgainstSizes(1.5)),
    ),
    Environment(
        "sizes-cancel",
        "tune",
        "norms go with 1/size, Pareto sizes: uniform is nearly optimal, proportional is not",
        GeneratedNorms(spread=0.3, sizes=traces.pareto, shape=traces.AgainstSizes(1.0)),
    ),
    Environment(
        "zipf-iid",
        "report",
        "Zipf sizes, i.i.d. data",
        GeneratedNorms(spread=0.0, noise=0.3, sizes=traces.zipf),
    ),
    Environment(
        "zipf-mixed", "tune", "Zipf sizes, norms unrelated to them", GeneratedNorms(sizes=traces.zipf)
    ),
    Environment(
        "clients-20000",
        "report",
        "20,000 clients, 50 drawn, Pareto sizes (measured in every fifth round)",
        GeneratedNorms(20_000, 50, num_rounds=300, spread=1.0, sizes=traces.pareto, measured_every=5),
    ),
    Environment(
        "clients-5000",
        "tune",
        "5,000 clients, 30 drawn (measured in every third round)",
        GeneratedNorms(5_000, 30, num_rounds=300, measured_every=3),
    ),
    Environment("clients-50", "tune", "50 clients, 10 drawn", GeneratedNorms(50, 10, num_rounds=300)),
    Environment(
        "clients-20",
        "report",
        "20 clients, 10 drawn, Pareto sizes",
        GeneratedNorms(20, 10, num_rounds=200, sizes=traces.pareto),
    ),
    Environment(
        "decay", "tune", "all norms fall together, to a thousandth", GeneratedNorms(shape=traces.Decay(1e-3))
    ),
    Environment(
        "level-jumps",
        "report",
        "all norms fall to a tenth at 30% and 60%, and rise a hundredfold at 80%",
        GeneratedNorms(shape=traces.Jumps(((0.3, 0.1), (0.6, 0.1), (0.8, 100.0)))),
    ),
    Environment(
        "fading",
        "report",
        "client after client is fitted and falls to a hundredth",
        GeneratedNorms(shape=traces.Fading(0.01)),
    ),
    Environment(
        "growing-apart", "tune", "clients start alike and grow apart", GeneratedNorms(shape=traces.Growing())
    ),
    Environment(
        "newcomers",
        "report",
        "a fifth of the clients sends nothing for a third of the run, then five times what others do",
        GeneratedNorms(spread=1.0, shape=traces.Newcomers(0.2, 1 / 3, 5.0)),
    ),
    Environment(
        "newcomers-mild",
        "report",
        "a quarter of the clients sends nothing for 40% of the run, then four times what others do",
        GeneratedNorms(spread=1.0, shape=traces.Newcomers(0.25, 0.4, 4.0)),
    ),
    Environment(
        "latecomers-few",
        "tune",
        "a tenth of the clients sends nothing for half of the run, then ten times what others do",
        GeneratedNorms(shape=traces.Newcomers(0.1, 0.5, 10.0)),
    ),
    Environment(
        "latecomers-many",
        "tune",
        "a third of the clients sends nothing for a quarter of the run, then three times what others do",
        GeneratedNorms(spread=1.0, shape=traces.Newcomers(1 / 3, 0.25, 3.0)),
    ),
    Environment(
        "zeros",
        "tune",
        "each client has nothing to send in 30% of the rounds",
        GeneratedNorms(shape=traces.Zeros(0.3)),
    ),
    Environment(
        "two-clusters",
        "tune",
        "a fifth of the clients has ten times the norm of the others",
        GeneratedNorms(spread=0.1, shape=traces.Clusters(0.2, 10.0)),
    ),
    Environment(
        "few-heavy",
        "report",
        "2 of 100 clients have fifty times the norm of the others",
        GeneratedNorms(spread=0.3, shape=traces.Clusters(0.02, 50.0)),
    ),
    # Clients that never answer, and norms that change together -----------------------------------------
    Environment(
        "silent-few",
        "tune",
        "5 of 100 clients never reply, 10 drawn; norms fall by 3% a round",
        GeneratedNorms(100, 10, num_rounds=300, spread=1.0, shape=traces.Silent(0.05, 0.97)),
    ),
    Environment(
        "silent-falling",
        "report",
        "5 of 100 clients never reply, 10 drawn; norms fall by 10% a round",
        GeneratedNorms(100, 10, num_rounds=200, spread=1.0, shape=traces.Silent(0.05, 0.9)),
    ),
    Environment(
        "silent-one",
        "report",
        "one of 12 clients never replies, 3 drawn; norms fall by 10% a round",
        GeneratedNorms(12, 3, num_rounds=200, spread=0.5, shape=traces.Silent(1 / 12, 0.9)),
    ),
    Environment(
        "decay-fast", "tune", "norms fall by 20% a round", GeneratedNorms(shape=traces.EachRound(0.8))
    ),
    Environment(
        "decay-steep",
        "report",
        "norms fall by 30% a round",
        GeneratedNorms(num_rounds=300, shape=traces.EachRound(0.7)),
    ),
    Environment("growth", "tune", "norms grow by 5% a round", GeneratedNorms(shape=traces.EachRound(1.05))),
    # Noise that differs between clients ----------------------------------------------------------------
    *(
        Environment(
            f"rare-large-{percent}",
            half,
            f"half of the clients send 10 in {percent}% of the rounds, else 0.001; the others 1",
            GeneratedNorms(100, 10, 2000, spread=0.0, noise=0.01, shape=traces.RareLarge(percent / 100)),
        )
        for percent, half in RARE.items()
    ),
    Environment(
        "noise-differs",
        "tune",
        "mini-batch noise of another size for each client, by up to a factor e^1.5",
        GeneratedNorms(spread=0.5, noise=0.1, shape=traces.NoiseDiffers(1.5)),
    ),
    Environment(
        "noise-differs-more",
        "report",
        "the same by up to a factor e^2, levels alike",
        GeneratedNorms(spread=0.0, noise=0.1, shape=traces.NoiseDiffers(2.0)),
    ),
    # Sizes that say something else about norms than the prior assumes ----------------------------------
    Environment(
        "sizes-inform",
        "tune",
        "the larger the client, the larger its norm: norms go with size, Pareto sizes",
        GeneratedNorms(spread=0.5, sizes=traces.pareto, shape=traces.AgainstSizes(-1.0)),
    ),
    Environment(
        "sizes-mislead-zipf",
        "tune",
        "norms go with 1/size^1.5, Zipf sizes",
        GeneratedNorms(spread=0.5, sizes=traces.zipf, shape=traces.AgainstSizes(1.5)),
    ),
    Environment(
        "sizes-mislead-many",
        "report",
        "norms go with 1/size^1.5, Pareto sizes, 1,000 clients, 10 drawn in each of only 300 rounds",
        GeneratedNorms(
            1000, 10, num_rounds=300, spread=0.5, sizes=traces.pareto, shape=traces.AgainstSizes(1.5)
        ),
    ),
)

ENVIRONMENTS: dict[str, Environment] = {environment.name: environment for environment in ALL}
"""All of them by name."""


def environments_of(split: Split, names: Sequence[str] | None = None) -> list[Environment]:
    """The environments of a split, or those ``names`` whatever their half."""
    if names is not None:
        for name in names:
            if name not in ENVIRONMENTS:
                raise ConfigurationError(
                    f"environments must be out of {', '.join(ENVIRONMENTS)}, got {name!r}"
                )
        return [ENVIRONMENTS[name] for name in names]
    return [environment for environment in ALL if split in ("all", environment.half)]
