"""What each constant of the default sampler is worth: replay on the half of the arena it was tuned on.

    .venv/bin/python benchmarks/ablation.py [--seeds N] [--skip N] [--jobs N] [--only NAME,...]

The constants are changed in the specification, ``sortition.core.beliefs``, which draws for itself; the kernel
that the sampler uses is equal to it. One line a variant: the geometric mean over the environments of the
variance ratio to the optimum, overall and in the first tenth of the rounds, the worst ratio to uniform
sampling, and which environments gain and lose most against the constants as they are.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from sortition.core import beliefs
from sortition.core.beliefs import PRIOR_UNIFORM, Beliefs
from sortition.core.designs import draw_with_replacement
from sortition.core.variance import log_feedback
from sortition.lab.arena.environments import ALL, Environment, seeds_of
from sortition.lab.arena.tournament import Variance
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.training import variance_ratio

OFF = 1e9
Value = float | tuple[float, ...]
VARIANTS: dict[str, tuple[Value, ...]] = {
    "PRIOR_UNIFORM": (0.01, 0.3),
    "LEAST_SHARE": (0.05, 0.2),
    "DISCOVERY": (OFF, 3.0),
    "HOLD": (0.1, 1.0),
    "LOSS_MEMORY": (0.5, 0.98),
    "TRUST": ((0.1, 1e9, 4.0), (0.1, 1.0, 4.0), (0.3, 3.0, 4.0), (0.1, 3.0, 2.0)),
    "SQUARES": ((0.0, 2.0), (0.015, 1.0), (0.05, 2.0)),
    "SURPRISE": (OFF, 0.7),
    "FORGETTING": (0.25, 0.75),
    "FIRST_NOISE": ((0.1, 2.0), (2.0, 2.0)),
    "LARGEST_DEVIATION": (20.0, 3.0),
    "CHANCE": (0.0, 1.0, 4.0, OFF),
    "ANCHOR": (0.0, 0.1),
    "GROWTH": (OFF, 1.0),
    "REPLIES": ((2.0, 5.0), (2.0, OFF)),
    "LEAST_CHANCE": (1.0, 0.01),
    "LOWEST": (-2.0, -60.0),
}
"""TRUST with 1e9: what was learnt is never doubted. SQUARES with 0: mean squares do not count. CHANCE of 0:
the level follows at once; off: never. GROWTH off: sizes teach nothing. LEAST_CHANCE of 1: silence teaches
nothing."""


def run(changes: dict[str, Value], environment: Environment, seed: int, tick: Tick) -> Variance:
    """One trace with other constants."""
    before = {name: getattr(beliefs, name) for name in changes}
    for name, value in changes.items():
        setattr(beliefs, name, value)
    try:
        trace, generator = environment.trace(seed), np.random.default_rng(seed)
        weights, size = trace.client_weights, trace.cohort_size
        uniform = changes.get("PRIOR_UNIFORM", PRIOR_UNIFORM)
        believed = Beliefs((1.0 - uniform) * weights + uniform / len(weights), size)
        ratios = []
        for round_index, norms in enumerate(trace.norms):
            p = believed.probabilities()
            if round_index % trace.measured_every == 0:
                ratios.append(variance_ratio(p, weights, np.nan_to_num(norms)))
            clients, _, _, of_cohort = draw_with_replacement(p, size, generator)
            replied = ~np.isnan(norms[clients])
            believed.miss(clients[~replied])
            if replied.any():
                heard = clients[replied]
                raised = of_cohort[replied] * (len(clients) / len(heard))
                believed.learn(heard, raised, log_feedback(weights[heard], norms[heard]))
            tick()
        return Variance.of_run(np.array(ratios))
    finally:
        for name, value in before.items():
            setattr(beliefs, name, value)


def main() -> None:
    """Run the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first seeds")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(VARIANTS))
    arguments = parser.parse_args()
    variants: dict[str, dict[str, Value]] = {"as it is": {}}
    for name in arguments.only.split(","):
        for value in VARIANTS[name]:
            variants[f"{name} = {'off' if value == OFF else value}"] = {name: value}
    environments = [environment for environment in ALL if environment.half == "tune"]
    seeds = seeds_of("tune", arguments.seeds, arguments.skip)
    print("| constant | geometric mean | first tenth | worst over uniform | best change | worst change |")
    print("|---|---|---|---|---|---|")
    base = uniform = np.zeros(0)
    for label, changes in variants.items():
        tasks = [partial(run, changes, environment, seed) for environment in environments for seed in seeds]
        runs = np.array([(one.mean, one.early) for one in run_tasks(tasks, arguments.jobs)])
        mean, early = runs.reshape(len(environments), len(seeds), 2).mean(axis=1).T
        if not len(base):
            base, uniform = (
                mean,
                np.array([uniform_ratio(environment, seeds) for environment in environments]),
            )
        change, worst = mean / base, int(np.argmax(mean / uniform))
        print(
            f"| {label} | {np.exp(np.log(mean).mean()):.3f} | {np.exp(np.log(early).mean()):.3f} "
            f"| {environments[worst].name} {mean[worst] / uniform[worst]:.2f} "
            f"| {environments[change.argmin()].name} {change.min() - 1:+.0%} "
            f"| {environments[change.argmax()].name} {change.max() - 1:+.0%} |",
            flush=True,
        )


def uniform_ratio(environment: Environment, seeds: list[int]) -> float:
    """The mean ratio of uniform sampling."""
    ratios = []
    for seed in seeds:
        trace = environment.trace(seed)
        p = np.full(len(trace.client_weights), 1.0 / len(trace.client_weights))
        measured = trace.norms[:: trace.measured_every]
        ratios.append(
            np.mean([variance_ratio(p, trace.client_weights, np.nan_to_num(norms)) for norms in measured])
        )
    return float(np.mean(ratios))


if __name__ == "__main__":
    main()
