"""The pictures of the tutorials, in the style of all charts of the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from IPython.display import SVG

from sortition.lab.reports.charts import PALETTE, whole_chart
from sortition.lab.reports.page import picture_svg


def bars(names: Sequence[str], columns: Mapping[str, Sequence[float]]) -> SVG:
    """One row for each name, and a panel of bars for each column; each bar has its number beside it."""
    panels = []
    for place, (title, values) in enumerate(columns.items()):
        rows = [{"name": name, "value": float(value)} for name, value in zip(names, values, strict=True)]
        y = {"field": "name", "type": "nominal", "sort": list(names), "title": None}
        hidden = {"labels": False, "ticks": False, "domain": False}
        x = {"field": "value", "type": "quantitative", "title": None, "axis": None}
        x["scale"] = {"domain": [0, 1.15 * max(values)]}
        text = {"field": "value", "type": "quantitative", "format": ".2f"}
        panels.append(
            {
                "title": {"text": title, "anchor": "start", "fontWeight": "normal"},
                "width": 230,
                "height": 20 * len(names),
                "data": {"values": rows},
                "encoding": {"y": y if place == 0 else {**y, "axis": hidden}, "x": x},
                "layer": [
                    {"mark": {"type": "bar", "color": PALETTE[place]}},
                    {"mark": {"type": "text", "align": "left", "dx": 4}, "encoding": {"text": text}},
                ],
            }
        )
    chart = whole_chart({"hconcat": panels, "spacing": 30})
    chart["config"] |= {"view": {"stroke": None}, "axisY": {"domain": False, "ticks": False}}
    return SVG(picture_svg(chart))
