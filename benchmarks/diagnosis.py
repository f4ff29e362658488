"""The diagnosis against training: predicted and realised rounds, and how often the verdict is right.

    python benchmarks/diagnosis.py [--seeds 3] [--skip 0] [--split report] [--repeats 12] [--jobs 1]
        [--environments A,B] [--out FILE.json] [--picture FILE.svg]
    python benchmarks/diagnosis.py --read A.json,B.json [--picture FILE.svg]

Federations: all of the arena that can be trained, and those of the arena with vectors (without torch), for at
most 200 rounds. A federation is an environment and a seed. It is diagnosed at the environment's own step,
which nobody tuned for it: as a problem with pilots and without, from one pass of norms at the initial model,
and from recorded runs of the default sampler and of uniform sampling.

Then it is trained with uniform sampling, by size, with the default sampler, and with that and a memory (draws
of fixed size). Each choice has its own constant step, which is searched for as in the pilots, by ``SEARCHES``
trainings a step, and is then trained ``--repeats`` times. All draws are other ones than those of the pilots.
The target is what uniform sampling reaches at its best step after 80% of the rounds.

A verdict is right if its choice takes at most 1.1 times the rounds of the best choice. These rounds are
measured, so a verdict is called wrong beyond noise if it is worse than that by more than the standard error
of the ratio (jackknife). Verdicts that know nothing of a memory are compared with the choices without one.
The ceiling: half of the trainings choose, the other half judge.

``--split tune`` takes even seeds, on which the rule was chosen; ``report`` odd ones.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sortition.cli.options import RoundsProgress
from sortition.lab.algorithms import FedSGD
from sortition.lab.arena.environments import ENVIRONMENTS, ProblemFactory, seeds_of
from sortition.lab.arena.vectors import VECTOR_ENVIRONMENTS
from sortition.lab.contestants import CONTESTANTS, Trial
from sortition.lab.diagnosis.findings import CHOICES, MEMORY, UNIFORM, Diagnosis, verdict_of
from sortition.lab.diagnosis.known_norms import measure_norms
from sortition.lab.diagnosis.norm_table import NormTable
from sortition.lab.diagnosis.pilots import Trainings, standard_errors, train_pilots
from sortition.lab.diagnosis.recorded_run import measure_run
from sortition.lab.diagnosis.trained_problem import measure_problem
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.reports.charts import ink, whole_chart
from sortition.lab.reports.page import picture_svg
from sortition.lab.training import Problem, all_norms, training_rounds
from sortition.ledger import open_run, read_run

MOST_ROUNDS = 200
VECTOR_SHARE = 0.05
"""K / M where the environment does not say."""
RIGHT = 1.1
"""A choice is right if it takes at most this many times the rounds of the best."""
OTHER_DRAWS = 1_000_000
"""Added to a seed: the draws of the trainings that judge."""
PILOTS, MODEL, NORMS, DEFAULT_RUN, UNIFORM_RUN = (
    "problem, with pilots",
    "problem, without pilots",
    "one pass of norms",
    "run of the default sampler",
    "run of uniform sampling",
)
WITHOUT_MEMORY = (NORMS, DEFAULT_RUN, UNIFORM_RUN)
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
    verdicts: dict[str, str | None]
    """By what was diagnosed; None for *can't tell*."""
    predicted: dict[str, dict[str, tuple[float, float, float]]]
    """By what was diagnosed and choice, over uniform sampling: the ends of the range, and its middle."""
    pilots: dict[str, tuple[float | None, float | None]]
    """By choice: rounds over uniform sampling, and the standard error of their logarithm."""
    log_rounds: dict[str, float]
    """By choice, at its best step."""
    left_out: dict[str, list[float]]
    """The same without each of the trainings."""
    halves: tuple[dict[str, float], dict[str, float]]
    """The same from each half of the trainings."""
    steps: dict[str, float]

    def excess(self, choice: str, *, memory: bool = True) -> tuple[float, float]:
        """The logarithm of the choice's rounds over the best one's, and its standard error."""
        others = {c: r for c, r in self.log_rounds.items() if memory or c != MEMORY}
        choice = choice if choice in others else UNIFORM  # equal sizes: by size is uniform
        best = min(others, key=lambda c: others[c])
        own = np.array(self.left_out[choice]) - np.array(self.left_out[best])
        return others[choice] - others[best], float(standard_errors(own[:, None])[0])


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
            found[name] = Setting(vectors.make_problem, size, MOST_ROUNDS, vectors.step_size)
    return found


