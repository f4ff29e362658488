"""What ``sortition reproduce`` leaves behind: plain files for each figure, and one page to look at."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from sortition.core.errors import DataError
from sortition.lab.reports.charts import VARIANT_TITLES, chart
from sortition.lab.reports.page import Page, picture_png, picture_svg
from sortition.lab.reproduce import Plan, Result, Scale
from sortition.lab.reproduce.departures import DEPARTURES, OUR_READINGS
from sortition.lab.reproduce.origin import in_words
from sortition.lab.reproduce.store import write_whole

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


def check_outputs(directories: Sequence[Path], quick: bool) -> None:
    """Refuse to replace results that are damaged, or those of a full run by those of a quick one."""
    for directory in directories:
        if directory.exists() and not directory.is_dir():
            raise DataError(f"{directory} must be a directory or not be there, got a file")
        path = directory / "summary.json"
        if not path.exists():
            continue
        try:
            was_quick = bool(json.loads(path.read_text(encoding="utf-8"))["quick"])
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(
                f"{path} must be the summary of a finished run, got a damaged file; delete it and start again"
            ) from None
        if was_quick != quick:
            there, wanted = ("quick", "full") if was_quick else ("full", "quick")
            raise DataError(
                f"{directory} must hold no results or those of a {wanted} run, got those of a {there} one; "
                "name another directory with --out"
            )


def write_figure(result: Result, directory: Path, provenance: dict[str, Any]) -> None:
    """``curves.csv``, ``figure.png``, ``figure.svg`` and, when all is there, ``summary.json``."""
    spec = chart(result)
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
    """When and by which code: that of the runs is said apart where it was not the one that drew them."""
    drawn, runs = {name: provenance[name] for name in ("commit", "versions")}, provenance["runs_made_by"]
    if runs in ([], [drawn]):
        return f"Made on {provenance['date']} from {in_words([drawn])}"
    return f"Drawn on {provenance['date']} from {in_words([drawn])}, out of runs made from {in_words(runs)}"


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
            "1000 only, and is used for the others too; for the regret it was not, and is our own. The "
            "authors' variant is the one that should agree. Replayed: the published ten runs, with the "
            "authors' random numbers in the place of ours. Measured: with ours, and more runs than the "
            "figure has, because a mean of ten can be off by more than the tolerance. The text's variant is "
            "beside it."
        )
        page.table(TABLE_COLUMNS, [_row(row) for row in table])
    for result in results:
        _section(page, result)
    page.heading("What differs between the text and the authors' code")
    page.table(("what", "text", "authors' code"), DEPARTURES)
    page.paragraph("Where neither says what was done, we chose:")
    page.bullets(OUR_READINGS)
    return page.render()


def _section(page: Page, result: Result) -> None:
    figure = result.figure
    page.heading(f"Figure {figure.name[3:]}: {figure.title}")
    page.paragraph(f"{figure.section}. The paper says: {figure.claim}")
    if figure.name == "fig5":
        page.chart(chart(result))
        return
    page.paragraph(
        "Lines are means over the repeats, bands one standard deviation. Drag to move, scroll to zoom, "
        "double-click to reset.",
        note=True,
    )
    page.chart(chart(result))
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
