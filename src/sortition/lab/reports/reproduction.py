"""What ``sortition reproduce`` leaves: files for each figure, a page, and blocks in Markdown pages."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from sortition.core.errors import DataError
from sortition.lab.reports.charts import (
    HEIGHT,
    PALETTE,
    POINTS,
    WIDTH,
    Series,
    panel_chart,
    stretches_in_words,
    whole_chart,
)
from sortition.lab.reports.page import Page, picture_png, picture_svg
from sortition.lab.reproduce.figures import VARIANTS, Scale
from sortition.lab.reproduce.finished import origins_in_words, write_whole
from sortition.lab.reproduce.results import Curve, Plan, Result
from sortition.lab.reproduce.variants import DEPARTURES, OUR_READINGS

COLUMNS = ("variant", "panel", "sampler", "quantity", "step_size", "round", "mean", "std")
TABLE_COLUMNS = (
    "variant",
    "panel",
    "sampler",
    "quantity",
    "round",
    "published",
    "replayed",
    "measured",
    "std",
    "runs",
    "of the figure's runs",
    "tolerance",
    "within",
)
VARIANT_TITLES = {"text": "As the text says", "authors": "As the authors' code does"}
AXIS_TITLES = {
    "log loss": "log of the training loss",
    "log regret": "log of the cumulative regret",
    "accuracy": "validation accuracy",
}
VARIANT_NAMES = {"text": "text", "authors": "authors' code"}


def check_outputs(directories: Sequence[Path], quick: bool) -> None:
    """Refuse to replace results that are damaged, or those of a full run by those of a quick one."""
    for directory in directories:
        if directory.exists() and not directory.is_dir():
            raise DataError(
                f"{directory} is a file, but results need a directory there; name another one with --out"
            )
        path = directory / "summary.json"
        if not path.exists():
            continue
        try:
            was_quick = bool(json.loads(path.read_text(encoding="utf-8"))["quick"])
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(
                f"{path} should be the summary of a finished run but is damaged; delete it and start again"
            ) from None
        if was_quick != quick:
            there, wanted = ("quick", "full") if was_quick else ("full", "quick")
            raise DataError(
                f"{directory} holds results of a {there} run, which a {wanted} run would replace; "
                "name another directory with --out"
            )


def write_figure(result: Result, directory: Path, provenance: dict[str, Any]) -> None:
    """``curves.csv``, ``figure.png``, ``figure.svg`` and, when all is there, ``summary.json``."""
    spec = figure_chart(result)
    write_whole(directory / "curves.csv", _curves(result).encode())
    write_whole(directory / "figure.png", picture_png(spec))
    write_whole(directory / "figure.svg", picture_svg(spec))
    runs = list(result.figure.runs())
    summary = {
        "figure": result.figure.name,
        "title": result.figure.title,
        "section": result.figure.section,
        **provenance,
        "runs_made_by": result.origins,
        "seeds": sorted({settings.seed for settings in runs}),
        "settings": [
            {
                "variant": line.variant,
                "panel": line.panel,
                "sampler": line.label,
                "runs": [candidate[0].plain() for candidate in line.candidates],
            }
            for line in result.figure.lines
        ],
        "diverged_runs": result.diverged,
        "final": result.final(),
        "published": result.table,
        "bounds": result.bounds,
    }
    text = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(directory / "summary.json", (text + "\n").encode())


def provenance(plan: Plan, results: Sequence[Result], scale: Scale, quick: bool) -> dict[str, Any]:
    """When, from what, and with which versions: the runs by theirs, the rest by the plan's."""
    origins = [each for result in results for each in result.origins]
    return {
        "date": date.today().isoformat(),
        **plan.origin,
        "runs_made_by": [each for place, each in enumerate(origins) if each not in origins[:place]],
        "quick": quick,
        "rounds": scale.rounds,
        "repeats": scale.repeats,
        "image_repeats": scale.image_repeats,
        "images": plan.sources,
    }


