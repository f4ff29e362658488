r"""The true mean squared error of the aggregate, where the updates are vectors: by design and with a memory.

All arms of an environment see the same updates: the model takes the step of full participation in each
round. An arm draws, learns from its own cohort, and is judged by

.. math:: \mathbb E \Big\| \sum_{m \in S} \lambda_m\,\mathrm{weight}_m\,r_m - \sum_m \lambda_m r_m \Big\|^2,
          \qquad r_m = g_m - b\,y_m \text{ with a memory, otherwise } r_m = g_m

given the past. It is exact for draws with replacement and for independent draws. For draws of fixed size

.. math:: \sum_m \lambda_m^2 \|r_m\|^2 \Big(\frac1{\pi_m} - 1\Big)
          + \sum_{m \ne n} \lambda_m \lambda_n \langle r_m, r_n \rangle\,
          \mathbb E[(\mathrm{weight}_m - 1)(\mathrm{weight}_n - 1)]

the first part is exact, and the second a mean over several draws that are not learnt from; for sequential
draws all of it is. Each round is measured in units of the least variance of draws with replacement in that
round,

.. math:: V^\star_t = \frac1K \Big( \big(\textstyle\sum_m \lambda_m \|g_m\|\big)^2
          - \big\|\textstyle\sum_m \lambda_m g_m\big\|^2 \Big)

so that the first rounds of a problem whose updates decay do not decide alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortition import ConfigurationError, Memory
from sortition.core.cohort import Cohort
from sortition.core.designs import DESIGNS, Design
from sortition.core.types import FloatArray
from sortition.core.validation import one_of, whole_number
from sortition.core.variance import variance_loss
from sortition.lab.algorithms import all_residuals, combined
from sortition.lab.arena.environments import (
    LocalUpdates,
    ProblemFactory,
    Split,
    many_least_squares,
    seeds_of,
)
from sortition.lab.contestants import Trial, find_contestant, make_sampler
from sortition.lab.imported import blaming
from sortition.lab.parallel import Progress, Tick, run_tasks
from sortition.lab.problems.idx import load_images
from sortition.lab.problems.softmax import digits_federation, gaussian_federation, label_skewed_images
from sortition.lab.training import Oracle, Problem, all_norms, sampling_variance, variance_ratio

NUM_CLIENTS = 300
COHORT_SHARES = (0.01, 0.05, 0.1, 0.3)
"""K / M."""
VECTOR_SAMPLER = "empirical-bayes"
"""Whose probabilities are drawn from unless told otherwise."""
BASE: Design = "with_replacement"
"""What every arm is compared with."""
NUM_DRAWS = 12
"""Draws in a round over which an error is averaged that is not known exactly."""


@dataclass(frozen=True)
class VectorEnvironment:
    """A named federation that takes the steps of full participation."""

    name: str
    about: str
    make_problem: ProblemFactory
    step_size: float
    num_rounds: int = 150
    needs: str = ""
    """A module that must be installed."""


def softmax_digits(*, seed: int) -> Problem:
    """Handwritten digits, most clients with one or two of them."""
    return digits_federation(num_clients=NUM_CLIENTS, seed=seed)


def fedavg_digits(*, seed: int) -> Problem:
    """The same with 5 local steps."""
    return LocalUpdates(digits_federation(num_clients=NUM_CLIENTS, seed=seed), steps=5, step_size=0.05)


def softmax_generated(*, seed: int) -> Problem:
    """Generated classes, a label or two a client, Pareto sizes."""
    return gaussian_federation(concentration=0.1, tail=1.5, num_clients=NUM_CLIENTS, seed=seed)


def fedavg_generated(*, seed: int) -> Problem:
    """The same with 5 local steps."""
    problem = gaussian_federation(concentration=0.1, tail=1.5, num_clients=NUM_CLIENTS, seed=seed)
    return LocalUpdates(problem, steps=5, step_size=0.05)


def softmax_mnist(directory: Path, *, seed: int) -> Problem:
    """MNIST from ``directory``, a label or two a client, Pareto sizes."""
    images, labels = _mnist(directory)
    return label_skewed_images(
        images, labels, concentration=0.1, tail=1.5, num_clients=NUM_CLIENTS, seed=seed
    )


def fedavg_mnist(directory: Path, *, seed: int) -> Problem:
    """The same with 5 local steps."""
    images, labels = _mnist(directory)
    problem = label_skewed_images(
        images, labels, concentration=0.1, tail=1.5, num_clients=NUM_CLIENTS, seed=seed
    )
    return LocalUpdates(problem, steps=5, step_size=0.05)


@lru_cache(maxsize=1)
def _mnist(directory: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return load_images("mnist", directory)[:2]


def mnist_environments(directory: Path) -> list[VectorEnvironment]:
    """Softmax SGD and FedAvg on MNIST, which is in ``directory``/mnist: as on generated data, but larger."""
    make_sgd, make_fedavg = partial(softmax_mnist, directory), partial(fedavg_mnist, directory)
    return [
        VectorEnvironment("sgd-mnist", "softmax SGD, MNIST, label skew", make_sgd, 0.3),
        VectorEnvironment("fedavg-mnist", "FedAvg, 5 local steps, MNIST, label skew", make_fedavg, 0.25),
    ]


def cnn_digits(*, seed: int) -> Problem:
    """A small convolutional network on the digits (extra ``torch``)."""
    from sortition.lab.problems.torch_federation import digits_cnn

    return digits_cnn(num_clients=NUM_CLIENTS, seed=seed)


def _least_squares(spread: int) -> VectorEnvironment:
    return VectorEnvironment(
        f"least-squares-{spread}",
        f"least squares, sigma = {spread}",
        partial(many_least_squares, spread=float(spread), num_clients=NUM_CLIENTS),
        step_size=0.1,
    )


VECTOR_ENVIRONMENTS: dict[str, VectorEnvironment] = {
    environment.name: environment
    for environment in (
        VectorEnvironment("sgd-digits", "softmax SGD, digits, label skew", softmax_digits, 0.3),
        VectorEnvironment("sgd-generated", "softmax SGD, generated, label skew", softmax_generated, 0.3),
        VectorEnvironment("fedavg-digits", "FedAvg, 5 local steps, digits, label skew", fedavg_digits, 0.25),
        VectorEnvironment(
            "fedavg-generated", "FedAvg, 5 local steps, generated, label skew", fedavg_generated, 0.25
        ),
        _least_squares(1),
        _least_squares(3),
        _least_squares(10),
        VectorEnvironment("cnn-digits", "SGD, small CNN, digits, label skew", cnn_digits, 0.1, needs="torch"),
    )
}
"""All of them by name: 300 clients each."""


@dataclass(frozen=True)
class Arm:
    """A sampler that draws by a design, with or without a memory."""

    sampler: str
    design: Design
    memory: bool
    cohort_size: int


@dataclass(frozen=True)
class ArmRun:
    """One arm on one seed: means over the rounds."""

    error: float
    """Mean squared error of the aggregate, in units of the least variance of draws with replacement."""
    settled_error: float
    """The same over the second half of the rounds: probabilities are learnt by then."""
    error_equal_trainings: float
    """``error`` for as many draws with replacement as train K distinct clients on average; nan otherwise."""
    variance_ratio: float
    """l(p) over that of the design's optimum, of the residuals where there is a memory."""
    coefficient: float
    """b; 0 without a memory."""
    seconds: float
    """To draw, aggregate and learn; the median over the rounds."""


