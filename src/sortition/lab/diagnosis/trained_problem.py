r"""The noise of a step from a problem: the updates are known, so the true error of each choice is.

The model takes the steps of the default sampler. Along this path every choice draws, and learns, for itself.
In some rounds all clients' updates are computed twice: g on the mini-batches of this round, and g' on those
of the next. The model has seen neither. Then

.. math:: G = \Big\langle \sum_m \lambda_m g_m, \sum_m \lambda_m g'_m \Big\rangle, \qquad
          B = \frac12 \sum_m \lambda_m^2 \|g_m - g'_m\|^2

are unbiased, and S is the variance of the aggregate of g (or, with a memory, of the residuals) over draws:

.. math:: S = \sum_m a_m \Big(\frac1{\pi_m} - 1\Big) + \sum_{m \ne n} \lambda_m \lambda_n
          \langle r_m, r_n \rangle\, \mathbb E[(\mathrm{weight}_m - 1)(\mathrm{weight}_n - 1)]

The first part is exact, the second a mean over ``DRAWS`` draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sortition import ConfigurationError, Memory, Sampler
from sortition.core.designs import draw_fixed_size
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import optimal_probabilities, variance_loss
from sortition.lab.algorithms import all_residuals, combined
from sortition.lab.contestants import CONTESTANTS, Trial
from sortition.lab.diagnosis.findings import (
    ADAPTIVE,
    BEST,
    MEMORY,
    PROPORTIONAL,
    UNIFORM,
    StepNoise,
    heterogeneity,
)
from sortition.lab.diagnosis.known_norms import default_of
from sortition.lab.parallel import Tick
from sortition.lab.training import Problem, sampling_variance

MEASURED = 50
"""Rounds in which the noise is measured, evenly spread; about."""
BLOCK = 5
"""Measured rounds whose mean is the unit of each: the cross terms are means over few draws."""
DRAWS = 6
ROUNDING = 1e-12
"""A variance below this share of the squares that it is a difference of is 0."""
LARGEST = 1e100
"""Entries of a model that are larger are a divergence: their squares must be finite."""
DIVERGED = 1e3
"""A loss of so many times the first is one, too."""
SHARES = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85)
"""Of today's K: cohort sizes that are tried."""


class _Arm:
    """A choice on the path: its sampler, its memory, and what was measured of it."""

    def __init__(self, choice: str, weights: FloatArray, size: int, parameters: int, seed: int) -> None:
        self.size, self._weights, self._learns = size, weights, choice in (ADAPTIVE, MEMORY)
        self._sampler: Sampler = default_of(weights, size, seed)
        if not self._learns:
            self._sampler = CONTESTANTS[choice](Trial(weights, size, 1, 0.0, "fixed_size", seed))
        self.memory = None
        if choice == MEMORY:
            self.memory = Memory(num_parameters=parameters, num_clients=len(weights))
        self.variances: list[float] = []
        self.replacing: list[float] = []

    def measure(self, updates: FloatArray) -> None:
        """S of this round, where all updates are known."""
        residuals = self._weights[:, None] * all_residuals(updates, self.memory)
        draws = [self._sampler.draw() for _ in range(DRAWS)]
        p, drawn = self._sampler.probabilities(), [(cohort.clients, cohort.weights) for cohort in draws]
        own, replacing = true_variances(residuals, p, self.size, drawn)
        self.variances.append(own)
        self.replacing.append(replacing)

    def learn(self, problem: Problem, model: FloatArray, round_index: int) -> FloatArray | None:
        """Draw, and learn from the norms; the aggregate."""
        if not self._learns:
            return None
        cohort = self._sampler.draw()
        updates = problem.updates(model, cohort.clients, round_index)
        step, norms = combined(cohort, self._weights[cohort.clients], updates, self.memory)
        self._sampler.observe(cohort, norms)
        return step


def true_variances(
    residuals: FloatArray,
    probabilities: FloatArray,
    cohort_size: int,
    draws: Sequence[tuple[IntArray, FloatArray]],
) -> tuple[float, float]:
    """The variance of the sum of ``residuals`` (lambda times update, a row a client).

    For draws of fixed size, with cross terms from ``draws`` (clients and weights); and with replacement.
    What rounding alone can leave is 0: draws of everybody have no variance.
    """
    feedback, total = np.sum(residuals**2, axis=1), residuals.sum(axis=0)
    cross = 0.0
    for clients, weights in draws:
        error = weights @ residuals[clients] - total
        surplus = np.full(len(feedback), -1.0)
        surplus[clients] += weights
        cross += float(error @ error - surplus**2 @ feedback) / len(draws)
    alone = sampling_variance(probabilities, feedback, "fixed_size", cohort_size)
    replacing = variance_loss(probabilities, feedback, cohort_size) - float(total @ total) / cohort_size
    least = ROUNDING * float(feedback.sum() + total @ total)
    own = alone + cross
    return own if own > least else 0.0, replacing if replacing > least else 0.0


