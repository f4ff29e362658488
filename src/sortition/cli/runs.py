"""``sortition runs`` and ``sortition report``: look at a recorded run, check it, take it elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sortition.cli.options import ReportFile, RoundsProgress, page_file, whole_number, widen
from sortition.core.errors import LedgerError
from sortition.ledger import RunRecord, read_run
from sortition.ledger.side_by_side import Target, make_comparison, run_names
from sortition.ledger.store import counted
from sortition.ledger.summary import (
    CLIENT_COLUMNS,
    SILENT_COLUMNS,
    SUSPECT_COLUMNS,
    client_row,
    export_csv,
    figures,
    median_row,
    silent_rows,
    summarise,
    suspect_rows,
    whole_file,
)

LEAST_NAME = 8
"""So many characters of a name are shown at least."""

app = typer.Typer()
runs_app = typer.Typer()
app.add_typer(runs_app, name="runs")

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The file of the run, as given to open_run.")]
Good = Annotated[
    bool, typer.Option("--good", help="Of a damaged run, take the rows before the first damaged one.")
]


@runs_app.callback(invoke_without_command=True)
def runs(context: typer.Context) -> None:
    """Look at a recorded run, check it, and take it elsewhere."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@runs_app.command("show")
def show(
    run: Run,
    top: Annotated[
        int, typer.Option(parser=whole_number(0), metavar="N", help="Clients at each end of the list.")
    ] = 5,
    good: Good = False,
) -> None:
    """Print rounds, coverage, the most and least drawn clients and why, the silent ones, the suspects."""
    with _reading(run, good) as record:
        summary = summarise(record)
    console = Console(highlight=False, markup=False, emoji=False)  # names come from the file
    widen(console, 160)
    overview = Table.grid(padding=(0, 1))
    for name, value in figures(summary, time.time()):
        overview.add_row(f"{name:<18}", value)
    console.print(overview)
    if top and summary.clients:
        for title, clients in (
            ("most drawn, newest norms first", summary.clients[:top]),
            ("least drawn, of those drawn at all", summary.clients[top:][: -top - 1 : -1]),
        ):
            if clients:
                rows = [*map(client_row, clients), median_row(summary)]
                console.print(_table(title, CLIENT_COLUMNS, rows))
    if silent := summary.clients.most_silent(top):
        console.print(_table("most often silent", SILENT_COLUMNS, silent_rows(silent)))
    if top and summary.suspicion.suspects:
        suspects = suspect_rows(summary, top)
        console.print(_table("suspects: norms above the guard's clip", SUSPECT_COLUMNS, suspects))


@runs_app.command("export")
def export(
    run: Run,
    csv: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The directory for rounds.csv, draws.csv and others."),
    ],
    good: Good = False,
) -> None:
    """Write the run as CSV files: a row for each round, each draw, each client that joined or left."""
    with _reading(run, good) as record:
        paths = export_csv(record, csv)
    for path in paths:
        typer.echo(str(path))


@runs_app.command("verify")
def verify(run: Run) -> None:
    """Check every checksum, replay the run from the start, and compare."""
    from sortition.ledger import verify_run  # the samplers, which a look at a run does not need

    with RoundsProgress(None, "rows") as progress:
        found = verify_run(run, on_row=progress.advance)
    typer.echo(
        f"{run}: {counted(found.rows, 'row')}, {counted(found.rounds, 'round')}, "
        f"{counted(found.snapshots, 'snapshot')}, {counted(found.attachments, 'attachment')}: "
        "all as they were written"
    )
    if found.replayed:
        typer.echo("every cohort was drawn again, and every snapshot reached again, to the bit")
    else:
        typer.echo(
            "only the checksums were checked: no cohort was drawn again, for the record does not say how to "
            f"build its {found.sampler}; sortition.ledger.verify_run(path, make_sampler) draws them again"
        )


def _target(text: str) -> Target:
    """NAME=VALUE."""
    name, _, value = text.rpartition("=")
    try:
        found = Target(name, float(value))
    except ValueError:
        found = Target("", math.nan)
    if not found.name or not math.isfinite(found.value):
        raise typer.BadParameter(f"expected NAME=VALUE, such as loss=0.4, got {text!r}.")
    return found


@runs_app.command("compare")
def compare(
    files: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The files of two or more runs.")],
    target: Annotated[
        Target | None,
        typer.Option(
            parser=_target,
            metavar="NAME=VALUE",
            help="Of a logged number; count the rounds until it is reached.",
        ),
    ] = None,
    report: ReportFile = None,
    good: Good = False,
) -> None:
    """Compare runs: what differs, rounds, trainings, what they logged, and the estimated gain."""
    if report is not None:
        import vl_convert  # noqa: F401 - a missing package is an error before the work, not after it
    summaries = {}
    for name, file in zip(run_names(files), files, strict=True):
        with _reading(file, good) as record:
            summaries[name] = summarise(record)
    found = make_comparison(summaries, target)
    typer.echo(found.text())
    if report is not None:
        from sortition.lab.reports.ledger_page import runs_page

        _write_page(report, runs_page(found), *files, option="--report")


@app.command("report")
def report(
    run: Run,
    output: Annotated[
        Path | None,
        typer.Option(callback=page_file, metavar="FILE", help="Where the page goes; RUN.html by default."),
    ] = None,
    good: Good = False,
) -> None:
    """Make a page of a recorded run: one HTML file that opens offline."""
    from sortition.lab.reports.ledger_page import ledger_page

    target = Path(f"{run}.html") if output is None else output
    with _reading(run, good) as record:
        page = ledger_page(record)
    _write_page(target, page, run, option="--output")


def _write_page(target: Path, page: str, *runs: Path, option: str) -> None:
    try:
        with whole_file(target, *runs) as file:
            file.write(page)
    except OSError as error:
        raise LedgerError(
            f"{target} can't be written ({error.strerror}); name another file with {option}"
        ) from None
    typer.echo(f"Report: {target.resolve()}")


@contextmanager
def _reading(run: Path, good: bool) -> Iterator[RunRecord]:
    """The record, with a bar while it is read; rows that were left out are reported at the end."""
    with (
        RoundsProgress(None, "rows") as progress,
        read_run(run, good=good, on_row=progress.advance) as record,
    ):
        yield record
    if record.left_out is not None:
        typer.echo(f"sortition: {run}: {record.left_out}", err=True)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table; if it is too wide, the first column, names, is shortened, and the last one is wrapped."""
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        cells = [row[place] for row in rows]
        if place == 0:
            table.add_column(column, justify="right", no_wrap=True, overflow="ellipsis", min_width=LEAST_NAME)
            continue
        if place == len(columns) - 1:
            cells = " ".join(cells).split()
        table.add_column(column, justify="right", min_width=max(map(len, cells)))
    for row in rows:
        table.add_row(*row)
    return table
