"""A comparison as a page to look at."""

from __future__ import annotations

from datetime import date

import numpy as np

from sortition.lab.compare import Comparison, Row, smooth
from sortition.lab.contestants import ORACLES
from sortition.lab.reports.charts import line_chart
from sortition.lab.reports.page import Number, Page
from sortition.lab.reports.table import HOW_TO_READ, spread

MARKS = {"empirical-bayes": " (default)", **dict.fromkeys(ORACLES, " (oracle)")}
"""What is said of a sampler beside its name."""


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
