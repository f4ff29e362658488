"""The default sampler where sizes mislead most: each client's norm is one over its size.

    .venv/bin/python benchmarks/misleading_sizes.py [--seeds N] [--rounds N]

All contributions are equal then, so uniform sampling is the best, and what follows the sizes is a loss.
Printed is the variance by norms over that of uniform sampling, by design, of all rounds and of their first
tenth: the mean over the seeds, and the largest.
"""

from __future__ import annotations

import argparse

import numpy as np

from sortition import EmpiricalBayesSampler
from sortition.core.designs import Design
from sortition.core.types import FloatArray
from sortition.lab.training import sampling_variance

CLIENTS = 100
DISTRIBUTIONS = ("zipf", "log-normal 1", "log-normal 2")


def sizes_of(name: str, seed: int) -> FloatArray:
    """Amounts of data, in a random order."""
    rng = np.random.default_rng(seed)
    if name == "zipf":
        return rng.permutation(1.0 / np.arange(1.0, CLIENTS + 1.0))
    return rng.lognormal(0.0, float(name.split()[1]), CLIENTS)


def ratios(sizes: FloatArray, cohort_size: int, design: Design, rounds: int, seed: int) -> FloatArray:
    """The variance over uniform sampling's, round by round."""
    weights, norms = sizes / sizes.sum(), 1.0 / sizes
    feedback, uniform = (weights * norms) ** 2, np.full(CLIENTS, 1.0 / CLIENTS)
    sampler = EmpiricalBayesSampler(
        num_clients=CLIENTS, cohort_size=cohort_size, client_weights=weights, design=design, seed=seed
    )
    base = sampling_variance(uniform, feedback, design, cohort_size)
    found = []
    for _ in range(rounds):
        found.append(sampling_variance(sampler.probabilities(), feedback, design, cohort_size) / base)
        cohort = sampler.draw()
        sampler.observe(cohort, norms[cohort.clients])
    return np.array(found)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    print("| sizes | K | design | all rounds | largest | first tenth | largest |")
    print("|---|---|---|---|---|---|---|")
    designs: tuple[Design, ...] = ("fixed_size", "with_replacement")
    for name in DISTRIBUTIONS:
        for cohort_size in (5, 10):
            for design in designs:
                all_runs = [
                    ratios(sizes_of(name, seed), cohort_size, design, options.rounds, seed)
                    for seed in range(options.seeds)
                ]
                whole = [run.mean() for run in all_runs]
                early = [run[: options.rounds // 10].mean() for run in all_runs]
                print(
                    f"| {name} | {cohort_size} | {design} | {np.mean(whole):.3f} | {np.max(whole):.3f} | "
                    f"{np.mean(early):.2f} | {np.max(early):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
