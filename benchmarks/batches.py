r"""Adaptive mini-batches against random reshuffling: softmax regression, a small CNN, and the time of a step.

    python benchmarks/batches.py softmax [--problems A,B] [--samplers A,B] [--jobs 2] [--data DIR]
        [--out FILE]
    python benchmarks/batches.py decay [--problems A,B] [--epochs 15] [--data DIR]
    python benchmarks/batches.py squares
    python benchmarks/batches.py groups
    python benchmarks/batches.py chance
    python benchmarks/batches.py cnn [--rows "A;B"] [--jobs 2] [--data DIR] [--out FILE]
    python benchmarks/batches.py time [--repeats 300] [--data DIR]
    python benchmarks/batches.py figure FILE --svg FILE.svg     # of what softmax --out FILE has written

All but the last two take ``--seeds 10`` and ``--first-seed 1``: how many odd seeds are measured, and which
is the first.

*softmax*: 10,000 examples, batches of 32, 15 epochs at a constant step. The target is the training loss of
random reshuffling (RR) after two thirds of its epochs. RR's step for that is the one with the lowest loss at
the end; every sampler's own step, RR's too, is the one with the fewest epochs to the target. Steps are chosen
by ``best_step`` on even seeds, where data and draws are others than in the table, which is of odd seeds. A
seed's epochs are where the falling curve nearest to its losses (isotonic regression, two losses an epoch)
meets the seed's target; one that does not get there counts as 15. In the last column is what ``diagnose``
makes of the first epoch's norms: the sampling variance over that of uniform draws. Differences by seed
follow, with the number of seeds on which the released sampler is behind.

*decay*: the same problems with steps that fall to 0 in ``--epochs``, and the loss at the end above the least
possible one. The geometric mean of adaptive batches' over RR's follows.

*squares*: least squares, 10,000 rows of log-normal length (deviation 1.5), epochs until the loss above the
least possible one is 1% of what it was. Row i has the Lipschitz constant :math:`L_i = \|x_i\|^2`; "from L" is
a start from :math:`p \propto L`, and "fixed L" stays there.

*groups*: no training, but 100 groups of 100 examples whose norms are drawn afresh at each visit. What the
released sampler with ``groups`` and the default sampler over the groups make of them in 15 epochs: the
variance of a batch over that of uniform draws, with the true mean squares of the groups.

*chance*: the same without groups: the norm of each of 5,000 examples is its level times chance, drawn afresh
at each visit, both log-normal. With equal levels there is nothing to learn.

*cnn*: Fashion-MNIST, 5,000 training images, balanced or with a long tail (the rarest class a hundredth of the
most frequent one), 6 epochs. All samplers have RR's step: that of ``CNN_STEPS`` with the lowest training loss
at the end, on seed 0. Differences to RR are paired by seed; the initial model is that of the seed.

*time*: what tickets, norms of the last layer and the plan of an epoch add to a step of that CNN with its
batch, short blocks of plain and of adaptive steps in turns.

The released sampler is "adaptive". "EB-rr" is importance reshuffling by the probabilities of the default
sampler, "SM-rr" by running means of squares with the constants of ``RunningMeans``. The others draw with
replacement.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import binom
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sortition import (
    AvareSampler,
    Cohort,
    EmpiricalBayesSampler,
    Sampler,
    UniformSampler,
    VRBSampler,
    diagnose,
)
from sortition.core.reshuffling import expected_copies
from sortition.core.types import FloatArray, IntArray
from sortition.integrations.torch import AdaptiveBatchSampler, TicketLoader, last_layer_norms
from sortition.lab.compare import FallingCurve
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.problems.idx import load_images
from sortition.lab.reports.charts import PALETTE, ink, whole_chart
from sortition.lab.reports.page import picture_svg

N, CLASSES, WIDTH, BATCH, EPOCHS = 10_000, 10, 50, 32, 15
PARTS = 2
"""Losses an epoch."""
STEPS = (0.25, 1.0, 4.0, 16.0)
TUNING_SEEDS, DECAY_TUNING_SEEDS = 16, 2
PROBLEMS = {
    "rare": "rare class (1%)",
    "heavy": "heavy row lengths",
    "noisy": "10% label noise",
    "tail": "long tail",
    "balanced": "balanced classes",
    "mnist": "MNIST",
}
ADAPTIVE, RR = "adaptive", "RR"
RIVALS = ("EB-rr", "SM-rr")
SAMPLERS = (RR, "uniform", "empirical Bayes", "EB-rr", "SM-rr", ADAPTIVE, "Avare", "VRB")
Features = NDArray[np.float32]


class Examples(NamedTuple):
    """Rows and labels; the last column of the rows is one."""

    rows: Features
    labels: IntArray


@lru_cache(maxsize=16)
def examples(problem: str, seed: int, data: Path | None) -> Examples:
    """Ten Gaussian classes whose coordinates shrink as j^-3/4, changed as the problem says; or MNIST."""
    generator = np.random.default_rng([seed, 2111])
    if problem == "mnist":
        images, classes, _ = load_images("mnist", data)
        chosen = generator.permutation(len(images))[:N]
        rows, labels = images[chosen].reshape(len(chosen), -1) / 255.0, classes[chosen].astype(np.int64)
        rows *= 8.0 / np.sqrt((rows**2).sum(axis=1).mean())
    else:
        shares = np.ones(CLASSES)
        if problem == "rare":
            shares[-1] = 0.01 * (CLASSES - 1) / 0.99
        if problem == "tail":
            shares = 100.0 ** (-np.arange(CLASSES) / (CLASSES - 1))
        labels = generator.choice(CLASSES, N, p=shares / shares.sum())
        rows = 0.5 * generator.normal(size=(CLASSES, WIDTH))[labels] + generator.normal(size=(N, WIDTH))
        rows *= np.arange(1, WIDTH + 1) ** -0.75
        rows *= 2.0 / np.sqrt((rows**2).sum(axis=1).mean())
        if problem == "heavy":
            rows *= np.exp(generator.normal(size=(N, 1)) - 0.5)
        if problem == "noisy":
            wrong = generator.random(N) < 0.1
            labels = np.where(wrong, generator.integers(CLASSES, size=N), labels)
    ones = np.ones((len(rows), 1))
    return Examples(np.hstack([rows, ones]).astype(np.float32), labels)


@njit(cache=True, fastmath=True)
def steps(
    rows: Features, labels: IntArray, model: Features, order: IntArray, weights: Features, step: float
) -> Features:
    """Gradient steps on batches of ``order``; the squared gradient norm of each draw is returned."""
    width, classes = model.shape
    squares = np.zeros(order.size, dtype=np.float32)
    change, z = np.zeros_like(model), np.zeros(classes, dtype=np.float32)
    for start in range(0, order.size, BATCH):
        end = min(start + BATCH, order.size)
        change[:] = 0.0
        for k in range(start, end):
            row, label = rows[order[k]], labels[order[k]]
            z[:] = 0.0
            length = np.float32(0.0)
            for j in range(width):
                length += row[j] * row[j]
                for c in range(classes):
                    z[c] += row[j] * model[j, c]
            z -= z.max()
            z[:] = np.exp(z)
            z /= z.sum()
            z[label] -= np.float32(1.0)
            squares[k] = length * (z * z).sum()
            z *= weights[k] * np.float32(step / (end - start))
            for j in range(width):
                for c in range(classes):
                    change[j, c] += row[j] * z[c]
        model -= change
    return squares


def loss(data: Examples, model: Features) -> float:
    """The mean cross-entropy over all examples."""
    z = data.rows @ model
    top = z.max(axis=1)
    logs = np.log(np.exp(z - top[:, None]).sum(axis=1)) + top
    return float(np.mean(logs - z[np.arange(len(z)), data.labels]))


# Samplers ------------------------------------------------------------------------------------------------

Piece = tuple[IntArray, FloatArray, int]
"""Examples and weights of some batches, and the number of these."""


def marks(size: int, parts: int) -> list[int]:
    """After how many batches of an epoch the loss is taken."""
    batches = -(-size // BATCH)
    return [batches * (k + 1) // parts for k in range(parts)]


def pieces(order: IntArray, weights: FloatArray, parts: int) -> Iterator[Piece]:
    """An epoch in pieces of whole batches."""
    ends = [0, *marks(len(order), parts)]
    for start, end in pairwise(ends):
        some = slice(start * BATCH, end * BATCH)
        yield order[some], weights[some], end - start


class RunningMeans:
    """p in proportion to the root of a running mean of squared norms that remembers three visits.

    It is shrunk to the population, which counts for one visit, and a fifth of the draws are uniform.
    """

    def __init__(self, size: int) -> None:
        self._means, self._visits = np.zeros(size), np.zeros(size)

    def probabilities(self) -> FloatArray:
        """Uniform before anything is learnt."""
        seen = self._visits > 0.0
        population = self._means[seen].mean() if seen.any() else 1.0
        roots = np.sqrt((self._visits * self._means + population) / (self._visits + 1.0))
        return np.asarray(0.8 * roots / roots.sum() + 0.2 / len(roots))

    def learn_epoch(self, order: IntArray, squares: FloatArray, expected: FloatArray) -> None:
        """Visit by visit."""
        learn_visits(self._means, self._visits, order, squares)


@njit(cache=True)
def learn_visits(means: FloatArray, visits: FloatArray, order: IntArray, squares: FloatArray) -> None:
    """The running means of ``RunningMeans``."""
    for k in range(order.size):
        i = order[k]
        visits[i] = min(visits[i] + 1.0, 3.0)
        means[i] += (squares[k] - means[i]) / visits[i]


class EmpiricalBayes:
    """The probabilities of the default sampler, which learns batch by batch, as if each were a cohort."""

    def __init__(self, size: int, seed: int, prior: FloatArray | None) -> None:
        self._sampler = default(size, seed, prior)
        self.probabilities = self._sampler.probabilities

    def learn_epoch(self, order: IntArray, squares: FloatArray, expected: FloatArray) -> None:
        """From an epoch or a part of it."""
        size = len(expected)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            clients, first, counts = np.unique(batch, return_index=True, return_counts=True)
            p = expected[clients] / size
            weights = counts / (len(batch) * p)
            cohort = Cohort(0, BATCH, clients, counts, p, weights)
            own = np.maximum(squares[start : start + BATCH][first], 1e-300)
            self._sampler.learn(cohort, np.log(own) - 2.0 * np.log(size))


class Fixed:
    """Probabilities that stay as they are."""

    def __init__(self, probabilities: FloatArray) -> None:
        self._probabilities = probabilities

    def probabilities(self) -> FloatArray:
        """Those."""
        return self._probabilities

    def learn_epoch(self, order: IntArray, squares: FloatArray, expected: FloatArray) -> None:
        """Nothing."""


def reshuffled(expected: FloatArray, generator: np.random.Generator) -> IntArray:
    """The order of an epoch that is rounded afresh, by systematic sampling: a line is cut into stretches of
    lengths ``expected``, and each has as many copies as it holds of the points 1 - s, 2 - s, ..., s uniform.
    """
    total = round(float(expected.sum()))
    ends = np.minimum(np.floor(np.cumsum(expected) + generator.random()), total)
    ends[-1] = total
    copies = np.diff(ends, prepend=0.0).astype(np.int64)
    return generator.permutation(np.repeat(np.arange(len(expected)), copies))


class Reshuffling:
    """Importance reshuffling by some beliefs, rounded afresh in each epoch; RR if these are uniform."""

    def __init__(self, size: int, seed: int, beliefs: Fixed | EmpiricalBayes | RunningMeans) -> None:
        self._generator = np.random.default_rng(seed)
        self._beliefs, self._size = beliefs, size

    def draws(self, parts: int) -> Iterator[Piece]:
        """An epoch."""
        self._expected = expected_copies(self._beliefs.probabilities(), self._size)
        order = reshuffled(self._expected, self._generator)
        yield from pieces(order, 1.0 / self._expected[order], parts)

    def observe(self, order: IntArray, squares: FloatArray) -> None:
        """Learn from a piece."""
        self._beliefs.learn_epoch(order, squares, self._expected)


class WithReplacement:
    """A sampler of the library, a round for each batch."""

    def __init__(self, sampler: Sampler, size: int) -> None:
        self._sampler, self._size = sampler, size

    def draws(self, parts: int) -> Iterator[Piece]:
        """Batch by batch; an example that is drawn twice is there once, with twice the weight."""
        for _ in range(-(-self._size // BATCH)):
            self._cohort = self._sampler.draw()
            clients = self._cohort.clients
            yield clients, self._cohort.weights * len(clients) / self._size, 1

    def observe(self, order: IntArray, squares: FloatArray) -> None:
        """The feedback of the last batch."""
        self._sampler.observe(self._cohort, np.sqrt(squares))


class Released:
    """``AdaptiveBatchSampler``."""

    def __init__(self, size: int, seed: int, prior: FloatArray | None) -> None:
        self.sampler = AdaptiveBatchSampler(size, BATCH, prior=prior, seed=seed)

    def draws(self, parts: int) -> Iterator[Piece]:
        """An epoch."""
        order = np.concatenate([np.array(batch) for batch in self.sampler])
        tickets = list(self.sampler.tickets())
        self._tickets = iter(tickets)
        yield from pieces(order, np.concatenate([ticket.weights for ticket in tickets]), parts)

    def observe(self, order: IntArray, squares: FloatArray) -> None:
        """Ticket by ticket."""
        for start in range(0, len(order), BATCH):
            next(self._tickets).observe(np.sqrt(squares[start : start + BATCH]))


def default(size: int, seed: int, prior: FloatArray | None = None) -> EmpiricalBayesSampler:
    """The default sampler, with replacement and without a guard: examples don't lie."""
    return EmpiricalBayesSampler(
        num_clients=size, cohort_size=BATCH, design="with_replacement", guard=None, prior=prior, seed=seed
    )


