"""What liars can gain under the guard of the default sampler, and what it costs where nobody lies.

    python benchmarks/guard_tradeoff.py attacks [--seeds 50] [--rounds 300] [--out DIR]
    python benchmarks/guard_tradeoff.py gains   [--seeds 10] [--out DIR]
    python benchmarks/guard_tradeoff.py noise   [--seeds 50] [--out DIR]
    python benchmarks/guard_tradeoff.py honest  [--seeds 10] [--sampler portfolio] [--out DIR]
    python benchmarks/guard_tradeoff.py trends  [--seeds 50] [--out DIR]
    python benchmarks/guard_tradeoff.py jumps   [--seeds 50] [--out DIR]
    python benchmarks/guard_tradeoff.py early   [--seeds 50] [--out DIR]
    python benchmarks/guard_tradeoff.py giants  [--seeds 50] [--out DIR]
    python benchmarks/guard_tradeoff.py cuts    [--seeds 50] [--out DIR]

``--largest-gain`` and ``--outlier-factor`` are those of the guard, for attacks and honest runs.

*attacks*: 100 clients with log-normal norms, 5 drawn a round, 1 or 5 liars; every attack that we know, at
several deviations. Shown are the honest clients' variance over the least possible (what is left to them,
drawn in proportion to their norms, would make it 1 / (1 - what the liars hold)), and what the liars hold:
means over the seeds and over the last two thirds of the run.

*gains*: the same for several values of ``largest_gain``, and what they cost two honest clients of a hundred
with fifty times the norm of the others, the worst environment of the arena for it.

*noise*: five liars where a client's norms vary from round to round, with the default guard and the strict
one; the worst of three attacks, with the standard error of the mean.

*honest*: variance of whole runs of all environments of the arena with up to 100 clients, over that of the
same run without a guard.

The others have constant liars, or none:

*trends*: all norms change by a factor a round; *jumps*: all norms change once; *early*: the first rounds.
Shown are variance and share as in *attacks*, and the largest variance of a seed.

*giants*: honest clients with a thousandfold norm; variance over that of the same run without a guard.

*cuts*: how many honest replies are above ``norm_bound``, and to which part of their length they are cut.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from sortition.lab.arena.traces import Sizes, Trace, equal, zipf
from sortition.lab.contestants import ORACLES
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.training import training_rounds, variance_ratio

CLIENTS, COHORT_SIZE, LIE, NOISE = 100, 5, 1e6, 0.1
DEVIATIONS, LIARS, GAINS = (0.5, 1.0, 1.25, 1.5, 2.0), (1, 5, 9), (3.0, 10.0, 21.0, 25.0, 50.0)
FIRST_SEED = 401
MANY_CLIENTS = ("ls-2000-clients", "ls-1000-clients", "digits-500", "clients-20000", "clients-5000")
"""What ``honest`` leaves out."""
NOISES, STRONGEST = (0.1, 0.3, 0.5, 1.0), ("constant", "just below", "mixed")
STRICT = Guard(largest_gain=3, outlier_factor=2)
SAMPLER, HEAVY = "empirical-bayes", "few-heavy"
GUARDS: dict[str, Guard | None] = {"guard": Guard(), "none": None}
CHANGES, UPDATE_FACTORS = (0.9, 0.97, 1.0, 1.05), (3.0, 10.0, 30.0)
FAR_TOO_HIGH = 100.0
"""For ``norm_bound`` over the ninth decile of honest norms; it should be about 12."""
FEW_CUTS = 0.005
"""Environments where fewer replies are cut have no row."""


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
    """Below the bound of outliers, and below it still when it falls a little."""
    return 0.95 * bound if np.isfinite(bound) else 5.0 * norm


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
    guard: Guard | None,
    deviation: float,
    attack: str,
    liars: int,
    rounds: int,
    seed: int,
    tick: Tick,
    *,
    noise: float = NOISE,
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
        reports = own * np.exp(noise * rng.standard_normal(len(cohort)))
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


def mean_of(outcomes: Sequence[Any]) -> str:
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
    runs = [partial(under_attack, GUARDS[name], *rest, options.rounds) for name, *rest in cases]
    return attacks_table(run_seeds(dict(zip(cases, runs, strict=True)), options.rounds, options))


def run_noise(options: argparse.Namespace) -> str:
    """Five liars, by how much a client's norms vary."""
    deviations, guards = (0.5, 1.0, 1.25, 1.5), {"guard": GUARDS["guard"], "strict": STRICT}
    cases: list[tuple[Any, ...]] = [
        (name, deviation, attack, 5, noise)
        for noise in NOISES
        for deviation in deviations
        for name in guards
        for attack in STRONGEST
    ]
    cases += [
        ("guard", d, "constant", liars, noise) for noise in NOISES for d in deviations for liars in (0, 1)
    ]
    runs = {
        case: partial(under_attack, guards[case[0]], *case[1:4], options.rounds, noise=case[4])
        for case in cases
    }
    found = run_seeds(runs, options.rounds, options)

    def mean(*case: Any) -> tuple[float, float]:
        variances = [one.variance for one in found[case]]
        return float(np.mean(variances)), float(np.std(variances, ddof=1) / np.sqrt(len(variances)))

    rows = []
    for noise in NOISES:
        for deviation in deviations:
            worst = [max(mean(name, deviation, attack, 5, noise) for attack in STRONGEST) for name in guards]
            uniform = np.mean([one.uniform for one in found["guard", deviation, "constant", 5, noise]])
            honest, alone = (mean("guard", deviation, "constant", liars, noise) for liars in (0, 1))
            cells = [f"{value:.2f} ± {error:.2f}" for value, error in (honest, alone, *worst)]
            rows.append((f"{noise:g}", f"{deviation:g}", *cells, f"{uniform:.2f}"))
    header = (
        "noise",
        "deviation",
        "nobody lies",
        "1 of 100, constant",
        "5 of 100",
        "strict",
        "uniform sampling",
    )
    return table(header, rows)


