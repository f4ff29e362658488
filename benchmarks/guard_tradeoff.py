"""What liars can gain under the guard of the default sampler, and what it costs where nobody lies.

    python benchmarks/guard_tradeoff.py attacks [--seeds 50] [--rounds 300] [--out DIR]
    python benchmarks/guard_tradeoff.py gains   [--seeds 10] [--out DIR]
    python benchmarks/guard_tradeoff.py honest  [--seeds 10] [--sampler portfolio] [--out DIR]

``--largest-gain`` is that of the guard, for attacks and honest runs.

*attacks*: 100 clients with log-normal norms, 5 drawn a round, 1 or 5 liars; every attack that we know, at
several deviations. Shown are the honest clients' variance over the least possible (what is left to them,
drawn in proportion to their norms, would make it 1 / (1 - what the liars hold)), and what the liars hold:
means over the seeds and over the last two thirds of the run.

*gains*: the same for several values of ``largest_gain``, and what they cost two honest clients of a hundred
with fifty times the norm of the others, the worst environment of the arena for it.

*honest*: variance of whole runs of all environments of the arena with up to 100 clients, over that of the
same run without a guard.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attack import SAMPLERS, GuardedTrial

from sortition import EmpiricalBayesSampler, Guard
from sortition.cli.options import RoundsProgress
from sortition.core.types import FloatArray
from sortition.lab.arena.environments import ENVIRONMENTS
from sortition.lab.arena.tournament import Replay
from sortition.lab.contestants import ORACLES
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.training import training_rounds, variance_ratio

CLIENTS, COHORT_SIZE, LIE, NOISE = 100, 5, 1e6, 0.1
DEVIATIONS, LIARS, GAINS = (0.5, 1.0, 1.25, 1.5, 2.0), (1, 5), (3.0, 10.0, 25.0, 50.0)
FIRST_SEED = 401
MANY_CLIENTS = ("ls-2000-clients", "ls-1000-clients", "digits-500", "clients-20000", "clients-5000")
"""What ``honest`` leaves out."""
SAMPLER, HEAVY = "empirical-bayes", "few-heavy"
GUARDS: dict[str, Guard | None] = {"guard": Guard(), "none": None}


@dataclass
class Liar:
    """One liar: what it reports instead of its norm in its n-th reply, given the bound of outliers."""

    lie: Callable[[int, int, float, float], float]
    replies: int = field(default=0, init=False)

    def report(self, round_index: int, norm: float, bound: float) -> float:
        """The next report."""
        self.replies += 1
        return self.lie(self.replies, round_index, norm, bound)


def constant(n: int, t: int, norm: float, bound: float) -> float:
    """Always a million."""
    return LIE


def below(n: int, t: int, norm: float, bound: float) -> float:
    """Just below the bound of outliers."""
    return 0.999 * bound if np.isfinite(bound) else 5.0 * norm


ATTACKS: dict[str, Callable[[int, int, float, float], float]] = {
    "constant": constant,
    "alternating": lambda n, t, norm, bound: LIE if n % 2 else norm,
    "every sixth": lambda n, t, norm, bound: LIE if n % 6 == 1 else norm,
    "once, then silent": lambda n, t, norm, bound: LIE if n == 1 else np.nan,
    "first cohort": constant,  # two of the liars are in it
    "first, then silent": lambda n, t, norm, bound: LIE if n == 1 else np.nan,
    "late": lambda n, t, norm, bound: norm if t < 100 else LIE,
    "just below": below,
    "mixed": below,  # except for the first liar
    "new names": constant,  # they leave and join again after every round
    "new names later": constant,  # each after its second reply
}


@dataclass(frozen=True)
class Outcome:
    """A run under attack."""

    variance: float
    held: float
    uniform: float
    """The variance of uniform sampling."""


def under_attack(
    guard: Guard | None, deviation: float, attack: str, liars: int, seed: int, rounds: int, tick: Tick
) -> Outcome:
    """One run of the default sampler; without liars, an honest one."""
    rng = np.random.default_rng(seed)
    norms = np.exp(deviation * rng.standard_normal(CLIENTS))
    sampler = EmpiricalBayesSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE, seed=seed, guard=guard)
    chosen = rng.permutation(CLIENTS)[:liars].tolist()
    if attack.startswith("first"):
        twin = EmpiricalBayesSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE, seed=seed)
        first = twin.draw().clients.tolist()
        chosen = (first[:2] + [client for client in chosen if client not in first])[:liars]
    colluders = {client: Liar(ATTACKS[attack]) for client in chosen}
    if attack == "mixed" and chosen:
        colluders[chosen[0]] = Liar(constant)
    honest = np.setdiff1d(np.arange(CLIENTS), chosen)
    ratios, held = [], []
    for t in range(rounds):
        enough = {"new names": 0, "new names later": 2}.get(attack, rounds)
        leaving = sorted(client for client, liar in colluders.items() if liar.replies >= enough)
        if t and leaving:
            sampler.remove_clients(leaving)
            colluders = {client: liar for client, liar in colluders.items() if client not in leaving}
            colluders |= {client: Liar(constant) for client in sampler.add_clients(len(leaving)).tolist()}
        cohort = sampler.draw()
        own = np.where(cohort.clients < CLIENTS, norms[np.minimum(cohort.clients, CLIENTS - 1)], 1.0)
        reports = own * np.exp(NOISE * rng.standard_normal(len(cohort)))
        bound = np.inf if sampler._guard is None else sampler._guard.outlier_bound
        for i, client in enumerate(cohort.clients.tolist()):
            if client in colluders:
                reports[i] = colluders[client].report(t, float(reports[i]), bound)
        sampler.observe(cohort, reports)
        if t >= rounds // 3 and t % 3 == 0:
            p = sampler.probabilities()
            ratios.append(float((norms[honest] ** 2 / p[honest]).sum() / norms[honest].sum() ** 2))
            held.append(float(p[sorted(colluders)].sum()))
        tick()
    uniform = CLIENTS * float((norms[honest] ** 2).sum() / norms[honest].sum() ** 2)
    return Outcome(float(np.mean(ratios)), float(np.mean(held)), uniform)


def mean_of(outcomes: Sequence[Outcome]) -> str:
    """Variance and share as a cell of a table."""
    variance, held = (np.mean([getattr(one, name) for one in outcomes]) for name in ("variance", "held"))
    return f"{variance:.2f} ({held:.0%})"


def attacks_table(results: dict[tuple[Any, ...], list[Outcome]]) -> str:
    """A row for each attack, a column for each deviation and number of liars."""
    cells = [(deviation, liars) for liars in LIARS for deviation in DEVIATIONS]
    header = " | ".join(f"{liars} of 100, {deviation:g}" for deviation, liars in cells)
    lines = [f"| attack | {header} |", "|---" * (len(cells) + 1) + "|"]
    for attack in ATTACKS:
        row = " | ".join(mean_of(results["guard", deviation, attack, liars]) for deviation, liars in cells)
        lines.append(f"| {attack} | {row} |")
    row = " | ".join(mean_of(results["none", deviation, "constant", liars]) for deviation, liars in cells)
    lines.append(f"| constant, no guard | {row} |")
    for name, words in (("guard", "nobody lies"), ("none", "nobody lies, no guard")):
        row = " | ".join(
            f"{np.mean([one.variance for one in results[name, d, 'constant', 0]]):.3f}" for d, _ in cells
        )
        lines.append(f"| {words} | {row} |")
    row = " | ".join(
        f"{np.mean([one.uniform for one in results['guard', d, 'constant', liars]]):.2f}"
        for d, liars in cells
    )
    return "\n".join([*lines, f"| uniform sampling | {row} |"]) + "\n"


def run_attacks(options: argparse.Namespace) -> str:
    """Every attack at every deviation."""
    cases: list[tuple[Any, ...]] = [
        ("guard", deviation, attack, liars)
        for deviation in DEVIATIONS
        for attack in ATTACKS
        for liars in LIARS
    ]
    cases += [("none", deviation, "constant", liars) for deviation in DEVIATIONS for liars in LIARS]
    cases += [(name, deviation, "constant", 0) for name in GUARDS for deviation in DEVIATIONS]
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    tasks = [
        partial(under_attack, GUARDS[name], *rest, seed, options.rounds)
        for name, *rest in cases
        for seed in seeds
    ]
    found = run_all(tasks, [options.rounds] * len(tasks), options.jobs)
    results = {case: found[i * len(seeds) : (i + 1) * len(seeds)] for i, case in enumerate(cases)}
    return attacks_table(results)


def run_gains(options: argparse.Namespace) -> str:
    """What liars hold and what honest heavy clients pay, by ``largest_gain``."""
    seeds, lines = range(FIRST_SEED, FIRST_SEED + options.seeds), []

    def heavy(guard: Guard | None) -> FloatArray:
        tasks = [partial(honest_variance, SAMPLER, guard, HEAVY, seed) for seed in seeds]
        return np.log(run_all(tasks, [ENVIRONMENTS[HEAVY].num_rounds] * len(tasks), options.jobs))

    plain = heavy(None)
    for gain in GAINS:
        guard = Guard(largest_gain=gain)
        row = []
        for liars in LIARS:
            tasks = [partial(under_attack, guard, 1.0, "mixed", liars, s, options.rounds) for s in seeds]
            row.append(mean_of(run_all(tasks, [options.rounds] * len(tasks), options.jobs)))
        cost = np.expm1(np.mean(heavy(guard) - plain))
        lines.append(f"| {gain:g} | {row[0]} | {row[1]} | {cost:+.0%} |")
    header = "| `largest_gain` | 1 liar of 100 | 5 liars of 100 | two heavy honest clients |"
    return "\n".join([header, "|---|---|---|---|", *lines]) + "\n"


def honest_variance(kind: str, guard: Guard | None, environment: str, seed: int, tick: Tick) -> float:
    """Variance over the optimum's, mean over a whole run."""
    trace = ENVIRONMENTS[environment].trace(seed)
    sampler: Any = SAMPLERS[kind](GuardedTrial(**vars(trace.trial(seed)), guard=guard))
    ratios = []
    for done in training_rounds(sampler, trace, Replay(), trace.num_rounds, measure_every=5):
        if done.probabilities is not None and done.norms is not None:
            ratios.append(variance_ratio(done.probabilities, trace.client_weights, done.norms))
        tick()
    return float(np.mean(ratios))


