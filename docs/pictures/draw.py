"""Draw why.svg and why-dark.svg: what a sampler is worth where clients differ, and where they are alike.

    python docs/pictures/draw.py

The two federations are those of ``make demo``; the site and the README show the picture. The other pictures
here are drawn by hand, or by ``sortition arena --out`` and ``python benchmarks/diagnosis.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sortition.lab.compare import Comparison, compare
from sortition.lab.problems.softmax import STEP_SIZE, alike_federation, digits_federation
from sortition.lab.reports.charts import whole_chart
from sortition.lab.reports.page import picture_svg

HERE = Path(__file__).parent
SHOWN = {
    "uniform": ("uniform", "#d55e00"),
    "proportional": ("by data size", "#7f7f7f"),
    "empirical-bayes": ("default", "#0072b2"),
}
"""Samplers, what they are called here, and the colours that they have in every chart."""
EVERY = 4
"""Rounds to a point: each is a mean over so many."""


def panel(title: str, comparison: Comparison, labels: dict[str, float]) -> dict[str, Any]:
    """Loss by round, each curve with its name beside it; ``labels`` moves a name up or down, in pixels."""
    points, names = [], []
    for row in comparison.rows:
        if row.name not in SHOWN:
            continue
        name, colour = SHOWN[row.name]
        losses = row.losses.reshape(-1, EVERY).mean(axis=1)
        rounds = EVERY * (np.arange(len(losses)) + 0.5)
        points += [
            {"sampler": name, "round": float(x), "loss": float(y)}
            for x, y in zip(rounds, losses, strict=True)
        ]
        at = {"sampler": name, "round": float(rounds[-1]), "loss": float(losses[-1])}
        names.append((at, colour, labels.get(row.name, 0.0)))
    domain, colours = zip(*SHOWN.values(), strict=True)
    x = {"field": "round", "type": "quantitative", "title": "round", "axis": {"tickCount": 4, "grid": False}}
    y = {
        "field": "loss",
        "type": "quantitative",
        "title": "training loss",
        "scale": {"type": "log", "nice": False, "domain": [0.3, 4.6]},
        "axis": {"values": [0.3, 0.5, 1, 2, 4], "format": "~g"},
    }
    colour = {
        "field": "sampler",
        "scale": {"domain": list(domain), "range": list(colours)},
        "legend": None,
    }
    texts = [
        {
            "data": {"values": [at]},
            "mark": {
                "type": "text",
                "align": "left",
                "dx": 6,
                "dy": move,
                "color": paint,
                "fontSize": 15,
                "fontWeight": "bold",
            },
            "encoding": {"x": x, "y": y, "text": {"field": "sampler"}},
        }
        for at, paint, move in names
    ]
    line = {
        "mark": {"type": "line", "strokeWidth": 2.2},
        "encoding": {"x": x, "y": y, "color": colour},
    }
    return {
        "title": {"text": title, "anchor": "start", "fontSize": 15},
        "width": 215,
        "height": 215,
        "data": {"values": points},
        "layer": [line, *texts],
    }


def in_the_dark(chart: dict[str, Any]) -> dict[str, Any]:
    """The same on a dark ground, with a lighter blue and grey."""
    light, faint = "#d0d7de", "#30363d"
    chart = json.loads(json.dumps(chart).replace("#0072b2", "#56b4e9").replace("#7f7f7f", "#b0b0b0"))
    config = chart["config"]
    axis = {
        **config["axis"],
        "gridColor": faint,
        "domainColor": light,
        "tickColor": light,
        "labelColor": light,
        "titleColor": light,
    }
    title = {**config["title"], "color": light}
    view = {"stroke": faint}
    return {
        **chart,
        "background": "#0d1117",
        "config": {**config, "axis": axis, "title": title, "view": view},
    }


def main() -> None:
    """Train both federations with each sampler, as ``make demo`` does, and draw."""
    setting: dict[str, Any] = {"cohort_size": 5, "num_rounds": 200, "step_size": STEP_SIZE, "jobs": 2}
    samplers = ["proportional", "empirical-bayes"]
    differ = compare(digits_federation, samplers, **setting)
    alike = compare(alike_federation, samplers, **setting)
    print(differ, alike, sep="\n\n")
    panels = [
        panel(
            "Few clients have most of the data",
            differ,
            {"uniform": -12, "proportional": -6, "empirical-bayes": 13},
        ),
        panel("All clients are alike", alike, {"uniform": -18, "empirical-bayes": 18}),
    ]
    chart = whole_chart({"hconcat": panels, "spacing": 25})
    chart["config"]["axis"] |= {
        "labelFontSize": 13,
        "titleFontSize": 14,
    }  # it must be read on a telephone, too
    (HERE / "why.svg").write_bytes(picture_svg(chart))
    (HERE / "why-dark.svg").write_bytes(picture_svg(in_the_dark(chart)))


if __name__ == "__main__":
    main()
