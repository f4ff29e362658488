"""How much a guard leaves to liars, and what it costs where nobody lies: its defaults follow this curve.

    python benchmarks/guard_tradeoff.py [--seeds 2] [--rounds 300] [--out DIR]
    python benchmarks/guard_tradeoff.py --honest [--sampler portfolio] [--seeds 10] [--jobs 2] [--out DIR]

The default sampler, or another one of ``attack.py``, on environments of the arena with 100 clients. *Honest*:
variance over the optimum's, relative to the same run without a guard. *Attacked*: 1% or 5% of the clients
report 10 to 1e6 times their norms; the share of the distribution that they hold, mean over the second half of
the run, the worst of the factors, mean over the environments; and the variance by the true norms, relative to
that of the honest run without a guard.

``--honest`` measures what the default guard costs where nobody lies and no more: whole runs of all
environments with up to 100 clients, on other seeds. It takes five minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attack import SAMPLERS, GuardedTrial

from sortition import Cohort, Guard
from sortition.cli.options import RoundsProgress
from sortition.core.types import FloatArray
from sortition.lab.arena.environments import ENVIRONMENTS
from sortition.lab.arena.tournament import Replay
from sortition.lab.arena.traces import Trace
from sortition.lab.contestants import ORACLES
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.training import training_rounds, variance_ratio

ALONE = replace(Guard(), outliers_share=1.0)
NO_CLIP = replace(ALONE, clip_factor=1e9, fence=100.0)
GUARDS: dict[str, tuple[str, Guard | None]] = {
    "no guard": ("none", None),
    **{f"share {s:g}": ("share", replace(Guard(), outliers_share=s)) for s in (0.7, 0.5, 0.4, 0.3, 0.2, 0.1)},
    **{
        f"clip {f:g}": ("clip", replace(ALONE, clip_factor=f, fence=1.0 if f < 100 else 4.0))
        for f in (100.0, 30.0, 10.0, 3.0)
    },
    **{f"cap {c:g}": ("cap", replace(NO_CLIP, largest_probability=c)) for c in (0.2, 0.1, 0.05)},
}
HONEST = (
    "ls-sigma-1", "ls-sigma-3", "coordinate-nu-3", "digits-100", "softmax-pareto", "fedavg-ls", "steady",
    "drift-waves", "noise-normal", "noise-pareto", "bursts", "zipf-mixed", "fading", "two-clusters",
    "few-heavy",
)  # fmt: skip
ATTACKED = ("digits-100", "softmax-pareto", "alike-noisy", "two-clusters", "few-heavy")
SHARES, FACTORS = (0.01, 0.05), (10.0, 100.0, 1e3, 1e6)
FIRST_SEED = 101
MEASURED_EVERY = 5
FIRST_HONEST_SEED = 401
MANY_CLIENTS = ("ls-2000-clients", "ls-1000-clients", "digits-500", "clients-20000", "clients-5000")
"""What ``--honest`` leaves out."""
DEFAULT = "share 0.5"
SAMPLER = "empirical-bayes"


@dataclass(frozen=True)
class Run:
    """One run: colluders of share 0 are an honest federation."""

    guard: str
    environment: str
    share: float
    factor: float
    seed: int
    held: float
    variance: float


@dataclass(frozen=True)
class LyingReplay(Replay):
    """Clients report the norms of a trace, times their factors."""

    factors: FloatArray

    def __call__(
        self, state: None, cohort: Cohort, problem: Trace, round_index: int
    ) -> tuple[None, FloatArray]:
        """The reports of the cohort."""
        return None, (problem.norms[round_index] * self.factors)[cohort.clients]


def run(
    kind: str, name: str, environment: str, share: float, factor: float, seed: int, rounds: int, tick: Tick
) -> Run:
    """Replay a trace to a sampler with a guard."""
    trace = ENVIRONMENTS[environment].trace(seed)
    sampler: Any = SAMPLERS[kind](GuardedTrial(**vars(trace.trial(seed)), guard=GUARDS[name][1]))
    clients = len(trace.client_weights)
    liars = np.random.default_rng(seed).permutation(clients)[: round(share * clients)]
    factors = np.ones(clients)
    factors[liars] = factor
    length = min(rounds, trace.num_rounds)
    held, ratios = [], []
    for done in training_rounds(sampler, trace, LyingReplay(factors), length, measure_every=MEASURED_EVERY):
        if done.probabilities is not None and done.norms is not None:
            ratios.append(variance_ratio(done.probabilities, trace.client_weights, done.norms))
            if done.index >= length // 2:
                held.append(done.probabilities[liars].sum())
        tick()
    return Run(name, environment, share, factor, seed, float(np.mean(held)), float(np.mean(ratios)))


@dataclass(frozen=True)
class Point:
    """One guard on the curve."""

    guard: str
    family: str
    cost: float
    """Honest variance over that without a guard, geometric mean over environments and seeds."""
    worst_cost: float
    worst_environment: str
    held_1: float
    held_5: float
    """What 1% and 5% of colluders hold at the worst factor, mean over the environments."""
    harm_5: float
    """Variance under the worst attack of 5% over the honest one without a guard, geometric mean."""


def points_of(runs: list[Run]) -> list[Point]:
    """The curve."""
    plain = {(r.environment, r.seed): r.variance for r in runs if r.guard == "no guard" and not r.share}
    points = []
    for name, (family, _) in GUARDS.items():
        mine = [r for r in runs if r.guard == name]
        costs: dict[str, list[float]] = {}
        for r in mine:
            if not r.share:
                costs.setdefault(r.environment, []).append(np.log(r.variance / plain[r.environment, r.seed]))
        means = {environment: float(np.mean(logs)) for environment, logs in costs.items()}
        worst = max(means, key=lambda environment: means[environment])
        held, harm = {}, []
        for share in SHARES:
            of_share = []
            for environment in ATTACKED:
                cells = [[r for r in mine if (r.environment, r.share, r.factor) == (environment, share, f)]
                         for f in FACTORS]  # fmt: skip
                of_share.append(max(np.mean([r.held for r in cell]) for cell in cells))
                if share == max(SHARES):
                    logs = [[np.log(r.variance / plain[environment, r.seed]) for r in cell] for cell in cells]
                    harm.append(max(np.mean(of_factor) for of_factor in logs))
            held[share] = float(np.mean(of_share))
        points.append(
            Point(
                name,
                family,
                cost=float(np.exp(np.mean(list(means.values())))),
                worst_cost=float(np.exp(means[worst])),
                worst_environment=worst,
                held_1=held[0.01],
                held_5=held[0.05],
                harm_5=float(np.exp(np.mean(harm))),
            )
        )
    return points


def markdown(points: list[Point]) -> str:
    """The curve as a table."""
    lines = [
        "| guard | honest cost | at worst | 1% hold | 5% hold | variance under 5% |",
        "|---|---|---|---|---|---|",
    ]
    for point in points:
        worst = "" if point.family == "none" else f" ({point.worst_environment})"
        lines.append(
            f"| {point.guard} | {point.cost - 1:+.1%} | {point.worst_cost - 1:+.0%}{worst} "
            f"| {point.held_1:.0%} | {point.held_5:.0%} | x{point.harm_5:.1f} |"
        )
    return "\n".join(lines) + "\n"


def honest_markdown(runs: list[Run]) -> str:
    """What the default guard costs in each environment: mean log ratio, its standard error, the median."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for r in runs:
        found.setdefault((r.environment, r.seed), {})[r.guard] = r.variance
    costs: dict[str, list[float]] = {}
    for (environment, _), variances in found.items():
        costs.setdefault(environment, []).append(np.log(variances[DEFAULT] / variances["no guard"]))
    lines, small = ["| environment | cost | median | worst seed |", "|---|---|---|---|"], []
    for environment, logs in sorted(costs.items(), key=lambda item: -abs(float(np.mean(item[1])))):
        if np.abs(np.expm1(logs)).max() < 0.0005:
            small.append(environment)
            continue
        mean, middle, worst = np.expm1([np.mean(logs), np.median(logs), np.max(logs)])
        error = np.std(logs, ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.nan
        lines.append(f"| {environment} | {mean:+.1%} ± {error:.1%} | {middle:+.1%} | {worst:+.1%} |")
    lines.append(f"| {len(small)} others | below 0.05% with every seed | | |")
    average = np.expm1(np.mean([np.mean(logs) for logs in costs.values()]))
    lines.append(f"| mean of all {len(costs)} | {average:+.2%} | | |")
    return "\n".join(lines) + f"\n\nThe others: {', '.join(sorted(small))}.\n"


def picture(points: list[Point]) -> dict[str, Any]:
    """A Vega-Lite specification: what liars hold against what honest federations pay."""
    rows = [
        {**asdict(p), "extra": 100 * (p.cost - 1), "worst_extra": 100 * (p.worst_cost - 1)} for p in points
    ]
    names = {
        "share": "joint share of outliers",
        "clip": "clip alone",
        "cap": "cap on one client alone",
    }
    for row in rows:
        row["defence"] = names.get(row["family"], "no guard")
    x = {"field": "held_5", "type": "quantitative", "title": "held by 5% of colluders, at worst",
         "axis": {"format": "%"}, "scale": {"domain": [0, 1]}}  # fmt: skip
    panels = []
    for field, title in (
        ("extra", "cost of an honest run, mean (%)"),
        ("worst_extra", "worst environment (%)"),
    ):
        encoding = {
            "x": x,
            "y": {"field": field, "type": "quantitative", "title": title,
                  "scale": {"type": "symlog", "constant": 1.0, "nice": False}},
            "color": {"field": "defence", "type": "nominal", "legend": {"title": None, "orient": "bottom"}},
            "order": {"field": "held_5"},
        }  # fmt: skip
        label = {
            "mark": {"type": "text", "align": "left", "dx": 6, "dy": -4, "fontSize": 9},
            "encoding": {"text": {"field": "guard"}},
        }
        panels.append(
            {
                "width": 380,
                "height": 300,
                "encoding": encoding,
                "layer": [{"mark": {"type": "line", "point": True}}, label],
            }
        )
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "background": "white",
        "padding": 8,
        "title": "What a guard leaves to liars, and what it costs where nobody lies (lower left is better)",
        "data": {"values": rows},
        "hconcat": panels,
    }