def made(provenance: dict[str, Any]) -> str:
    """The date and the code; the code of the runs is named separately if other code made them."""
    drawn, runs = {name: provenance[name] for name in ("commit", "versions")}, provenance["runs_made_by"]
    if runs in ([], [drawn]):
        return f"Made on {provenance['date']} from {origins_in_words([drawn])}"
    runs_said = origins_in_words(runs)
    return (
        f"Drawn on {provenance['date']} from {origins_in_words([drawn])}, out of runs made from {runs_said}"
    )


def report_page(results: Sequence[Result], provenance: dict[str, Any]) -> str:
    """The page: figures, published against measured, settings, what differs and why."""
    page = Page(
        "The paper's experiments, reproduced",
        "Zhao et al., Adaptive Client Sampling in Federated Learning via Online Learning with Bandit "
        f"Feedback, JMLR 26 (2025). {made(provenance)}: {provenance['rounds']} rounds, "
        f"{provenance['repeats']} repeats ({provenance['image_repeats']} on images).",
    )
    if provenance["quick"]:
        page.paragraph("A quick run: it shows that everything works, and nothing of what the paper claims.")
    table = [row for result in results for row in result.table]
    if table:
        page.heading("Published against measured")
        page.paragraph(
            "Natural logarithm, mean of the runs. Within: no further from the published number than one "
            "published standard deviation, or 0.15 if that is more. The deviation was published for round "
            "1000 only, and is used for the others too; for Figure 3 it was not, and is our own. The "
            "authors' variant is the one that should agree. Replayed: the published ten runs, with the "
            "authors' random numbers in the place of ours. Measured: with ours, and for Figure 1 more runs "
            "than the figure has, because a mean of ten can be off by more than the tolerance. The text's "
            "variant is beside it."
        )
        page.table(TABLE_COLUMNS, [_row(row) for row in table])
    for result in results:
        _section(page, result)
    page.heading("What differs between the text and the authors' code")
    page.table(("what", "text", "authors' code"), DEPARTURES)
    page.paragraph(
        "The authors published no program for Figures 4 and 8, for Avare, or, on images, for other samplers "
        "than Uniform and Adaptive-OSMD. There their variant is what their other programs do, carried over."
    )
    page.paragraph("Where neither says what was done, we chose:")
    page.bullets(OUR_READINGS)
    return page.render()


def _section(page: Page, result: Result) -> None:
    figure = result.figure
    page.heading(f"Figure {figure.name[3:]}: {figure.title}")
    page.paragraph(f"{figure.section}. The paper says: {figure.claim}")
    if figure.name == "fig5":
        page.chart(figure_chart(result))
        return
    page.paragraph(
        "Lines are means over the repeats, bands one standard deviation. Drag to move, scroll to zoom, "
        "double-click to reset.",
        note=True,
    )
    page.chart(figure_chart(result))
    if result.diverged:
        page.paragraph(f"{result.diverged} runs diverged at every step size, and are left out.", note=True)
    page.table(
        ("variant", "panel", "sampler", "quantity", "step size", "mean", "std"),
        [
            (
                VARIANT_TITLES[row["variant"]],
                row["panel"],
                row["sampler"],
                row["quantity"],
                f"{row['step_size']:g}",
                row["mean"],
                row["spread"],
            )
            for row in result.final()
        ],
        folded="The numbers after the last round",
    )
    if result.bounds:
        page.table(
            ("panel", "sampler", "regret", "variation of the optimum", "bound", "kept"),
            [
                (row["panel"], row["sampler"], row["regret"], row["variation"], row["bound"], row["kept"])
                for row in result.bounds
            ],
            folded="Regret against the best comparators above the floor, and the bound of Theorem 8",
        )


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    names = {"std": "spread", "of the figure's runs": "of figure"}
    return tuple(row[names.get(name, name)] for name in TABLE_COLUMNS)


def _curves(result: Result) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for curve in result.curves:
        for moment, mean, spread in zip(curve.rounds, curve.mean, curve.spread, strict=True):
            values = ["" if not np.isfinite(value) else f"{value:.6g}" for value in (mean, spread)]
            step = f"{curve.step_size:g}"
            line = (curve.variant, curve.panel, curve.label, curve.quantity, step, int(moment))
            writer.writerow([*line, *values])
    return text.getvalue()


