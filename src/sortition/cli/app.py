"""The commands: parse, call, print."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text
from typer.core import TyperGroup

from sortition import __version__
from sortition.algorithms import FedSGD
from sortition.core.designs import DESIGNS, Design
from sortition.core.errors import SortitionError
from sortition.experiments import BASELINE, CONTESTANTS, Comparison, compare
from sortition.problems import STEP_SIZE, DigitsFederation
from sortition.reports.export import comparison_json
from sortition.reports.table import HOW_TO_READ, comparison_table

# Typer exports BadParameter but not its base, which older versions take from click.
UsageError: type[Any] = typer.BadParameter.__mro__[1]
DEFAULT_SAMPLERS = ",".join(name for name in CONTESTANTS if name != "doubling-osmd")


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line on stderr: status 2 for a bad argument, 130 for Ctrl-C."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, and exit with the command's status."""
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except UsageError as error:
            status = _fail(error.format_message(), 2)
        raise SystemExit(status)

    def invoke(self, ctx: Any) -> Any:
        """Call the command and turn what the library raises into a status."""
        try:
            return super().invoke(ctx)
        except SortitionError as error:
            return _fail(str(error), 2)
        except KeyboardInterrupt:
            return _fail("interrupted", 130)


def _fail(message: str, status: int) -> int:
    typer.echo(f"sortition: {message}", err=True)
    return status


app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sortition {__version__}")
        raise typer.Exit


def _whole_number(least: int) -> Callable[[str], int]:
    """A parser whose error, unlike typer's own, says what came."""

    def whole_number(text: str) -> int:
        if not str(text).isdecimal() or int(text) < least:
            raise typer.BadParameter(f"expected a whole number of at least {least}, got {text!r}.")
        return int(text)

    return whole_number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"expected a number, got {text!r}.") from None


def _known_samplers(names: str) -> str:
    for name in names.split(","):
        if name not in CONTESTANTS:
            raise typer.BadParameter(f"expected names out of {', '.join(CONTESTANTS)}, got {name!r}.")
    return names


def _known_design(name: str) -> str:
    if name not in DESIGNS:
        raise typer.BadParameter(f"expected one of {', '.join(DESIGNS)}, got {name!r}.")
    return name


def _writable_file(path: Path | None) -> Path | None:
    if path is not None and not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"expected a file in a directory that can be written to, got {str(path)!r}.")
    return path


@app.callback(invoke_without_command=True)
def sortition(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Choose which clients of a federation train in a round, by a lottery that learns and stays unbiased."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("compare")
def compare_command(
    clients: Annotated[
        int, typer.Option(parser=_whole_number(2), metavar="N", help="Clients of the federation.")
    ] = 100,
    cohort: Annotated[
        int, typer.Option(parser=_whole_number(1), metavar="N", help="Clients drawn in a round.")
    ] = 5,
    rounds: Annotated[
        int, typer.Option(parser=_whole_number(2), metavar="N", help="Rounds of training.")
    ] = 500,
    repeats: Annotated[
        int, typer.Option(parser=_whole_number(1), metavar="N", help="Federations to average over.")
    ] = 5,
    samplers: Annotated[
        str,
        typer.Option(
            callback=_known_samplers,
            metavar="A,B,...",
            show_default="all but doubling-osmd",
            help=f"Out of {', '.join(CONTESTANTS)}.",
        ),
    ] = DEFAULT_SAMPLERS,
    design: Annotated[
        str,
        typer.Option(callback=_known_design, metavar="NAME", help=f"How to draw: {', '.join(DESIGNS)}."),
    ] = "with_replacement",
    step_size: Annotated[
        float, typer.Option(parser=_number, metavar="X", help="Step size of the training, for all samplers.")
    ] = STEP_SIZE,
    seed: Annotated[
        int, typer.Option(parser=_whole_number(0), metavar="N", help="Repeat r uses seed + r.")
    ] = 0,
    jobs: Annotated[int, typer.Option(parser=_whole_number(1), metavar="N", help="Processes to use.")] = 2,
    json: Annotated[
        Path | None,
        typer.Option(
            callback=_writable_file,
            metavar="FILE",
            dir_okay=False,
            writable=True,
            help="Write results and curves here.",
        ),
    ] = None,
) -> None:
    """Train on a federation of handwritten digits with several samplers, and print what each is worth."""
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
        json.write_text(comparison_json(comparison), encoding="utf-8")


def _print(comparison: Comparison, clients: int) -> None:
    console = Console(highlight=False)
    repeats = "one run each" if comparison.repeats == 1 else f"mean of {comparison.repeats} repeats"
    console.print(
        f"Handwritten digits over {clients} clients, {comparison.cohort_size} drawn a round "
        f"({comparison.design.replace('_', ' ')}),\n{comparison.num_rounds} rounds, {repeats}"
    )
    console.print(comparison_table(comparison))
    console.print(HOW_TO_READ)


class RoundsProgress:
    """A bar on stderr with rounds a second and the time left; nothing at all where there is no terminal."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            RoundsPerSecond(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("rounds", total=total)

    def __enter__(self) -> RoundsProgress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def advance_to(self, rounds: int) -> None:
        """Show that this many rounds are done."""
        self._bar.update(self._task, completed=rounds)


class RoundsPerSecond(ProgressColumn):
    """How fast it goes, once that is known."""

    def render(self, task: Task) -> Text:
        """The speed as text."""
        return Text("starting" if task.speed is None else f"{task.speed:.0f} rounds/s")