def honest_table(costs: dict[str, FloatArray]) -> str:
    """What the guard costs in each environment: mean log ratio, its standard error, the worst seed."""
    lines, small = ["| environment | cost | worst seed |", "|---|---|---|"], []
    for environment, logs in sorted(costs.items(), key=lambda item: -abs(float(np.mean(item[1])))):
        if abs(np.expm1(np.mean(logs))) < 0.0005:
            small.append(environment)
            continue
        error = np.std(logs, ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.nan
        mean, worst = np.expm1([np.mean(logs), np.max(logs)])
        lines.append(f"| {environment} | {mean:+.1%} ± {error:.1%} | {worst:+.1%} |")
    average = np.expm1(np.mean([np.mean(logs) for logs in costs.values()]))
    lines.append(f"| {len(small)} others | below 0.05% | |")
    return "\n".join([*lines, f"| mean of all {len(costs)} | {average:+.2%} | |"]) + "\n"


def run_honest(options: argparse.Namespace) -> str:
    """The default guard against none, in all environments."""
    names = [name for name in ENVIRONMENTS if name not in MANY_CLIENTS]
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    cases = [(name, seed, guard) for name in names for seed in seeds for guard in GUARDS.values()]
    tasks = [partial(honest_variance, options.sampler, guard, name, seed) for name, seed, guard in cases]
    found = run_all(tasks, [ENVIRONMENTS[name].num_rounds for name, _, _ in cases], options.jobs)
    logs = np.log(np.array(found).reshape(len(names), len(seeds), 2))
    return honest_table(dict(zip(names, logs[:, :, 0] - logs[:, :, 1], strict=True)))


def run_all(tasks: Sequence[Callable[[Tick], Any]], lengths: Sequence[int], jobs: int) -> list[Any]:
    """Every task, with a bar."""
    with RoundsProgress(total=sum(lengths)) as progress:
        return run_tasks(tasks, jobs, progress.advance_to)


CAMPAIGNS = {"attacks": (run_attacks, 50), "gains": (run_gains, 10), "honest": (run_honest, 10)}


def main() -> None:
    """Run a campaign, print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--sampler", choices=[s for s in SAMPLERS if s not in ORACLES], default=SAMPLER)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--largest-gain", type=float, default=Guard().largest_gain)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="DIR")
    options = parser.parse_args()
    campaign, seeds = CAMPAIGNS[options.campaign]
    options.seeds = options.seeds or seeds
    GUARDS["guard"] = Guard(largest_gain=options.largest_gain)
    table = campaign(options)
    print(table)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"guard_{options.campaign}.md").write_text(table)


if __name__ == "__main__":
    main()
