"""The app that commands register with: its errors are one line, its status tells what went wrong."""

from __future__ import annotations

import errno
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sortition import __version__
from sortition.core.errors import SortitionError

# Typer exports BadParameter but not its base, which older versions take from click.
UsageError: type[Any] = typer.BadParameter.__mro__[1]


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line on stderr: status 2 for a bad argument, 130 for Ctrl-C."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, and exit with the command's status."""
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except UsageError as error:
            status = _fail(_said_once(error.format_message()) + _hint(error), 2)
        raise SystemExit(status)

    def invoke(self, ctx: Any) -> Any:
        """Call the command and turn what the library raises into a status."""
        try:
            return super().invoke(ctx)
        except SortitionError as error:
            return _fail("; ".join([str(error), *getattr(error, "__notes__", ())]), 2)
        except OSError as error:  # a disk that is full, a place that can't be written to
            if error.errno == errno.EPIPE:  # nobody reads on: typer ends quietly
                raise
            named = [str(error.filename)] if error.filename is not None else []
            return _fail(": ".join([*named, error.strerror or str(error)]), 2)
        except KeyboardInterrupt:
            return _fail("interrupted", 130)


def _said_once(message: str) -> str:
    """Without the hint that click gives after typer has given it."""
    said, *hints = message.split(" Did you mean")
    return " Did you mean".join([said, *dict.fromkeys(hints)])


def _hint(error: Any) -> str:
    """What there is to choose from, or what is missing."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if error.format_message().startswith("No such command") and context is not None:
        return f" There are {', '.join(context.command.list_commands(context))}."
    if error.format_message().startswith("Missing option") and parameter is not None:
        return f" It wants {parameter.metavar}: {parameter.help}"
    return ""


def _fail(message: str, status: int) -> int:
    typer.echo(f"sortition: {message}", err=True)
    return status


app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False)


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
