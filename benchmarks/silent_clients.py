"""Clients that do not reply: how often the default sampler draws them, and what learning of it costs.

    python benchmarks/silent_clients.py [--seeds 20] [--jobs 2]

Norms are log-normal, with deviation 0.5 between clients and 0.3 between rounds. Draws are with replacement.
First table: one client never replies, and all norms change by a factor a round. Second: one client, whose
norms are a multiple of the others' median, replies for 100 rounds and then never again. Third: sizes are
log-normal (deviation 1), norms go with size^-1.5, and the client with the eleventh smallest size never
replies. These are probabilities over the prior, the mean of 50 rounds after it fell silent and later, and
in brackets that of the worst seed. Then: one that replies for 100 rounds, is silent for 300, and returns.
Last: half of the clients reply with some probability; the variance over the least possible, which p
proportional to the norm times the root of the chance has, in rounds 100 to 500.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np

from sortition import EmpiricalBayesSampler
from sortition.core.types import FloatArray
from sortition.lab.parallel import Tick, run_tasks

FEDERATIONS = ((12, 3), (100, 10), (30, 2), (5, 1), (1000, 10))
FACTORS = (1.05, 1.0, 0.97, 0.9, 0.7)
MULTIPLES = (3.0, 10.0, 30.0, 100.0)
CHANCES = (0.03, 0.1, 0.3, 0.5, 0.9)
SPREAD, NOISE = 0.5, 0.3
Probabilities = FloatArray
"""A row for each round."""


def run(
    levels: FloatArray,
    cohort_size: int,
    rounds: int,
    chances: Callable[[int], FloatArray],
    seed: int,
    sizes: FloatArray | None = None,
    factor: float = 1.0,
) -> Probabilities:
    """The probabilities of all clients in all rounds, over the prior."""
    clients, generator = len(levels), np.random.default_rng(seed)
    sampler = EmpiricalBayesSampler(
        num_clients=clients,
        cohort_size=cohort_size,
        client_weights=sizes,
        design="with_replacement",
        seed=seed,
    )
    prior = sampler.probabilities()  # before anything was learnt
    found = []
    for t in range(rounds):
        found.append(sampler.probabilities() / prior)
        cohort = sampler.draw()
        norms = levels[cohort.clients] * factor**t * np.exp(generator.normal(0.0, NOISE, len(cohort)))
        replied = generator.random(len(cohort)) < chances(t)[cohort.clients]
        sampler.observe(cohort, np.where(replied, norms, np.nan))
    return np.array(found)


def levels_of(clients: int, seed: int) -> FloatArray:
    """Log-normal levels."""
    return np.exp(np.random.default_rng(1000 + seed).normal(0.0, SPREAD, clients))


def never(clients: int, cohort_size: int, factor: float, seed: int, tick: Tick) -> float:
    """A client that never replies."""
    chances = np.where(np.arange(clients) == 0, 0.0, 1.0)
    found = run(levels_of(clients, seed), cohort_size, 150, lambda _: chances, seed, factor=factor)
    return float(found[50:, 0].mean())


def gone(clients: int, cohort_size: int, multiple: float, seed: int, tick: Tick) -> float:
    """A large client that stops replying after 100 rounds."""
    levels = levels_of(clients, seed)
    levels[0] = multiple * np.median(levels[1:])
    silent = np.where(np.arange(clients) == 0, 0.0, 1.0)
    found = run(levels, cohort_size, 300, lambda t: silent if t >= 100 else np.ones(clients), seed)
    return float(found[150:, 0].mean())


def small(seed: int, tick: Tick) -> float:
    """A small client that never replies, where small clients have the largest norms."""
    sizes = np.exp(np.random.default_rng(2000 + seed).normal(0.0, 1.0, 100))
    sizes /= sizes.sum()
    chances = np.ones(100)
    chances[client := int(np.argsort(sizes)[10])] = 0.0
    found = run(sizes**-1.5, 10, 200, lambda _: chances, seed, sizes=sizes)
    return float(found[50:, client].mean())


def variance(chance: float, seed: int, tick: Tick) -> float:
    """Half of the clients reply with probability ``chance``: the variance over the least possible."""
    levels, chances = levels_of(100, seed), np.where(np.arange(100) < 50, chance, 1.0)
    p = run(levels, 10, 500, lambda _: chances, seed)[100:] / 100
    feedback = chances * levels**2
    return float(np.mean((feedback / p).sum(1)) / np.sqrt(feedback).sum() ** 2)


def returned(clients: int, cohort_size: int, seed: int, tick: Tick) -> float:
    """A client that falls silent for 300 rounds: its probability 20 visits later, over that of its twin."""
    levels, generator = levels_of(clients, seed), np.random.default_rng(seed)
    levels[1] = levels[0]
    sampler = EmpiricalBayesSampler(
        num_clients=clients, cohort_size=cohort_size, design="with_replacement", seed=seed
    )
    t = visits = 0
    while visits < 20:
        cohort = sampler.draw()
        norms = levels[cohort.clients] * np.exp(generator.normal(0.0, NOISE, len(cohort)))
        sampler.observe(cohort, np.where((cohort.clients == 0) & (100 <= t < 400), np.nan, norms))
        t, visits = t + 1, visits + int(t >= 400 and 0 in cohort.clients)
    ours, twin = sampler.probabilities([0, 1])
    return float(ours / twin)


def shown(values: list[float]) -> str:
    """Mean, and the worst in brackets."""
    return f"{np.mean(values):.2f} ({max(values):.2f})"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()

    def cells(task: Callable[..., float]) -> list[float]:
        return run_tasks([partial(task, seed) for seed in range(options.seeds)], options.jobs)

    print("| never replies |", *(f"factor {factor} |" for factor in FACTORS))
    for clients, size in FEDERATIONS:
        row = (shown(cells(partial(never, clients, size, factor))) for factor in FACTORS)
        print(f"| {clients} clients, {size} drawn |", *(f"{cell} |" for cell in row), flush=True)
    print("\n| stops replying |", *(f"{multiple:.0f} times |" for multiple in MULTIPLES))
    for clients, size in FEDERATIONS[:2]:
        row = (shown(cells(partial(gone, clients, size, multiple))) for multiple in MULTIPLES)
        print(f"| {clients} clients, {size} drawn |", *(f"{cell} |" for cell in row), flush=True)
    print("\nsmall and silent, norms as size^-1.5:", shown(cells(small)), flush=True)
    for clients, size in FEDERATIONS[:3]:
        ratio = np.exp(np.mean(np.log(cells(partial(returned, clients, size)))))
        print(
            f"{clients} clients, {size} drawn: after its return over its twin: {ratio:.2f}",
            flush=True,
        )
    print("\n| half reply with |", *(f"{chance} |" for chance in CHANCES))
    found = [cells(partial(variance, chance)) for chance in CHANCES]
    print("| variance |", *(f"{np.mean(one):.3f} |" for one in found))


if __name__ == "__main__":
    main()