def contestant(name: str, size: int, seed: int, known: FloatArray | None = None) -> Any:
    """The sampler called ``name``; ``known`` are the probabilities that some start from."""
    common: dict[str, Any] = {"num_clients": size, "cohort_size": BATCH, "seed": seed}
    start = known if name.endswith("from L") else None
    match name.removesuffix(" from L"):
        case "adaptive":
            return Released(size, seed, start)
        case "RR":
            return Reshuffling(size, seed, Fixed(np.ones(size)))
        case "EB-rr":
            return Reshuffling(size, seed, EmpiricalBayes(size, seed, start))
        case "SM-rr":
            return Reshuffling(size, seed, RunningMeans(size))
        case "fixed L" if known is not None:
            return Reshuffling(size, seed, Fixed(known))
        case "uniform":
            return WithReplacement(UniformSampler(**common), size)
        case "empirical Bayes":
            return WithReplacement(default(size, seed, start), size)
        case "Avare":
            return WithReplacement(AvareSampler(**common), size)
        case "VRB":
            return WithReplacement(VRBSampler(**common), size)
    raise ValueError(f"name must be one of {', '.join(SAMPLERS)}, got {name}")


# Softmax regression --------------------------------------------------------------------------------------


class Run(NamedTuple):
    """The losses of a run, and the variance ratio of ``diagnose`` after the first epoch."""

    losses: FloatArray
    ratio: float