def examine(name: str, setting: Setting, seed: int, repeats: int, tick: Tick) -> Outcome:
    """Diagnose a federation, and train it."""
    with np.errstate(all="ignore"):
        problem = setting.make_problem(seed=seed)
        found = diagnoses(problem, setting, seed)
        choices = [choice for choice in CHOICES if choice in found[MODEL].noise.sampling]
        draws = range(repeats)
        judged = Trainings(
            problem, setting.cohort_size, setting.num_rounds, setting.step_size, OTHER_DRAWS + seed
        )
        steps = judged.best_steps(choices, draws)
        logs, left_out = judged.log_rounds(steps, draws), judged.left_out(steps, draws)
        first, second = (judged.log_rounds(steps, part) for part in (draws[::2], draws[1::2]))
    tick()
    return Outcome(
        environment=name,
        seed=seed,
        verdicts={source: diagnosis.choice for source, diagnosis in found.items()},
        predicted={
            source: {
                choice: (*diagnosis.noise.rounds_range(choice), diagnosis.noise.rounds(choice))
                for choice in choices
                if choice in diagnosis.noise.sampling
            }
            for source, diagnosis in found.items()
        },
        pilots={c: (p.ratio, p.standard_error) for c, p in found[PILOTS].noise.pilots.items()},
        log_rounds=logs,
        left_out=dict(zip(steps, left_out.T.tolist(), strict=True)),
        halves=(first, second),
        steps={choice: judged.step(places[1]) for choice, places in steps.items()},
    )


def diagnoses(problem: Problem, setting: Setting, seed: int) -> dict[str, Diagnosis]:
    """From all that a user may have."""
    noise = measure_problem(
        problem,
        setting.cohort_size,
        step_size=setting.step_size,
        num_rounds=setting.num_rounds,
        seed=seed,
        smallest=False,
    )
    pilots = train_pilots(
        problem,
        [choice for choice in CHOICES if choice in noise.sampling],
        setting.cohort_size,
        step_size=setting.step_size,
        num_rounds=setting.num_rounds,
        seed=seed,
    )
    table = NormTable(
        sizes=problem.client_weights, norms=all_norms(problem, problem.initial_model(), round_index=0)
    )
    found = {
        PILOTS: Diagnosis(PILOTS, replace(noise, pilots=pilots)),
        MODEL: Diagnosis(MODEL, noise),
        NORMS: Diagnosis(NORMS, measure_norms(table, setting.cohort_size, seed=seed, smallest=False)),
    }
    with tempfile.TemporaryDirectory() as directory:
        for source, sampler in ((DEFAULT_RUN, "empirical-bayes"), (UNIFORM_RUN, "uniform")):
            path = Path(directory) / f"{sampler}.db"
            trial = Trial(problem.client_weights, setting.cohort_size, 1, 0.0, "fixed_size", seed)
            with open_run(path, partial(CONTESTANTS[sampler], trial)) as run:
                algorithm = FedSGD(setting.step_size)
                for _ in training_rounds(run, problem, algorithm, setting.num_rounds, measure_every=0):
                    pass
            with read_run(path) as record:
                found[source] = Diagnosis(source, measure_run(record, seed=seed))
    return found


def picture(outcomes: list[Outcome]) -> dict[str, Any]:
    """Predicted against realised rounds, over those of uniform sampling: a panel for each choice."""
    points = []
    for outcome in outcomes:
        base = outcome.log_rounds[UNIFORM]
        for choice, (low, high, middle) in outcome.predicted[PILOTS].items():
            if choice == UNIFORM:
                continue
            points.append(
                {
                    "choice": choice,
                    "x": round(middle, 4),
                    "low": round(min(low, high), 4),
                    "high": round(max(low, high), 4),
                    "y": round(math.exp(outcome.log_rounds[choice] - base), 4),
                    "of": f"{outcome.environment}, seed {outcome.seed}",
                }
            )
    values = [value for point in points for value in (point["low"], point["high"], point["y"])]
    ends = [0.9 * min(values), 1.1 * max(values)]
    ticks = [0.1, 0.2, 0.5, 1]
    scale = {"type": "log", "domain": ends, "nice": False}
    axis = {"values": ticks, "format": "~g"}
    x = {"field": "x", "type": "quantitative", "scale": scale, "axis": axis, "title": "predicted rounds"}
    y = {"field": "y", "type": "quantitative", "scale": scale, "axis": axis, "title": "realised rounds"}
    line = [{"x": end, "y": end} for end in ends]
    panels = []
    for place, (choice, colour) in enumerate(COLOURS.items()):
        side = y if place == 0 else {**y, "title": None, "axis": {**axis, "labels": False, "minExtent": 0}}
        panels.append(
            {
                "width": 190,
                "height": 190,
                "title": {"text": choice, "color": ink(colour), "fontSize": 14},
                "data": {"values": [point for point in points if point["choice"] == choice]},
                "layer": [
                    {
                        "data": {"values": line},
                        "mark": {"type": "line", "color": "#999999", "strokeDash": [6, 4]},
                        "encoding": {"x": x, "y": side},
                    },
                    {
                        "mark": {"type": "rule", "color": colour, "opacity": 0.35},
                        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": side},
                    },
                    {
                        "mark": {"type": "point", "filled": True, "size": 35, "color": colour, "opacity": 1},
                        "encoding": {"x": x, "y": side},
                    },
                ],
            }
        )
    chart = whole_chart({"hconcat": panels, "spacing": 16})
    chart["config"]["axis"] |= {"labelFontSize": 12, "titleFontSize": 13}  # to be read on a telephone, too
    return chart


