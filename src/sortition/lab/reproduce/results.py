"""From a plan to a figure's numbers: what is to be run, running it, and the means and spreads of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sortition.core.errors import DataError
from sortition.core.types import FloatArray
from sortition.lab.parallel import Progress, run_tasks
from sortition.lab.problems.idx import images_digest, load_images
from sortition.lab.problems.softmax import AUTHORS_SIZES, SHARES, SIZES
from sortition.lab.reproduce.figures import (
    FULL,
    IMAGES,
    REPLAYED,
    REPLAYED_LINES,
    TOLERANCE,
    TUNING_REPEATS,
    Figure,
    FigureLine,
    RunSettings,
    Scale,
    Variant,
    figure,
)
from sortition.lab.reproduce.finished import RunStore, origin, run_and_keep
from sortition.lab.reproduce.published import LOSS_ROUNDS, PUBLISHED

LONGEST_FIRST = {REPLAYED: 0, **dict.fromkeys(IMAGES, 1)}
LOGGED = ("loss", "regret")
"""Quantities whose natural logarithm is shown, and averaged: as in the published result files."""
ROUNDING = 1e-9
"""A smaller regret is a rounding error: optimal sampling has none."""


@dataclass(frozen=True)
class Plan:
    """What is to be run, and what is finished."""

    figures: tuple[Figure, ...]
    store: RunStore
    data: Path | None
    missing: tuple[RunSettings, ...]
    """What is to be run first."""
    kept: int
    """Finished runs of an earlier start."""
    sources: dict[str, str]
    """Where each image set came from."""
    origin: dict[str, Any]
    """The code that makes what is missing."""

    @property
    def rounds(self) -> int:
        """Rounds still to be run; an upper limit where step sizes are yet to be chosen."""
        return sum(run.rounds_in_all() for run in self.missing) + sum(
            run.num_rounds for line in self._tuned() for run in line.candidates[0][TUNING_REPEATS:]
        )

    def remaining(self) -> tuple[RunSettings, ...]:
        """What is missing once the step sizes are chosen: the other repeats at these step sizes."""
        wanted = dict.fromkeys(run for line in self._tuned() for run in best_candidate(line, self.store))
        return tuple(run for run in wanted if not self.store.holds(run))

    def _tuned(self) -> list[FigureLine]:
        return [line for each in self.figures for line in each.lines if len(line.candidates) > 1]


def plan(
    names: Sequence[str],
    out: Path,
    *,
    variants: tuple[Variant, ...],
    scale: Scale = FULL,
    data: Path | None = None,
) -> Plan:
    """Plan the runs, and check everything that can be wrong; nothing is run, and nothing is written."""
    sources, digests = _look_at_images(data) if "fig6" in names else ({}, {})
    figures = tuple(figure(name, variants, scale, digests) for name in names)
    store = RunStore(out / "runs")
    wanted = dict.fromkeys(  # each once
        run
        for each in figures
        for runs in (each.replayed, *(line.tuning() for line in (*each.lines, *each.published)))
        for run in runs
    )
    missing = tuple(settings for settings in wanted if not store.holds(settings))
    return Plan(figures, store, data, missing, len(wanted) - len(missing), sources, origin())


def _look_at_images(data: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Where the image sets come from, and their digests; no two of them may be the same images."""
    sources, digests = {}, {}
    for name in IMAGES:
        images, labels, sources[name] = load_images(name, data)
        digests[name] = images_digest(images, labels)
    if len(set(digests.values())) < len(IMAGES):
        raise DataError(
            "the image sets must be different images, got the same twice: "
            + "; ".join(f"{name} from {source}" for name, source in sources.items())
        )
    return sources, digests


def execute(plan: Plan, jobs: int, progress: Progress | None = None) -> tuple[Result, ...]:
    """Run what is missing, choose the step sizes, run the rest, and summarise.

    The longest come first; every finished run is kept at once.
    """
    report = progress or (lambda rounds: None)
    _run(plan, sorted(plan.missing, key=lambda run: LONGEST_FIRST.get(run.problem, 9)), jobs, report)
    before = sum(run.rounds_in_all() for run in plan.missing)
    _run(plan, plan.remaining(), jobs, lambda rounds: report(before + rounds))
    return tuple(summarise(each, plan.store) for each in plan.figures)


