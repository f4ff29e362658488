"""Curves as Vega-Lite specifications: one source for PNG, SVG and the interactive page.

Each curve has its name beside its end, in its colour; there are no legends. A curve with more rounds than
points is drawn in stretches: a point then stands for several rounds, and a band shows the least and the
largest of their values, so that no round is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from sortition.core.types import FloatArray

POINTS, WIDE_POINTS = 100, 300
"""Points of a curve at most, in a panel and in a chart as wide as the page."""
WIDTH, HEIGHT = 205, 170
LARGEST = 1e300
"""Larger values are drawn there: the sum of a stretch must be finite, and the axis needs room."""
MANY_DECADES = 1e3
"""A logarithmic axis that spans more has lines at the powers of ten only."""
FAR_APART = 20.0
"""Numbers that span more than this factor are drawn on a logarithmic axis."""
COLOURS = {
    "adaptive-osmd": "#0072b2",
    "adaptive-osmd-x100": "#56b4e9",
    "uniform": "#d55e00",
    "optimal": "#222222",
    "mabs": "#cc79a7",
    "vrb": "#e69f00",
    "avare": "#009e73",
    "proportional": "#7f7f7f",
    "scaffold, uniform": "#d55e00",
    "scaffold, osmd": "#0072b2",
}
"""A sampler has the same colour in every chart."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#222222", "#56b4e9", "#7f7f7f")
OTHERS = ("#6a3d9a", "#8c6d31", "#1b9e9e", "#a6cee3")
FEW_CURVES = 4
"""More curves than this are dashed, too."""
NAME_HEIGHT, NAME_LIMIT = 14, 170
"""Pixels from one name to the next, and how many a name may take before it is cut."""
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3), (4, 2), (1, 3), (12, 4))
_POWER_OF_TEN = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-9"
_DECADES = {
    "labelExpr": "datum.label === '' ? '' : format(datum.value, '~g')",
    **{
        f"{part}Opacity": {"condition": {"test": _POWER_OF_TEN, "value": 1}, "value": 0}
        for part in ("grid", "tick")
    },
}
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


@dataclass(frozen=True)
class Series:
    """One line of a chart: values, and how far they spread to both sides."""

    label: str
    x: FloatArray
    mean: FloatArray
    spread: FloatArray


def line_chart(
    lines: Mapping[str, Sequence[Any]],
    x_title: str,
    y_title: str,
    *,
    log: bool = False,
    share: bool = False,
    target: float | None = None,
    height: int = 320,
    of: str = "",
) -> dict[str, Any]:
    """Plain curves as wide as the page: name -> (x, y), or (x, y, spread to both sides).

    ``log`` is for a logarithmic axis, which leaves out what is not positive, ``share`` for one from 0 to
    100%; ``target`` is a value to draw a dashed line at. Where a point stands for many rounds, the line is
    their mean, or their median on a logarithmic axis, and the description says so; ``of`` is what each
    value is of, if it is not one of ``x_title``.
    """
    curves = []
    for name, (x, values, *spread) in lines.items():
        y = np.array(values, dtype=float)
        y[np.isfinite(y)] = y[np.isfinite(y)].clip(-LARGEST, LARGEST)
        if log:
            y[~(y > 0.0)] = np.nan
        widths = np.array(spread[0] if spread else np.zeros(len(y)), dtype=float)
        if log:  # a band that reaches 0 would have no end
            widths = np.minimum(widths, 0.9 * y)
        curves.append(Series(name, np.asarray(x, float), y, widths))
    y_axis: dict[str, Any] = {
        "field": "y",
        "type": "quantitative",
        "title": y_title,
    }
    if log:
        y_axis["scale"] = {"type": "log", "nice": False}
        known = np.concatenate([[target or np.nan], *(curve.mean for curve in curves)])
        known = known[np.isfinite(known) & (known > 0.0)]
        if len(known):  # a little room on both sides, or a line at the edge is cut
            low, high = known.min(), known.max()
            y_axis["scale"]["domain"] = [short(0.9 * low), short(1.1 * high)]
            if high > MANY_DECADES * low:
                y_axis["axis"] = _DECADES
    else:
        y_axis["scale"] = _linear_scale(curves, target)
    if share:  # a little room above, or the line at 100% is cut
        y_axis["scale"] = {"domain": [0, 1.04], "nice": False}
        y_axis["axis"] = {"format": "%", "values": [0, 0.25, 0.5, 0.75, 1]}
    panel = panel_chart(
        curves, "", x_title, y_title, y_axis, zoom="zoom", most=WIDE_POINTS, median=log, height=height
    )
    if target is not None:
        rule = {"type": "rule", "strokeDash": [6, 4], "color": "#555555", "clip": True}
        panel["layer"].append({"data": {"values": [{"y": target}]}, "mark": rule, "encoding": {"y": y_axis}})
    rounds = max((len(curve.mean) for curve in curves), default=0)
    about = stretches_in_words(rounds, WIDE_POINTS, of or x_title, median=log)
    return whole_chart({**panel, "width": "container"}, about)