def run_gains(options: argparse.Namespace) -> str:
    """What liars hold and what honest heavy clients pay, by ``largest_gain``."""
    guards = {gain: Guard(largest_gain=gain) for gain in GAINS}
    cells = [(deviation, liars) for deviation in DEVIATIONS[:2] for liars in LIARS]
    lied = run_seeds(
        {
            (gain, *cell): partial(under_attack, guard, cell[0], "mixed", cell[1], options.rounds)
            for gain, guard in guards.items()
            for cell in cells
        },
        options.rounds,
        options,
    )
    heavy = run_seeds(
        {
            gain: partial(honest_variance, SAMPLER, guard, HEAVY)
            for gain, guard in [(0.0, None), *guards.items()]
        },
        ENVIRONMENTS[HEAVY].num_rounds,
        options,
    )
    costs = {gain: np.expm1(np.mean(np.log(heavy[gain]) - np.log(heavy[0.0]))) for gain in GAINS}
    uniform = [f"{np.mean([one.uniform for one in lied[GAINS[0], *cell]]):.2f}" for cell in cells]
    return table(
        ("`largest_gain`", *(f"{liars} of 100, {d:g}" for d, liars in cells), "two heavy honest clients"),
        [
            *((f"{g:g}", *(mean_of(lied[g, *cell]) for cell in cells), f"{costs[g]:+.0%}") for g in GAINS),
            ("uniform sampling", *uniform, ""),
        ],
    )


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


@dataclass(frozen=True)
class Case:
    """Clients with log-normal norms, the first of which are apart: liars, or honest giants."""

    apart: int = 5
    lying: bool = True
    norm: float = 1e3
    """Of those that are apart; the others' median is one."""
    deviation: float = 0.5
    clients: int = CLIENTS
    cohort_size: int = COHORT_SIZE
    sizes: Sizes = equal
    change: float = 1.0
    """The factor by which all norms change in each round."""
    jump: float = 1.0
    """And once, when measuring begins."""
    rounds: int = 800
    measured_from: int = 200

    def levels(self, seed: int) -> FloatArray:
        """All norms at first, without noise."""
        levels = np.exp(self.deviation * np.random.default_rng(seed).standard_normal(self.clients))
        levels[: self.apart] = self.norm
        return np.asarray(levels)

    def trace(self, seed: int) -> Trace:
        """What all clients would report."""
        rng, rounds = np.random.default_rng([seed, 1]), np.arange(self.rounds)
        sizes = self.sizes(rng, self.clients)
        common = self.change**rounds * np.where(rounds >= self.measured_from, self.jump, 1.0)
        noise = np.exp(NOISE * rng.standard_normal((self.rounds, self.clients)))
        return Trace(sizes / sizes.sum(), self.cohort_size, common[:, None] * self.levels(seed) * noise)


def log_normal(rng: np.random.Generator, clients: int) -> FloatArray:
    """Sizes whose logarithms have a deviation of one."""
    return np.asarray(np.exp(rng.standard_normal(clients)))


@dataclass(frozen=True)
class Played:
    """A run of a case."""

    variance: float
    held: float
    suspects: int
    """How many honest clients were suspects at the end."""
    bounds: FloatArray
    """``norm_bound`` over the ninth decile of the honest norms, in each round."""


def default_of(trace: Trace, guard: Guard | None, seed: int) -> EmpiricalBayesSampler:
    """The default sampler for the clients of a trace."""
    return EmpiricalBayesSampler(
        num_clients=len(trace.client_weights),
        cohort_size=trace.cohort_size,
        client_weights=trace.client_weights,
        seed=seed,
        guard=guard,
    )


