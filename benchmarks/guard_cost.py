"""What the guard of the default sampler costs in time: draw plus observe, with it and without it.

Norms are honest, and their heavy tail makes outliers. Rounds with and without a guard take turns:

    python benchmarks/guard_cost.py          # 100 clients, 5 a round, log-normal norms of three deviations
    python benchmarks/guard_cost.py --large  # 10^6 clients, 100 a round, all seen, Pareto norms
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from sortition import EmpiricalBayesSampler, default_sampler
from sortition.core.types import FloatArray, IntArray
from sortition.lab.bench import norms_of

Norms = Callable[[IntArray, int], FloatArray]


def measure(name: str, samplers: list[EmpiricalBayesSampler], norms: Norms, rounds: int, block: int) -> None:
    """Print lower quartiles and medians of the second half of ``rounds``, in microseconds."""
    seconds: list[list[float]] = [[], []]
    for first in range(0, rounds, block):
        for sampler, taken in zip(samplers, seconds, strict=True):
            for turn in range(first, first + block):
                start = time.perf_counter()
                cohort = sampler.draw()
                drawn = time.perf_counter() - start
                reported = norms(cohort.clients, turn)
                start = time.perf_counter()
                sampler.observe(cohort, reported)
                taken.append(drawn + time.perf_counter() - start)
    with_guard, without = (1e6 * np.quantile(taken[rounds // 2 :], (0.25, 0.5)) for taken in seconds)
    outliers = len(samplers[0].state_dict()["guard.outlier_client"])
    print(
        f"{name}: guard {with_guard[0]:.0f}, {with_guard[1]:.0f}; none {without[0]:.0f}, {without[1]:.0f}; "
        f"ratio {with_guard[0] / without[0]:.2f}, {with_guard[1] / without[1]:.2f}; {outliers} outliers",
        flush=True,
    )


def small(deviation: float) -> None:
    """100 clients with log-normal levels, 5 a round."""
    levels = np.exp(np.random.default_rng(3).normal(0.0, deviation, 100))

    def norms(clients: IntArray, turn: int) -> FloatArray:
        noise = np.random.default_rng(turn).normal(0.0, 0.3, len(clients))
        return np.asarray(levels[clients] * np.exp(noise))

    samplers = [default_sampler(100, 5), default_sampler(100, 5, guard=None)]
    measure(f"M = 100, K = 5, deviation {deviation}", samplers, norms, 4000, 100)


def large() -> None:
    """A million clients, each seen once before, 100 a round."""
    samplers = [default_sampler(10**6, 100), default_sampler(10**6, 100, guard=None)]
    everybody = np.random.default_rng(1).permutation(10**6).reshape(-1, 100)
    for sampler in samplers:
        for turn, part in enumerate(everybody):
            cohort = sampler.draw(available=part)
            sampler.observe(cohort, norms_of(cohort.clients, turn))
    measure("M = 10^6, K = 100", samplers, norms_of, 2000, 1)


def main() -> None:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true")
    if parser.parse_args().large:
        large()
        return
    for deviation in (0.5, 1.0, 1.5):
        small(deviation)


if __name__ == "__main__":
    main()
