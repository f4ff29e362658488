"""K-Vib's synthetic task: its own sampler, as the text and as the code has it, and ours beside it.

    .venv/bin/python benchmarks/kvib_task.py [--seeds N] [--rounds N] [--jobs N] [--out FILE]

Zeng et al., "Enhanced Federated Optimization: Adaptive Unbiased Client Sampling with Reduced Variance" (TMLR
2025; arXiv 2310.02698), Section 6, and the repository dunzeng/K-Vib. 100 clients, softmax regression with 60
features and 10 classes, data as in FedProx with alpha = beta = 0, sizes 50 + lognormal(4, 2), nine tenths of
them for training. K = 10, T = 500; a client takes one epoch of SGD in batches of 64 with step 0.02; the
server takes the estimate as it is. lambda = n / N.

Measures, means over every fifth round:
  regret    the paper's, over the optimum: sum of l_t(p) - l_t(p*) over sum of l_t(p*), with
            l_t(p) = sum_i a_i / p_i, p the probabilities to be in a cohort
  variance  |estimate - full update|^2 over |full update|^2
  loss      cross-entropy on the held-out tenth, after the last round

Deviation: the data are made by the repository's generator with its seed, since what it ships can't be read
here; and the initial model is 0, where theirs is torch's random one.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sortition import Cohort, EmpiricalBayesSampler, KVibSampler, OptimalClientSampler, ProportionalSampler
from sortition.core.designs import INCLUSION_DESIGNS, inclusion_probabilities
from sortition.core.variance import aggregate
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.rivals.subsets import UniformSubsetSampler

CLIENTS, COHORT_SIZE, ROUNDS = 100, 10, 500
FEATURES, CLASSES = 60, 10
BATCH, STEP = 64, 0.02
DATA_SEED = 4399
MEASURE_EVERY = 5
SIZES_NOT_TOLD = "ours, sizes not told"
"""It starts uniform, as K-Vib does, and hears the norms times M lambda."""


class Shard(NamedTuple):
    """The rows of all clients, end to end, and how many each has."""

    features: np.ndarray[Any, np.dtype[np.float64]]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    sizes: np.ndarray[Any, np.dtype[np.int64]]


@lru_cache(maxsize=1)
def data(seed: int = DATA_SEED) -> tuple[Shard, Shard]:
    """Training and held-out rows: the generator of FedProx with alpha = beta = 0, not i.i.d."""
    stream, shuffler = np.random.RandomState(seed), random.Random(seed)
    sizes = stream.lognormal(4, 2, CLIENTS).astype(int) + 50
    means_w = stream.normal(0, 0.0, CLIENTS)
    means_x = stream.normal(0, 0.0, CLIENTS)
    centres = [stream.normal(means_x[client], 1, FEATURES) for client in range(CLIENTS)]
    covariance = np.diag(np.arange(1.0, FEATURES + 1.0) ** -1.2)
    parts: tuple[list[Any], list[Any]] = ([], [])
    for client in range(CLIENTS):
        weights = stream.normal(means_w[client], 1, (FEATURES, CLASSES))
        bias = stream.normal(means_w[client], 1, CLASSES)
        rows = stream.multivariate_normal(centres[client], covariance, sizes[client])
        labels = np.argmax(rows @ weights + bias, axis=1)
        order = list(range(sizes[client]))
        shuffler.shuffle(order)
        kept = int(0.9 * sizes[client])
        for part, chosen in zip(parts, (order[:kept], order[kept:]), strict=True):
            part.append((rows[chosen], labels[chosen]))
    return tuple(  # type: ignore[return-value]
        Shard(
            np.column_stack([np.concatenate([x for x, _ in part]), np.ones(sum(len(y) for _, y in part))]),
            np.concatenate([y for _, y in part]),
            np.array([len(y) for _, y in part]),
        )
        for part in parts
    )


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    logits = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))


def updates(model: np.ndarray[Any, Any], shard: Shard, clients: Any, key: list[int]) -> np.ndarray[Any, Any]:
    """How far each client's model moves in an epoch: all of ``clients`` take their next batch at once.

    The order of a client's rows depends on ``key`` and the client only.
    """
    first, sizes = np.cumsum(shard.sizes) - shard.sizes, shard.sizes[clients]
    orders = [
        first[client] + np.random.default_rng([*key, client]).permutation(size)
        for client, size in zip(clients, sizes, strict=True)
    ]
    by_size = np.argsort(-sizes)
    models = np.tile(model, (len(clients), 1, 1))
    for start in range(0, int(sizes.max()), BATCH):
        going = by_size[: np.count_nonzero(sizes > start)]
        rows = np.zeros((len(going), BATCH), dtype=np.int64)
        weights = np.zeros((len(going), BATCH))
        for place, client in enumerate(going):
            batch = orders[client][start : start + BATCH]
            rows[place, : len(batch)] = batch
            weights[place, : len(batch)] = 1.0 / len(batch)
        features = shard.features[rows]
        residuals = np.exp(log_softmax(features @ models[going])).reshape(-1, CLASSES)
        residuals[np.arange(len(residuals)), shard.labels[rows].ravel()] -= 1.0
        residuals *= weights.reshape(-1, 1)
        models[going] -= STEP * features.transpose(0, 2, 1) @ residuals.reshape(*rows.shape, CLASSES)
    return np.asarray((model - models).reshape(len(clients), -1))


def loss(model: np.ndarray[Any, Any], shard: Shard) -> float:
    """Mean cross-entropy."""
    logs = log_softmax(shard.features @ model)
    return float(-np.mean(logs[np.arange(len(shard.labels)), shard.labels]))


class CodedKVibSampler(KVibSampler):
    """K-Vib as its repository has it: in proportion to omega + g, where the text takes the square root."""

    def _learn(self, cohort: Cohort, log_feedback: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        super()._learn(cohort, log_feedback)
        log_g = self._bound.log + np.log(CLIENTS / (self._exploration * COHORT_SIZE))
        logs = np.logaddexp(self._log_omega, log_g)
        u = np.exp(logs - logs.max())
        p = inclusion_probabilities(u / u.sum(), COHORT_SIZE)
        self._dense.set((1.0 - self._exploration) * p / COHORT_SIZE + self._exploration / CLIENTS)


def k_vib(kind: type[KVibSampler], bound: float, common: dict[str, Any]) -> KVibSampler:
    return kind(**common, num_rounds=ROUNDS, feedback_bound=bound)


def makers(bound: float) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """The samplers; ``bound`` is the largest feedback at the initial model."""
    fixed = {"design": "fixed_size"}
    return {
        "uniform subsets": lambda common: UniformSubsetSampler(**common),
        "by size": lambda common: ProportionalSampler(**common, **fixed),
        "K-Vib, text, G = 0.1": partial(k_vib, KVibSampler, 0.1),
        "K-Vib, code, G = 0.1": partial(k_vib, CodedKVibSampler, 0.1),
        "K-Vib, text, G = largest feedback": partial(k_vib, KVibSampler, bound),
        "K-Vib, code, G = largest feedback": partial(k_vib, CodedKVibSampler, bound),
        "ours": lambda common: EmpiricalBayesSampler(**common, **fixed),
        SIZES_NOT_TOLD: lambda common: EmpiricalBayesSampler(**{**common, "client_weights": None}, **fixed),
        "optimal, independent (oracle)": lambda common: OptimalClientSampler(**common),
    }


def measure(
    weights: np.ndarray[Any, Any],
    moves: np.ndarray[Any, Any],
    inclusion: np.ndarray[Any, Any],
    estimate: np.ndarray[Any, Any],
) -> tuple[float, float, float]:
    """l_t(p) - l_t(p*), l_t(p*), and the squared error of the estimate, relative."""
    feedback = (weights * np.linalg.norm(moves, axis=1)) ** 2
    best = inclusion_probabilities(np.sqrt(feedback) / np.sqrt(feedback).sum(), COHORT_SIZE)
    optimum, full = float(np.sum(feedback / best)), weights @ moves
    error = float(np.sum((estimate - full) ** 2) / np.sum(full**2))
    return float(np.sum(feedback / inclusion)) - optimum, optimum, error


def run(name: str, seed: int, rounds: int, tick: Tick) -> dict[str, float]:
    """One run."""
    train, held_out = data()
    weights = train.sizes / train.sizes.sum()
    everybody, scales = np.arange(CLIENTS), np.ones(CLIENTS)
    if name == SIZES_NOT_TOLD:
        scales = CLIENTS * weights
    model = np.zeros((FEATURES + 1, CLASSES))
    first = updates(model, train, everybody, [seed, 0])
    bound = float(np.max((weights * np.linalg.norm(first, axis=1)) ** 2))
    common = {"num_clients": CLIENTS, "cohort_size": COHORT_SIZE, "client_weights": weights, "seed": seed}
    sampler = makers(bound)[name](common)
    measured: list[tuple[float, float, float]] = []
    for t in range(rounds):
        everything = t % MEASURE_EVERY == 0 or hasattr(sampler, "reveal")
        moves = updates(model, train, everybody, [seed, t]) if everything else None
        if hasattr(sampler, "reveal"):
            sampler.reveal(np.linalg.norm(moves, axis=1))
        p = sampler.probabilities()
        cohort = sampler.draw()
        own = updates(model, train, cohort.clients, [seed, t]) if moves is None else moves[cohort.clients]
        estimate = aggregate(cohort, weights[cohort.clients], own) if len(cohort) else np.zeros(model.size)
        if moves is not None:
            by_design = sampler.design in INCLUSION_DESIGNS
            inclusion = inclusion_probabilities(p if by_design else np.full(CLIENTS, 0.01), COHORT_SIZE)
            measured.append(measure(weights, moves, inclusion, estimate))
        sampler.observe(cohort, scales[cohort.clients] * np.linalg.norm(own, axis=1))
        model = model - estimate.reshape(model.shape)
        tick()
    gaps, optima, errors = np.array(measured).T
    tenth = max(len(gaps) // 10, 1)
    return {
        "regret": float(gaps.sum() / optima.sum()),
        "early": float(gaps[:tenth].sum() / optima[:tenth].sum()),
        "late": float(gaps[-tenth:].sum() / optima[-tenth:].sum()),
        "variance": float(errors.mean()),
        "loss": loss(model, held_out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = list(makers(1.0))
    tasks = [(name, seed) for name in names for seed in range(options.seeds)]
    found = run_tasks([partial(run, name, seed, options.rounds) for name, seed in tasks], options.jobs)
    results = {
        name: [one for (own, _), one in zip(tasks, found, strict=True) if own == name] for name in names
    }
    if options.out:
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print("| sampler | regret | first tenth | last tenth | variance | held-out loss |")
    print("|---|---|---|---|---|---|")
    for name, runs in results.items():
        means = {key: float(np.mean([each[key] for each in runs])) for key in runs[0]}
        spread = float(np.std([each["loss"] for each in runs]))
        cells = [
            f"{mean:.4f} ± {spread:.4f}" if key == "loss" else f"{mean:.3f}" for key, mean in means.items()
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
