"""Adaptive mini-batches against random reshuffling: softmax regression, a small CNN, and the time of a step.

    python benchmarks/batches.py softmax [--problems A,B] [--seeds 10] [--jobs 2] [--data DIR] [--out FILE]
    python benchmarks/batches.py cnn [--rows A,B] [--seeds 8] [--jobs 2]
    python benchmarks/batches.py time
    python benchmarks/batches.py figure --out FILE [--svg FILE.svg]     # of what softmax --out has written

*softmax*: 10,000 examples, batches of 32, 15 epochs at a constant step. The target is the training loss of
random reshuffling (RR) after two thirds of its epochs. RR's step for that is the one of ``STEPS`` with the
lowest loss at the end; every sampler's own step, RR's too, is the one with the fewest epochs to the target.
Steps are chosen on even seeds, where data and draws are others than in the table, which is of odd seeds. A
seed's epochs are where the falling curve nearest to its losses (isotonic regression, four losses an epoch)
meets the seed's target; one that does not get there counts as 15. In the last column is what ``diagnose``
makes of the first epoch's norms: the sampling variance over that of uniform draws.

*cnn*: Fashion-MNIST, 5,000 training images, balanced or with a long tail (the rarest class a hundredth of the
most frequent one), 8 epochs. All samplers have RR's step: that of ``CNN_STEPS`` with the lowest training loss
at the end, on even seeds. Differences to RR are paired by seed; the initial model is that of the seed.

*time*: what tickets, norms of the last layer and the plan of an epoch add to a step of that CNN.

The released sampler is "adaptive". "EB-rr" is importance reshuffling by the probabilities of the default
sampler. The others draw with replacement.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sortition import (
    AvareSampler,
    Cohort,
    EmpiricalBayesSampler,
    Sampler,
    UniformSampler,
    VRBSampler,
    diagnose,
)
from sortition.core.reshuffling import expected_copies, reshuffled
from sortition.core.types import FloatArray, IntArray
from sortition.integrations.torch import AdaptiveBatchSampler
from sortition.lab.compare import FallingCurve
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.problems.idx import load_images

N, CLASSES, WIDTH, BATCH, EPOCHS = 10_000, 10, 50, 32, 15
PARTS = 4
"""Losses an epoch."""
STEPS = tuple(2.0**k for k in range(-4, 5))
TUNING_SEEDS = 3
PROBLEMS = {
    "rare": "rare class (1%)",
    "heavy": "heavy row lengths",
    "noisy": "10% label noise",
    "tail": "long tail",
    "balanced": "balanced, clean",
    "mnist": "MNIST",
}
ADAPTIVE, RR = "adaptive", "RR"
SAMPLERS = (RR, "uniform", "empirical Bayes", "EB-rr", ADAPTIVE, "Avare", "VRB")
Features = NDArray[np.float32]


class Examples(NamedTuple):
    """Rows and labels; the last column of the rows is one."""

    rows: Features
    labels: IntArray


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


def pieces(order: IntArray, weights: FloatArray) -> Iterator[Piece]:
    """An epoch in ``PARTS`` pieces of whole batches."""
    batches = -(-len(order) // BATCH)
    ends = [0, *(batches * (k + 1) // PARTS for k in range(PARTS))]
    for start, end in pairwise(ends):
        some = slice(start * BATCH, end * BATCH)
        yield order[some], weights[some], end - start


class Reshuffling:
    """RR, or importance reshuffling by the default sampler's probabilities."""

    def __init__(self, size: int, seed: int, *, adaptive: bool) -> None:
        self._generator = np.random.default_rng(seed)
        self._beliefs = default(size, seed) if adaptive else None
        self._size = size

    def draws(self) -> Iterator[Piece]:
        """An epoch."""
        masses = np.ones(self._size) if self._beliefs is None else self._beliefs.probabilities()
        self._expected = expected_copies(masses, self._size)
        order = reshuffled(self._expected, self._generator)
        yield from pieces(order, 1.0 / self._expected[order])

    def observe(self, order: IntArray, squares: FloatArray) -> None:
        """Batch by batch, as if each had been a cohort."""
        if self._beliefs is not None:
            learn_batches(self._beliefs, order, squares, self._expected)


class WithReplacement:
    """A sampler of the library, a round for each batch."""

    def __init__(self, sampler: Sampler, size: int) -> None:
        self._sampler, self._size = sampler, size

    def draws(self) -> Iterator[Piece]:
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

    def __init__(self, size: int, seed: int) -> None:
        self.sampler = AdaptiveBatchSampler(size, BATCH, seed=seed)

    def draws(self) -> Iterator[Piece]:
        """An epoch."""
        order = np.concatenate([np.array(batch) for batch in self.sampler])
        tickets = list(self.sampler.tickets())
        self._tickets = iter(tickets)
        yield from pieces(order, np.concatenate([ticket.weights for ticket in tickets]))

    def observe(self, order: IntArray, squares: FloatArray) -> None:
        """Ticket by ticket."""
        for start in range(0, len(order), BATCH):
            next(self._tickets).observe(np.sqrt(squares[start : start + BATCH]))


def default(size: int, seed: int) -> EmpiricalBayesSampler:
    """The default sampler, with replacement and without a guard: examples don't lie."""
    return EmpiricalBayesSampler(
        num_clients=size, cohort_size=BATCH, design="with_replacement", guard=None, seed=seed
    )


def learn_batches(
    beliefs: EmpiricalBayesSampler, order: IntArray, squares: FloatArray, expected: FloatArray
) -> None:
    """The default sampler learns from the batches of an epoch."""
    size = len(expected)
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        clients, first, counts = np.unique(batch, return_index=True, return_counts=True)
        p = expected[clients] / size
        weights = counts / (len(batch) * p)
        cohort = Cohort(0, BATCH, clients, counts, p, weights)
        own = np.maximum(squares[start : start + BATCH][first], 1e-300)
        beliefs.learn(cohort, np.log(own) - 2.0 * np.log(size))