def show(outcomes: list[Outcome]) -> None:
    """How often each verdict is right, and what it would be to take one choice for all."""
    print("| federation | verdicts | rounds over the best's | standard error | rounds over uniform's |")
    print("|---|---|---|---|---|")
    for outcome in outcomes:
        verdicts = [outcome.verdicts[source] or "can't tell" for source in outcome.verdicts]
        excess, error = outcome.excess(verdicts[0])
        ratios = {c: math.exp(r - outcome.log_rounds[UNIFORM]) for c, r in outcome.log_rounds.items()}
        print(
            f"| {outcome.environment} {outcome.seed} | {', '.join(verdicts)} | {math.exp(excess):.2f} | "
            f"{error:.2f} | {'/'.join(f'{ratio:.2f}' for ratio in ratios.values())} |"
        )
    kept = {"all": outcomes}
    kept["without coordinate-*"] = [o for o in outcomes if not o.environment.startswith("coordinate")]
    for name, some in kept.items():
        if not some:
            continue
        print(f"\n{name}: {len(some)} federations\n")
        print("| verdict | right | right or within noise | can't tell |")
        print("|---|---|---|---|")
        for source in some[0].verdicts:
            row(source, [(o, o.verdicts[source]) for o in some], memory=source not in WITHOUT_MEMORY)
        for choice in CHOICES:
            row(f"always {choice}", [(o, choice) for o in some])
        for choice in CHOICES[:-1]:
            row(f"always {choice}, without memory", [(o, choice) for o in some], memory=False)
        ceiling = [
            (half := o.halves[1])[verdict_of(_ratios(o.halves[0]))] - min(half.values()) <= math.log(RIGHT)
            for o in some
        ]
        print(f"\nhalf of the trainings chooses, the other judges: {sum(ceiling)} of {len(some)}")
        for source in some[0].predicted:
            errors, inside, total = [], 0, 0
            for o in some:
                for choice, (low, high, middle) in o.predicted[source].items():
                    if choice != UNIFORM:
                        own = o.log_rounds[choice] - o.log_rounds[UNIFORM]
                        errors.append(abs(math.log(middle) - own))
                        inside += min(low, high) - 0.05 <= math.exp(own) <= max(low, high) + 0.05
                        total += 1
            print(
                f"{source}: rounds off by a factor of {math.exp(np.median(errors)):.2f} in the median, "
                f"{inside} of {total} within the range (and 0.05 to both sides)"
            )


def row(name: str, chosen: list[tuple[Outcome, str | None]], *, memory: bool = True) -> None:
    """A line of the table."""
    found = [outcome.excess(choice, memory=memory) for outcome, choice in chosen if choice is not None]
    right = sum(excess <= math.log(RIGHT) for excess, _ in found)
    within = sum(excess - error <= math.log(RIGHT) for excess, error in found)
    said = len(found)
    print(f"| {name} | {right} of {said} | {within} of {said} | {len(chosen) - said} |")


def _ratios(logs: Mapping[str, float]) -> dict[str, float]:
    return {choice: math.exp(log - logs[UNIFORM]) for choice, log in logs.items()}


def read(paths: str) -> list[Outcome]:
    """Outcomes of earlier calls."""
    return [Outcome(**entry) for path in paths.split(",") for entry in json.loads(Path(path).read_text())]


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--split", choices=("tune", "report"), default="report")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--environments")
    parser.add_argument("--read")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if options.read:
        outcomes = read(options.read)
    else:
        known = settings()
        names = options.environments.split(",") if options.environments else list(known)
        seeds = seeds_of(options.split, options.seeds, options.skip)
        tasks = [
            partial(examine, name, known[name], seed, options.repeats) for name in names for seed in seeds
        ]
        with RoundsProgress(total=len(tasks), what="federations") as progress:
            outcomes = run_tasks(tasks, options.jobs, progress.advance_to)
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    show(outcomes)
    if options.picture is not None:
        options.picture.write_bytes(picture_svg(picture(outcomes)))


if __name__ == "__main__":
    main()