def play(case: Case, guard: Guard | None, seed: int, tick: Tick) -> Played:
    """One run of the default sampler."""
    trace, levels = case.trace(seed), case.levels(seed)
    sampler = default_of(trace, guard, seed)
    honest = np.arange(case.apart if case.lying else 0, case.clients)
    ratios, held, bounds = [], [], []
    for done in training_rounds(sampler, trace, Replay(), case.rounds):
        if done.index >= case.measured_from and done.probabilities is not None and done.norms is not None:
            p = done.probabilities
            ratios.append(variance_ratio(p[honest], trace.client_weights[honest], levels[honest]))
            held.append(p[: case.apart].sum())
            bounds.append(sampler.norm_bound / np.quantile(done.norms[honest], 0.9))
        tick()
    suspects = sum(suspect.client in honest for suspect in sampler.suspects())
    return Played(float(np.mean(ratios)), float(np.mean(held)), suspects, np.array(bounds))


def play_all(cases: Sequence[tuple[Any, Case, str]], options: argparse.Namespace) -> dict[Any, list[Played]]:
    """Cases by their names, each with every seed, with a guard or with none."""
    runs = {name: partial(play, case, GUARDS[guard]) for name, case, guard in cases}
    return run_seeds(runs, max(case.rounds for _, case, _ in cases), options)


def worst_too(played: Sequence[Played]) -> str:
    """Means and the largest variance as a cell of a table."""
    return f"{mean_of(played)}, {max(one.variance for one in played):.2f}"


def run_trends(options: argparse.Namespace) -> str:
    """All norms change by a factor a round."""
    rows = {
        "100 clients, 5 drawn": Case(),
        "the same, log-normal sizes": Case(sizes=log_normal),
        "the same, Zipf sizes": Case(sizes=zipf),
        "1 drawn": Case(cohort_size=1),
        "1 drawn, log-normal sizes": Case(cohort_size=1, sizes=log_normal),
        "1 drawn, Zipf sizes": Case(cohort_size=1, sizes=zipf),
        "1,000 clients, 20 drawn, 50 liars": Case(apart=50, clients=1000, cohort_size=20),
    }
    cases = [
        ((name, change), replace(case, change=change), "guard")
        for name, case in rows.items()
        for change in CHANGES
    ]
    found = play_all(cases, options)
    return table(
        ("a round", *(f"{change:g}" for change in CHANGES)),
        [(name, *(worst_too(found[name, change]) for change in CHANGES)) for name in rows],
    )


def run_jumps(options: argparse.Namespace) -> str:
    """All norms change once, and the 200 rounds after it are measured."""
    later = Case(rounds=500, measured_from=300)
    rows = {
        f"{jump:g}, deviation {deviation:g}": replace(later, jump=jump, deviation=deviation)
        for deviation in (0.5, 1.0)
        for jump in (1.0, 1e-3, 1e2, 1e4)
    }
    found = play_all([(name, case, "guard") for name, case in rows.items()], options)
    return table(
        (
            "all norms times",
            "variance (held), worst",
            "honest suspects",
            "largest `norm_bound` / ninth decile",
            f"rounds above {FAR_TOO_HIGH:g}",
        ),
        [
            (
                name,
                worst_too(found[name]),
                f"{np.mean([one.suspects for one in found[name]]):.1f}",
                f"{np.max([one.bounds for one in found[name]]):.1e}",
                f"{np.mean([np.sum(one.bounds > FAR_TOO_HIGH) for one in found[name]]):.0f}",
            )
            for name in rows
        ],
    )


def run_early(options: argparse.Namespace) -> str:
    """The first hundred rounds."""
    cases = [
        ((guard, deviation), Case(norm=LIE, deviation=deviation, rounds=100, measured_from=0), guard)
        for guard in GUARDS
        for deviation in DEVIATIONS
    ]
    found = play_all(cases, options)
    return table(
        ("5 of 100 lie", *(f"{deviation:g}" for deviation in DEVIATIONS)),
        [(guard, *(worst_too(found[guard, deviation]) for deviation in DEVIATIONS)) for guard in GUARDS],
    )


def run_giants(options: argparse.Namespace) -> str:
    """Honest clients with a thousandfold norm."""
    sizes = ((1, 5, 1), (1, 10, 2), (8, 100, 5))
    cases = [
        ((clients, guard), Case(apart, lying=False, clients=clients, cohort_size=drawn), guard)
        for apart, clients, drawn in sizes
        for guard in GUARDS
    ]
    found = play_all(cases, options)
    rows = []
    for apart, clients, drawn in sizes:
        guarded, free = ([one.variance for one in found[clients, guard]] for guard in GUARDS)
        ratios = np.divide(guarded, free)
        rows.append((f"{apart} of {clients}, {drawn} drawn", f"{ratios.mean():.2f}", f"{ratios.max():.2f}"))
    return table(("honest giants", "variance over no guard's", "worst seed"), rows)