@dataclass(frozen=True)
class VectorScore:
    """One arm in one environment: ratios of means over the seeds, with jackknife standard errors."""

    environment: str
    arm: Arm
    error_to_base: float
    """Mean squared error over that of draws with replacement of the same sampler."""
    standard_error: float
    """Of this ratio; nan for one seed."""
    settled_to_base: float
    """The same over the second half of the rounds."""
    settled_standard_error: float
    equal_trainings_to_base: float
    """``error_to_base``, where draws with replacement also train K distinct clients on average."""
    error_to_no_memory: float
    """Over that of the same design without a memory."""
    no_memory_standard_error: float
    variance_ratio: float
    coefficient: float
    time_to_base: float
    """Time to draw, aggregate and learn, over that of draws with replacement."""
    by_seed: tuple[ArmRun, ...]


@dataclass(frozen=True)
class VectorArena:
    """The outcome: a score for each environment and each arm."""

    split: Split
    seeds: tuple[int, ...]
    environments: tuple[VectorEnvironment, ...]
    scores: tuple[VectorScore, ...]


def vector_environments(names: Sequence[str] | None = None) -> list[VectorEnvironment]:
    """The environments of these names, or all of them."""
    for name in names or ():
        if name not in VECTOR_ENVIRONMENTS:
            raise ConfigurationError(
                f"environments must be out of {', '.join(VECTOR_ENVIRONMENTS)}, got {name!r}"
            )
    return [VECTOR_ENVIRONMENTS[name] for name in names or VECTOR_ENVIRONMENTS]


