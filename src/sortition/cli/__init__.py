"""The command line. ``main`` is the entry point; packages of the extras are imported when it is called."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``sortition``; if a package is missing, name the extra that installs it and exit with status 2."""
    try:
        from sortition.cli.commands import app

        app()
    except ModuleNotFoundError as error:
        from sortition.lab.imported import EXTRAS

        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        print(
            f"sortition: this command needs the package {package}, which is not installed; "
            f"run: pip install 'sortition[{extra}]' (in a clone: pip install '.[{extra}]')",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("sortition: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
