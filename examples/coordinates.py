"""Coordinates instead of clients: randomised coordinate descent and Kaczmarz with adaptive sampling.

    python examples/coordinates.py

A client is a coordinate of the lasso or of the dual of an SVM, or a row of a linear system; its "norm" is how
far its own update moves. The sampler is the default one, with these norms as its only feedback. The updates
are exact, so there are no weights and nothing to keep unbiased: only the order differs. Printed are epochs:
as many updates as there are coordinates; the median over five problems.

This shows what the samplers can do, and why there is no product for it. Adaptive sampling saves updates
against permuted and uniform orders. But an *active set* (a full sweep now and then, and between them only
sweeps over coordinates that can still move) saves more on the lasso and the SVM, and costs nothing, where a
draw costs microseconds. For Kaczmarz with coherent rows adaptive sampling saves half of the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from sortition import EmpiricalBayesSampler
from sortition.core.types import FloatArray, IntArray

COHORT = 8
"""Coordinates that are drawn at a time; they are updated one after another."""
MOST_EPOCHS = 100
SEEDS = 5

Update = Callable[[int], float]
"""Update one coordinate, and return how far it moved, in the unit that counts."""
Epochs = Iterator[None]
"""One turn an epoch."""


def permuted(size: int, update: Update, rng: np.random.Generator) -> Epochs:
    """All coordinates in a new order each time: random reshuffling."""
    while True:
        for j in rng.permutation(size):
            update(j)
        yield


def uniform(size: int, update: Update, rng: np.random.Generator) -> Epochs:
    """Independent draws."""
    while True:
        for j in rng.integers(size, size=size):
            update(j)
        yield


def adaptive(size: int, update: Update, rng: np.random.Generator) -> Epochs:
    """The default sampler, one cohort after another."""
    sampler = EmpiricalBayesSampler(
        num_clients=size, cohort_size=COHORT, guard=None, seed=int(rng.integers(2**32))
    )
    while True:
        done = 0
        while done < size:
            cohort = sampler.draw()
            sampler.observe(cohort, np.array([update(j) for j in cohort.clients]))
            done += len(cohort)
        yield


def active_set(size: int, update: Update, rng: np.random.Generator, active: Callable[[], IntArray]) -> Epochs:
    """A full sweep, then sweeps over the active coordinates until nothing moves much; counted in updates."""
    done = 0
    while True:
        moved = max(update(j) for j in rng.permutation(size))
        done += size
        for _ in range(10):
            now = active()
            inner = max((update(j) for j in rng.permutation(now)), default=0.0)
            done += len(now)
            while done >= size:
                done -= size
                yield
            if inner < 0.1 * moved:
                break


class Lasso:
    """min 1/2 |y - X w|^2 + penalty |w|_1; coordinates move to their exact minimum."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows, size = 200, 600
        self.X = rng.normal(size=(rows, size)) + rng.normal(size=(rows, 1))
        truth = np.zeros(size)
        truth[rng.permutation(size)[:20]] = rng.normal(size=20)
        self.y = self.X @ truth + 0.1 * rng.normal(size=rows)
        self.curvature = (self.X**2).sum(axis=0)
        self.penalty = 0.05 * np.abs(self.X.T @ self.y).max()
        self.size = size
        self.reset()

    def reset(self) -> None:
        """Start anew, at 0."""
        self.w, self.residual = np.zeros(self.size), self.y.copy()

    def update(self, j: int) -> float:
        """Soft thresholding. What counts is how far j moves, in the norm of its curvature."""
        pull = self.X[:, j] @ self.residual + self.curvature[j] * self.w[j]
        new = np.sign(pull) * max(abs(pull) - self.penalty, 0.0) / self.curvature[j]
        step = new - self.w[j]
        if step != 0.0:
            self.residual -= step * self.X[:, j]
            self.w[j] = new
        return float(abs(step) * np.sqrt(self.curvature[j])) + 1e-9

    def active(self) -> IntArray:
        """The coordinates that are not zero."""
        return np.flatnonzero(self.w)

    def distance(self) -> float:
        """The duality gap over the objective at 0."""
        dual = self.residual * min(1.0, self.penalty / np.abs(self.X.T @ self.residual).max())
        primal = 0.5 * self.residual @ self.residual + self.penalty * np.abs(self.w).sum()
        gap = primal - (self.y @ dual - 0.5 * dual @ dual)
        return float(gap / (0.5 * self.y @ self.y))


