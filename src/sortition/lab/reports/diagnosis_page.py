"""A diagnosis as a page to look at: the answer, the table, and three pictures."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import numpy as np

from sortition.lab.diagnosis.findings import UNIFORM, Diagnosis
from sortition.lab.reports.charts import ink, line_chart, short, whole_chart
from sortition.lab.reports.page import Number, Page
from sortition.lab.versions import in_words

SAMPLING, MINIBATCH = "sampling", "mini-batches"
COLOURS = {SAMPLING: "#0072b2", MINIBATCH: "#999999"}
ROW_HEIGHT, PART_WIDTH = 34, 75
HOW_TO_READ = (
    "Everything is over uniform draws of fixed size; lower is better. 'variance' is what sampling adds to a "
    "step, 'with replacement' the same for draws with replacement. '<' marks the verdict."
)
LEAST_COHORT = " 'least K' has the variance of uniform sampling at today's K."


def how_to_read(diagnosis: Diagnosis) -> str:
    """What the columns of the table mean."""
    return HOW_TO_READ + ("" if diagnosis.noise.of_examples else LEAST_COHORT)


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """One self-contained page."""
    noise = diagnosis.noise
    page = Page(f"Diagnosis: {diagnosis.verdict}", f"{diagnosis.title}.")
    page.paragraph(diagnosis.sentence)
    page.table(diagnosis.columns, [(row[0], *map(Number, row[1:])) for row in diagnosis.cells()])
    page.paragraph(how_to_read(diagnosis), note=True)
    page.heading("The noise of a step")
    page.paragraph(
        "Over that of uniform sampling."
        + ("" if noise.of_examples else " No sampler removes what mini-batches add.")
    )
    page.chart(noise_chart(diagnosis))
    page.heading(f"{diagnosis.rounds_in_words.capitalize()} to the same loss")
    page.paragraph(
        f"Over those of uniform sampling, if the {'step size' if noise.of_examples else 'step'} is tuned for "
        "each choice. A line is the range (to the edge if it has no upper end), the dot "
        "the geometric middle (the root of the product of both ends), by which the verdict is chosen."
    )
    page.chart(rounds_chart(diagnosis))
    if len(noise.largest_signal) > 1 and not noise.estimated:
        page.heading("Sampling variance, round by round")
        page.chart(variance_chart(diagnosis))
    page.heading("Behind the answer")
    page.bullets(diagnosis.facts)
    seed = "" if diagnosis.seed is None else f", seed {diagnosis.seed}"
    page.paragraph(f"Made on {date.today().isoformat()} by {in_words(diagnosis.versions)}{seed}.", note=True)
    return page.render()


def noise_chart(diagnosis: Diagnosis) -> dict[str, Any]:
    """Bars: S and B of each choice, over the noise of uniform sampling."""
    noise = diagnosis.noise
    values: list[dict[str, Any]] = []
    for row in diagnosis.rows:
        whole = noise.ratio(row.choice, "noise")
        share = 1.0 if row.sampling_share is None else row.sampling_share
        values.append({"choice": row.choice, "part": SAMPLING, "noise": short(whole * share), "order": 0})
        if row.sampling_share is not None:
            rest = short(whole * (1.0 - share))
            values.append({"choice": row.choice, "part": MINIBATCH, "noise": rest, "order": 1})
    parts = list(dict.fromkeys(value["part"] for value in values))
    colour = {
        "field": "part",
        "type": "nominal",
        "scale": {"domain": parts, "range": [COLOURS[part] for part in parts]},
        "legend": None,
    }
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.6}},
        "encoding": {
            "y": _choices(diagnosis),
            "x": {
                "field": "noise",
                "type": "quantitative",
                "title": "noise of a step over uniform's",
                "axis": {"tickCount": 6},
            },
            "color": colour,
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [{"field": "choice"}, {"field": "part"}, {"field": "noise", "format": ".3g"}],
        },
    }
    names = [_part_name(part, PART_WIDTH * place) for place, part in enumerate(parts) if len(parts) > 1]
    return whole_chart(
        {
            "width": "container",
            "height": ROW_HEIGHT * len(diagnosis.rows),
            "data": {"values": values},
            "layer": [bars, *names],
        }
    )


def _part_name(part: str, left: int) -> dict[str, Any]:
    """The name of a part of the bars, above them and in its colour."""
    mark = {"type": "text", "text": part, "align": "left", "baseline": "bottom", "fontWeight": "bold"}
    return {
        "data": {"values": [{}]},
        "mark": {**mark, "color": ink(COLOURS[part])},
        "encoding": {"x": {"value": left}, "y": {"value": -5}},
    }


def rounds_chart(diagnosis: Diagnosis) -> dict[str, Any]:
    """A line for each choice: the range of the rounds (to the edge if open), and its geometric middle."""
    values: list[dict[str, Any]] = []
    ends = [end for row in diagnosis.rows for end in (row.fewest_rounds, row.most_rounds)]
    most = max(1.05, *(1.05 * end for end in ends if math.isfinite(end)))
    for row in diagnosis.rows:
        low, high = sorted((row.fewest_rounds, min(row.most_rounds, most)))
        middle = diagnosis.noise.rounds(row.choice)
        values.append({"choice": row.choice, "low": short(low), "high": short(high), "middle": short(middle)})
    x = {
        "field": "low",
        "type": "quantitative",
        "title": f"{diagnosis.rounds_in_words} over uniform's",
        "axis": {"tickCount": 6},
        "scale": {"domain": [0, short(most)], "nice": False},
    }
    y = _choices(diagnosis)
    tooltip = [{"field": "choice"}, *({"field": name, "format": ".3g"} for name in ("low", "middle", "high"))]
    return whole_chart(
        {
            "width": "container",
            "height": ROW_HEIGHT * len(diagnosis.rows),
            "data": {"values": values},
            "layer": [
                {
                    "data": {"values": [{"at": 1}]},
                    "mark": {"type": "rule", "strokeDash": [6, 4], "color": "#555555"},
                    "encoding": {"x": {**x, "field": "at"}},
                },
                {
                    "mark": {"type": "rule", "strokeWidth": 6, "opacity": 0.35, "color": "#0072b2"},
                    "encoding": {"y": y, "x": x, "x2": {"field": "high"}, "tooltip": tooltip},
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 90, "color": "#0072b2", "opacity": 1},
                    "encoding": {"y": y, "x": {**x, "field": "middle"}, "tooltip": tooltip},
                },
            ],
        }
    )


def variance_chart(diagnosis: Diagnosis) -> dict[str, Any]:
    """S of each choice in each round that was measured, over that of uniform sampling on average."""
    noise = diagnosis.noise
    rounds = np.linspace(1, max(noise.num_rounds, len(noise.largest_signal)), len(noise.largest_signal))
    unit = max(float(np.mean(noise.sampling[UNIFORM])), np.finfo(float).tiny)
    lines = {row.choice: (rounds, noise.sampling[row.choice] / unit) for row in diagnosis.rows}
    return line_chart(lines, "round", "sampling variance", log=True)


def _choices(diagnosis: Diagnosis) -> dict[str, Any]:
    order = [row.choice for row in diagnosis.rows]
    return {"field": "choice", "type": "nominal", "sort": order, "title": None, "axis": {"labelLimit": 240}}
