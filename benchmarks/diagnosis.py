"""The diagnosis against training: predicted and realised rounds, and how often the verdict is right.

    python benchmarks/diagnosis.py [--seeds 3] [--skip 0] [--split report] [--repeats 4] [--jobs 1]
        [--environments A,B] [--out FILE.json] [--picture FILE.svg]

Federations: all of the arena that can be trained, and those of the arena with vectors (without torch). A
federation is an environment and a seed. It is diagnosed at the environment's own step, which nobody tuned for
it. Then it is trained with uniform sampling, by size, with the default sampler, and with that and a memory
(draws of fixed size), ``--repeats`` times each with other draws. Each choice has its own constant step: from
the environment's own (from uniform sampling's best for the others) it is doubled or halved as long as that
helps. Losses are geometric means over the repeats, fitted by the nearest falling curve. The target is what
uniform sampling reaches at its best step after 80% of the rounds. A verdict is right if its choice takes at
most 1.1 times the rounds of the best choice.

``--split tune`` takes even seeds, on which the rule was chosen; ``report`` odd ones.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sortition import Memory, Sampler
from sortition.cli.options import RoundsProgress
from sortition.lab.algorithms import FedSGD
from sortition.lab.arena.environments import ENVIRONMENTS, ProblemFactory, seeds_of
from sortition.lab.arena.tournament import TARGET_SHARE
from sortition.lab.arena.vectors import VECTOR_ENVIRONMENTS
from sortition.lab.compare import FallingCurve
from sortition.lab.contestants import CONTESTANTS, Trial
from sortition.lab.diagnosis.findings import CHOICES, MEMORY, UNIFORM, verdict_of
from sortition.lab.diagnosis.trained_problem import measure_problem
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.reports.charts import whole_chart
from sortition.lab.reports.page import picture_svg
from sortition.lab.training import Problem, training_rounds

POINTS = 100
"""Rounds in which the loss is measured, at most."""
MOST_ROUNDS = 400
VECTOR_SHARE = 0.05
"""K / M where the environment does not say."""
RIGHT = 1.1
"""A choice is right if it takes at most this many times the rounds of the best."""
SAMPLERS = {"uniform": "uniform", "proportional": "proportional"}
COLOURS = {"proportional": "#7f7f7f", "adaptive": "#0072b2", "adaptive with memory": "#009e73"}


@dataclass(frozen=True)
class Setting:
    """A federation's environment: what is trained, and how."""

    make_problem: ProblemFactory
    cohort_size: int
    num_rounds: int
    step_size: float


@dataclass(frozen=True)
class Outcome:
    """One federation."""

    environment: str
    seed: int
    verdict: str
    right: bool
    loss: float
    """The rounds of the verdict's choice over the best choice's."""
    predicted: dict[str, tuple[float, float, float]]
    """By choice, over uniform sampling: the ends of the range, and its middle."""
    realised: dict[str, float | None]
    """Rounds by choice, at its best step; None if the target was not reached."""
    steps: dict[str, float]


def settings() -> dict[str, Setting]:
    """All that can be trained without torch."""
    found = {}
    for name, environment in ENVIRONMENTS.items():
        own = environment.training
        if own is not None:
            rounds = min(own.num_rounds, MOST_ROUNDS)
            found[name] = Setting(own.make_problem, own.cohort_size, rounds, own.step_size)
    for name, vectors in VECTOR_ENVIRONMENTS.items():
        if not vectors.needs:
            size = round(VECTOR_SHARE * vectors.make_problem(seed=0).num_clients)
            found[name] = Setting(vectors.make_problem, size, 200, vectors.step_size)
    return found


