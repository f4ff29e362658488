"""``sortition compare``: several samplers side by side on one federation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from sortition.cli.app import app
from sortition.cli.options import number, one_of, some_of, whole_number, writable_file, write_text
from sortition.cli.progress import RoundsProgress
from sortition.core.designs import DESIGNS, Design
from sortition.lab.algorithms import FedSGD
from sortition.lab.compare import BASELINE, Comparison, compare
from sortition.lab.contestants import CONTESTANTS, INDEPENDENT_ONLY
from sortition.lab.problems import STEP_SIZE, DigitsFederation
from sortition.lab.reports.comparison_page import comparison_page
from sortition.lab.reports.export import comparison_json
from sortition.lab.reports.table import HOW_TO_READ, comparison_table

DEFAULT_SAMPLERS = ",".join(name for name in CONTESTANTS if name not in {"doubling-osmd", *INDEPENDENT_ONLY})


@app.command("compare")
def compare_command(
    clients: Annotated[
        int, typer.Option(parser=whole_number(2), metavar="N", help="Clients of the federation.")
    ] = 100,
    cohort: Annotated[
        int, typer.Option(parser=whole_number(1), metavar="N", help="Clients drawn in a round.")
    ] = 5,
    rounds: Annotated[
        int, typer.Option(parser=whole_number(2), metavar="N", help="Rounds of training.")
    ] = 500,
    repeats: Annotated[
        int, typer.Option(parser=whole_number(1), metavar="N", help="Federations to average over.")
    ] = 5,
    samplers: Annotated[
        str,
        typer.Option(
            callback=some_of(CONTESTANTS, "sortition compare --help"),
            metavar="A,B,...",
            show_default="all but doubling-osmd and those of independent draws alone",
            help=f"Out of {', '.join(CONTESTANTS)}.",
        ),
    ] = DEFAULT_SAMPLERS,
    design: Annotated[
        str,
        typer.Option(callback=one_of(DESIGNS), metavar="NAME", help=f"How to draw: {', '.join(DESIGNS)}."),
    ] = "with_replacement",
    step_size: Annotated[
        float, typer.Option(parser=number, metavar="X", help="Step size of the training, for all samplers.")
    ] = STEP_SIZE,
    seed: Annotated[
        int, typer.Option(parser=whole_number(0), metavar="N", help="Repeat r uses seed + r.")
    ] = 0,
    jobs: Annotated[int, typer.Option(parser=whole_number(1), metavar="N", help="Processes to use.")] = 2,
    json: Annotated[
        Path | None,
        typer.Option(
            callback=writable_file,
            metavar="FILE",
            dir_okay=False,
            writable=True,
            help="Write results and curves here.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            callback=writable_file,
            metavar="FILE",
            dir_okay=False,
            help="Write a page to look at here (HTML).",
        ),
    ] = None,
) -> None:
    """Train on a federation of handwritten digits with several samplers, and print what each is worth."""
    if report is not None:
        import vl_convert  # noqa: F401 - if it is missing, say so before the work and not after it
    chosen = {name: CONTESTANTS[name] for name in samplers.split(",")}
    runs = len({BASELINE, *chosen}) * repeats
    with RoundsProgress(total=runs * rounds) as progress:
        comparison = compare(
            chosen,
            partial(DigitsFederation, num_clients=clients),
            FedSGD(step_size),
            cohort_size=cohort,
            num_rounds=rounds,
            repeats=repeats,
            design=cast(Design, design),
            seed=seed,
            jobs=jobs,
            progress=progress.advance_to,
        )
    _print(comparison, clients)
    if json is not None:
        write_text(json, comparison_json(comparison))
        typer.echo(f"Results: {json.resolve()}")
    if report is not None:
        title = f"Samplers compared: handwritten digits over {clients} clients"
        write_text(report, comparison_page(comparison, title, _what(comparison, clients)))
        typer.echo(f"Report: {report.resolve()}")


def _print(comparison: Comparison, clients: int) -> None:
    console = Console(highlight=False)
    console.print(_what(comparison, clients))
    console.print(comparison_table(comparison))
    console.print(HOW_TO_READ)


def _what(comparison: Comparison, clients: int) -> str:
    repeats = "one run each" if comparison.repeats == 1 else f"mean of {comparison.repeats} repeats"
    others = [row.name for row in comparison.rows if row.name in INDEPENDENT_ONLY]
    differs = others and comparison.design != "independent"
    but = f"; independent draws for {', '.join(others)}" if differs else ""
    return (
        f"Handwritten digits over {clients} clients, {comparison.cohort_size} drawn a round "
        f"({comparison.design.replace('_', ' ')}),\n{comparison.num_rounds} rounds, {repeats}{but}"
    )
