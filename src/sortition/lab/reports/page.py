"""A self-contained HTML page: text, tables and interactive charts, all inside one file that opens offline.

vl-convert (extra ``reports``) is imported only where something is drawn, so other commands work without it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

VEGALITE = "6.4"
SHORT = 24
"""Texts of a table up to this length are not broken into lines."""

MANY_COLUMNS = 10
NUMBERS = ' class="number"'

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.55 system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif; color: #1c1c1c;
  background: #fff; max-width: 1020px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { margin-top: 2.6rem; border-top: 1px solid #ddd; padding-top: 1.2rem; }
.lead, .note { color: #555; } .note { font-size: .9rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #e4e4e4; text-align: left; vertical-align: top; }
td.short, td.number { white-space: nowrap; } td.number, th.number { text-align: right; }
th { background: #f6f6f6; }
td.bad { color: #b00020; font-weight: 600; } td.good { color: #00693e; }
.chart, .table { overflow-x: auto; margin: .8rem 0; }
.wide { margin-inline: min(0px, calc(510px - 50vw + 1.2rem)); } details { margin: .6rem 0; }
summary { cursor: pointer; color: #0b57a4; }
.chart.vega-embed { display: block; width: 100%; } .chart svg { display: block; }
.chart + .note { margin-top: 0; }
@media (prefers-color-scheme: dark) { html { filter: invert(0.92) hue-rotate(180deg); background: #fff; } }
"""


class Number(str):
    """A text in a table that is aligned to the right, as numbers are."""

    __slots__ = ()


@dataclass
class Page:
    """A page under construction; ``render`` gives the HTML."""

    title: str
    lead: str
    _parts: list[str] = field(default_factory=list)
    _charts: list[dict[str, Any]] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """A section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str, *, note: bool = False) -> None:
        """A paragraph of plain text."""
        kind = ' class="note"' if note else ""
        self._parts.append(f"<p{kind}>{html.escape(text)}</p>")

    def bullets(self, items: Iterable[str]) -> None:
        """A list of plain texts."""
        rows = "".join(f"<li>{html.escape(item)}</li>" for item in items)
        self._parts.append(f"<ul>{rows}</ul>")

    def chart(self, spec: dict[str, Any]) -> None:
        """An interactive chart: drag to move, scroll to zoom, double-click to reset; described below."""
        self._parts.append(f'<div class="chart" id="chart{len(self._charts)}"></div>')
        self._charts.append(spec)
        if "description" in spec:
            self.paragraph(spec["description"], note=True)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, folded: str | None = None
    ) -> None:
        """A table; numbers are aligned to the right, True and False coloured; ``folded`` hides it at first.

        Without names of columns it has no header. A table that is too wide scrolls in its own box; with many
        columns this is as wide as the window.
        """
        kind = "table wide" if len(columns) > MANY_COLUMNS else "table"
        table = f'<div class="{kind}">{html_table(columns, rows)}</div>'
        if folded is not None:
            table = f"<details><summary>{html.escape(folded)}</summary>{table}</details>"
        self._parts.append(table)

    def render(self) -> str:
        """The whole page."""
        import vl_convert

        # names come from files: neither "</script>" nor "<!--<script>" may decide where the script ends
        specs = json.dumps(self._charts, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        bundle = vl_convert.javascript_bundle(vl_version=VEGALITE)  # type: ignore[call-arg]  # its stub errs
        bundle = bundle.replace("</script", "<\\/script")
        scripts = ""
        if self._charts:
            scripts = (
                f'<script type="module">{bundle}\n'
                f"const specs = {specs};\n"
                'specs.forEach((spec, place) => window.vegaEmbed("#chart" + place, spec,'
                ' {renderer: "svg", actions: false}));'
                "</script>"
            )
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style></head><body>"
            f'<h1>{html.escape(self.title)}</h1><p class="lead">{html.escape(self.lead)}</p>'
            f"{''.join(self._parts)}{scripts}</body></html>\n"
        )


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table alone; without names of columns it has no header. Columns of numbers are aligned right."""
    lines = list(rows)
    numbers = [all(_is_number(line[place]) for line in lines) for place in range(len(columns))]
    head = "".join(
        f"<th{NUMBERS if is_number else ''}>{html.escape(column)}</th>"
        for column, is_number in zip(columns, numbers, strict=True)
    )
    head = f"<thead><tr>{head}</tr></thead>" if columns else ""
    body = "".join("<tr>" + "".join(_cell(value) for value in line) + "</tr>" for line in lines)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, Number | int | float) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return f'<td class="{"good" if value else "bad"}">{"yes" if value else "no"}</td>'
    if value is None:
        return '<td class="number">-</td>'
    if isinstance(value, float):
        text = f"{value:.2e}" if abs(value) >= 1e5 else f"{value:.2f}"
        return f'<td class="number">{text.replace("-", "−", 1) if value < 0 else text}</td>'
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    text = str(value)
    kind = ' class="short"' if len(text) <= SHORT else ""
    if isinstance(value, Number):
        kind = ' class="number"'
    return f"<td{kind}>{html.escape(str(value))}</td>"


def picture_png(spec: dict[str, Any], scale: float = 2.0) -> bytes:
    """The chart as PNG, made without a browser."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGALITE, scale=scale))


def picture_svg(spec: dict[str, Any]) -> bytes:
    """The chart as SVG, made without a browser."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(spec, vl_version=VEGALITE)).encode()