def logged_chart(
    lines: Mapping[str, Mapping[int, float]], name: str, *, target: float | None = None
) -> dict[str, Any] | None:
    """Curves of a number that runs logged under ``name``: of each run, by round.

    The axis is logarithmic where the numbers are positive and far apart. None if no curve has two points.
    """
    curves, known = {}, []
    for label, by_round in lines.items():
        values = np.array(list(by_round.values()), dtype=float)
        curves[label] = (np.array(list(by_round)), values)
        known.append(values[np.isfinite(values)])
    if max(map(len, known), default=0) < 2:
        return None
    values = np.concatenate([*known, [] if target is None else [target]])
    log = bool(values.min() > 0.0 and values.max() > FAR_APART * values.min())
    return line_chart(curves, "round", name, log=log, target=target, height=260, of="logged value")


def panel_chart(
    curves: list[Series],
    title: str,
    x_title: str,
    y_title: str,
    y_axis: dict[str, Any] | None = None,
    *,
    zoom: str,
    most: int = POINTS,
    median: bool = False,
    height: int = HEIGHT,
    named: bool = True,
) -> dict[str, Any]:
    """Curves in one panel, to be put into :func:`whole_chart`; ``zoom`` must be a name of its own there.

    ``named`` is for the names of the curves, to the right of the panel.
    """
    labels = [curve.label for curve in curves]
    colours = _colours(labels)
    x: dict[str, Any] = {"field": "x", "type": "quantitative", "title": x_title, "axis": {"tickCount": 3}}
    if most > POINTS:  # a wide one: from its first round to its last, which may be far from 0
        x |= {"axis": {"tickCount": 5}, "scale": {"nice": False, "zero": False}}
    colour = {
        "field": "sampler",
        "type": "nominal",
        "sort": labels,
        "scale": {"domain": labels, "range": colours},
        "legend": None,
    }
    y = y_axis or {
        "field": "y",
        "type": "quantitative",
        "title": y_title,
        "scale": _linear_scale(curves, None),
    }
    values = [point for curve in curves for point in points(curve, most, median=median)]
    spans = any(point["low"] < point["high"] for point in values)
    banded = [{"field": end, "title": end, "format": ".4g"} for end in ("low", "high") if spans]
    dashes, patterns = {}, [DASHES[place % len(DASHES)] for place in range(len(labels))]
    if len(labels) > FEW_CURVES:  # curves that coincide can still be told apart
        dashes = {"strokeDash": {**colour, "scale": {"domain": labels, "range": patterns}}}
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "line", "strokeWidth": 1.8},
            "params": [{"name": zoom, "select": "interval", "bind": "scales"}],
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                **dashes,
                "tooltip": [
                    {"field": "sampler", "title": "curve"},
                    {"field": "at", "title": x_title},
                    {"field": "y", "title": y_title, "format": ".4g"},
                    *banded,
                ],
            },
        }
    ]
    if spans:  # stretches are drawn as steps, so that a single one is seen; deviations as a smooth band
        deviations = any(np.any(curve.spread > 0.0) for curve in curves)
        band_style = {"opacity": 0.18} if deviations else {"opacity": 0.3, "interpolate": "step"}
        band = {
            "mark": {"type": "area", "clip": True, **band_style},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
        }
        layers.insert(0, band)
    if named and labels != [y_title]:
        ends = {point["sampler"]: point["y"] for point in values}
        drawn = [place for place, label in enumerate(labels) if label in ends]
        heights = _apart([_pixel(ends[labels[place]], y["scale"], height) for place in drawn], height)
        for place, at in zip(drawn, heights, strict=True):
            layers += _name(labels[place], colours[place], at, patterns[place] if dashes else None)
    return {
        "title": title,
        "width": WIDTH,
        "height": height,
        "data": {"values": values},
        "layer": layers,
    }


def _linear_scale(curves: list[Series], target: float | None) -> dict[str, Any]:
    """From the least to the largest that is drawn, and a little room on both sides."""
    ends = [curve.mean + side * curve.spread for curve in curves for side in (-1.0, 1.0)]
    known = np.concatenate([[np.nan if target is None else target], *ends])
    known = known[np.isfinite(known)]
    if not len(known):
        return {"zero": False}
    low, high = float(known.min()), float(known.max())
    room = max(0.05 * (high - low), 1e-5 * max(abs(low), abs(high))) or 1.0  # more than rounding
    return {"domain": [short(low - room), short(high + room)], "nice": False, "zero": False}


def _pixel(value: float, scale: dict[str, Any], height: int) -> float:
    """How far below the top of a panel a value lies."""
    bend = np.log if scale.get("type") == "log" else np.asarray
    low, high = (float(bend(end)) for end in scale["domain"])
    if not high > low:
        return 0.5 * height
    return float(height * np.clip((high - float(bend(value))) / (high - low), 0.0, 1.0))