def _run(plan: Plan, missing: Sequence[RunSettings], jobs: int, progress: Progress) -> None:
    tasks = [
        partial(run_and_keep, settings, plan.store.directory, plan.data, plan.origin) for settings in missing
    ]
    if tasks:
        run_tasks(tasks, jobs, progress, [settings.name() for settings in missing])


@dataclass(frozen=True)
class Curve:
    """One quantity of one line: mean and standard deviation over the repeats, round by round."""

    variant: str
    panel: str
    label: str
    quantity: str
    """``log loss``, ``log regret`` or ``accuracy``."""
    step_size: float
    rounds: FloatArray
    mean: FloatArray
    spread: FloatArray
    runs: int = 1


@dataclass(frozen=True)
class Result:
    """What was measured for a figure."""

    figure: Figure
    curves: tuple[Curve, ...]
    table: tuple[dict[str, Any], ...]
    """Published against measured; empty where nothing was published."""
    bounds: tuple[dict[str, Any], ...]
    """Measured regret of Adaptive-OSMD against the bound of Theorem 8."""
    diverged: int
    """Runs at the chosen step sizes that diverged."""
    origins: tuple[dict[str, Any], ...] = ()
    """The code that made the runs, without repetition."""

    def final(self) -> list[dict[str, Any]]:
        """The last point of every curve."""
        return [
            {
                "variant": curve.variant,
                "panel": curve.panel,
                "sampler": curve.label,
                "quantity": curve.quantity,
                "step_size": curve.step_size,
                "round": int(curve.rounds[-1]),
                "mean": _number(curve.mean[-1]),
                "spread": _number(curve.spread[-1]),
            }
            for curve in self.curves
        ]


def summarise(figure: Figure, store: RunStore) -> Result:
    """Read the figure's runs and average them."""
    if figure.name == "fig5":
        return Result(figure, tuple(_sizes(figure)), (), (), 0)
    curves: list[Curve] = []
    bounds: list[dict[str, Any]] = []
    diverged = 0
    for line in figure.lines:
        chosen = best_candidate(line, store)
        runs = [store.load(settings) for settings in chosen]
        diverged += sum(not np.isfinite(run["loss"][-1]) for run in runs)
        curves += [_curve(line, chosen[0], runs, quantity) for quantity in figure.quantities]
        if all("bound" in run for run in runs):
            bounds.append(_bound(line, runs))
    origins = store.origins((*figure.runs(), *figure.replayed))
    table = _compare(figure, curves, store)
    return Result(figure, tuple(curves), table, tuple(bounds), diverged, tuple(origins))


def best_candidate(line: FigureLine, store: RunStore) -> tuple[RunSettings, ...]:
    """The runs of the step size with the least final log-loss in the tuning repeats."""
    if len(line.candidates) == 1:
        return line.candidates[0]
    return min(
        line.candidates,
        key=lambda candidate: _final_log_loss([store.load(run) for run in candidate[:TUNING_REPEATS]]),
    )


def _final_log_loss(runs: list[dict[str, FloatArray]]) -> float:
    final = np.array([run["loss"][-1] for run in runs])
    return float(np.mean(np.log(final))) if np.all(np.isfinite(final)) else float("inf")


def _curve(
    line: FigureLine, settings: RunSettings, runs: list[dict[str, FloatArray]], quantity: str
) -> Curve:
    values = np.stack([run[quantity] for run in runs])
    if quantity in LOGGED:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(np.where(values > ROUNDING, values, np.nan))
    values = np.where(np.isfinite(values), values, np.nan)
    return Curve(
        line.variant,
        line.panel,
        line.label,
        f"log {quantity}" if quantity in LOGGED else quantity,
        settings.step_size,
        runs[0]["rounds"],
        values.mean(axis=0),
        values.std(axis=0),
        len(runs),
    )