def tasks_of(options: argparse.Namespace) -> list[tuple[Callable[[Tick], Run], int]]:
    """What is to be run, and how many rounds each of it has."""
    if options.honest:
        names = [name for name in ENVIRONMENTS if name not in MANY_CLIENTS]
        seeds = range(FIRST_HONEST_SEED, FIRST_HONEST_SEED + options.seeds)
        lengths = {name: ENVIRONMENTS[name].num_rounds for name in names}
        return [
            (partial(run, options.sampler, guard, name, 0.0, 1.0, seed, lengths[name]), lengths[name])
            for seed in seeds
            for name in names
            for guard in ("no guard", DEFAULT)
        ]
    cases = [(environment, 0.0, 1.0) for environment in sorted({*HONEST, *ATTACKED})]
    cases += [(environment, share, f) for environment in ATTACKED for share in SHARES for f in FACTORS]
    return [
        (partial(run, options.sampler, name, *case, seed, options.rounds), options.rounds)
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds)
        for case in cases
        for name in GUARDS
    ]


def main() -> None:
    """Run everything, print the table, write the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--honest", action="store_true")
    parser.add_argument("--sampler", choices=[s for s in SAMPLERS if s not in ORACLES], default=SAMPLER)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="DIR")
    options = parser.parse_args()
    options.seeds = options.seeds or (10 if options.honest else 2)
    tasks, lengths = zip(*tasks_of(options), strict=True)
    with RoundsProgress(total=sum(lengths)) as progress:
        runs = run_tasks(tasks, options.jobs, progress.advance_to)
    if options.honest:
        print(honest_markdown(runs))
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "guard_honest.md").write_text(honest_markdown(runs))
            (options.out / "guard_honest.json").write_text(
                json.dumps([asdict(r) for r in runs], indent=1) + "\n"
            )
        return
    points = points_of(runs)
    print(markdown(points))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "guard_tradeoff.json").write_text(
            json.dumps([asdict(r) for r in runs], indent=1) + "\n"
        )
        (options.out / "guard_tradeoff.md").write_text(markdown(points))
        try:
            from sortition.lab.reports.page import picture_svg

            (options.out / "guard_tradeoff.svg").write_bytes(picture_svg(picture(points)))
        except ModuleNotFoundError:
            print("no picture without vl-convert; run: pip install 'sortition[reports]'")


if __name__ == "__main__":
    main()
