"""The command line. ``main`` is the entry point; it only needs the extras once it is called."""

from __future__ import annotations

import sys

EXTRAS = {"typer": "cli", "rich": "cli", "sklearn": "experiments"}


def main() -> None:
    """Run ``sortition``; if a package of an extra is missing, say which extra brings it and exit with 2."""
    try:
        from sortition.cli.app import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        print(
            f"sortition: the command line needs {package}, which is not installed: "
            "pip install 'sortition[cli,experiments]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    app()
