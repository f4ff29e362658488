"""What colluding clients get out of lying about their norms, with and without the defences.

    python benchmarks/attack.py [--rounds 200] [--repeats 1] [--samplers avare,...] [--json FILE]

Handwritten digits over 100 clients, 5 drawn a round; 1% or 5% of the clients, chosen at random, collude. They
either *report* norms that are so many times the true ones beside honest updates, or *send* updates that are
so many times as large, which a server that computes the norms itself will notice. Printed are the colluders'
share of the draws in the second half of the run (``draws``; honest clients in their place get what the row
"honest" says), and the final loss over that of the same sampler in an honest federation (``loss``; uniform
sampling can't be steered, so its rows show what the updates alone do).

With the guard the sampler has ``Guard()``, and a server that is sent updates clips them at
``sampler.norm_bound``; strict is ``Guard(clip_factor=10, fence=6)``; with the cap nobody has a probability
above 5% besides.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    Guard,
    MABSSampler,
    ProportionalSampler,
    UniformSampler,
    VRBSampler,
)
from sortition.core.variance import aggregate
from sortition.experiments.trajectory import variance_ratio
from sortition.problems import STEP_SIZE, DigitsFederation

COHORT_SIZE = 5
FACTORS = (1e-6, 1e-3, 10.0, 1e3, 1e6)
SHARES = (0.01, 0.05)
DEFENCES: dict[str, Guard | None] = {
    "none": None,
    "guard": Guard(),
    "strict": Guard(clip_factor=10.0, fence=6.0),
    "strict and cap": Guard(clip_factor=10.0, fence=6.0, largest_probability=0.05),
}
Build = Callable[[dict[str, Any], int], Any]
SAMPLERS: dict[str, Build] = {
    "uniform": lambda common, rounds: UniformSampler(**common),
    "proportional": lambda common, rounds: ProportionalSampler(**common),
    "adaptive-osmd": lambda common, rounds: AdaptiveOSMDSampler(num_rounds=rounds, **common),
    "adaptive-osmd-x100": lambda common, rounds: AdaptiveOSMDSampler(
        num_rounds=rounds, rate_scale=100.0, **common
    ),
    "doubling-osmd": lambda common, rounds: DoublingOSMDSampler(rate_scale=100.0, **common),
    "mabs": lambda common, rounds: MABSSampler(num_rounds=rounds, **common),
    "vrb": lambda common, rounds: VRBSampler(**common),
    "avare": lambda common, rounds: AvareSampler(**common),
    "empirical-bayes": lambda common, rounds: EmpiricalBayesSampler(**common),
}


@dataclass(frozen=True)
class Attack:
    """Who lies, and how."""

    kind: str  # "report", "send" or "honest"
    share: float
    factor: float


@dataclass(frozen=True)
class Outcome:
    """A run under attack."""

    sampler: str
    defence: str
    attack: Attack
    draws: float
    """The colluders' share of the draws, second half of the run."""
    loss: float
    """Mean training loss over the last tenth of the rounds."""
    variance: float
    """Sampling variance over the optimum's, by the true norms, mean over the rounds."""
    caught: float
    """The share of the suspects that are colluders; nan if there are no suspects."""
    suspects: int


@lru_cache
def federation_of(seed: int) -> DigitsFederation:
    """The federation of a seed: the same for all runs."""
    return DigitsFederation(num_clients=100, seed=seed)


