"""A figure as a Vega-Lite specification: one source for PNG, SVG and the interactive page."""

from __future__ import annotations

from itertools import count, cycle
from typing import Any

import numpy as np

from sortition.lab.reports.stretches import in_words, points, short
from sortition.lab.reproduce import Curve, Result

POINTS, WIDE_POINTS = 100, 300
"""Points of a curve at most, in a panel and in a chart as wide as the page; see ``stretches``."""
WIDTH, HEIGHT = 250, 170
LARGEST = 1e300
"""What is larger is drawn there: the sum of a stretch must be finite, and the axis have room."""
MANY_DECADES = 1e3
"""A logarithmic axis that spans more has lines at the powers of ten only."""
COLOURS = {
    "adaptive-osmd": "#0072b2",
    "adaptive-osmd-x100": "#56b4e9",
    "uniform": "#d55e00",
    "optimal": "#222222",
    "mabs": "#cc79a7",
    "vrb": "#e69f00",
    "avare": "#009e73",
    "proportional": "#7f7f7f",
}
"""A sampler has the same colour in every chart."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#222222", "#56b4e9", "#7f7f7f")
OTHERS = ("#6a3d9a", "#8c6d31", "#1b9e9e", "#a6cee3")
VARIANT_TITLES = {"text": "As the text says", "authors": "As the authors' code does"}
AXIS_TITLES = {
    "log loss": "log of the training loss",
    "log regret": "log of the cumulative regret",
    "accuracy": "validation accuracy",
}
_POWER_OF_TEN = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-9"
_DECADES = {
    "labelExpr": "datum.label === '' ? '' : format(datum.value, '~g')",
    **{
        f"{part}Opacity": {"condition": {"test": _POWER_OF_TEN, "value": 1}, "value": 0}
        for part in ("grid", "tick")
    },
}
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


def chart(result: Result) -> dict[str, Any]:
    """The whole figure: for each variant, a row a quantity and a column a panel."""
    if result.figure.name == "fig5":
        return _page(_sizes(result))
    numbers = count()  # a selection needs a name of its own within the chart
    blocks = []
    for variant in dict.fromkeys(curve.variant for curve in result.curves):
        mine = [curve for curve in result.curves if curve.variant == variant]
        rows = []
        for quantity in dict.fromkeys(curve.quantity for curve in mine):
            panels = dict.fromkeys(curve.panel for curve in mine)
            rows.append(
                {
                    "hconcat": [
                        _panel(
                            [c for c in mine if c.quantity == quantity and c.panel == panel],
                            panel,
                            zoom=f"zoom{next(numbers)}",
                        )
                        for panel in panels
                    ]
                }
            )
        blocks.append({"title": _title(VARIANT_TITLES[variant]), "vconcat": rows})
    rounds = max((len(curve.mean) for curve in result.curves), default=0)
    return _page({"vconcat": blocks, "spacing": 30}, in_words(rounds, POINTS, "round", spread=True))


def line_chart(
    lines: dict[str, tuple[Any, Any]],
    x_title: str,
    y_title: str,
    *,
    log: bool = False,
    share: bool = False,
    target: float | None = None,
    height: int = 320,
) -> dict[str, Any]:
    """Plain curves as wide as the page, for other reports: name -> (x, y).

    ``log`` is for a logarithmic axis, which leaves out what is not positive, ``share`` for one from 0 to
    100%; ``target`` is a value to draw a dashed line at. Where a point stands for many rounds, the line is
    their mean, or their median on a logarithmic axis, and the description says so.
    """
    curves = []
    for name, (x, values) in lines.items():
        y = np.array(values, dtype=float)
        y[np.isfinite(y)] = y[np.isfinite(y)].clip(-LARGEST, LARGEST)
        if log:
            y[~(y > 0.0)] = np.nan
        curves.append(Curve("", "", name, y_title, 0.0, np.asarray(x, float), y, np.zeros(len(y))))
    y_axis: dict[str, Any] = {
        "field": "y",
        "type": "quantitative",
        "title": y_title,
        "scale": {"zero": False},
    }
    if log:
        y_axis["scale"] = {"type": "log", "nice": False}
        known = np.concatenate([[target or np.nan], *(curve.mean for curve in curves)])
        if np.isfinite(known).any():  # a little room on both sides, or a line at the edge is cut
            low, high = np.nanmin(known), np.nanmax(known)
            y_axis["scale"]["domain"] = [short(0.9 * low), short(1.1 * high)]
            if high > MANY_DECADES * low:
                y_axis["axis"] = _DECADES
    if share:  # a little room above, or the line at 100% is cut
        y_axis["scale"] = {"domain": [0, 1.04], "nice": False}
        y_axis["axis"] = {"format": "%", "values": [0, 0.25, 0.5, 0.75, 1]}
    panel = _panel(curves, "", x_title, y_axis, zoom="zoom", most=WIDE_POINTS, median=log)
    if target is not None:
        rule = {"type": "rule", "strokeDash": [6, 4], "color": "#555555", "clip": True}
        panel["layer"].append({"data": {"values": [{"y": target}]}, "mark": rule, "encoding": {"y": y_axis}})
    rounds = max((len(curve.mean) for curve in curves), default=0)
    about = in_words(rounds, WIDE_POINTS, x_title, median=log)
    return _page({**panel, "width": "container", "height": height}, about)


def _panel(
    curves: list[Curve],
    panel: str,
    x_title: str = "round",
    y_axis: dict[str, Any] | None = None,
    *,
    zoom: str,
    most: int = POINTS,
    median: bool = False,
) -> dict[str, Any]:
    labels = [curve.label for curve in curves]
    colours = _colours(labels)
    y_title = AXIS_TITLES.get(curves[0].quantity, curves[0].quantity)
    x = {"field": "x", "type": "quantitative", "title": x_title, "axis": {"tickCount": 5}}
    colour = {
        "field": "sampler",
        "type": "nominal",
        "sort": labels,
        "scale": {"domain": labels, "range": colours},
        "legend": {
            "title": None,
            "orient": "bottom",
            "columns": 6,
            "labelLimit": 240,
            "symbolOpacity": 1,
        },
    }
    y = y_axis or {"field": "y", "type": "quantitative", "title": y_title, "scale": {"zero": False}}
    values = [point for curve in curves for point in points(curve, most, median=median)]
    spans = any(point["low"] < point["high"] for point in values)
    banded = [{"field": end, "title": end, "format": ".4g"} for end in ("low", "high") if spans]
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "line", "strokeWidth": 1.8},
            "params": [{"name": zoom, "select": "interval", "bind": "scales"}],
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                "tooltip": [
                    {"field": "sampler", "title": "sampler"},
                    {"field": "at", "title": x_title},
                    {"field": "y", "title": y_title, "format": ".4g"},
                    *banded,
                ],
            },
        }
    ]
    if spans:  # stretches as steps, for one that stands out must be seen; deviations from round to round
        deviations = any(np.any(curve.spread > 0.0) for curve in curves)
        band_style = {"opacity": 0.18} if deviations else {"opacity": 0.3, "interpolate": "step"}
        band = {
            "mark": {"type": "area", "clip": True, **band_style},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
        }
        layers.insert(0, band)
    return {
        "title": panel,
        "width": WIDTH,
        "height": HEIGHT,
        "data": {"values": values},
        "layer": layers,
    }


def _colours(labels: list[str]) -> list[str]:
    """The samplers' own colours, others for those without, and the palette where no label is a sampler's."""
    own = [COLOURS.get(label.partition(" (")[0].lower()) for label in labels]
    if not any(own):
        return [PALETTE[place % len(PALETTE)] for place in range(len(labels))]
    others = cycle(OTHERS)
    return [colour or next(others) for colour in own]


def _sizes(result: Result) -> dict[str, Any]:
    values = [
        {"variant": VARIANT_TITLES[curve.variant], "size": str(int(size)), "clients": round(count)}
        for curve in result.curves
        for size, count in zip(curve.rounds, curve.mean, strict=True)
    ]
    order = ["1", "5", "10", "30", "100"]
    x = {
        "field": "size",
        "type": "ordinal",
        "sort": order,
        "title": "training images",
        "axis": {"labelAngle": 0},
    }
    y = {"field": "clients", "type": "quantitative", "title": "clients"}
    layer = [
        {"mark": {"type": "bar", "color": PALETTE[0]}, "encoding": {"x": x, "y": y}},
        {
            "mark": {"type": "text", "dy": -6},
            "encoding": {"x": x, "y": y, "text": {"field": "clients"}},
        },
    ]
    return {
        "hconcat": [
            {
                "title": title,
                "width": WIDTH,
                "height": HEIGHT,
                "data": {"values": [value for value in values if value["variant"] == title]},
                "layer": layer,
            }
            for title in dict.fromkeys(value["variant"] for value in values)
        ]
    }


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "anchor": "start", "fontSize": 14, "offset": 10}


def _page(spec: dict[str, Any], about: str = "") -> dict[str, Any]:
    return {
        "$schema": SCHEMA,
        **({"description": about} if about else {}),
        "background": "white",
        "padding": 8,
        "config": {
            "font": "DejaVu Sans, Helvetica, Arial, sans-serif",
            "view": {"stroke": "#cccccc"},
            "axis": {
                "gridColor": "#eeeeee",
                "labelFontSize": 10,
                "titleFontSize": 11,
                "titleFontWeight": "normal",
            },
            "title": {"fontSize": 12, "fontWeight": "bold"},
        },
        **spec,
    }
