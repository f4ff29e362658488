"""Recorded runs as pages to look at: one of them, or several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sortition.core.types import IntArray
from sortition.lab.reports.charts import line_chart, logged_chart
from sortition.lab.reports.page import Number, Page
from sortition.ledger import RunRecord
from sortition.ledger.side_by_side import LEFT_ALIGNED, RunComparison
from sortition.ledger.summary import (
    CLIENT_COLUMNS,
    SILENT_COLUMNS,
    SUSPECT_COLUMNS,
    TROUBLES,
    client_row,
    figures,
    silent_rows,
    summarise,
    suspect_rows,
)
from sortition.ledger.tally import ClientSummary

SHOWN = 20
CHANGES = 200
CURVES = 20
"""Charts of what was logged, at most."""


def ledger_page(record: RunRecord) -> str:
    """Rounds, coverage, failures, norms and the clients of a run, as one self-contained page."""
    summary = summarise(record)
    page = Page(f"Run {record.path.name}", f"{summary.sampler}, {summary.rounds} rounds.")
    page.table((), figures(summary))
    if summary.suspicion.suspects:
        page.heading("Suspects")
        page.paragraph(
            "Clients whose norms were above the clip of the sampler's guard, the most frequent first."
        )
        suspects = [summary.clients.of(suspect.client) for suspect in summary.suspicion.suspects[:SHOWN]]
        page.table(SUSPECT_COLUMNS, map(_row, suspect_rows(summary, SHOWN), suspects))
    silent = summary.clients.most_silent(SHOWN)
    if silent:
        page.heading("Most often silent")
        page.table(SILENT_COLUMNS, [tuple(map(Number, row)) for row in silent_rows(silent)])
    drawn = {
        name: logged_chart({name: numbers}, name)
        for name, numbers in summary.logged.items()
        if name not in TROUBLES  # the figures have their sums
    }
    charts = [chart for chart in drawn.values() if chart is not None]
    if charts:
        page.heading("Logged")
        if len(charts) > CURVES:
            page.paragraph(f"The first {CURVES} of {len(charts)}; sortition runs export has them all.")
        for chart in charts[:CURVES]:
            page.chart(chart)
    rounds = summary.round_indices
    page.heading("Who takes part")
    page.paragraph(
        "Clients drawn so far, and how many clients drawn equally often would be as diverse (the effective "
        "number): the further the second stays below the first, the more the draws are concentrated."
    )
    if summary.rounds:
        lines = {
            "drawn so far": (rounds, summary.seen_by_round),
            "effective": (rounds, summary.effective_by_round),
        }
        page.chart(line_chart(lines, "round", "clients"))
        page.heading("Replies")
        page.paragraph("A round that awaits feedback is left out.", note=True)
        page.chart(
            line_chart(
                {"share of the cohort": (rounds, summary.replies_by_round)}, "round", "replied", share=True
            )
        )
        if not summary.private:
            page.heading("Norms of the updates")
            page.paragraph(
                "On a logarithmic scale; a round without a reply, or with a median of 0, is left out.",
                note=True,
            )
            medians = {"median of the cohort": (rounds, summary.norms_by_round)}
            page.chart(line_chart(medians, "round", "norm", log=True))
    page.heading("The most drawn clients")
    page.table(CLIENT_COLUMNS, [_row(client_row(known), known) for known in summary.clients[:SHOWN]])
    page.heading("The least drawn clients, of those drawn at all")
    page.table(
        CLIENT_COLUMNS, [_row(client_row(known), known) for known in summary.clients[: -SHOWN - 1 : -1]]
    )
    changes = summary.changes
    if changes:
        page.heading("Joins and leaves")
        if len(changes) > CHANGES:
            page.paragraph(f"The last {CHANGES} of {len(changes)}; sortition runs export has them all.")
        page.table(
            ("before round", "joined", "left"),
            [
                (
                    change.round_index,
                    _clients(change.joined, summary.clients.names),
                    _clients(change.left, summary.clients.names),
                )
                for change in changes[-CHANGES:]
            ],
        )
    return page.render()


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


def _row(row: Sequence[str], known: ClientSummary) -> tuple[str, ...]:
    """Numbers to the right, and the last norms apart from each other, with three digits each."""
    *numbers, norms = row
    if known.norms:
        norms = ", ".join(f"{norm:#.3g}".rstrip(".") for norm in known.norms)
    return (*map(Number, numbers), norms)


def _clients(clients: IntArray | None, names: Mapping[int, str]) -> str:
    """Their number, and the first of them."""
    if clients is None or not len(clients):
        return "-"
    named = ", ".join(names.get(client, str(client)) for client in clients[:SHOWN].tolist())
    return f"{len(clients)}: {named}{', ...' if len(clients) > SHOWN else ''}"