def run(name: str, defence: str, attack: Attack, rounds: int, seed: int) -> Outcome:
    """Train under attack."""
    federation = federation_of(seed)
    colluders = np.zeros(federation.num_clients, dtype=bool)
    count = max(1, round(attack.share * federation.num_clients))
    colluders[np.random.default_rng(seed + 1000).permutation(federation.num_clients)[:count]] = True
    weights = federation.client_weights
    common = {
        "num_clients": federation.num_clients,
        "cohort_size": COHORT_SIZE,
        "client_weights": weights,
        "seed": seed,
        "guard": DEFENCES[defence],
    }
    sampler = SAMPLERS[name](common, rounds)
    model = federation.initial_model()
    losses, ratios, drawn, total = [], [], 0, 0
    for t in range(rounds):
        if t % 10 == 0:
            ratios.append(variance_ratio(sampler.probabilities(), weights, federation.all_norms(model, t)))
        cohort = sampler.draw()
        updates = federation.updates(model, cohort.clients, t)
        lying = colluders[cohort.clients]
        factors = np.where(lying, attack.factor, 1.0)
        if attack.kind == "send":
            updates = updates * factors[:, None]
        norms = np.linalg.norm(updates, axis=1)
        sampler.observe(cohort, norms * factors if attack.kind == "report" else norms)
        if attack.kind == "send" and DEFENCES[defence] is not None:
            bound = sampler.norm_bound
            updates = updates * np.where(norms > bound, bound / np.maximum(norms, 1e-9), 1.0)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            model = model - STEP_SIZE * aggregate(cohort, weights[cohort.clients], updates)
            if t >= rounds - max(1, rounds // 10):
                losses.append(federation.loss(model))
        if t >= rounds // 2:
            drawn += int(cohort.counts[lying].sum())
            total += int(cohort.counts.sum())
    suspects = [suspect.client for suspect in sampler.suspects()]
    return Outcome(
        name,
        defence,
        attack,
        draws=drawn / total,
        loss=float(np.mean(losses)),
        variance=float(np.mean(ratios)),
        caught=float(np.mean(colluders[suspects])) if suspects else float("nan"),
        suspects=len(suspects),
    )


def mean(outcomes: list[Outcome]) -> Outcome:
    """One outcome for several seeds."""
    fields = ("draws", "loss", "variance", "caught", "suspects")
    with np.errstate(invalid="ignore"):
        means = {name: float(np.mean([getattr(outcome, name) for outcome in outcomes])) for name in fields}
    return replace(outcomes[0], **means)


def attacks() -> list[Attack]:
    """Honest federations first, then every lie."""
    honest = [Attack("honest", share, 1.0) for share in SHARES]
    lies = [
        Attack(kind, share, factor) for kind in ("report", "send") for share in SHARES for factor in FACTORS
    ]
    return honest + lies


def honest_cost(names: list[str], rounds: int, seeds: int) -> list[dict[str, Any]]:
    """What the guard costs where nobody lies: paired differences over the seeds, with standard errors."""
    print(f"{'sampler':20}{'loss':>8}{'guard adds':>22}{'variance':>10}{'guard adds':>22}  suspects")
    rows = []
    for name in names:
        pairs = [
            [run(name, defence, Attack("honest", 0.01, 1.0), rounds, seed) for defence in ("none", "guard")]
            for seed in range(seeds)
        ]
        row: dict[str, Any] = {
            "sampler": name,
            "suspects": float(np.mean([two.suspects for _, two in pairs])),
        }
        text = f"{name:20}"
        for quantity, width in (("loss", 8), ("variance", 10)):
            before = np.array([getattr(one, quantity) for one, _ in pairs])
            added = np.array([getattr(two, quantity) for _, two in pairs]) - before
            error = added.std(ddof=1) / np.sqrt(seeds)
            row[quantity] = {"mean": before.mean(), "added": added.mean(), "standard_error": error}
            text += f"{before.mean():>{width}.3f}{added.mean():>12.4f} ± {error:<7.4f}"
        print(f"{text}  {row['suspects']:.1f} of 100", flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Run everything, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--defences", default="none,guard,strict")
    parser.add_argument(
        "--honest", type=int, metavar="SEEDS", help="only what the guard costs if nobody lies"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.honest:
        costs = honest_cost(options.samplers.split(","), options.rounds, options.honest)
        if options.json is not None:
            options.json.write_text(json.dumps(costs, indent=1) + "\n")
        return
    started = time.monotonic()
    results: list[Outcome] = []
    defences = options.defences.split(",")
    print(f"{'sampler':20}{'attack':8}{'share':>6}{'factor':>8}", end="")
    print("".join(f"  | {name:>8}: draws   loss" for name in defences))
    for name in options.samplers.split(","):
        honest: dict[tuple[str, float], float] = {}
        for attack in attacks():
            cells = []
            for defence in defences:
                runs = [run(name, defence, attack, options.rounds, seed) for seed in range(options.repeats)]
                outcome = mean(runs)
                results.append(outcome)
                if attack.kind == "honest":
                    honest[defence, attack.share] = outcome.loss
                relative = outcome.loss / honest["none" if "none" in defences else defence, attack.share]
                cells.append(f"  | {'':>8} {outcome.draws:>6.1%} {relative:>6.3g}")
            print(f"{name:20}{attack.kind:8}{attack.share:>6.0%}{attack.factor:>8.0e}" + "".join(cells))
    print(f"{time.monotonic() - started:.0f} s, {options.rounds} rounds, {options.repeats} seeds")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
