"""Real federations as a page: one table over all, and for each its diagnosis, a picture and its cells."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from sortition.lab.arena.real import (
    BASE,
    CONTROL,
    FULL_PARTICIPATION,
    METHODS,
    RECOMMENDED,
    recommended_among,
)
from sortition.lab.arena.real_scores import CellResult, MethodScore, Pair
from sortition.lab.federations.data import FEDERATIONS
from sortition.lab.reports.charts import whole_chart
from sortition.lab.reports.page import Number, Page

LEAST_SHARE = 0.05
"""Cells with this share of clients or more enter the geometric mean."""
SHOWN = (RECOMMENDED, "default", "size-memory", "uniform-subset", "clustered-size", "fedvarp", CONTROL)
HOW_TO_READ = (
    "Client trainings to a target held-out loss, over those of size-proportional FedAvg (with replacement): "
    "lower is better. The target is the loss that this reference has after 80% of the rounds. Step sizes of "
    "clients and server are tuned for each method with the same number of runs, on other seeds. Brackets are "
    "95% intervals over the seeds (jackknife); those of the other methods are in the page's own tables. A "
    "dash: the target was not reached. Empty: not run. With weights 1/M the reference draws uniformly, with "
    "replacement. size-our-steps is the reference at the steps that were tuned for the recommended setting: "
    "a control. SCAFFOLD has a memory of its own, so the recommended setting is without one there. Rounds of "
    "full participation are the least that any unbiased choice of clients can hope for."
)
A_QUICK_RUN = (
    "A quick run, to see that it works: with so few rounds and seeds its figures and intervals say little."
)
COLUMNS = [
    "method",
    "kind",
    "client step",
    "server step",
    "rounds",
    "trainings",
    "examples",
    "MB",
    "trainings, over size",
    "final loss",
    "worst tenth",
    "error",
]
ABOUT_COLUMNS = (
    "rounds, trainings, examples and MB (models sent and received) to the target; final loss: mean and "
    "deviation over the seeds, last tenth of the run; worst tenth: mean held-out loss of the tenth of the "
    "clients with the highest; error: squared error of the aggregate in units of the least variance of draws "
    "with replacement, in two rounds of some seeds."
)


def ratio_text(ratio: float | None, interval: tuple[float, float] | None) -> str:
    """A ratio with its interval.

    >>> ratio_text(0.5, (0.4, 0.625)), ratio_text(None, None)
    ('0.50 [0.40, 0.62]', '-')
    """
    if ratio is None or not math.isfinite(ratio):
        return "-"
    return f"{ratio:.2f}" + ("" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]")


def summary(results: Sequence[CellResult]) -> list[list[str]]:
    """The table over all cells: its columns, a row for each cell, the geometric means.

    Intervals of the recommended setting only, which are many numbers already. A column that is empty in every
    cell is left out.
    """
    best = ["best unbiased rival", "recommended over it"]
    rows = [["federation", "condition", SHOWN[0], *best, *SHOWN[1:], "full (rounds)"]]
    for result in results:
        known = {score.method: score for score in result.scores}
        full, base = known.get(FULL_PARTICIPATION), known[BASE]
        rounds = None if full is None or full.rounds is None or not base.rounds else full.rounds / base.rounds
        pair = result.best_rival
        rows.append(
            [
                result.cell.federation,
                result.cell.condition,
                _ratio_of(known.get(SHOWN[0]), interval=True),
                "" if pair is None else pair.rival,
                "" if pair is None else ratio_text(pair.ratio, pair.interval),
                *(_ratio_of(known.get(name), interval=False) for name in SHOWN[1:]),
                "" if full is None else ratio_text(rounds, None),
            ]
        )
    means = geometric_means(results)
    shown = [ratio_text(means[name].ratio, None) if name in means else "" for name in SHOWN]
    rows.append(["geometric mean", "K/M from 5%", shown[0], "", "", *shown[1:], ""])
    filled = [any(row[i] for row in rows[1:-1]) for i in range(len(rows[0]))]
    return [list(compress(row, filled)) for row in rows]


def _ratio_of(score: MethodScore | None, *, interval: bool) -> str:
    return "" if score is None else ratio_text(score.ratio, score.interval if interval else None)


class Mean(NamedTuple):
    """A method over the cells with K/M of 5% or more."""

    ratio: float
    """Geometric mean over the cells in which it reached the target; nan if it did in none."""
    cells: int
    missed: int
    """Cells in which it did not."""


def geometric_means(results: Sequence[CellResult]) -> dict[str, Mean]:
    """By method, the fewest trainings first."""
    found: dict[str, list[float | None]] = {}
    for result in results:
        for score in result.scores:
            if result.cell.share >= LEAST_SHARE and score.method not in (BASE, FULL_PARTICIPATION):
                found.setdefault(score.method, []).append(score.ratio)
    means = {}
    for name, ratios in found.items():
        logs = [math.log(ratio) for ratio in ratios if ratio is not None]
        mean = math.exp(sum(logs) / len(logs)) if logs else math.nan
        means[name] = Mean(mean, len(logs), len(ratios) - len(logs))
    return dict(sorted(means.items(), key=lambda item: (math.isnan(item[1].ratio), item[1].ratio)))


class Recommended(NamedTuple):
    """The recommended setting over the cells with K/M of 5% or more; without a memory under SCAFFOLD."""

    mean: Mean
    interval: tuple[float, float] | None
    """From those of the cells, as if these were independent; None if one of them has none."""
    over_best_reference: float
    """The same mean over the reference at its own steps or at ours, whichever are better on report seeds."""


def recommended(results: Sequence[CellResult]) -> Recommended:
    """Geometric means of the recommended setting, over every cell that has it."""
    logs, over_best, halves, missed = [], [], [], 0
    for result in results:
        scores = {score.method: score for score in result.scores}
        own = scores.get(recommended_among(scores))
        if own is None or result.cell.share < LEAST_SHARE:
            continue
        if own.ratio is None:
            missed += 1
            continue
        control = scores[CONTROL].ratio if CONTROL in scores else None
        logs.append(math.log(own.ratio))
        over_best.append(math.log(own.ratio / min(1.0, control or 1.0)))
        halves.append(math.log(own.interval[1] / own.ratio) if own.interval else math.nan)
    if not logs:
        return Recommended(Mean(math.nan, 0, missed), None, math.nan)
    mean, half = sum(logs) / len(logs), math.hypot(*halves) / len(logs)
    return Recommended(
        Mean(math.exp(mean), len(logs), missed),
        None if math.isnan(half) else (math.exp(mean - half), math.exp(mean + half)),
        math.exp(sum(over_best) / len(over_best)),
    )


def verdict(results: Sequence[CellResult]) -> list[str]:
    """What the table says of the recommended setting, in sentences."""
    mean, interval, over_best_reference = recommended(results)
    pairs = [result.best_rival for result in results if result.best_rival is not None]
    worse = [p for p in pairs if math.isinf(p.ratio) or (p.interval is not None and p.interval[0] > 1.0)]
    better = [pair for pair in pairs if pair.interval is not None and pair.interval[1] < 1.0]
    said = []
    if mean.cells:
        over = "one cell" if mean.cells == 1 else f"{mean.cells} cells"
        missed = f" It did not reach the target in {mean.missed} others." if mean.missed else ""
        said.append(
            f"The recommended setting needs {ratio_text(mean.ratio, interval)} times the client trainings of "
            f"size-proportional FedAvg, in the geometric mean over {over} with K/M of 5% or more.{missed} If "
            f"the reference may take our steps wherever they are better for it, it is "
            f"{over_best_reference:.2f} times."
        )
    said.append(
        f"Against the best unbiased rival of each cell it needs fewer trainings in {len(better)} of "
        f"{len(pairs)} cells, more in {len(worse)}; in the others the seeds show no difference."
    )
    said += [
        f"More: {pair.cell.name} ({pair.rival}: {ratio_text(pair.ratio, pair.interval)})." for pair in worse
    ]
    return said


def summary_table(results: Sequence[CellResult]) -> Table:
    """For the terminal."""
    table = Table(title="client trainings to the target, over size-proportional FedAvg")
    columns, *cells, means = summary(results)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*row)
    table.add_section()
    table.add_row(*means)
    return table


def real_page(
    results: Sequence[CellResult], diagnoses: Mapping[str, Mapping[str, Any]], made_by: str, *, quick: bool
) -> str:
    """The page."""
    page = Page("Real federations", f"Trained with {made_by}.")
    page.bullets([A_QUICK_RUN, *verdict(results)] if quick else verdict(results))
    columns, *rows = summary(results)
    page.table(columns, rows)
    page.table(
        ["method", "kind", "geometric mean", "cells", "target not reached"],
        [
            [name, METHODS[name].role, Number(ratio_text(mean.ratio, None)), mean.cells, mean.missed]
            for name, mean in geometric_means(results).items()
        ],
        folded="Geometric means over the cells with K/M of 5% or more",
    )
    page.paragraph(HOW_TO_READ, note=True)
    for name in dict.fromkeys(result.cell.federation for result in results):
        own = [result for result in results if result.cell.federation == name]
        source = FEDERATIONS[name]
        page.heading(name)
        page.paragraph(f"{source.about}. Licence: {source.licence}.")
        if name in diagnoses:
            told = diagnoses[name]
            page.paragraph(f"sortition diagnose: {told['sentence']}")
            page.table(told["columns"], told["rows"], folded="The diagnosis in figures")
        page.chart(picture(own))
        for result in own:
            page.table(
                COLUMNS,
                [score_row(score) for score in result.scores],
                folded=f"{result.cell.name}: target {result.target:.4f}",
            )
        page.paragraph(ABOUT_COLUMNS, note=True)
    return page.render()


def score_row(score: MethodScore) -> list[Any]:
    """A method of a cell."""

    def whole(value: float | None) -> Number:
        return Number("-" if value is None else f"{value:,.0f}")

    return [
        score.method,
        METHODS[score.method].role,
        Number(f"{score.steps[0]:g}"),
        Number(f"{score.steps[1]:g}"),
        whole(score.rounds),
        whole(score.trainings),
        whole(score.examples),
        Number("-" if score.megabytes is None else f"{score.megabytes:,.1f}"),
        Number(ratio_text(score.ratio, score.interval)),
        Number(f"{score.final_loss:.4f} ± {score.final_spread:.4f}"),
        Number(f"{score.worst_tenth:.3f}"),
        Number("-" if score.error is None else f"{score.error:.2f}"),
    ]


def picture(results: Sequence[CellResult]) -> dict[str, Any]:
    """The ratios of a federation with intervals: a panel for each cell, a row for each method."""
    methods = [name for name in METHODS if name not in (BASE, FULL_PARTICIPATION)]
    values: list[dict[str, Any]] = [
        {
            "cell": result.cell.condition,
            "method": score.method,
            "kind": METHODS[score.method].role,
            "ratio": score.ratio,
            "low": score.interval[0] if score.interval else score.ratio,
            "high": score.interval[1] if score.interval else score.ratio,
        }
        for result in results
        for score in result.scores
        if score.method in methods
    ]
    known = [value["ratio"] for value in values if value["ratio"] is not None]
    domain = [round(0.8 * min([0.5, *known]), 3), round(1.3 * max([2.0, *known]), 3)]
    scale = {"type": "log", "domain": domain, "nice": False, "clamp": True}
    title = "client trainings to the target, over size-proportional FedAvg"
    x = {"field": "ratio", "type": "quantitative", "title": title, "scale": scale}
    y = {"field": "method", "type": "nominal", "title": None, "sort": methods, "axis": {"labelLimit": 160}}
    colours = {"domain": list(COLOURS_OF_KINDS), "range": list(COLOURS_OF_KINDS.values())}
    colour = {"field": "kind", "type": "nominal", "legend": None, "scale": colours}
    tooltip = [{"field": each} for each in ("method", "kind")] + [
        {"field": each, "format": ".2f"} for each in ("ratio", "low", "high")
    ]
    reached = [{"filter": "datum.ratio !== null"}]
    span = {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rule", "color": "#555555", "strokeDash": [5, 4]}, "encoding": {"x": {"datum": 1}}},
        {
            "transform": reached,
            "mark": {"type": "rule", "strokeWidth": 1.6, "clip": True},
            "encoding": span,
        },
        {
            "transform": reached,
            "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1, "clip": True},
            "encoding": {"y": y, "x": x, "color": colour, "tooltip": tooltip},
        },
        {
            "transform": [{"filter": "datum.ratio === null"}],
            "mark": {"type": "text", "align": "right", "fontSize": 9, "color": "#777777"},
            "encoding": {"y": y, "x": {"datum": domain[1]}, "text": {"value": "target not reached "}},
        },
    ]
    conditions = [result.cell.condition for result in results]
    header = {"title": None, "labelAngle": 0, "labelAlign": "left", "labelFontWeight": "bold"}
    return whole_chart(
        {
            "data": {"values": values},
            "facet": {"row": {"field": "cell", "sort": conditions, "header": header}},
            "spacing": 6,
            "spec": {"width": 520, "height": {"step": 13}, "layer": layers},
            "resolve": {"scale": {"y": "independent"}},
        },
        "Left of the dashed line a method needs fewer client trainings than size-proportional FedAvg. Lines "
        "are 95% intervals. Orange is ours, blue an ablation, green an unbiased rival, grey a biased one, "
        "black (white on a dark page) the reference at our steps.",
    )


COLOURS_OF_KINDS = {
    "ours": "#d55e00",
    "ablation": "#0072b2",
    "unbiased": "#009e73",
    "biased": "#7f7f7f",
    "reference": "#222222",
}


def real_json(results: Sequence[CellResult]) -> str:
    """All scores under their names; what is not finite is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    cells = [
        {
            "cell": asdict(result.cell),
            "target": result.target,
            "scores": [asdict(score) for score in result.scores],
            "best_rival": None if result.best_rival is None else _pair(result.best_rival),
        }
        for result in results
    ]
    means = {name: mean._asdict() for name, mean in geometric_means(results).items()}
    return json.dumps(plain({"geometric_means": means, "cells": cells}), indent=1, allow_nan=False) + "\n"


def _pair(pair: Pair) -> dict[str, Any]:
    return {"rival": pair.rival, "ratio": pair.ratio, "interval": pair.interval}