def figure_chart(result: Result) -> dict[str, Any]:
    """The whole figure: for each variant, a row a quantity and a column a panel."""
    if result.figure.name == "fig5":
        return whole_chart(_sizes_chart(result))
    numbers = count()  # a selection needs a name of its own within the chart
    blocks = []
    for variant in dict.fromkeys(curve.variant for curve in result.curves):
        mine = [curve for curve in result.curves if curve.variant == variant]
        rows = []
        for quantity in dict.fromkeys(curve.quantity for curve in mine):
            panels = list(dict.fromkeys(curve.panel for curve in mine))
            rows.append(
                {
                    "hconcat": [
                        panel_chart(
                            [_series(c) for c in mine if c.quantity == quantity and c.panel == panel],
                            panel,
                            "round",
                            AXIS_TITLES.get(quantity, quantity),
                            zoom=f"zoom{next(numbers)}",
                            named=panel == panels[-1],  # once a row: the panels have the same curves
                        )
                        for panel in panels
                    ]
                }
            )
        blocks.append({"title": _title(VARIANT_TITLES[variant]), "vconcat": rows})
    rounds = max((len(curve.mean) for curve in result.curves), default=0)
    return whole_chart(
        {"vconcat": blocks, "spacing": 30}, stretches_in_words(rounds, POINTS, "round", spread=True)
    )


def _series(curve: Curve) -> Series:
    """A curve under its short name: what stands in brackets is in the tables."""
    return Series(curve.label.partition(" (")[0], curve.rounds, curve.mean, curve.spread)


def _sizes_chart(result: Result) -> dict[str, Any]:
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


def fill_page(page: Path, results: Sequence[Result], provenance: dict[str, Any]) -> list[str]:
    """Replace what stands between ``<!-- NAME -->`` and ``<!-- end -->``, and draw the pictures NAME.svg.

    Blocks of figures that were not run stay as they are, and only pictures that the page shows are drawn.
    Returns the names of the blocks replaced.
    """
    text = read_page(page)
    blocks = _blocks(results, provenance)
    filled = []
    for name, block in blocks.items():
        opening = f"<!-- {name} -->\n"
        before, found, rest = text.partition(opening)
        if found:
            text = f"{before}{opening}\n{block}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
            filled.append(name)
    for result in results:
        for picture in re.findall(rf"\((\S*\b{result.figure.name}\.svg)\)", text):
            write_whole(page.parent / picture, picture_svg(figure_chart(result)))
    write_whole(page, text.encode())
    return filled


