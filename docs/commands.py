"""The command line as one click command, for reference/commands.md."""

import typer

from sortition.cli.commands import app

command = typer.main.get_command(app)
