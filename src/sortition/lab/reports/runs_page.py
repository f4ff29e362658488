"""Several recorded runs as a page to look at."""

from __future__ import annotations

from sortition.lab.reports.charts import logged_chart
from sortition.lab.reports.ledger_page import CURVES
from sortition.lab.reports.page import Number, Page
from sortition.ledger.side_by_side import LEFT_ALIGNED, RunComparison


def runs_page(comparison: RunComparison) -> str:
    """The table, and curves of what was logged with one colour for each run, as one self-contained page."""
    page = Page("Runs compared", f"{len(comparison.runs)} runs: {', '.join(comparison.runs)}.")
    columns, rows = comparison.table()
    page.table(
        columns,
        [
            [cell if name in LEFT_ALIGNED else Number(cell) for name, cell in zip(columns, row, strict=True)]
            for row in rows
        ],
    )
    for line in comparison.how_to_read():
        page.paragraph(line, note=True)
    if different := comparison.differences():
        page.table(("run", "settings that differ"), list(different.items()))
    target = comparison.target
    charts = []
    for name in comparison.logged:
        value = target.value if target is not None and target.name == name else None
        chart = logged_chart(comparison.curves(name), name, target=value)
        if chart is not None:
            charts.append((name, chart))
    for name, chart in charts[:CURVES]:
        page.heading(name)
        if target is not None and target.name == name:
            page.paragraph("The dashed line is the target.", note=True)
        page.chart(chart)
    if not charts:
        page.paragraph("No run has logged a number more than once, so there are no curves.")
    elif len(charts) > CURVES:
        page.paragraph(f"{len(charts) - CURVES} more numbers were logged; sortition runs export has them.")
    return page.render()