def contestant(name: str, size: int, seed: int) -> Any:
    """The sampler called ``name``."""
    common: dict[str, Any] = {"num_clients": size, "cohort_size": BATCH, "seed": seed}
    if name == ADAPTIVE:
        return Released(size, seed)
    if name in (RR, "EB-rr"):
        return Reshuffling(size, seed, adaptive=name == "EB-rr")
    made: Sampler = {
        "uniform": lambda: UniformSampler(**common),
        "empirical Bayes": lambda: default(size, seed),
        "Avare": lambda: AvareSampler(**common),
        "VRB": lambda: VRBSampler(**common),
    }[name]()
    return WithReplacement(made, size)


# Softmax regression --------------------------------------------------------------------------------------


class Run(NamedTuple):
    """The losses of a run, and the variance ratio of ``diagnose`` after the first epoch."""

    losses: FloatArray
    ratio: float


def train(problem: str, name: str, step: float, seed: int, data: Path | None, tick: Tick) -> Run:
    """One run."""
    found = examples(problem, seed, data)
    size, sampler = len(found.labels), contestant(name, len(found.labels), seed)
    model = np.zeros((found.rows.shape[1], CLASSES), dtype=np.float32)
    losses, ratio, batches = [], float("nan"), -(-size // BATCH)
    marks = {batches * (k + 1) // PARTS for k in range(PARTS)}
    for epoch in range(EPOCHS):
        done = 0
        for order, weights, count in sampler.draws():
            w = weights.astype(np.float32)
            squares = steps(found.rows, found.labels, model, order, w, step)
            sampler.observe(order, np.nan_to_num(squares.astype(np.float64), posinf=1e30))
            done += count
            if done in marks:
                losses.append(loss(found, model))
        if epoch == 0 and name == ADAPTIVE:
            ratio = diagnose(sampler.sampler).noise.ratio("adaptive")
        tick()
    return Run(np.nan_to_num(np.array(losses), nan=1e30, posinf=1e30), ratio)


def epochs_to(target: float, losses: FloatArray) -> float:
    """Epochs until the falling curve nearest to ``losses`` meets the target; all of them if it does not."""
    found = FallingCurve(losses).rounds_to(target)
    return EPOCHS if found is None else min(found / PARTS, EPOCHS)


def softmax_row(
    problem: str, names: tuple[str, ...], seeds: int, jobs: int, data: Path | None
) -> dict[str, Any]:
    """Choose the steps on even seeds, and measure on odd ones."""
    even, odd = (list(range(first, first + 2 * count, 2)) for first, count in ((0, TUNING_SEEDS), (1, seeds)))
    keys = [(name, step) for name in names for step in STEPS]
    tasks = [partial(train, problem, name, step, seed, data) for name, step in keys for seed in even]
    runs = run_tasks(tasks, jobs)
    tuned = {
        key: [run.losses for run in runs[k * len(even) : (k + 1) * len(even)]] for k, key in enumerate(keys)
    }
    last = 2 * PARTS
    rr_step = min(STEPS, key=lambda step: np.mean([losses[-last:] for losses in tuned[RR, step]]))
    targets = [rr_target(losses) for losses in tuned[RR, rr_step]]

    def cost(name: str, step: float) -> float:
        return float(np.mean([epochs_to(*each) for each in zip(targets, tuned[name, step], strict=True)]))

    chosen = {name: min(STEPS, key=partial(cost, name)) for name in names}
    distinct = [(RR, rr_step), *((name, step) for name, step in chosen.items())]
    tasks = [partial(train, problem, name, step, seed, data) for name, step in distinct for seed in odd]
    runs = run_tasks(tasks, jobs)
    targets = [rr_target(run.losses) for run in runs[: len(odd)]]
    row: dict[str, Any] = {"problem": problem, "rr_step": rr_step, "steps": chosen, "epochs": {}}
    for k, name in enumerate(names, start=1):
        own = runs[k * len(odd) : (k + 1) * len(odd)]
        row["epochs"][name] = [epochs_to(t, run.losses) for t, run in zip(targets, own, strict=True)]
        if name == ADAPTIVE:
            row["ratio"] = float(np.mean([run.ratio for run in own]))
    return row


def rr_target(losses: FloatArray) -> float:
    """RR's loss after two thirds of its epochs."""
    return FallingCurve(losses).at(EPOCHS * PARTS * 2 // 3)


def shown(values: list[float]) -> str:
    """Mean and standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.1f} ±{error:.1f}"


def softmax(options: argparse.Namespace) -> None:
    """The first table."""
    names = tuple(options.samplers.split(",")) if options.samplers else SAMPLERS
    print("| epochs to RR's loss at 2/3 | " + " | ".join(names) + " | variance ratio |")
    print("|---" * (len(names) + 2) + "|")
    rows = []
    for problem in options.problems.split(",") if options.problems else PROBLEMS:
        row = softmax_row(problem, names, options.seeds, options.jobs, options.data)
        rows.append(row)
        cells = " | ".join(f"{shown(row['epochs'][name])} ({row['steps'][name]:g})" for name in names)
        print(f"| {PROBLEMS[problem]} | {cells} | {row.get('ratio', float('nan')):.2f} |", flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("softmax")
    command.add_argument("--problems", default="")
    command.add_argument("--samplers", default="")
    command.add_argument("--seeds", type=int, default=10)
    command.add_argument("--jobs", type=int, default=1)
    command.add_argument("--data", type=Path, default=None)
    command.add_argument("--out", type=Path, default=None)
    command.set_defaults(run=softmax)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
