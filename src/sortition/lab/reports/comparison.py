"""A comparison as a table for the terminal, and as a page to look at."""

from __future__ import annotations

import math
from datetime import date

import numpy as np

from sortition.core.designs import INCLUSION_DESIGNS
from sortition.lab.arena.tournament import TARGET_SHARE
from sortition.lab.compare import FLAT, TUNING_REPEATS, Comparison, FallingCurve, Row
from sortition.lab.contestants import BASELINE, INDEPENDENT_ONLY, ORACLES
from sortition.lab.reports.charts import line_chart
from sortition.lab.reports.page import Number, Page, html_table
from sortition.lab.versions import in_words

MARKS = {"empirical-bayes": " (default)", **dict.fromkeys(ORACLES, " (oracle)")}
"""What is said of a sampler beside its name."""
LEFT_ALIGNED = ("sampler", "difference")


def described(comparison: Comparison) -> str:
    """What was compared, in a sentence."""
    memory = ", with a memory" if comparison.memory else ""
    repeats = "one run each" if comparison.repeats == 1 else f"{comparison.repeats} repeats"
    others = [row.name for row in comparison.rows if row.name in INDEPENDENT_ONLY]
    but = (
        f"; independent draws for {', '.join(others)}"
        if others and comparison.design != "independent"
        else ""
    )
    return (
        f"{comparison.problem}: {comparison.num_clients} clients, {comparison.cohort_size} drawn a round "
        f"({comparison.design.replace('_', ' ')}{memory}), {comparison.num_rounds} rounds, {repeats}{but}"
    )


def how_to_read(comparison: Comparison) -> list[str]:
    """What the columns mean, and what to beware of."""
    lines = [
        f"The target is uniform sampling's loss after {TARGET_SHARE:.0%} of the rounds, "
        f"{comparison.target_loss:.4g}. Training starts at {comparison.initial_loss:.4g}. "
        "Lower is better throughout.",
        variance_by_norms(comparison),
    ]
    if comparison.repeats > 1:
        lines.append(
            "All samplers have the same federations. Brackets are 95% intervals over the repeats: if one "
            "holds 1, the repeats show no difference."
        )
        if comparison.ignores_seed:
            lines.append(
                f"{comparison.problem} ignores its seed: all repeats have one federation, and the intervals "
                "are over draws only."
            )
        if any(row.rounds_ratio is not None and row.interval is None for row in comparison.rows):
            lines.append(
                "A ratio without brackets has no interval: without one of the repeats the target is missed. "
                "Take more repeats or rounds."
            )
    else:
        lines.append("One repeat says nothing about chance: take more (repeats).")
    uniform = next(row for row in comparison.rows if row.name == BASELINE)
    place = TARGET_SHARE * comparison.num_rounds
    left = FallingCurve(uniform.losses).at(place / 2) - comparison.target_loss
    if left < FLAT * (comparison.initial_loss - comparison.target_loss):
        lines.append(
            f"Uniform sampling's loss hardly falls from round {place / 2:.0f} to {place:.0f}, so rounds say "
            "little: compare final losses, or take fewer rounds or smaller steps."
        )
    if any(row.name in ORACLES for row in comparison.rows):
        lines.append("An oracle sees every norm before it draws, which no server does: it sets the scale.")
    return lines


def variance_by_norms(comparison: Comparison) -> str:
    """What the last column is, and what it is not."""
    start = "Variance by norms tells how good the probabilities are: the sum of (share x norm)² "
    if comparison.design in INCLUSION_DESIGNS:
        formula = "(1 / chance to be drawn - 1)"
        meaning = "It is the variance of independent draws"
        if comparison.design != "independent":
            meaning += "; that of others also depends on how updates agree, which norms do not tell"
    else:
        formula = "/ probability"
        meaning = (
            "The variance of K draws with replacement is such a sum, less the square of the full aggregate, "
            "over K"
        )
        if comparison.design != "with_replacement":
            meaning += "; draws without replacement have another"
    return f"{start}{formula}, over the least that any probabilities can give. {meaning}."


