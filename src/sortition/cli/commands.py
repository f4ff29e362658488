"""All commands, each imported when it is called; their errors are one line and an exit status."""

from __future__ import annotations

import difflib
import errno
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sortition import __version__
from sortition.core.errors import SortitionError
from sortition.core.validation import printable

# Typer exports BadParameter but not its base, which older versions take from click.
UsageError: type[Any] = typer.BadParameter.__mro__[1]

MODULES = {
    "arena": "sortition.cli.experiments",
    "bench": "sortition.cli.experiments",
    "compare": "sortition.cli.experiments",
    "diagnose": "sortition.cli.diagnosing",
    "reproduce": "sortition.cli.experiments",
    "samplers": "sortition.cli.experiments",
    "warmup": "sortition.cli.experiments",
    "report": "sortition.cli.runs",
    "runs": "sortition.cli.runs",
}
"""Where each command is: looking at a recorded run imports no experiment."""
ABOUT = {
    "arena": "Run every sampler in every environment, and print how far from the optimum each one is.",
    "bench": "Time a sampler's draw and observe beside numpy's choice and the dense specification.",
    "compare": "Train on a federation with several samplers, and print what each is worth in rounds.",
    "diagnose": "Tell whether adaptive sampling will save rounds: the noise of a step, and a verdict.",
    "reproduce": "Run the paper's experiments and draw its figures, published beside measured.",
    "samplers": "Print the samplers that other commands know by name, and when to take which.",
    "warmup": "Compile every kernel now, for example in an image, so that the first run does not have to.",
    "report": "Make a page of a recorded run: one HTML file that opens offline.",
    "runs": "Look at a recorded run, check it, and take it elsewhere.",
}
"""The first line of each command's help: the list of commands imports none of them."""


class Commands(TyperGroup):
    """The commands; their errors are one line on stderr, with status 2, and 130 for Ctrl-C."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(MODULES)

    listing = False
    """Whether help is printed: it needs names and what is said about them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands."""
        self.listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name, imported now; None if there is no such command."""
        if cmd_name in MODULES and self.listing:
            return TyperCommand(cmd_name, help=ABOUT[cmd_name])
        if cmd_name in MODULES:
            group: Any = typer.main.get_group(import_module(MODULES[cmd_name]).app)
            self.commands[cmd_name] = group.commands[cmd_name]
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to call; a name that is none gets the nearest ones as a hint."""
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            close = difflib.get_close_matches(args[0], MODULES)
            if close:
                error.message = f"{error.message.rstrip('.')}. Did you mean {', '.join(map(repr, close))}?"
            raise

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, and exit with the command's status."""
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except UsageError as error:
            status = _fail(error.format_message() + _hint(error), 2)
        raise SystemExit(status)

    def invoke(self, ctx: Any) -> Any:
        """Call the command and turn the library's errors into a status."""
        try:
            return super().invoke(ctx)
        except SortitionError as error:
            return _fail("; ".join([str(error), *getattr(error, "__notes__", ())]), 2)
        except OSError as error:  # a full disk, a place that can't be written to
            if error.errno == errno.EPIPE:  # the reader has left: typer ends quietly
                raise
            named = [str(error.filename)] if error.filename is not None else []
            return _fail(": ".join([*named, error.strerror or str(error)]), 2)
        except KeyboardInterrupt:
            return _fail("interrupted", 130)


def _hint(error: Any) -> str:
    """What there is to choose from, or what is missing."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if error.format_message().startswith("No such command") and context is not None:
        return f" There are {', '.join(context.command.list_commands(context))}."
    if error.format_message().startswith("Missing option") and parameter is not None:
        return f" It takes {parameter.metavar}: {parameter.help}"
    return ""


def _fail(message: str, status: int) -> int:
    typer.echo(f"sortition: {printable(message)}", err=True)
    return status


app = typer.Typer(cls=Commands, suggest_commands=False, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sortition {__version__}")
        raise typer.Exit


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