def train(
    problem: str,
    name: str,
    step: float,
    seed: int,
    data: Path | None,
    tick: Tick,
    *,
    epochs: int = EPOCHS,
    decay: bool = False,
) -> Run:
    """One run; with ``decay`` the step falls to 0, in equal parts from loss to loss."""
    found = examples(problem, seed, data)
    size, sampler = len(found.labels), contestant(name, len(found.labels), seed)
    model = np.zeros((found.rows.shape[1], CLASSES), dtype=np.float32)
    losses, ratio, ends = [], float("nan"), marks(size, PARTS)
    for epoch in range(epochs):
        done = 0
        for order, weights, count in sampler.draws(PARTS):
            w = weights.astype(np.float32)
            now = step * (1.0 - len(losses) / (epochs * PARTS)) if decay else step
            squares = steps(found.rows, found.labels, model, order, w, now)
            sampler.observe(order, np.nan_to_num(squares.astype(np.float64), posinf=1e30))
            done += count
            if done in ends:
                losses.append(loss(found, model))
        if epoch == 0 and name == ADAPTIVE:
            ratio = diagnose(sampler.sampler).noise.ratio("adaptive")
        tick()
    return Run(np.nan_to_num(np.array(losses), nan=1e30, posinf=1e30), ratio)


def epochs_to(target: float, losses: FloatArray) -> float:
    """Epochs until the falling curve nearest to ``losses`` meets the target; all of them if it does not."""
    found = FallingCurve(losses).rounds_to(target)
    return EPOCHS if found is None else min(found / PARTS, EPOCHS)


def best_step(cost: Callable[[float], float], grid: tuple[float, ...] = STEPS) -> float:
    """The best of ``grid``, then of half and double of it, then of the best over and times the root of 2."""
    tried = {step: cost(step) for step in grid}
    for factor in (2.0, 2.0**0.5):
        best = min(tried, key=tried.__getitem__)
        tried |= {step: cost(step) for step in (best / factor, best * factor)}
    return min(tried, key=tried.__getitem__)


def targets_of(problem: str, seeds: dict[str, list[int]], data: Path | None, tick: Tick) -> dict[str, Any]:
    """RR's step with the lowest loss at the end, and its loss after two thirds, by seed."""

    def losses(step: float, seed: int) -> FloatArray:
        return train(problem, RR, step, seed, data, tick).losses

    def final(step: float) -> float:
        return float(np.mean([losses(step, seed)[-2 * PARTS :] for seed in seeds["even"]]))

    step = best_step(final)
    by_seed = {seed: rr_target(losses(step, seed)) for seed in seeds["even"] + seeds["odd"]}
    return {"step": step, "by_seed": by_seed}