def provenance(comparison: Comparison) -> str:
    """What it takes to make the same comparison again, beside what ``described`` says."""
    first, last = comparison.seed, comparison.seed + comparison.repeats - 1
    seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
    tuned = ""
    if comparison.tuned:
        tuned = f", from which each sampler's was tuned on seeds {last + 1} to {last + TUNING_REPEATS}"
    return f"{in_words(comparison.versions)}, {seeds}, step size {comparison.step_size:g}{tuned}"


def columns(comparison: Comparison) -> list[str]:
    """The names of the columns."""
    step = ["step size"] if comparison.tuned else []
    return ["sampler", *step, "rounds", "vs uniform", "difference", "final loss", "variance by norms"]


def cells(comparison: Comparison, row: Row) -> list[str]:
    """A row of the table as texts."""
    missed = row.rounds_to_target is None
    ratio = "-" if row.rounds_ratio is None else f"x{row.rounds_ratio:.2f}"
    if row.interval is not None and row.name != BASELINE:
        ratio += f" [{row.interval[0]:.2f}, {row.interval[1]:.2f}]"
    final = "diverged" if not math.isfinite(row.final_loss) else f"{row.final_loss:.3f}"
    if math.isfinite(row.final_loss) and comparison.repeats > 1:
        final += f" ± {row.final_loss_spread:.3f}"
    variance = "-" if not math.isfinite(row.mean_variance_ratio) else f"x{row.mean_variance_ratio:.2f}"
    return [
        row.name + MARKS.get(row.name, ""),
        *([f"{row.step_size:g}"] if comparison.tuned else []),
        f"> {comparison.num_rounds}" if missed else f"{row.rounds_to_target:.0f}",
        ratio,
        row.difference,
        final,
        variance,
    ]


def comparison_text(comparison: Comparison) -> str:
    """The table in plain text; "> " and the number of rounds where the target was not reached."""
    names = columns(comparison)
    rows = [cells(comparison, row) for row in comparison.rows]
    widths = [max(len(line[place]) for line in [names, *rows]) for place in range(len(names))]

    def joined(line: list[str]) -> str:
        return "  ".join(
            text.ljust(width) if name in LEFT_ALIGNED else text.rjust(width)
            for name, text, width in zip(names, line, widths, strict=True)
        ).rstrip()

    ruler = "  ".join("-" * width for width in widths)
    return "\n".join(
        [described(comparison), "", joined(names), ruler, *map(joined, rows), "", *how_to_read(comparison)]
    )


def comparison_html(comparison: Comparison) -> str:
    """The table as HTML, for notebooks."""
    return html_table(columns(comparison), _rows(comparison))


def comparison_page(comparison: Comparison) -> str:
    """The curves and the table, as one self-contained page."""
    page = Page("Samplers compared", f"{described(comparison)}.")
    page.table(columns(comparison), _rows(comparison))
    for line in how_to_read(comparison):
        page.paragraph(line, note=True)
    rounds = np.arange(1.0, comparison.num_rounds + 1)
    page.heading("Training loss")
    several = " The band is one standard deviation between repeats." if comparison.repeats > 1 else ""
    page.paragraph(
        f"Mean of the repeats.{several} The dashed line is the target, {comparison.target_loss:.4g}. "
        "Drag to move, scroll to zoom, double-click to reset."
    )
    losses = {_named(row): (rounds, row.losses, row.losses_spread) for row in comparison.rows}
    page.chart(line_chart(losses, "round", "loss", log=True, target=comparison.target_loss))
    page.heading("Variance by norms, over the least")
    page.paragraph("1 is the least that any probabilities can have in that round. Mean of the repeats.")
    ratios = {_named(row): (rounds, row.variance_ratios) for row in comparison.rows}
    page.chart(line_chart(ratios, "round", "variance by norms", log=True))
    page.paragraph(f"Made on {date.today().isoformat()} by {provenance(comparison)}.", note=True)
    return page.render()


def _rows(comparison: Comparison) -> list[list[str]]:
    names = columns(comparison)
    return [
        [
            text if name in LEFT_ALIGNED else Number(text)
            for name, text in zip(names, cells(comparison, row), strict=True)
        ]
        for row in comparison.rows
    ]


def _named(row: Row) -> str:
    return row.name + MARKS.get(row.name, "")
