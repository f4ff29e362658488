"""``sortition reproduce``: the paper's figures, run and drawn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, cast

import typer

from sortition.cli.app import app
from sortition.cli.options import one_of, whole_number
from sortition.cli.progress import RoundsProgress
from sortition.lab.reports.markdown import fill_page, read_page
from sortition.lab.reports.reproduction import check_outputs, provenance, report_page, write_figure
from sortition.lab.reproduce import FIGURES, FULL, QUICK, VARIANTS, Result, Variant, execute, plan
from sortition.lab.reproduce.store import write_whole

EVERYTHING = "all"


def known_figures(names: list[str]) -> list[str]:
    """Check names of figures; ``all`` stands for every one."""
    for name in names:
        one_of((*FIGURES, EVERYTHING))(name)
    return list(FIGURES) if EVERYTHING in names else list(dict.fromkeys(names))


def directory(text: str) -> Path:
    """A path, but not an empty one: that would be the current directory, and is a variable not set."""
    if not str(text):
        raise typer.BadParameter("expected a directory, got ''.")
    return Path(text)


@app.command("reproduce")
def reproduce_command(
    figures: Annotated[
        list[str],
        typer.Argument(callback=known_figures, metavar="FIGURE...", help="fig1 to fig8, or all."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=directory,
            metavar="DIR",
            show_default="reproduction, or reproduction-quick",
            help="Where results go; finished runs found there are not run again.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="30 rounds of everything, to see that it works.")
    ] = False,
    variant: Annotated[
        str,
        typer.Option(
            callback=one_of((*VARIANTS, "both")),
            metavar="NAME",
            help="text, authors (their published code) or both.",
        ),
    ] = "both",
    data: Annotated[
        Path | None,
        typer.Option(
            parser=directory,
            metavar="DIR",
            help="Directory with mnist, kmnist and fashion-mnist as IDX files (fig6).",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(parser=whole_number(1), metavar="N", help="Processes to use.")] = 2,
    docs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Also fill the marked blocks of this Markdown page (all, in full, only); may be repeated.",
        ),
    ] = None,
) -> None:
    """Run the paper's experiments and draw its figures, published beside measured where both are known."""
    import vl_convert  # noqa: F401 - if it is missing, say so before the work and not after it

    if docs and (quick or set(figures) != set(FIGURES) or variant != "both"):
        raise typer.BadParameter(
            "pages are filled by a run of everything: 'all' in both variants, and not --quick.",
            param_hint="'--docs'",
        )
    target = out or Path("reproduction-quick" if quick else "reproduction")
    scale = QUICK if quick else FULL
    variants = VARIANTS if variant == "both" else (cast(Variant, variant),)
    check_outputs([target / name for name in figures], quick)
    for markdown in docs or ():
        read_page(markdown)
    todo = plan(figures, target, variants=variants, scale=scale, data=data)
    if todo.kept:
        typer.echo(f"{todo.kept} finished runs found in {todo.store.directory}", err=True)
    begun = time.monotonic()
    with RoundsProgress(total=todo.rounds) as progress:
        results = execute(todo, jobs, progress.advance_to)
    seconds = time.monotonic() - begun
    if todo.rounds:
        typer.echo(f"{todo.rounds:,} rounds at most, in {seconds:.0f} s", err=True)
    origin = provenance(todo, results, scale, quick)
    for result in results:
        write_figure(result, target / result.figure.name, origin)
        typer.echo(f"{result.figure.name}: {target / result.figure.name}")
        _print_numbers(result)
    page = target / "report.html" if len(results) > 1 else target / figures[0] / "report.html"
    write_whole(page, report_page(results, origin).encode())
    typer.echo(f"Report: {page.resolve()}")
    for markdown in docs or ():
        typer.echo(f"Filled in {markdown}: {', '.join(fill_page(markdown, results, origin))}")


def _print_numbers(result: Result) -> None:
    """How many published numbers were met."""
    for variant in VARIANTS:
        rows = [row for row in result.table if row["variant"] == variant]
        if rows:
            met = sum(row["within"] for row in rows)
            typer.echo(f"  {variant}: {met} of {len(rows)} published numbers within their tolerance")
        same = [
            abs(row["replayed"] - row["published"]) < 0.0051 for row in rows if row["replayed"] is not None
        ]
        if same:
            typer.echo(f"  with the authors' random numbers: {sum(same)} of {len(same)} to the last digit")