def measured(
    problem: str,
    name: str,
    target: dict[int, float],
    seeds: dict[str, list[int]],
    data: Path | None,
    tick: Tick,
) -> dict[str, Any]:
    """The sampler's step by even seeds, and its epochs on odd ones."""

    def epochs(step: float, seed: int) -> tuple[float, float]:
        run = train(problem, name, step, seed, data, tick)
        return epochs_to(target[seed], run.losses), run.ratio

    step = best_step(lambda step: float(np.mean([epochs(step, seed)[0] for seed in seeds["even"]])))
    found = [epochs(step, seed) for seed in seeds["odd"]]
    return {
        "step": step,
        "epochs": [each[0] for each in found],
        "ratio": float(np.mean([each[1] for each in found])),
    }


def softmax_row(
    problem: str, names: tuple[str, ...], odd: list[int], jobs: int, data: Path | None
) -> dict[str, Any]:
    """Choose the steps on even seeds, and measure on odd ones."""
    seeds = {"even": list(range(0, 2 * TUNING_SEEDS, 2)), "odd": odd}
    rr = targets_of(problem, seeds, data, lambda: None)
    tasks = [partial(measured, problem, name, rr["by_seed"], seeds, data) for name in names]
    found = dict(zip(names, run_tasks(tasks, jobs), strict=True))
    return {
        "problem": problem,
        "seeds": odd,
        "rr_step": rr["step"],
        "steps": {name: own["step"] for name, own in found.items()},
        "epochs": {name: own["epochs"] for name, own in found.items()},
        "ratio": found[ADAPTIVE]["ratio"] if ADAPTIVE in found else float("nan"),
    }


