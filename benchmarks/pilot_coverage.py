"""How often do the intervals of ``sortition diagnose`` hold the truth? Of one federation, over seeds.

    python benchmarks/pilot_coverage.py --seeds 20 clinics:Clinics,60,6,0.02 ls-sigma-1

A federation is an environment of the arena, at most 100 rounds of it, or ``module:factory``, rounds, cohort
size and step. A seed has its own draws, and all that is done with them: the noise, the search for the steps,
the pilots. The truth is the same estimate from the draws of all seeds together. Printed for each choice: the
truth and its standard error, the seeds whose interval holds it, the same of the pilots alone (their ratio,
and t times their standard error), the seeds whose pilots missed the target, and the median ends.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from sortition.lab.arena.environments import ENVIRONMENTS
from sortition.lab.diagnosis.findings import CHOICES, UNIFORM, Pilot
from sortition.lab.diagnosis.pilots import REPEATS, Trainings
from sortition.lab.diagnosis.trained_problem import measure_problem
from sortition.lab.imported import imported

MOST_ROUNDS = 100


def federation(name: str) -> tuple[object, int, int, float]:
    """The problem of seed 0, its rounds, its cohort size and its step."""
    if ":" in name:
        factory, rounds, size, step = name.split(",")
        return imported("federation", factory)(seed=0), int(rounds), int(size), float(step)
    own = ENVIRONMENTS[name].training
    assert own is not None
    return own.make_problem(seed=0), min(own.num_rounds, MOST_ROUNDS), own.cohort_size, own.step_size


def holds(truth: Pilot, low: float, high: float) -> bool:
    """Whether the range holds the true ratio; of one that is only known to be large, its bound."""
    ratio = truth.more_than if truth.ratio is None else truth.ratio
    assert ratio is not None
    return low <= ratio <= high if truth.ratio is not None else high >= ratio


def show(name: str, seeds: int) -> tuple[int, int, int]:
    """A line for each choice; seeds and choices that hold, that do by pilots alone, and all."""
    problem, rounds, size, step = federation(name)
    trainings = Trainings(problem, size, rounds, step, seed=0)  # type: ignore[arg-type]
    noises, found = [], []
    with np.errstate(all="ignore"):
        for seed in range(seeds):
            noise = measure_problem(
                problem,  # type: ignore[arg-type]
                size,
                step_size=step,
                num_rounds=rounds,
                seed=seed,
                smallest=False,
            )
            choices = [choice for choice in CHOICES if choice in noise.sampling]
            pilots = trainings.pilots(choices, range(seed * REPEATS, (seed + 1) * REPEATS))
            noises.append(replace(noise, pilots=pilots))
            found.append(pilots)
        truth = trainings.pilots(choices, range(seeds * REPEATS))
    sums = np.zeros(3, dtype=int)
    for choice in choices:
        if choice == UNIFORM:
            continue
        true, told = truth[choice], [each for each in found if each]
        ranges = [noise.rounds_range(choice) for noise in noises if noise.pilots]
        inside = sum(holds(true, *ends) for ends in ranges)
        alone = 0
        for pilots in told:
            own = pilots[choice]
            ratio = own.ratio or own.more_than or math.nan
            half = float(stdtrit(REPEATS - 1, 0.975)) * own.standard_error
            high = ratio * math.exp(half) if own.bounded else math.inf
            alone += holds(true, ratio * math.exp(-half), high)
        beyond = sum(p[choice].ratio is None for p in told)
        said = f"> {true.more_than or math.nan:.2f}"
        if true.ratio is not None:
            said = f"{true.ratio:.2f} ±{true.ratio * true.standard_error:.2f}"
        low, high = np.median(np.array(ranges), axis=0)
        print(
            f"| {name.split(',')[0]} | {choice} | {said} | {inside} of {len(told)} | "
            f"{alone} of {len(told)} | {beyond} | {low:.2f} to {high:.2f} |",
            flush=True,
        )
        sums += (inside, alone, len(told))
    return int(sums[0]), int(sums[1]), int(sums[2])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("federations", nargs="+")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    print("| federation | choice | truth | holds it | pilots alone | > | median interval |")
    print("|---|---|---|---|---|---|---|")
    sums = np.sum([show(name, options.seeds) for name in options.federations], axis=0)
    print(f"\nin all: {sums[0]} of {sums[2]}, pilots alone {sums[1]} of {sums[2]}")


if __name__ == "__main__":
    main()