def measure_problem(
    problem: Problem,
    cohort_size: int,
    *,
    step_size: float,
    num_rounds: int,
    seed: int = 0,
    smallest: bool = True,
    tick: Tick = lambda: None,
) -> StepNoise:
    """Train ``num_rounds`` rounds with the default sampler at ``step_size``, and measure along the way."""
    weights = np.asarray(problem.client_weights, dtype=float)
    everybody, model = np.arange(len(weights)), problem.initial_model()
    sized = [PROPORTIONAL] if np.ptp(weights) > 0.0 else []
    arms = {
        choice: _Arm(choice, weights, cohort_size, model.size, seed + place)
        for place, choice in enumerate((UNIFORM, *sized, ADAPTIVE, MEMORY))
    }
    sizes = sorted({math.ceil(share * cohort_size) for share in SHARES} - {cohort_size}) if smallest else []
    smaller = {
        (choice, size): _Arm(choice, weights, size, model.size, seed + 10 + place)
        for place, size in enumerate(sizes)
        for choice in (*sized, ADAPTIVE, MEMORY)
    }
    apart = max(1, num_rounds // MEASURED)
    signal, minibatch, best, all_feedback = [], [], [], []
    generator = np.random.default_rng(seed)
    for round_index in range(num_rounds):
        if round_index % apart == 0 and (round_index == 0 or round_index + 1 < num_rounds):
            updates = problem.updates(model, everybody, round_index)
            others = problem.updates(model, everybody, round_index + 1)
            mean, other_mean = weights @ updates, weights @ others
            feedback = weights**2 * np.sum(updates**2, axis=1)
            signal.append(float(mean @ other_mean))
            minibatch.append(float(weights**2 @ np.sum((updates - others) ** 2, axis=1)) / 2.0)
            oracle = optimal_probabilities(feedback)
            drawn = [draw_fixed_size(oracle, cohort_size, generator) for _ in range(DRAWS)]
            both = [(clients, own) for clients, _, _, own in drawn]
            best.append(true_variances(weights[:, None] * updates, oracle, cohort_size, both))
            all_feedback.append(feedback)
            for arm in (*arms.values(), *smaller.values()):
                arm.measure(updates)
        step = None
        for choice, arm in arms.items():
            moved = arm.learn(problem, model, round_index)
            step = moved if choice == ADAPTIVE else step
        for arm in smaller.values():
            arm.learn(problem, model, round_index)
        assert step is not None
        model = model - step_size * step
        if not np.all(np.abs(model) < LARGEST):
            raise ConfigurationError(
                f"step_size {step_size:g} is too large: training diverges in round {round_index}; give a "
                "smaller one"
            )
        tick()
    last, first = problem.loss(model), problem.loss(problem.initial_model())
    if not last - first <= DIVERGED * max(abs(first), 1.0):
        raise ConfigurationError(
            f"step_size {step_size:g} is too large: training goes from a loss of {first:.3g} to {last:.3g}; "
            "give a smaller one"
        )
    squares = np.array(all_feedback)
    signals = np.array(signal)
    sampling = {choice: np.array(arm.variances) for choice, arm in arms.items()}
    replacing = {choice: np.array(arm.replacing) for choice, arm in arms.items()}
    return StepNoise(
        num_clients=len(weights),
        cohort_size=cohort_size,
        num_rounds=num_rounds,
        sampling={**sampling, BEST: np.array(best)[:, 0]},
        replacing={**replacing, BEST: np.array(best)[:, 1]},
        minibatch=np.array(minibatch),
        signal=signals,
        largest_signal=np.sqrt(squares).sum(axis=1) ** 2,
        block=BLOCK,
        heterogeneity=heterogeneity(squares, np.maximum(signals, 0.0), apart),
        smallest_cohorts=_smallest(sampling, smaller, sizes, cohort_size),
        notes=(
            "'best possible' is that of draws without a memory."
            + (f" For the least K, {', '.join(map(str, sizes))} were tried." if sizes else ""),
        ),
    )


def _smallest(
    sampling: dict[str, FloatArray], smaller: dict[tuple[str, int], _Arm], sizes: list[int], cohort_size: int
) -> dict[str, dict[str, int | None]]:
    """By baseline and choice, the least of the sizes tried whose variance is at most the baseline's."""
    found: dict[str, dict[str, int | None]] = {}
    for baseline in (UNIFORM, PROPORTIONAL):
        if baseline not in sampling or not sizes:
            continue
        allowed = sampling[baseline]
        found[baseline] = {}
        for choice in (PROPORTIONAL, ADAPTIVE, MEMORY):
            if choice not in sampling or choice == baseline:
                continue
            tried = {size: np.array(smaller[choice, size].variances) for size in sizes}
            tried[cohort_size] = sampling[choice]
            enough = [size for size, own in tried.items() if _no_more(own, allowed)]
            found[baseline][choice] = min(enough) if enough else None
    return found


def _no_more(own: FloatArray, allowed: FloatArray) -> bool:
    """On average over the rounds, each in units of its block."""
    blocks = max(1, len(own) // BLOCK)
    ratios = [
        a.sum() / b.sum()
        for a, b in zip(np.array_split(own, blocks), np.array_split(allowed, blocks), strict=True)
        if b.sum() > 0.0
    ]
    return bool(ratios) and float(np.mean(ratios)) <= 1.0