def rr_target(losses: FloatArray) -> float:
    """RR's loss after two thirds of its epochs."""
    return FallingCurve(losses).at(EPOCHS * PARTS * 2 // 3)


def shown(values: list[float], digits: int = 1) -> str:
    """Mean and standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.{digits}f} ±{error:.{digits}f}"


def odd_seeds(options: argparse.Namespace) -> list[int]:
    """Those that are measured."""
    return list(range(options.first_seed, options.first_seed + 2 * options.seeds, 2))


def paired(difference: FloatArray, digits: int, *, more_is_better: bool = False) -> str:
    """A mean difference by seed with its standard error, and on how many seeds it is for the worse."""
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    behind = int(np.sum(difference < 0.0 if more_is_better else difference > 0.0))
    return f"{difference.mean():+.{digits}f} ±{error:.{digits}f} (behind on {behind} of {len(difference)})"


def softmax(options: argparse.Namespace) -> None:
    """The first table."""
    names = tuple(options.samplers)
    print("| epochs to RR's loss at 2/3 | " + " | ".join(names) + " | variance ratio |")
    print("|---" * (len(names) + 2) + "|")
    rows = []
    for problem in options.problems:
        row = softmax_row(problem, names, odd_seeds(options), options.jobs, options.data)
        rows.append(row)
        cells = " | ".join(f"{shown(row['epochs'][name])} ({row['steps'][name]:.2g})" for name in names)
        print(f"| {PROBLEMS[problem]} | {cells} | {row['ratio']:.2f} |", flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))
    rivals = [name for name in RIVALS if {name, ADAPTIVE} <= set(names)]
    if rivals:
        print("\n| epochs, by seed | " + " | ".join(f"adaptive less {name}" for name in rivals) + " |")
        print("|---" * (len(rivals) + 1) + "|")
    for row in rows if rivals else []:
        epochs = {name: np.array(values) for name, values in row["epochs"].items()}
        cells = " | ".join(paired(epochs[ADAPTIVE] - epochs[name], 2) for name in rivals)
        print(f"| {PROBLEMS[row['problem']]} | {cells} |")


def least_loss(data: Examples) -> float:
    """The least possible loss, by L-BFGS in double precision."""
    rows, every = data.rows.astype(np.float64), np.arange(len(data.labels))

    def value_and_gradient(flat: FloatArray) -> tuple[float, FloatArray]:
        z = rows @ flat.reshape(-1, CLASSES)
        z -= z.max(axis=1, keepdims=True)
        logs = np.log(np.exp(z).sum(axis=1))
        residual = np.exp(z - logs[:, None])
        residual[every, data.labels] -= 1.0
        return float(np.mean(logs - z[every, data.labels])), (rows.T @ residual).ravel() / len(rows)

    start = np.zeros(rows.shape[1] * CLASSES)
    options = {"maxiter": 2_000, "ftol": 1e-11, "gtol": 1e-6}
    return float(minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options).fun)


def decaying(options: argparse.Namespace) -> None:
    """What is left of the loss after steps that fall to 0, the first one chosen on even seeds."""
    names = (RR, "SM-rr", ADAPTIVE)
    print("| loss at the end above the least, steps that fall to 0 | " + " | ".join(names), end="")
    print(" | adaptive less RR | ratio |")
    print("|---" * (len(names) + 3) + "|")
    even, odd = range(0, 2 * DECAY_TUNING_SEEDS, 2), odd_seeds(options)
    for problem in options.problems:

        def final(name: str, step: float, seed: int, problem: str = problem) -> float:
            data, epochs = options.data, options.epochs
            run = train(problem, name, step, seed, data, lambda: None, epochs=epochs, decay=True)
            return float(run.losses[-1])

        least = np.array([least_loss(examples(problem, seed, options.data)) for seed in odd])
        found, cells = {}, [PROBLEMS[problem]]
        for name in names:
            step = best_step(lambda step, name=name: float(np.mean([final(name, step, s) for s in even])))
            found[name] = np.array([final(name, step, seed) for seed in odd]) - least
            cells.append(f"{shown(list(found[name]), 5)} ({step:.2g})")
        cells.append(paired(found[ADAPTIVE] - found[RR], 5))
        cells.append(f"{np.exp(np.mean(np.log(found[ADAPTIVE] / found[RR]))):.2f}")
        print("| " + " | ".join(cells) + " |", flush=True)


# Least squares -------------------------------------------------------------------------------------------

SQUARES_SAMPLERS = (RR, "EB-rr", "SM-rr", ADAPTIVE, "fixed L", "empirical Bayes from L", "EB-rr from L")
SQUARES_SAMPLERS += ("adaptive from L",)
SQUARES_STEPS = (1 / 16, 1 / 4, 1.0, 4.0)
SQUARES_PARTS, SQUARES_EPOCHS, SQUARES_TUNING_SEEDS = 100, 10, 6


@njit(cache=True, fastmath=True)
def squares_steps(
    rows: FloatArray,
    targets: FloatArray,
    model: FloatArray,
    order: IntArray,
    weights: FloatArray,
    step: float,
) -> FloatArray:
    """Gradient steps of least squares on batches of ``order``; squared gradient norms are returned."""
    squares, change = np.zeros(order.size), np.zeros_like(model)
    for start in range(0, order.size, BATCH):
        end = min(start + BATCH, order.size)
        change[:] = 0.0
        for k in range(start, end):
            row = rows[order[k]]
            residual = row @ model - targets[order[k]]
            squares[k] = residual * residual * (row @ row)
            change += (weights[k] * residual * step / (end - start)) * row
        model -= change
    return squares


def train_squares(name: str, step: float, seed: int) -> float:
    """Epochs until the loss above the least possible one is 1% of what it was; all of them if it is not."""
    generator = np.random.default_rng([seed, 2113])
    rows = generator.normal(size=(N, 20)) * np.exp(1.5 * generator.normal(size=(N, 1)))
    rows *= np.arange(1, 21) ** -0.5
    targets = rows @ generator.normal(size=20) + 0.1 * generator.normal(size=N)
    lengths = (rows**2).sum(axis=1)
    scale = np.sqrt(lengths.mean())
    rows, targets = rows / scale, targets / scale
    best = np.linalg.lstsq(rows, targets)[0]
    hessian = rows.T @ rows / N
    model = np.zeros(20)
    start = best @ hessian @ best
    sampler, losses, ends = contestant(name, N, seed, lengths / lengths.sum()), [1.0], marks(N, SQUARES_PARTS)
    for _ in range(SQUARES_EPOCHS):
        done = 0
        for order, weights, count in sampler.draws(SQUARES_PARTS):
            squares = squares_steps(rows, targets, model, order, weights, step)
            sampler.observe(order, np.nan_to_num(squares, nan=1e30, posinf=1e30))
            done += count
            if done in ends:
                away = model - best
                with np.errstate(over="ignore", invalid="ignore"):
                    now = float(np.nan_to_num(away @ hessian @ away / start, nan=1e30, posinf=1e30))
                losses.append(now)
        if losses[-1] < 1e-3 or losses[-1] > 1e20:
            break
    found = FallingCurve(np.array(losses[1:])).rounds_to(0.01)
    return SQUARES_EPOCHS if found is None else found / SQUARES_PARTS


def least_squares(options: argparse.Namespace) -> None:
    """Known row norms against learnt ones."""
    even, odd = range(0, 2 * SQUARES_TUNING_SEEDS, 2), odd_seeds(options)
    print("| least squares, log-normal rows | step | median of epochs to 1% | never |\n|---|---|---|---|")
    for name in SQUARES_SAMPLERS:
        step = best_step(
            lambda step, name=name: float(np.mean([train_squares(name, step, seed) for seed in even])),
            SQUARES_STEPS,
        )
        found = [train_squares(name, step, seed) for seed in odd]
        never = sum(epochs == SQUARES_EPOCHS for epochs in found)
        print(f"| {name} | {step:.2g} | {np.median(found):.2f} | {never} of {len(found)} |", flush=True)


# Groups --------------------------------------------------------------------------------------------------

GROUPS, GROUP_SIZE = 100, 100
RARE = {f"norms of 10 with probability {q:g}": q for q in (0.3, 0.1, 0.03)}
GROUP_ROWS = (*RARE, "log-normal")
GROUP_SAMPLERS = (ADAPTIVE, "empirical Bayes")


class Noise(NamedTuple):
    """The norms of a group: with probability ``share`` log-normal about ``levels``, else 0.001."""

    levels: FloatArray
    shares: FloatArray
    deviations: FloatArray

    def norms(self, groups: IntArray, generator: np.random.Generator) -> FloatArray:
        """One of each of ``groups``."""
        spread = np.exp(self.deviations[groups] * generator.normal(size=len(groups)))
        large = generator.random(len(groups)) < self.shares[groups]
        return np.where(large, self.levels[groups] * spread, 1e-3)

    def mean_squares(self) -> FloatArray:
        """Their true ones."""
        return self.shares * self.levels**2 * np.exp(2.0 * self.deviations**2) + (1.0 - self.shares) * 1e-6


def group_noise(row: str, generator: np.random.Generator) -> Noise:
    """Half of the groups have rare large norms, the others 1; or levels and noise are log-normal."""
    if row in RARE:
        half = np.arange(GROUPS) < GROUPS // 2
        return Noise(np.where(half, 10.0, 1.0), np.where(half, RARE[row], 1.0), np.zeros(GROUPS))
    levels = np.exp(generator.normal(size=GROUPS))
    return Noise(levels, np.ones(GROUPS), generator.uniform(0.0, 1.5, size=GROUPS))


def group_epochs(name: str, noise: Noise, seed: int, generator: np.random.Generator) -> Iterator[FloatArray]:
    """The probabilities of the groups before each epoch."""
    size, labels = GROUPS * GROUP_SIZE, np.repeat(np.arange(GROUPS), GROUP_SIZE)
    if name == ADAPTIVE:
        batches = AdaptiveBatchSampler(size, BATCH, groups=labels, seed=seed)
        for _ in range(EPOCHS):
            yield batches.probabilities().reshape(GROUPS, -1).sum(axis=1)
            list(batches)
            for ticket in batches.tickets():
                _ = ticket.weights  # nothing is trained, so nobody need be told to weigh
                ticket.observe(noise.norms(labels[ticket.examples], generator))
        return
    sampler = default(GROUPS, seed)
    for _ in range(EPOCHS):
        yield sampler.probabilities()
        for _ in range(-(-size // BATCH)):
            cohort = sampler.draw()
            squares = noise.norms(np.repeat(cohort.clients, cohort.counts), generator) ** 2
            starts = np.cumsum(cohort.counts) - cohort.counts
            sampler.observe(cohort, np.sqrt(np.add.reduceat(squares, starts) / cohort.counts))


def grouped(options: argparse.Namespace) -> None:
    """The variance of a batch over that of uniform draws: the mean from the second epoch on, the worst."""
    names = " | ".join(f"{name} | its worst seed" for name in GROUP_SAMPLERS)
    print(f"| variance over uniform's | least possible | {names} |\n" + "|---" * 6 + "|")
    for row in GROUP_ROWS:
        least, found = [], {name: list[float]() for name in GROUP_SAMPLERS}
        for seed in odd_seeds(options):
            noise = group_noise(row, np.random.default_rng([seed, 2114]))
            squares = noise.mean_squares()
            uniform = GROUPS * squares.sum()
            least.append(np.sqrt(squares).sum() ** 2 / uniform)
            for name in GROUP_SAMPLERS:
                every = group_epochs(name, noise, seed, np.random.default_rng([seed, 2115]))
                ratios = [(squares / p).sum() / uniform for p in every]
                found[name].append(float(np.mean(ratios[1:])))
        cells = " | ".join(f"{shown(values, 2)} | {max(values):.2f}" for values in found.values())
        print(f"| {row} | {np.mean(least):.2f} | {cells} |", flush=True)


CHANCE_EXAMPLES, CHANCE_EPOCHS = 5_000, 8
CHANCE_ROWS = ((0.0, 0.5), (0.0, 1.0), (0.0, 1.5), (0.3, 1.0), (0.5, 1.0), (1.0, 1.0), (1.0, 1.5))


def by_chance(options: argparse.Namespace) -> None:
    """The variance of a batch over that of uniform draws, from the second epoch on and in the last."""
    print(
        "| levels, chance | least possible | adaptive | in the second epoch | in the last |\n"
        + "|---" * 5
        + "|"
    )
    for spread, chance in CHANCE_ROWS:
        found, least, size = [], [], CHANCE_EXAMPLES
        for seed in odd_seeds(options):
            rng = np.random.default_rng([seed, 2116])
            levels = np.exp(spread * rng.normal(size=size))
            noise = Noise(levels, np.ones(size), np.full(size, chance))
            squares = noise.mean_squares()
            least.append(float(levels.mean() ** 2 / (levels**2).mean()))
            sampler, ratios = AdaptiveBatchSampler(size, BATCH, seed=seed), []
            for _ in range(CHANCE_EPOCHS):
                ratios.append(float((squares / sampler.probabilities()).sum() / (size * squares.sum())))
                list(sampler)
                for ticket in sampler.tickets():
                    _ = ticket.weights  # nothing is trained, so nobody need be told to weigh
                    ticket.observe(noise.norms(ticket.examples, rng))
            found.append([float(np.mean(ratios[1:])), ratios[1], ratios[-1]])
        cells = " | ".join(shown(list(values), 2) for values in zip(*found, strict=True))
        print(f"| {spread:g}, {chance:g} | {np.mean(least):.2f} | {cells} |", flush=True)


# A small CNN ---------------------------------------------------------------------------------------------

CNN_EPOCHS, TRAIN, TEST = 6, 5_000, 4_000
CNN_STEPS = {"SGD": (0.02, 0.05, 0.1), "AdamW": (0.001, 0.002, 0.005)}
ROWS = {
    "balanced, SGD": (False, "SGD"),
    "long tail, SGD": (True, "SGD"),
    "long tail, AdamW": (True, "AdamW"),
}
CNN_SAMPLERS = (RR, "EB-rr", "SM-rr", ADAPTIVE)


class SmallCNN(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, CLASSES)


def fashion(long_tail: bool, seed: int, data: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images with their labels; the test images are balanced."""
    images, labels, _ = load_images("fashion-mnist", data)
    generator = np.random.default_rng([seed, 2112])
    order = generator.permutation(len(images))
    test, rest = order[:TEST], order[TEST:]
    shares = 100.0 ** (-np.arange(CLASSES) / (CLASSES - 1)) if long_tail else np.ones(CLASSES)
    counts = np.round(TRAIN * shares / shares.sum()).astype(int)
    train_rows = np.concatenate([rest[labels[rest] == c][: counts[c]] for c in range(CLASSES)])
    parts = []
    for rows in (train_rows, test):
        parts.append(torch.as_tensor(images[rows] / np.float32(255.0))[:, None])
        parts.append(torch.as_tensor(labels[rows].astype(np.int64)))
    return parts[0], parts[1], parts[2], parts[3]


def train_cnn(
    row: str, name: str, step: float, seed: int, data: Path | None, tick: Tick
) -> tuple[float, float]:
    """Training loss and test accuracy at the end."""
    torch.set_num_threads(1)
    long_tail, kind = ROWS[row]
    images, labels, test_images, test_labels = fashion(long_tail, seed, data)
    torch.manual_seed(seed)
    model = SmallCNN()
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=step, momentum=0.9)
        if kind == "SGD"
        else torch.optim.AdamW(model.parameters(), lr=step)
    )
    sampler = contestant(name, len(labels), seed)
    for _ in range(CNN_EPOCHS):
        for order, weights, count in sampler.draws(PARTS):
            squares = []
            for k in range(count):
                batch = torch.as_tensor(order[k * BATCH : (k + 1) * BATCH])
                features = model.body(images[batch])
                logits = model.head(features)
                losses = nn.functional.cross_entropy(logits, labels[batch], reduction="none")
                own = torch.as_tensor(weights[k * BATCH : (k + 1) * BATCH], dtype=losses.dtype)
                optimizer.zero_grad()
                (losses * own).mean().backward()
                optimizer.step()
                squares.append(last_layer_norms(logits, labels[batch], features).numpy() ** 2)
            sampler.observe(order, np.concatenate(squares).astype(np.float64))
        tick()
    model.eval()
    with torch.no_grad():
        train_loss = nn.functional.cross_entropy(model.head(model.body(images)), labels).item()
        right = model.head(model.body(test_images)).argmax(dim=1) == test_labels
    return train_loss, 100.0 * right.float().mean().item()


