"""``sortition diagnose``: will adaptive sampling help?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sortition.cli.options import (
    MOST_SEED,
    OPTIONS,
    ReportFile,
    RoundsProgress,
    as_typed,
    number,
    whole_number,
    writable_file,
    write_text,
)
from sortition.lab.compare import make_problem
from sortition.lab.diagnosis.diagnose import ROUNDS, diagnose
from sortition.lab.imported import imported
from sortition.lab.reports.diagnosis_page import how_to_read

app = typer.Typer()


@app.command("diagnose")
@as_typed({**OPTIONS, "problem": "SOURCE"})
def diagnose_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A recorded run (RUN.db), norms (NORMS.csv with client, size, norm and, if there are any, "
            "round and noise), or a problem (module:factory, called with a seed).",
        ),
    ],
    cohort: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(1), metavar="N", help="Clients drawn in a round today; a run knows its own."
        ),
    ] = None,
    step_size: Annotated[
        float | None,
        typer.Option(parser=number, metavar="X", help="problem: the step of the training today."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(1),
            metavar="N",
            show_default=str(ROUNDS),
            help="problem: rounds to train.",
        ),
    ] = None,
    pilots: Annotated[
        bool,
        typer.Option(
            help="problem: also train each choice, at steps of its own; about 150 trainings.",
        ),
    ] = True,
    seed: Annotated[
        int,
        typer.Option(parser=whole_number(0, MOST_SEED), metavar="N", help="Of the draws, and of a problem."),
    ] = 0,
    json: Annotated[
        Path | None,
        typer.Option(callback=writable_file, metavar="FILE", dir_okay=False, help="Write the figures here."),
    ] = None,
    report: ReportFile = None,
) -> None:
    """Tell whether adaptive sampling will save rounds: the noise of a step, and a verdict."""
    if report is not None:
        import vl_convert  # noqa: F401 - a missing package is an error before the work, not after it
    what: Any = source
    if ":" in source and not Path(source).exists():
        what = make_problem(imported("problem", source), seed)
    elif not Path(source).exists():
        raise typer.BadParameter(
            "SOURCE must be a recorded run (RUN.db), norms (NORMS.csv) or a problem (module:factory), "
            f"got {source!r}, and there is no such file."
        )
    elif rounds is not None or step_size is not None:
        raise typer.BadParameter(
            f"--rounds and --step-size are for a problem (module:factory); leave them out, got {source!r}."
        )
    rounds = rounds or ROUNDS
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress.advance_to(done)

    total = rounds if what is not source and not pilots else None  # a search takes as long as it takes
    with RoundsProgress(total) as progress:
        found = diagnose(
            what,
            cohort_size=cohort,
            step_size=step_size,
            num_rounds=rounds,
            pilots=pilots,
            seed=seed,
            tick=tick,
        )
    typer.echo(f"{found!r}\n\n{how_to_read(found)}")
    sources = [Path(source)] if what is source else []
    if json is not None:
        write_text(json, found.json(), *sources)
        typer.echo(f"Results: {json.resolve()}")
    if report is not None:
        write_text(report, found.page(), *sources)
        typer.echo(f"Report: {report.resolve()}")
