"""What colluding clients get out of lying about their norms, with and without the defences.

    python benchmarks/attack.py [--rounds 100] [--seeds 3] [--samplers avare,...] [--out DIR]

Handwritten digits over 100 clients, 5 drawn a round; 1% or 5% of the clients, chosen at random for each
seed, collude. They either *report* norms that are a multiple of the true ones beside honest updates, or
*send* updates that are multiplied, which a server that computes the norms itself will notice.
Shown are the colluders' share of the draws in the second half of the run, and the final loss over that of the
same sampler in an honest federation (uniform sampling can't be steered, so its rows show what the updates
alone do): means over the seeds, and half the range between the smallest and the largest of them.

Oracles are shown the norms of all clients before each draw; there the colluders' norms are lies as well.

With the guard the sampler has ``Guard()``, and a server that is sent updates clips them at
``sampler.norm_bound``. ``--out`` writes attack.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sortition import (
    AvareSampler,
    EmpiricalBayesSampler,
    FixedSampler,
    Guard,
    OSMDSampler,
    PortfolioSampler,
    ProportionalSampler,
)
from sortition.cli.options import RoundsProgress
from sortition.core.rates import expert_rates
from sortition.core.variance import aggregate
from sortition.lab.contestants import CONTESTANTS, EXPLORATION, ORACLES, Contestant, Trial
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.problems.softmax import STEP_SIZE, SoftmaxFederation, digits_federation
from sortition.lab.training import Oracle

COHORT_SIZE = 5
DEFENCES: dict[str, Guard | None] = {"none": None, "guard": Guard()}


@dataclass(frozen=True)
class GuardedTrial(Trial):
    """A trial with a guard; nobody pre-trains, so the first feedback is the bound."""

    guard: Guard | None

    def common(self) -> dict[str, Any]:
        """The arguments that every sampler takes."""
        return {**super().common(), "guard": self.guard}


def plain_osmd(trial: Trial) -> OSMDSampler:
    """OSMD at the middle one of the paper's expert rates, for norms of one and clients of average size."""
    clients = len(trial.client_weights)
    rates = expert_rates(clients, COHORT_SIZE, trial.num_rounds, EXPLORATION, 1.0 / clients**2)
    rate = float(rates[len(rates) // 2])
    return OSMDSampler(learning_rate=rate, exploration=EXPLORATION, **trial.common())


def fixed(trial: Trial) -> FixedSampler:
    """Halfway between uniform and proportional, in logarithms."""
    roots = np.sqrt(trial.client_weights)
    return FixedSampler(probabilities=roots / roots.sum(), **trial.common())


def portfolio(trial: Trial) -> PortfolioSampler:
    """Proportional, Avare and empirical Bayes; the guard is the portfolio's."""
    common = trial.common()
    bare = {name: common[name] for name in ("num_clients", "cohort_size", "client_weights")}
    kinds = (ProportionalSampler, AvareSampler, EmpiricalBayesSampler)
    experts = [kind(**bare, guard=None) for kind in kinds]
    return PortfolioSampler(experts=experts, seed=trial.seed, guard=common["guard"])


ALL: dict[str, Contestant] = {**CONTESTANTS, "fixed": fixed, "osmd": plain_osmd, "portfolio": portfolio}
SAMPLERS = {name: ALL[name] for name in sorted(ALL, key=lambda name: name in ORACLES)}
"""Every sampler of the library, the oracles last."""


@dataclass(frozen=True)
class Attack:
    """Who lies, and how."""

    kind: str  # "report", "send" or "honest"
    share: float
    factor: float

    def __str__(self) -> str:
        return f"{self.kind} {self.share:.0%}" + ("" if self.kind == "honest" else f" x{self.factor:g}")


HONEST = Attack("honest", 0.05, 1.0)
ATTACKS = (
    Attack("report", 0.05, 1e-3),
    Attack("report", 0.01, 1e6),
    Attack("report", 0.05, 100.0),
    Attack("report", 0.05, 1e6),
    Attack("send", 0.05, 1e6),
)


@dataclass(frozen=True)
class Outcome:
    """A run under attack."""

    sampler: str
    defence: str
    attack: Attack
    seed: int
    draws: float
    """The colluders' share of the draws, second half of the run."""
    loss: float
    """Mean training loss over the last tenth of the rounds, every other one."""


@lru_cache
def federation_of(seed: int) -> SoftmaxFederation:
    """The federation of a seed: the same for all runs."""
    return digits_federation(num_clients=100, seed=seed)


def run(name: str, defence: str, attack: Attack, rounds: int, seed: int, tick: Tick) -> Outcome:
    """Train under attack."""
    federation = federation_of(seed)
    colluders = np.zeros(federation.num_clients, dtype=bool)
    count = max(1, round(attack.share * federation.num_clients))
    colluders[np.random.default_rng(seed + 1000).permutation(federation.num_clients)[:count]] = True
    all_factors = np.where(colluders, attack.factor, 1.0)
    weights = federation.client_weights
    no_bound: Any = None
    guard = DEFENCES[defence]
    sampler: Any = SAMPLERS[name](
        GuardedTrial(weights, COHORT_SIZE, rounds, no_bound, "with_replacement", seed, guard)
    )
    model = federation.initial_model()
    losses, drawn, total = [], 0, 0
    for t in range(rounds):
        oracle = isinstance(sampler, Oracle)
        if oracle:
            norms = federation.all_norms(model, t)
            sampler.reveal(np.nan_to_num(norms * all_factors, posinf=1e300))
        cohort = sampler.draw()
        updates = federation.updates(model, cohort.clients, t)
        factors = all_factors[cohort.clients]
        if attack.kind == "send":
            updates = updates * factors[:, None]
        norms = np.linalg.norm(updates, axis=1)
        sampler.observe(cohort, norms * factors if attack.kind == "report" else norms)
        if attack.kind == "send" and guard is not None:
            bound = sampler.norm_bound
            updates = updates * np.where(norms > bound, bound / np.maximum(norms, 1e-9), 1.0)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            model = model - STEP_SIZE * aggregate(cohort, weights[cohort.clients], updates)
            if t >= rounds - max(1, rounds // 10) and (rounds - t) % 2:
                losses.append(federation.loss(model))
        if t >= rounds // 2:
            drawn += int(cohort.counts[colluders[cohort.clients]].sum())
            total += int(cohort.counts.sum())
        tick()
    return Outcome(
        name,
        defence,
        attack,
        seed,
        draws=drawn / max(total, 1),
        loss=float(np.mean(losses)),
    )


def run_all(
    names: Sequence[str],
    defences: Sequence[str],
    chosen: Sequence[Attack],
    rounds: int,
    seeds: int,
    jobs: int,
) -> list[Outcome]:
    """Every run, with a bar."""
    tasks = [
        partial(run, name, defence, attack, rounds, seed)
        for seed in range(seeds)
        for name in names
        for defence in defences
        for attack in chosen
    ]
    with RoundsProgress(total=len(tasks) * rounds) as progress:
        return run_tasks(tasks, jobs, progress.advance_to)


@dataclass(frozen=True)
class Cell:
    """Means over the seeds, and half the range."""

    draws: float
    draws_spread: float
    damage: float
    """The loss over that of the honest run without a guard, of the same sampler and seed."""
    damage_spread: float

    def __str__(self) -> str:
        draws = f"{100 * self.draws:.0f} ± {100 * self.draws_spread:.0f}%"
        if not np.isfinite(self.damage) or self.damage >= 100.0:
            return f"{draws}, x{self.damage:.0e}"
        return f"{draws}, x{self.damage:.2f} ± {self.damage_spread:.2f}"


Cells: TypeAlias = dict[tuple[str, str, Attack], Cell]
"""By sampler, defence and attack."""


def cells_of(outcomes: Sequence[Outcome]) -> Cells:
    """One cell for each sampler, defence and attack."""
    honest = {
        (one.sampler, one.seed): one.loss
        for one in outcomes
        if one.attack.kind == "honest" and one.defence == "none"
    }
    grouped: dict[tuple[str, str, Attack], list[tuple[float, float]]] = {}
    for one in outcomes:
        key = (one.sampler, one.defence, one.attack)
        grouped.setdefault(key, []).append((one.draws, one.loss / honest[one.sampler, one.seed]))
    cells = {}
    for key, values in grouped.items():
        (draws, damage), spread = np.mean(values, axis=0), np.ptp(values, axis=0) / 2.0
        cells[key] = Cell(float(draws), float(spread[0]), float(damage), float(spread[1]))
    return cells


def markdown(cells: Cells, chosen: Sequence[Attack]) -> str:
    """A table: a row for each sampler and attack, a column for each defence."""
    names = list(dict.fromkeys(name for name, _, _ in cells))
    defences = list(dict.fromkeys(defence for _, defence, _ in cells))
    lines = ["| sampler | attack | " + " | ".join(defences) + " |", "|---" * (2 + len(defences)) + "|"]
    for name in names:
        for attack in chosen:
            row = " | ".join(str(cells[name, defence, attack]) for defence in defences)
            lines.append(f"| {name} | {attack} | {row} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run everything, print the short table, write the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="DIR")
    options = parser.parse_args()
    names = [name.strip() for name in options.samplers.split(",")]
    for name in names:
        if name not in SAMPLERS:
            parser.error(f"--samplers must be of {', '.join(SAMPLERS)}, got {name!r}")
    for name in ("rounds", "seeds", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    started = time.monotonic()
    outcomes = run_all(names, list(DEFENCES), (HONEST, *ATTACKS), options.rounds, options.seeds, options.jobs)
    table = markdown(cells_of(outcomes), ATTACKS)
    print(table)
    print(f"{time.monotonic() - started:.0f} s, {options.rounds} rounds, {options.seeds} seeds")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "attack.md").write_text(table)


if __name__ == "__main__":
    main()