def cnn(options: argparse.Namespace) -> None:
    """The second table."""
    ways = [f"{name} less RR" for name in CNN_SAMPLERS[1:]] + [f"{ADAPTIVE} less {name}" for name in RIVALS]
    print("| same step, by seed | step | RR's loss | " + " | ".join(ways), end="")
    print(" | RR's accuracy | " + " | ".join(ways) + " |")
    print("|---" * (4 + 2 * len(ways)) + "|")
    even, odd, rows = [0], odd_seeds(options), []
    for row in options.rows:
        grid = CNN_STEPS[ROWS[row][1]]
        tasks = [partial(train_cnn, row, RR, step, seed, options.data) for step in grid for seed in even]
        tuned = np.array(run_tasks(tasks, options.jobs)).reshape(len(grid), len(even), 2)
        step = grid[int(np.nanargmin(tuned[:, :, 0].mean(axis=1)))]
        tasks = [
            partial(train_cnn, row, name, step, seed, options.data) for name in CNN_SAMPLERS for seed in odd
        ]
        results = np.array(run_tasks(tasks, options.jobs)).reshape(len(CNN_SAMPLERS), len(odd), 2)
        by_name = dict(zip(CNN_SAMPLERS, results.tolist(), strict=True))
        rows.append({"row": row, "seeds": odd, "step": step, "loss and accuracy": by_name})
        cells = [row, f"{step:g}"]
        for what, digits in ((0, 3), (1, 1)):
            found = dict(zip(CNN_SAMPLERS, results[:, :, what], strict=True))
            cells.append(f"{found[RR].mean():.{digits}f}")
            pairs = [(name, RR) for name in CNN_SAMPLERS[1:]] + [(ADAPTIVE, name) for name in RIVALS]
            for one, other in pairs:
                cells.append(paired(found[one] - found[other], digits, more_is_better=what == 1))
        print("| " + " | ".join(cells) + " |", flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))


