"""What each constant of the default sampler is worth: replay on the half of the arena it was tuned on.

    .venv/bin/python benchmarks/ablation.py [--seeds N] [--jobs N] [--only NAME,...]

One line a variant: the geometric mean over the environments of the variance ratio to the optimum, overall and
in the first tenth of the rounds, and which environments gain and lose most against the constants as they are.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

import numpy as np

from sortition import Sampler
from sortition.lab.arena.environments import ALL
from sortition.lab.arena.tournament import run_replay
from sortition.lab.contestants import Trial
from sortition.samplers.empirical_bayes import Constants, EmpiricalBayesSampler

OFF = 1e9
VARIANTS: dict[str, tuple[float, ...]] = {
    "prior_uniform": (0.0, 0.3),
    "least_share": (0.05, 0.08, 0.2),
    "discovery": (OFF, 1.0, 3.0),
    "share_hold": (OFF, 1.0, 0.1),
    "loss_memory": (0.5, 0.98),
    "level_rate": (0.0, 0.3),
    "surprise": (OFF, 1.2),
    "forgetting": (0.25, 0.75),
    "jump": (OFF, 2.0),
    "caution": (OFF, 3.0, 1.0),
    "largest_ratio": (OFF, 2.0, 10.0),
    "first_noise": (0.1, 2.0),
    "largest_deviation": (OFF, 3.0),
}


def build(changes: dict[str, float], trial: Trial) -> Sampler:
    """The default sampler with other constants."""

    class Variant(EmpiricalBayesSampler):
        constants = replace(Constants(), **changes)

    return Variant(**trial.common())


def main() -> None:
    """Run the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(VARIANTS))
    arguments = parser.parse_args()
    variants = {"as it is": partial(build, {})}
    for name in arguments.only.split(","):
        for value in VARIANTS[name]:
            variants[f"{name} = {'off' if value == OFF else value}"] = partial(build, {name: value})
    environments = [environment for environment in ALL if environment.half == "tune"]
    arena = run_replay(variants, environments, split="tune", seeds=arguments.seeds, jobs=arguments.jobs)
    scores = {(score.sampler, score.environment): score for score in arena.scores}
    print("| constant | geometric mean | first tenth | best change | worst change |")
    print("|---|---|---|---|---|")
    base = [scores["as it is", environment.name] for environment in environments]
    for name in variants:
        rows = [scores[name, environment.name] for environment in environments]
        mean = np.exp(np.mean([np.log(row.ratio) for row in rows]))
        early = np.exp(np.mean([np.log(row.early_ratio) for row in rows]))
        change = np.array([row.ratio / own.ratio for row, own in zip(rows, base, strict=True)])
        best, worst = environments[change.argmin()].name, environments[change.argmax()].name
        print(
            f"| {name} | {mean:.3f} | {early:.3f} | {best} {change.min() - 1:+.0%} "
            f"| {worst} {change.max() - 1:+.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
