"""Flower must be there, and new enough. The first module that this package imports."""

from __future__ import annotations

import re
from importlib import metadata

LEAST = (1, 38)


def check_version() -> None:
    """An ImportError that says what to install, unless a version of Flower is there that has what is used."""
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        found = None
    least = ".".join(map(str, LEAST))
    if found is None:
        raise ImportError(
            f"sortition.integrations.flower needs Flower {least} or newer: pip install 'sortition[flower]' "
            "(in a clone: pip install '.[flower]')"
        )
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < LEAST:
        raise ImportError(
            f"sortition.integrations.flower needs Flower {least} or newer, got {found}: "
            "pip install --upgrade 'sortition[flower]' (in a clone: pip install --upgrade '.[flower]')"
        )


check_version()