class SupportVectors:
    """The dual of a linear SVM: min 1/2 |sum_i a_i y_i x_i|^2 - sum_i a_i with 0 <= a_i <= penalty.

    As many coordinates as examples; each moves to its exact minimum (Hsieh et al. 2008).
    """

    penalty = 0.03

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.size, width = 1000, 50
        labels = rng.choice([-1.0, 1.0], size=self.size)
        means = rng.normal(size=width) / np.sqrt(width)
        self.Z = labels[:, None] * (rng.normal(size=(self.size, width)) + 2.0 * labels[:, None] * means)
        self.curvature = (self.Z**2).sum(axis=1)
        self.reset()

    def reset(self) -> None:
        """Start anew, at 0."""
        self.a, self.w = np.zeros(self.size), np.zeros(self.Z.shape[1])

    def update(self, i: int) -> float:
        """A Newton step, clipped. What counts is how far i moves, in the norm of its curvature."""
        new = min(max(self.a[i] + (1.0 - self.Z[i] @ self.w) / self.curvature[i], 0.0), self.penalty)
        step = new - self.a[i]
        if step != 0.0:
            self.w += step * self.Z[i]
            self.a[i] = new
        return float(abs(step) * np.sqrt(self.curvature[i])) + 1e-9

    def active(self) -> IntArray:
        """The coordinates that are not held at a bound: the others' shrinking is what LIBLINEAR does."""
        slope = self.Z @ self.w - 1.0
        held = ((self.a == 0.0) & (slope > 0.0)) | ((self.a == self.penalty) & (slope < 0.0))
        return np.flatnonzero(~held)

    def distance(self) -> float:
        """The duality gap over the primal objective at 0."""
        primal = 0.5 * self.w @ self.w + self.penalty * np.maximum(0.0, 1.0 - self.Z @ self.w).sum()
        return float((primal - (self.a.sum() - 0.5 * self.w @ self.w)) / (self.penalty * self.size))


class Kaczmarz:
    """A x = b with coherent rows: all but 24 are nearly the same, and teach nearly nothing new."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size, width, distinct = 400, 20, 24
        self.A = rng.normal(size=(1, width)) + 0.02 * rng.normal(size=(size, width))
        self.A[:distinct] = rng.normal(size=(distinct, width))
        self.A /= np.linalg.norm(self.A, axis=1, keepdims=True)
        self.solution: FloatArray = rng.normal(size=width)
        self.b = self.A @ self.solution
        self.size = size
        self.reset()

    def reset(self) -> None:
        """Start anew, at 0."""
        self.x = np.zeros(self.A.shape[1])

    def update(self, i: int) -> float:
        """Project onto row i. What counts is the distance to it."""
        away = self.b[i] - self.A[i] @ self.x
        self.x += away * self.A[i]
        return float(abs(away)) + 1e-12

    def distance(self) -> float:
        """The squared distance to the solution over that of the start."""
        return float(np.sum((self.x - self.solution) ** 2) / np.sum(self.solution**2))


Problem = Lasso | SupportVectors | Kaczmarz


def epochs_to(problem: Problem, turns: Epochs, target: float) -> int:
    """Epochs until the distance is below the target; one more than there are if it is not."""
    for epoch in range(1, MOST_EPOCHS + 1):
        next(turns)
        if problem.distance() < target:
            return epoch
    return MOST_EPOCHS + 1


def main() -> None:
    """Print the median epochs of each way over the seeds, problem by problem."""
    problems: dict[str, tuple[Callable[[int], Problem], float]] = {
        "lasso": (Lasso, 1e-6),
        "SVM dual": (SupportVectors, 1e-4),
        "Kaczmarz": (Kaczmarz, 1e-4),
    }
    for name, (make, target) in problems.items():
        found: dict[str, list[int]] = {}
        for seed in range(SEEDS):
            problem = make(seed)
            ways = {"permuted": permuted, "uniform": uniform, "adaptive": adaptive}
            if not isinstance(problem, Kaczmarz):
                ways["active set"] = partial(active_set, active=problem.active)
            for way, turns in ways.items():
                problem.reset()
                each = turns(problem.size, problem.update, np.random.default_rng([seed, 2]))
                found.setdefault(way, []).append(epochs_to(problem, each, target))
        for way, epochs in found.items():
            median = int(np.median(epochs))
            print(f"{name}, {way}: {median if median <= MOST_EPOCHS else f'more than {MOST_EPOCHS}'} epochs")


if __name__ == "__main__":
    main()