def _bound(line: FigureLine, runs: list[dict[str, FloatArray]]) -> dict[str, Any]:
    means = {
        name: float(np.mean([run[name][0] for run in runs]))
        for name in ("floor_regret", "variation", "bound")
    }
    return {
        "variant": line.variant,
        "panel": line.panel,
        "sampler": line.label,
        "regret": means["floor_regret"],
        "variation": means["variation"],
        "bound": means["bound"],
        "kept": all(run["floor_regret"][0] <= run["bound"][0] for run in runs),
    }


def _compare(figure: Figure, curves: list[Curve], store: RunStore) -> tuple[dict[str, Any], ...]:
    """Published against measured, after a full run.

    The text's variant has the repeats of the figure. The authors', which should agree, has more of them in
    Figure 1, and once more the published ones, with the authors' random numbers.
    """
    ten = {(curve.variant, curve.panel, curve.label, curve.quantity): curve for curve in curves}
    found = dict(ten)
    for line in figure.published:
        runs = [store.load(settings) for settings in line.candidates[0]]
        for quantity in figure.quantities:
            curve = _curve(line, line.candidates[0][0], runs, quantity)
            found[(curve.variant, curve.panel, curve.label, curve.quantity)] = curve
    rows = []
    for published in PUBLISHED:
        for variant in ("authors", "text") if published.figure == figure.name else ():
            loss = found.get((variant, published.panel, published.label, "log loss"))
            regret = found.get((variant, published.panel, published.label, "log regret"))
            if loss is None or regret is None or loss.rounds[-1] < LOSS_ROUNDS[-1]:
                continue
            for round_number, value in published.log_losses.items():
                rows.append(_row(round_number, value, published.spread, loss, ten))
            if published.log_regret is not None:
                rows.append(_row(LOSS_ROUNDS[-1], published.log_regret, published.regret_spread, regret, ten))
    for run in figure.replayed:
        curves_of_run = store.load(run)
        for row in rows:
            if row["variant"] == run.variant and row["panel"] == f"σ = {run.spread:g}":
                row["replayed"] = _replayed(curves_of_run, REPLAYED_LINES[run.sampler], row)
    return tuple(rows)


def _replayed(run: dict[str, FloatArray], lines: tuple[str, ...], row: dict[str, Any]) -> float:
    """The mean that the row is about, with the authors' random numbers."""
    place = lines.index(row["sampler"])
    values = run[row["quantity"].removeprefix("log ")][:, place, row["round"] - 1]
    return float(np.mean(np.log(values)))


def _row(
    round_number: int,
    published: float,
    spread: float | None,
    curve: Curve,
    ten: dict[tuple[str, str, str, str], Curve],
) -> dict[str, Any]:
    place = round_number - 1
    measured = float(curve.mean[place])
    tolerance = max(TOLERANCE, float(curve.spread[place]) if spread is None else spread)
    of_figure = ten[(curve.variant, curve.panel, curve.label, curve.quantity)]
    return {
        "variant": curve.variant,
        "panel": curve.panel,
        "sampler": curve.label,
        "quantity": curve.quantity,
        "round": round_number,
        "published": published,
        "replayed": None,
        "measured": measured,
        "spread": float(curve.spread[place]),
        "runs": curve.runs,
        "of figure": float(of_figure.mean[place]),
        "tolerance": tolerance,
        "within": abs(measured - published) <= tolerance + 0.0005,  # published to three decimals
    }


def _sizes(figure: Figure) -> list[Curve]:
    """Figure 5: how many clients have how many images; sizes take the place of rounds."""
    counts = np.array(SHARES) * 500
    return [
        Curve(variant, "all sets", "clients", "clients", 0.0, np.array(sizes, float), counts, np.zeros(4))
        for variant, sizes in (("text", SIZES), ("authors", AUTHORS_SIZES))
    ]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