def _apart(heights: list[float], height: int) -> list[float]:
    """The heights nearest to these, in the same order, that leave each name its room.

    Less the names above it, a height may not be smaller than the one before: an isotonic regression, by
    pooling neighbours. The names keep within the panel, and go on below it if they are too many.
    """
    order = np.argsort(heights, kind="stable")
    pools: list[tuple[float, int]] = []
    for place, index in enumerate(order):
        total, count = heights[index] - NAME_HEIGHT * place, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / count:
            before, many = pools.pop()
            total, count = total + before, count + many
        pools.append((total, count))
    means = np.repeat([total / count for total, count in pools], [count for _, count in pools])
    last = max(0.0, height - NAME_HEIGHT * (len(heights) - 1))
    placed = np.empty(len(heights))
    placed[order] = means.clip(0.0, last) + NAME_HEIGHT * np.arange(len(heights))
    return [round(float(place), 1) for place in placed]


def _name(label: str, colour: str, height: float, dash: tuple[int, ...] | None) -> list[dict[str, Any]]:
    """A name to the right of the panel, after a piece of its line if lines are dashed."""
    at: dict[str, Any] = {"x": {"value": "width"}, "y": {"value": height}}
    text = {
        "type": "text",
        "text": label,
        "clip": False,
        "align": "left",
        "baseline": "middle",
        "dx": 7,
        "limit": NAME_LIMIT,
        "color": ink(colour),
        "fontSize": 11,
        "fontWeight": "bold",
    }
    name = {"data": {"values": [{}]}, "mark": text, "encoding": at}
    if dash is None:
        return [name]
    text["dx"] = 34
    line = {"type": "rule", "strokeDash": dash, "color": colour, "strokeWidth": 1.8, "clip": False}
    piece = {
        "data": {"values": [{}]},
        "mark": {**line, "xOffset": 6, "x2Offset": 28},
        "encoding": {**at, "x2": {"value": "width"}},
    }
    return [piece, name]


def ink(colour: str) -> str:
    """A colour for text: a quarter darker, since light blue and orange are hard to read on white."""
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(0.75 * part):02x}" for part in parts)


def _colours(labels: list[str]) -> list[str]:
    """The samplers' own colours, others for those without, and the palette where no label is a sampler's."""
    own = [COLOURS.get(label.partition(" (")[0].lower()) for label in labels]
    free = (*OTHERS, *PALETTE) if any(own) else (*PALETTE, *OTHERS)
    others = cycle([colour for colour in free if colour not in own])
    return [colour or next(others) for colour in own]


def stretch_length(rounds: int, most: int) -> int:
    """Rounds to a point, so that there are no more than ``most`` points; 1 if they are few."""
    return max(1, -(-rounds // most))


def points(curve: Series, most: int, *, median: bool = False) -> list[dict[str, Any]]:
    """What to draw: the mean or median of each stretch, and the least and largest that its rounds span.

    ``x`` is the middle of the stretch and ``at`` names its rounds. A round without a number is left out.
    """
    low, high = curve.mean - curve.spread, curve.mean + curve.spread
    length = stretch_length(len(curve.mean), most)
    found = []
    for first in range(0, len(curve.mean), length):
        places = np.arange(first, min(first + length, len(curve.mean)))
        known = places[np.isfinite(low[places]) & np.isfinite(high[places])]
        if not len(known):
            continue
        begin, end = curve.x[places[0]], curve.x[places[-1]]
        values = curve.mean[known]
        centre = np.median(values) if median else values.mean()
        found.append(
            {
                "sampler": curve.label,
                "x": float((begin + end) / 2),
                "at": f"{begin:g}" if begin == end else f"{begin:.0f} to {end:.0f}",
                "y": short(centre),
                "low": short(low[known].min()),
                "high": short(high[known].max()),
            }
        )
    return found


def stretches_in_words(
    rounds: int, most: int, what: str, *, median: bool = False, spread: bool = False
) -> str:
    """What a point stands for; nothing if each round has its own."""
    length = stretch_length(rounds, most)
    if length == 1:
        return ""
    rest = f" (the last for {rounds % length})" if rounds % length else ""
    centre = "median" if median else "mean"
    band = "spans all of theirs" if spread else "goes from their least to their largest"
    return f"Each point stands for {length} {what}s{rest}: the line is their {centre}, the band {band}."


def short(value: float) -> float:
    """Six digits: enough to draw, whatever the scale."""
    return float(f"{value:.6g}")


def whole_chart(spec: dict[str, Any], about: str = "") -> dict[str, Any]:
    """A specification with the looks that all charts share; ``about`` describes it."""
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
            "axisY": {"minExtent": 34},
            "title": {"fontSize": 12, "fontWeight": "bold"},
        },
        **spec,
    }