def cuts(trace_of: Callable[[int], Trace], guard: Guard, seed: int, tick: Tick) -> FloatArray:
    """The part of its length that is left of each reply of a run: 1, or less above ``norm_bound``."""
    trace, left = trace_of(seed), []
    sampler = default_of(trace, guard, seed)
    for done in training_rounds(sampler, trace, Replay(), trace.num_rounds, measure_every=0):
        norms = trace.norms[done.index][done.cohort.clients]
        left.append(np.minimum(sampler.norm_bound / np.maximum(norms[~np.isnan(norms)], 1e-300), 1.0))
        tick()
    return np.concatenate(left)


def cut_of(runs: Sequence[FloatArray]) -> tuple[str, ...]:
    """How many replies are cut, and the median and the least of what is left of them."""
    left = np.concatenate(runs)
    cut = left[left < 1.0]
    return f"{len(cut) / len(left):.2%}", *(f"{f(cut):.2f}" if len(cut) else "" for f in (np.median, np.min))


def run_cuts(options: argparse.Namespace) -> str:
    """Honest replies that are cut: log-normal norms, and the arena."""
    honest = {d: Case(0, deviation=d, rounds=300).trace for d in DEVIATIONS}
    runs = {
        (factor, deviation): partial(cuts, trace_of, Guard(update_factor=factor))
        for factor in UPDATE_FACTORS
        for deviation, trace_of in honest.items()
    }
    found = run_seeds(runs, 300, options)
    first = table(
        ("`update_factor`", *(f"{deviation:g}" for deviation in honest)),
        [(f"{f:g}", *(", ".join(filter(None, cut_of(found[f, d]))) for d in honest)) for f in UPDATE_FACTORS],
    )
    arena: dict[str, Any] = {}
    for name, environment in ENVIRONMENTS.items():
        if name not in MANY_CLIENTS:
            run = {name: partial(cuts, environment.trace, Guard())}
            arena |= run_seeds(run, environment.num_rounds, options)
    cut = {name: np.mean(np.concatenate(runs) < 1.0) for name, runs in arena.items()}
    shown = sorted((name for name in cut if cut[name] >= FEW_CUTS), key=lambda name: -cut[name])
    rows = [(name, *cut_of(arena[name])) for name in shown]
    rows.append((f"{len(cut) - len(shown)} others", f"below {FEW_CUTS:.1%}", "", ""))
    return first + "\n" + table(("environment", "cut", "median left", "least"), rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown."""
    lines = [f"| {' | '.join(row)} |\n" for row in (header, *rows)]
    return "".join([lines[0], "|---" * len(header) + "|\n", *lines[1:]])


def run_seeds(
    runs: Mapping[Any, Callable[[int, Tick], Any]], length: int, options: argparse.Namespace
) -> dict[Any, list[Any]]:
    """Each run, by its name, with every seed; none has more than ``length`` rounds."""
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    tasks = [partial(run, seed) for run in runs.values() for seed in seeds]
    found = run_all(tasks, [length] * len(tasks), options.jobs)
    return {name: found[i * len(seeds) : (i + 1) * len(seeds)] for i, name in enumerate(runs)}


def run_all(tasks: Sequence[Callable[[Tick], Any]], lengths: Sequence[int], jobs: int) -> list[Any]:
    """Every task, with a bar."""
    with RoundsProgress(total=sum(lengths)) as progress:
        return run_tasks(tasks, jobs, progress.advance_to)


CAMPAIGNS = {
    "attacks": (run_attacks, 50),
    "gains": (run_gains, 10),
    "noise": (run_noise, 50),
    "honest": (run_honest, 10),
    "trends": (run_trends, 50),
    "jumps": (run_jumps, 50),
    "early": (run_early, 50),
    "giants": (run_giants, 50),
    "cuts": (run_cuts, 50),
}


def main() -> None:
    """Run a campaign, print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--sampler", choices=[s for s in SAMPLERS if s not in ORACLES], default=SAMPLER)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--largest-gain", type=float, default=Guard().largest_gain)
    parser.add_argument("--outlier-factor", type=float, default=Guard().outlier_factor)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="DIR")
    options = parser.parse_args()
    campaign, seeds = CAMPAIGNS[options.campaign]
    options.seeds = options.seeds or seeds
    GUARDS["guard"] = Guard(largest_gain=options.largest_gain, outlier_factor=options.outlier_factor)
    found = campaign(options)
    print(found)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"guard_{options.campaign}.md").write_text(found)


if __name__ == "__main__":
    main()