def read_page(page: Path) -> str:
    """The text of a page that can be filled: it has marks, and an end to each."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the page {str(page)!r} can't be read as text ({error})") from None
    marks = re.findall(r"^<!-- (\S+) -->$", text, re.MULTILINE)
    if not marks or "end" in marks[::2] or set(marks[1::2]) != {"end"} or len(marks) % 2:
        raise DataError(
            f"the page {str(page)!r} must have blocks from <!-- NAME --> to <!-- end -->; "
            f"its marks are: {', '.join(marks) or 'none'}"
        )
    return text


def _blocks(results: Sequence[Result], provenance: dict[str, Any]) -> dict[str, str]:
    images = "; ".join(f"{name}: {source}" for name, source in provenance["images"].items())
    blocks = {
        "provenance": f"{made(provenance)}: "
        f"{provenance['rounds']} rounds, {provenance['repeats']} repeats, {provenance['image_repeats']} on "
        "images" + (f" ({images})" if images else "") + ".\n",
        "departures": _markdown_table(("what", "text", "authors' code"), DEPARTURES),
        "readings": "".join(f"- {reading}\n" for reading in OUR_READINGS),
    }
    for result in results:
        name = result.figure.name
        if result.table:
            blocks["published" if name == "fig1" else f"published-{name}"] = _published(result)
        if result.table and name == "fig1":
            blocks["published-in-the-end"] = _published_in_the_end(result)
        if result.bounds and name == "fig1":
            blocks["bounds"] = _markdown_table(
                ("panel", "regret", "variation of the optimum", "bound of Theorem 8", "kept"),
                [(b["panel"], b["regret"], b["variation"], b["bound"], b["kept"]) for b in result.bounds],
            )
        blocks[name] = _sizes_table(result) if name == "fig5" else _finals(result)
    return blocks


def _published(result: Result) -> str:
    """A row a published number, the variants side by side."""
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for row in result.table:
        key = (row["panel"], row["sampler"], row["quantity"], row["round"], _digits(row["published"]))
        cells = rows.setdefault(key, [None] * 5)
        measured = f"{row['measured']:.2f} ± {row['spread']:.2f}".replace("-", "−")
        if row["variant"] == "authors":
            cells[:4] = [_digits(row["replayed"]), row["of figure"], measured, row["within"]]
        else:
            cells[4] = measured
    runs = max(row["runs"] for row in result.table)
    ten = min(row["runs"] for row in result.table)
    columns = ["panel", "sampler", "quantity", "round", "published", "replayed"]
    columns += ["our first 10 runs", f"our {runs} runs", "within", f"text, {ten} runs"]
    shown = [place for place in range(len(columns)) if runs > ten or place != 6]  # no column twice
    table = [(*key, *cells) for key, cells in rows.items()]
    return _markdown_table([columns[i] for i in shown], [[row[i] for i in shown] for row in table])


def _digits(value: float | None) -> str | None:
    """As many digits as were published."""
    return None if value is None else f"{value:.3f}".replace("-", "−")


def _published_in_the_end(result: Result) -> str:
    """The same of the loss after the last round: a short table."""
    last = max(row["round"] for row in result.table)
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for row in result.table:
        if row["round"] == last and row["quantity"] == "log loss":
            cells = rows.setdefault((row["panel"], row["sampler"], _digits(row["published"])), [])
            replayed = [_digits(row["replayed"])] if row["variant"] == "authors" else []
            cells += [*replayed, row["measured"]]
    return _markdown_table(
        ("", "sampler", "published", "replayed", "our random numbers", "as the text says"),
        [(*key, *cells) for key, cells in rows.items()],
    )


def _finals(result: Result) -> str:
    """The last round: a row a line, the variants and quantities side by side."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row in result.final():
        column = f"{row['quantity']}, {VARIANT_NAMES[row['variant']]}"
        columns[column] = None
        value = "-" if row["mean"] is None else f"{row['mean']:.2f} ± {row['spread']:.2f}".replace("-", "−")
        if (
            len({candidate.step_size for candidate in result.figure.runs()}) > 2
            and row["quantity"] == "log loss"
        ):
            value += f" (step {row['step_size']:g})"
        rows.setdefault((row["panel"], row["sampler"]), {})[column] = value
    ordered = sorted(columns, key=lambda column: column.split(", ")[0] == "log regret")
    ordered = [
        column for variant in VARIANTS for column in ordered if column.endswith(VARIANT_NAMES[variant])
    ]
    return _markdown_table(
        ("panel", "sampler", *ordered),
        [(*key, *(cells.get(column, "-") for column in ordered)) for key, cells in rows.items()],
    )


def _sizes_table(result: Result) -> str:
    """Figure 5: how many clients have how many images; sizes take the place of rounds."""
    counts = {
        (int(size), curve.variant): round(count)
        for curve in result.curves
        for size, count in zip(curve.rounds, curve.mean, strict=True)
    }
    variants = [variant for variant in VARIANTS if any(variant == own for _, own in counts)]
    totals = [sum(size * count for (size, own), count in counts.items() if own == v) for v in variants]
    sizes = sorted({size for size, _ in counts})
    return _markdown_table(
        ("training images of a client", *(f"clients, {VARIANT_NAMES[variant]}" for variant in variants)),
        [
            *((size, *(counts.get((size, variant), 0) for variant in variants)) for size in sizes),
            ("images in all", *totals),
        ],
    )


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_markdown_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _markdown_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if value is None:
        return "-"
    if isinstance(value, float):
        text = f"{value:.2e}" if abs(value) >= 1e5 else f"{value:.2f}"
        return text.replace("-", "−", 1) if value < 0 else text
    return str(value).replace("|", "\\|")