def arms_of(
    samplers: Sequence[str], designs: Sequence[Design], memory: bool, cohort_sizes: Sequence[int]
) -> list[Arm]:
    """The base and the designs asked for, and each of these with a memory as well if there shall be one."""
    for design in designs:
        one_of("designs", design, DESIGNS)
    return [
        arm
        for cohort_size in cohort_sizes
        for sampler in samplers
        for design in dict.fromkeys((BASE, *designs))
        for arm in (
            Arm(sampler, design, False, cohort_size),
            *([Arm(sampler, design, True, cohort_size)] if memory and design in designs else []),
        )
    ]


def run_vectors(
    samplers: Sequence[str],
    environments: Sequence[VectorEnvironment],
    *,
    split: Split,
    designs: Sequence[Design] = ("without_replacement", "independent", "fixed_size"),
    memory: bool = False,
    shares: Sequence[float] = COHORT_SHARES,
    num_draws: int = NUM_DRAWS,
    seeds: int = 2,
    skip: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> VectorArena:
    """Measure every arm in every environment; draws with replacement always take part.

    ``progress`` is called with the rounds done so far: a round of all arms counts as one.
    """
    whole_number("jobs", jobs, least=1)
    whole_number("num_draws", num_draws, least=1)
    if not environments:
        raise ConfigurationError("environments must name at least one, got none")
    if not samplers:
        raise ConfigurationError("samplers must name at least one, got none")
    numbers = seeds_of(split, whole_number("seeds", seeds, least=1), whole_number("skip", skip, least=0))
    tasks = [
        partial(measure, environment, samplers, designs, memory, shares, num_draws, seed)
        for environment in environments
        for seed in numbers
    ]
    names = [f"{environment.name}, seed {seed}" for environment in environments for seed in numbers]
    outcomes = run_tasks(tasks, jobs, progress, names)
    scores: list[VectorScore] = []
    for place, environment in enumerate(environments):
        of_seeds = outcomes[place * len(numbers) : (place + 1) * len(numbers)]
        runs = {arm: tuple(outcome[arm] for outcome in of_seeds) for arm in of_seeds[0]}
        scores += [_score(environment.name, arm, runs) for arm in runs]
    return VectorArena(split, tuple(numbers), tuple(environments), tuple(scores))


def measure(
    environment: VectorEnvironment,
    samplers: Sequence[str],
    designs: Sequence[Design],
    memory: bool,
    shares: Sequence[float],
    num_draws: int,
    seed: int,
    tick: Tick = lambda: None,
) -> dict[Arm, ArmRun]:
    """All arms on one seed of an environment, whose model takes the steps of full participation."""
    problem = environment.make_problem(seed=seed)
    model, weights = problem.initial_model(), problem.client_weights
    everybody = np.arange(problem.num_clients)
    sizes = [max(1, round(share * problem.num_clients)) for share in shares]
    first_norms = all_norms(problem, model, 0)
    running = {
        arm: RunningArm(arm, weights, first_norms, model.size, environment.num_rounds, num_draws, seed)
        for arm in arms_of(samplers, designs, memory, sizes)
    }
    for round_index in range(environment.num_rounds):
        updates = problem.updates(model, everybody, round_index)
        products = inner_products(weights, updates)
        for arm, state in running.items():
            with blaming(f"sampler {arm.sampler!r}, environment {environment.name}"):
                state.round(updates, products)
        model = model - environment.step_size * (weights @ updates)
        tick()
    return {arm: state.outcome() for arm, state in running.items()}


def inner_products(client_weights: FloatArray, vectors: FloatArray) -> FloatArray:
    r""":math:`\lambda_m \lambda_n \langle r_m, r_n \rangle`: all that an error depends on."""
    weighted = client_weights[:, None] * vectors
    return np.asarray(weighted @ weighted.T)


def squared_error(cohort: Cohort, products: FloatArray) -> float:
    """The squared distance of a cohort's aggregate from that of all clients, by the vectors' products."""
    surplus = np.full(len(products), -1.0)
    surplus[cohort.clients] += cohort.weights
    return float(surplus @ products @ surplus)


def least_variance(products: FloatArray, cohort_size: int) -> float:
    r""":math:`V^\star`, the least variance that draws with replacement can have."""
    roots = np.sqrt(np.diag(products))
    return max(float(roots.sum() ** 2 - products.sum()), 0.0) / cohort_size


def draws_for_distinct(probabilities: FloatArray, distinct: int) -> float:
    """How many draws with replacement give ``distinct`` different clients on average, not rounded.

    >>> round(draws_for_distinct(np.array([0.5, 0.5]), 1), 6)  # one draw, one client
    1.0
    >>> round(draws_for_distinct(np.full(4, 0.25), 2), 6)  # 4 (1 - 0.75^x) = 2
    2.409421
    """
    with np.errstate(divide="ignore"):
        logs = np.log1p(-np.minimum(probabilities, 1.0))
    low, high = 0.0, 60.0  # log2 of the draws
    for _ in range(100):
        middle = (low + high) / 2.0
        expected = -np.expm1(2.0**middle * logs).sum()
        low, high = (middle, high) if expected < distinct else (low, middle)
    return float(2.0**low)


class RunningArm:
    """An arm in the middle of a run."""

    def __init__(
        self,
        arm: Arm,
        client_weights: FloatArray,
        first_norms: FloatArray,
        num_parameters: int,
        num_rounds: int,
        num_draws: int,
        seed: int,
    ) -> None:
        trial = Trial.at_start(
            client_weights,
            first_norms,
            cohort_size=arm.cohort_size,
            num_rounds=num_rounds,
            design=arm.design,
            seed=seed,
        )
        self.sampler = make_sampler(arm.sampler, find_contestant(arm.sampler), trial)
        self.memory: Memory | None = None
        if arm.memory:
            self.memory = Memory(num_parameters=num_parameters, num_clients=len(client_weights))
        self._arm, self._weights, self._num_draws = arm, client_weights, num_draws
        self._errors: list[float] = []
        self._equal: list[float] = []
        self._ratios: list[float] = []
        self._coefficients: list[float] = []
        self._seconds: list[float] = []

    def round(self, updates: FloatArray, products: FloatArray) -> None:
        """Measure, draw and learn; ``products`` are the updates' inner products."""
        unit = least_variance(products, self._arm.cohort_size)
        if self.memory is not None:
            residuals = all_residuals(updates, self.memory)
            products = inner_products(self._weights, residuals)
            self._coefficients.append(self.memory.coefficient)
        feedback = np.diag(products)
        with np.errstate(divide="ignore", invalid="ignore"):
            norms = np.nan_to_num(np.sqrt(feedback) / self._weights)
        if isinstance(self.sampler, Oracle):
            self.sampler.reveal(norms)
        probabilities = self.sampler.probabilities()
        self._ratios.append(
            variance_ratio(probabilities, self._weights, norms, self._arm.design, self._arm.cohort_size)
        )
        error = self.mean_squared_error(probabilities, products, norms)
        if unit > 0.0:
            self._errors.append(error / unit)
            if self._arm.design == BASE and not self._arm.memory:
                draws = draws_for_distinct(probabilities, self._arm.cohort_size)
                self._equal.append(error / unit * self._arm.cohort_size / draws)
        begin = time.perf_counter()
        cohort = self.sampler.draw()
        drawn = updates[cohort.clients]
        _, heard = combined(cohort, self._weights[cohort.clients], drawn, self.memory)
        self.sampler.observe(cohort, heard)
        self._seconds.append(time.perf_counter() - begin)

    def mean_squared_error(self, probabilities: FloatArray, products: FloatArray, norms: FloatArray) -> float:
        """Exact for draws with replacement and independent ones, otherwise a mean over draws."""
        feedback, size = np.diag(products), self._arm.cohort_size
        if self._arm.design == "with_replacement":
            return variance_loss(probabilities, feedback, size) - float(products.sum()) / size
        if self._arm.design == "independent":
            return sampling_variance(probabilities, feedback, "independent", size)
        exact = 0.0
        if self._arm.design == "fixed_size":
            exact = sampling_variance(probabilities, feedback, "fixed_size", size)
            products = products - np.diag(feedback)
        errors = []
        for _ in range(self._num_draws):
            errors.append(squared_error(self.sampler.draw(), products))
            if isinstance(self.sampler, Oracle):
                self.sampler.reveal(norms)  # once for each draw
        return exact + float(np.mean(errors))

    def outcome(self) -> ArmRun:
        """The means over the rounds."""
        if not self._errors:
            raise ConfigurationError(
                "environments must have rounds in which a draw matters, but all updates were equal"
            )
        return ArmRun(
            error=float(np.mean(self._errors)),
            settled_error=float(np.mean(self._errors[len(self._errors) // 2 :])),
            error_equal_trainings=float(np.mean(self._equal)) if self._equal else float("nan"),
            variance_ratio=float(np.mean(self._ratios)),
            coefficient=float(np.mean(self._coefficients)) if self._coefficients else 0.0,
            seconds=float(np.median(self._seconds)),
        )


def _score(environment: str, arm: Arm, runs: dict[Arm, tuple[ArmRun, ...]]) -> VectorScore:
    own = runs[arm]
    base = runs[Arm(arm.sampler, BASE, False, arm.cohort_size)]
    plain = runs[Arm(arm.sampler, arm.design, False, arm.cohort_size)]
    error = np.array([run.error for run in own])
    to_base = ratio_of_means(error, np.array([run.error for run in base]))
    settled = ratio_of_means(
        np.array([run.settled_error for run in own]), np.array([run.settled_error for run in base])
    )
    equal = ratio_of_means(error, np.array([run.error_equal_trainings for run in base]))
    to_plain = ratio_of_means(error, np.array([run.error for run in plain]))
    return VectorScore(
        environment,
        arm,
        *to_base,
        *settled,
        equal[0],
        *to_plain,
        variance_ratio=float(np.mean([run.variance_ratio for run in own])),
        coefficient=float(np.mean([run.coefficient for run in own])),
        time_to_base=sum(run.seconds for run in own) / sum(run.seconds for run in base),
        by_seed=own,
    )


def ratio_of_means(above: FloatArray, below: FloatArray) -> tuple[float, float]:
    """The ratio of two means over the seeds, and its jackknife standard error; nan for one seed.

    >>> ratio_of_means(np.array([1.0, 3.0]), np.array([2.0, 2.0]))
    (1.0, 0.5)
    """
    count, ratio = len(above), float(above.sum() / below.sum())
    if count == 1:
        return ratio, float("nan")
    without = (above.sum() - above) / (below.sum() - below)
    return ratio, float(np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2)))
