"""A comparison as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from sortition.lab.compare import Comparison, Row

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