def curve(problem: Problem, setting: Setting, choice: str, step: float, seeds: list[int]) -> FallingCurve:
    """The loss at the measured rounds: a geometric mean over the draws, fitted by a falling curve."""
    apart = max(1, setting.num_rounds // POINTS)
    logs = []
    for seed in seeds:
        weights = problem.client_weights
        trial = Trial(weights, setting.cohort_size, 1, 0.0, "fixed_size", seed)
        sampler: Sampler = CONTESTANTS[SAMPLERS.get(choice, "empirical-bayes")](trial)
        memory = None
        if choice == MEMORY:
            memory = Memory(num_parameters=problem.initial_model().size, num_clients=len(weights))
        losses = np.full(setting.num_rounds // apart, np.inf)
        first = problem.loss(problem.initial_model())
        for done in training_rounds(
            sampler, problem, FedSGD(step, memory), setting.num_rounds, measure_every=0
        ):
            if (done.index + 1) % apart:
                continue
            loss = problem.loss(done.state)
            if not loss < 1e6 * first:
                break  # it diverges
            losses[done.index // apart] = loss
        logs.append(np.log(losses))
    return FallingCurve(np.mean(logs, axis=0))


def climb(value: Callable[[float], tuple[float, float]], start: float) -> float:
    """The step with the least value among ``start`` times powers of two, uphill from ``start``."""
    best = start
    for factor in (2.0, 0.5):
        while value(best * factor) < value(best):
            best *= factor
        if best != start:
            break
    return best


def examine(name: str, setting: Setting, seed: int, repeats: int, tick: Tick) -> Outcome:
    """Diagnose a federation, and train it."""
    with np.errstate(all="ignore"):
        problem = setting.make_problem(seed=seed)
        noise = measure_problem(
            problem,
            setting.cohort_size,
            step_size=setting.step_size,
            num_rounds=setting.num_rounds,
            seed=seed,
            smallest=False,
        )
        choices = [choice for choice in CHOICES if choice in noise.sampling]
        verdict = verdict_of({choice: noise.rounds(choice) for choice in choices})
        draws = [1000 * seed + 17 * repeat + 5 for repeat in range(repeats)]
        known: dict[tuple[str, float], FallingCurve] = {}
        points = setting.num_rounds // max(1, setting.num_rounds // POINTS)

        def losses(choice: str, step: float) -> FallingCurve:
            if (choice, step) not in known:
                known[choice, step] = curve(problem, setting, choice, step, draws)
            return known[choice, step]

        def at_target(step: float) -> tuple[float, float]:
            return losses(UNIFORM, step).at(TARGET_SHARE * points), 0.0

        base = climb(at_target, setting.step_size)
        target = at_target(base)[0]

        def needed(choice: str, step: float) -> tuple[float, float]:
            reached = losses(choice, step).rounds_to(target)
            rounds = math.inf if reached is None else reached * setting.num_rounds / points
            return rounds, losses(choice, step).at(points)

        steps = {choice: climb(partial(needed, choice), base) for choice in choices}
        rounds = {choice: needed(choice, steps[choice])[0] for choice in choices}
        excess = rounds[verdict] / min(rounds.values())
    tick()
    return Outcome(
        environment=name,
        seed=seed,
        verdict=verdict,
        right=excess <= RIGHT,
        loss=excess,
        predicted={
            choice: (noise.ratio(choice, "most"), noise.ratio(choice, "least"), noise.rounds(choice))
            for choice in choices
        },
        realised={choice: count if math.isfinite(count) else None for choice, count in rounds.items()},
        steps=steps,
    )


def picture(outcomes: list[Outcome]) -> dict[str, Any]:
    """Predicted against realised rounds, over those of uniform sampling."""
    points = []
    for outcome in outcomes:
        base = outcome.realised[UNIFORM]
        for choice, (low, high, middle) in outcome.predicted.items():
            own = outcome.realised[choice]
            if choice == UNIFORM or own is None or base is None:
                continue
            points.append(
                {
                    "choice": choice,
                    "x": round(middle, 4),
                    "low": round(min(low, high), 4),
                    "high": round(max(low, high), 4),
                    "y": round(own / base, 4),
                    "of": f"{outcome.environment}, seed {outcome.seed}",
                }
            )
    values = [value for point in points for value in (point["low"], point["high"], point["y"])]
    ends = [0.9 * min(values), 1.1 * max(values)]
    ticks = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5]
    scale = {"type": "log", "domain": ends, "nice": False}
    axis = {"values": ticks, "format": "~g"}
    colour = {
        "field": "choice",
        "type": "nominal",
        "sort": list(COLOURS),
        "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
        "legend": {"title": None, "orient": "top", "symbolOpacity": 1},
    }
    x = {"field": "x", "type": "quantitative", "scale": scale, "axis": axis, "title": "predicted rounds"}
    y = {"field": "y", "type": "quantitative", "scale": scale, "axis": axis, "title": "realised rounds"}
    line = [{"x": end, "y": end} for end in ends]
    return whole_chart(
        {
            "width": 420,
            "height": 420,
            "title": "Rounds over those of uniform sampling, at tuned steps",
            "layer": [
                {
                    "data": {"values": line},
                    "mark": {"type": "line", "color": "#999999", "strokeDash": [6, 4]},
                    "encoding": {"x": x, "y": y},
                },
                {
                    "data": {"values": points},
                    "mark": {"type": "rule", "opacity": 0.3},
                    "encoding": {
                        "x": {**x, "field": "low"},
                        "x2": {"field": "high"},
                        "y": y,
                        "color": colour,
                    },
                },
                {
                    "data": {"values": points},
                    "mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.9},
                    "encoding": {"x": x, "y": y, "color": colour},
                },
            ],
        }
    )


def show(outcomes: list[Outcome]) -> None:
    """A row for each environment, and the count of right verdicts."""
    print("| environment | verdicts | right | rounds over the best's | predicted | realised |")
    print("|---|---|---|---|---|---|")
    for name in dict.fromkeys(outcome.environment for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.environment == name]
        verdicts = ", ".join(outcome.verdict for outcome in own)
        excess = ", ".join(f"{outcome.loss:.2f}" for outcome in own)
        predicted = "; ".join(_ratios({c: p[2] for c, p in o.predicted.items()}) for o in own)
        realised = "; ".join(
            _ratios({c: (r or math.inf) / (o.realised[UNIFORM] or math.inf) for c, r in o.realised.items()})
            for o in own
        )
        right = sum(outcome.right for outcome in own)
        print(f"| {name} | {verdicts} | {right}/{len(own)} | {excess} | {predicted} | {realised} |")
    right = sum(outcome.right for outcome in outcomes)
    print(f"\nright: {right} of {len(outcomes)} ({right / len(outcomes):.0%})")
    for choice in CHOICES:
        fixed = [
            (o.realised.get(choice, o.realised[UNIFORM]) or math.inf)
            / min(rounds for rounds in o.realised.values() if rounds is not None)
            <= RIGHT
            for o in outcomes
        ]
        print(f"always {choice}: {sum(fixed)} of {len(outcomes)}")
    inside = total = 0
    for o in outcomes:
        for choice, (low, high, _) in o.predicted.items():
            own, base = o.realised[choice], o.realised[UNIFORM]
            if choice != UNIFORM and own is not None and base is not None:
                total += 1
                inside += min(low, high) - 0.05 <= own / base <= max(low, high) + 0.05
    print(f"realised rounds within the range (with 0.05 to both sides): {inside} of {total}")


def _ratios(ratios: dict[str, float]) -> str:
    return "/".join(f"{ratio:.2f}" for choice, ratio in ratios.items() if choice != UNIFORM)


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--split", choices=("tune", "report"), default="report")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--environments")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    known = settings()
    names = options.environments.split(",") if options.environments else list(known)
    seeds = seeds_of(options.split, options.seeds, options.skip)
    tasks = [partial(examine, name, known[name], seed, options.repeats) for name in names for seed in seeds]
    with RoundsProgress(total=len(tasks), what="federations") as progress:
        outcomes = run_tasks(tasks, options.jobs, progress.advance_to)
    show(outcomes)
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    if options.picture is not None:
        options.picture.write_bytes(picture_svg(picture(outcomes)))


if __name__ == "__main__":
    main()