# Time and figure -----------------------------------------------------------------------------------------


BLOCK, WARM = 25, 3
"""Steps of a kind in a row, and how many of these only fill the processor's caches."""
FIRSTS = 6
"""So many values hold their true median between them with 95%."""


def timing(options: argparse.Namespace) -> None:
    """What a step takes with its batch: blocks of plain and of adaptive steps in turns.

    Not step by step: what only every other step uses is no longer in the processor's cache. Not whole epochs:
    the machine changes meanwhile. Of each block the lower quartile and the median of its steps are taken.
    Differences are those of neighbouring blocks; printed is their median, with an interval that holds the
    true one with 95%. The first step of an epoch is apart: what it takes longer is spread over its epoch, and
    its error is part of the interval. It is the time of the processor, in which other programs do not count;
    the clock's is printed, too, and that of the parts.
    """
    torch.set_num_threads(1)
    images, labels, _, _ = fashion(False, 1, options.data)
    data = TensorDataset(images, labels)
    torch.manual_seed(0)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    usual = DataLoader(data, batch_size=BATCH, shuffle=True)
    own = TicketLoader(DataLoader(data, batch_sampler=AdaptiveBatchSampler(len(data), BATCH)))
    now, clock = time.thread_time, time.perf_counter
    least = FIRSTS * len(own) // BLOCK + 1
    if options.repeats < least:
        raise SystemExit(f"--repeats must be {least} at least, for {FIRSTS} epochs, got {options.repeats}")

    def plain(batch: Any) -> list[float]:
        x, y = batch
        mean = nn.functional.cross_entropy(model.head(model.body(x)), y)
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        return []

    def adaptive(batch: Any) -> list[float]:
        (x, y), ticket = batch
        features = model.body(x)
        logits = model.head(features)
        losses = nn.functional.cross_entropy(logits, y, reduction="none")
        marks = [clock()]
        norms = last_layer_norms(logits, y, features)
        marks.append(clock())
        ticket.observe(norms)
        marks.append(clock())
        mean = ticket.mean(losses)
        marks.append(clock())
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        return marks

    def endless(loader: Any, step: Callable[[Any], list[float]]) -> Iterator[tuple[bool, FloatArray]]:
        """Steps: whether one is the first of its epoch; microseconds of all, the batch, the clock, parts."""
        while True:
            batches = iter(loader)
            for k in range(len(loader)):
                begun, asked = clock(), now()
                batch = next(batches)
                loaded = now()
                marks = step(batch)
                done = now()
                yield k == 0, 1e6 * np.array([done - asked, loaded - asked, clock() - begun, *np.diff(marks)])

    ways = {RR: endless(usual, plain), ADAPTIVE: endless(own, adaptive)}
    blocks: dict[str, list[FloatArray]] = {name: [] for name in ways}
    firsts: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(options.repeats):
        for name in (RR, ADAPTIVE) if repeat % 2 else (ADAPTIVE, RR):
            taken = [next(ways[name]) for _ in range(BLOCK)]
            rest = [numbers for first, numbers in taken[WARM:] if not first]
            blocks[name].append(np.percentile(rest, (25, 50), axis=0))
            if repeat:
                firsts[name] += [numbers[0] - blocks[name][-1][1, 0] for first, numbers in taken if first]
    begin = {name: np.array(values) / len(own) for name, values in firsts.items()}
    plan = np.median(begin[ADAPTIVE]) - np.median(begin[RR])
    for which, what in enumerate(("lower quartiles", "medians")):
        theirs, ours = (np.array(blocks[name])[:, which] for name in (RR, ADAPTIVE))
        extra = ours[:, :3] - theirs[:, :3]
        whole, batch, by_clock = np.median(extra, axis=0)
        errors = [median_errors(each) for each in (extra[:, 0], begin[ADAPTIVE], -begin[RR])]
        below, above = np.sqrt(np.square(errors).sum(axis=0))  # of a sum of independent medians
        low, high = whole + plan - below, whole + plan + above
        norms, observe, mean = np.median(ours, axis=0)[3:]
        print(
            f"{what}: a plain step and its batch take {np.median(theirs[:, 0]):.0f} us, an adaptive one "
            f"{whole + plan:+.0f} [{low:+.0f}, {high:+.0f}]: norms {norms:.0f}, observe {observe:.0f}, "
            f"mean {mean:.0f}, batch {batch:+.0f}, plan {plan:+.0f}, "
            f"the rest {whole - norms - observe - mean - batch:+.0f}; by the clock {by_clock + plan:+.0f}"
        )


