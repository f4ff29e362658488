"""The commands: parse, call, print."""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text
from typer.core import TyperGroup

from sortition.algorithms import FedSGD
from sortition.core.designs import DESIGNS, Design
from sortition.core.errors import SortitionError
from sortition.experiments import BASELINE, CONTESTANTS, Comparison, compare
from sortition.problems import DigitsFederation
from sortition.reports.export import comparison_json
from sortition.reports.table import HOW_TO_READ, comparison_table

# Typer exports BadParameter but not its base, which in older versions lives in click.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

DEFAULT_SAMPLERS = ",".join(name for name in CONTESTANTS if name != "doubling-osmd")

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line on stderr: status 2 for a bad argument, 130 for Ctrl-C."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            status = super().main(*args, **kwargs)
        except UsageError as error:
            status = complain(error.format_message() if hasattr(error, "format_message") else str(error))
        raise SystemExit(status)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SortitionError as error:
            return complain(str(error))
        except KeyboardInterrupt:
            err.print("sortition: interrupted")
            return 130
