"""A comparison as a table for the terminal, as JSON, and as a page to look at."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import date
from typing import Any

import numpy as np
from rich.table import Table

from sortition.lab.arena.tournament import smooth
from sortition.lab.compare import Comparison, Row
from sortition.lab.contestants import ORACLES
from sortition.lab.reports.charts import line_chart
from sortition.lab.reports.page import Number, Page

MARKS = {"empirical-bayes": " (default)", **dict.fromkeys(ORACLES, " (oracle)")}
"""What is said of a sampler beside its name."""
HOW_TO_READ = (
    "Lower is better throughout. The loss to reach is uniform sampling's after 80% of the rounds; "
    "'optimal' has the least variance there is, but it is an oracle: it sees every norm before it draws."
)


def comparison_table(comparison: Comparison) -> Table:
    """One row a sampler; a sampler that never reaches the target loss shows "> T"."""
    target = f"{comparison.target_loss:.3f}"
    table = Table(header_style="bold")
    table.add_column("sampler", no_wrap=True)
    table.add_column(f"rounds to\nloss {target}", justify="right")
    table.add_column("rounds vs\nuniform", justify="right")
    table.add_column("final loss\n(± spread)", justify="right")
    table.add_column("variance vs\noptimum", justify="right")
    for row in comparison.rows:
        table.add_row(
            row.name,
            f"> {comparison.num_rounds}" if row.rounds_to_target is None else str(row.rounds_to_target),
            "-" if row.rounds_ratio is None else f"x{row.rounds_ratio:.2f}",
            f"{row.final_loss:.3f} ± {spread(comparison, row)}",
            f"x{row.mean_variance_ratio:.2f}",
        )
    return table


def spread(comparison: Comparison, row: Row) -> str:
    """The spread of the final loss between the repeats; one run has none."""
    return "-" if comparison.repeats == 1 else f"{row.final_loss_spread:.3f}"


def comparison_json(comparison: Comparison) -> str:
    """All fields of the comparison, under their names; what was not reached is null."""
    return json.dumps(asdict(comparison), indent=2, default=_plain, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def comparison_page(comparison: Comparison, title: str, what: str) -> str:
    """The curves and the table of ``sortition compare``, as one self-contained page."""
    page = Page(title, f"{what}. Made on {date.today().isoformat()}.")
    page.paragraph(HOW_TO_READ)
    page.table(
        (
            "sampler",
            "rounds to the target",
            "rounds vs uniform",
            "final loss",
            "spread",
            "variance vs optimum",
        ),
        [
            (
                _named(row),
                Number(
                    f"> {comparison.num_rounds}" if row.rounds_to_target is None else row.rounds_to_target
                ),
                row.rounds_ratio,
                Number(f"{row.final_loss:.3f}"),
                Number(spread(comparison, row)),
                row.mean_variance_ratio,
            )
            for row in comparison.rows
        ],
    )
    rounds = np.arange(1, comparison.num_rounds + 1)
    page.heading("Training loss")
    page.paragraph(
        f"Mean of the repeats, smoothed as for the table. The loss to reach is {comparison.target_loss:.3f}. "
        "It is the dashed line. Drag to move, scroll to zoom, double-click to reset."
    )
    page.chart(
        line_chart(
            {_named(row): (rounds, smooth(row.losses)) for row in comparison.rows},
            "round",
            "loss",
            log=True,
            target=comparison.target_loss,
        )
    )
    page.heading("Sampling variance over the optimum's")
    page.paragraph("1 is the least that any distribution can have in that round.")
    page.chart(
        line_chart(
            {_named(row): (rounds, smooth(row.variance_ratios)) for row in comparison.rows},
            "round",
            "variance ratio",
            log=True,
        )
    )
    return page.render()


def _named(row: Row) -> str:
    return row.name + MARKS.get(row.name, "")