def median_errors(values: FloatArray) -> tuple[float, float]:
    """How far below and above the median an interval goes that holds the true one with 95% (signs' test)."""
    ordered, middle = np.sort(values), np.median(values)
    outside = max(int(binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    return float(middle - ordered[outside]), float(ordered[-1 - outside] - middle)


def figure(options: argparse.Namespace) -> None:
    """Epochs of RR and of adaptive batches, a line for each problem, the largest expected gain first."""
    rows = sorted(json.loads(options.measured.read_text()), key=lambda row: row["ratio"])
    ways, points = [RR, "EB-rr", ADAPTIVE], []
    for row in rows:
        label = f"{PROBLEMS[row['problem']]}: variance x{row['ratio']:.2f}"
        for name in ways:
            values = np.array(row["epochs"][name])
            error = values.std(ddof=1) / np.sqrt(len(values))
            mean = values.mean()
            points.append(
                {"what": label, "way": name, "mean": mean, "low": mean - error, "high": mean + error}
            )
    order = list(dict.fromkeys(point["what"] for point in points))
    y = {"field": "what", "type": "nominal", "sort": order, "title": None, "axis": {"labelLimit": 300}}
    x = {
        "field": "mean",
        "type": "quantitative",
        "scale": {"domain": [0, EPOCHS]},
        "title": [
            "epochs to the loss of random reshuffling (RR)",
            "after 10 of 15 epochs, with standard errors",
        ],
        "axis": {"tickCount": 8},
    }
    colours = [PALETTE[1], PALETTE[2], PALETTE[0]]
    colour = {
        "field": "way",
        "type": "nominal",
        "scale": {"domain": ways, "range": colours},
        "legend": None,
    }
    offset = {"field": "way", "sort": ways}
    layers = [
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "y": y,
                "yOffset": offset,
                "x": {**x, "field": "low"},
                "x2": {"field": "high"},
                "color": colour,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {"y": y, "yOffset": offset, "x": x, "color": colour},
        },
        *(
            {
                "transform": [{"filter": {"field": "way", "equal": way}}],
                "mark": {
                    "type": "text",
                    "text": way,
                    "align": "left",
                    "dx": 9,
                    "fontSize": 13,
                    "fontWeight": "bold",
                    "color": ink(paint),
                },
                "encoding": {"y": y, "yOffset": offset, "x": {**x, "field": "high"}},
            }
            for way, paint in zip(ways, colours, strict=True)
        ),
    ]
    about = (
        "Epochs to the same training loss: random reshuffling (RR), importance reshuffling by the default "
        "sampler (EB-rr) and by means of squares (adaptive)."
    )
    spec = whole_chart(
        {"data": {"values": points}, "layer": layers, "width": 380, "height": {"step": 18}}, about
    )
    spec["config"]["axis"] |= {"labelFontSize": 13, "titleFontSize": 13}  # to be read on a telephone, too
    options.svg.write_bytes(picture_svg(spec))


def odd_number(given: str) -> int:
    """Steps are chosen on even seeds."""
    number = int(given)
    if number % 2 == 0:
        raise argparse.ArgumentTypeError(f"must be odd, as steps are chosen on even seeds, got {number}")
    return number


def some_of(known: tuple[str, ...], separator: str, given: str) -> list[str]:
    """Names that are ``known``; a wrong one is refused before anything is measured."""
    names = given.split(separator)
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(known)}, got {name!r}")
    return names


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    made = {}
    for name, run in {
        "softmax": softmax,
        "decay": decaying,
        "squares": least_squares,
        "groups": grouped,
        "chance": by_chance,
        "cnn": cnn,
        "time": timing,
        "figure": figure,
    }.items():
        made[name] = commands.add_parser(name)
        made[name].set_defaults(run=run)
    for name in ("softmax", "decay", "squares", "groups", "chance", "cnn"):
        made[name].add_argument("--seeds", type=int, default=10)
        made[name].add_argument("--first-seed", type=odd_number, default=1)
    for name in ("softmax", "decay", "cnn", "time"):
        made[name].add_argument("--data", type=Path, default=None)
    made["decay"].add_argument("--epochs", type=int, default=EPOCHS)
    for name in ("softmax", "cnn"):
        made[name].add_argument("--jobs", type=int, default=1)
        made[name].add_argument("--out", type=Path, default=None)
    for name, usual in {"softmax": list(PROBLEMS), "decay": list(PROBLEMS)[:-1]}.items():
        made[name].add_argument("--problems", type=partial(some_of, tuple(PROBLEMS), ","), default=usual)
    made["softmax"].add_argument("--samplers", type=partial(some_of, SAMPLERS, ","), default=SAMPLERS)
    made["cnn"].add_argument("--rows", type=partial(some_of, tuple(ROWS), ";"), default=ROWS)
    made["time"].add_argument("--repeats", type=int, default=300)
    made["figure"].add_argument("measured", type=Path, help="what softmax --out has written")
    made["figure"].add_argument("--svg", type=Path, required=True)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
