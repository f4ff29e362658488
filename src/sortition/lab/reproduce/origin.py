"""Which code makes a run: kept with it, for a later start may be of other code."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import sortition

PACKAGE = Path(sortition.__file__).parent


def origin() -> dict[str, Any]:
    """The commit and the versions of what is running."""
    return {
        "commit": commit(),
        "versions": {
            "sortition": sortition.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": version("numba"),
        },
    }


def commit() -> str | None:
    """The commit of the checkout that this code runs from, "+" for changes since; None outside of one."""
    try:
        name, changed = (
            subprocess.run(
                ["git", "-C", PACKAGE, *arguments], capture_output=True, text=True, check=True
            ).stdout
            for arguments in (
                ["rev-parse", "--short", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no", "--", str(PACKAGE)],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return name.strip() + ("+" if changed.strip() else "")


def in_words(origins: list[dict[str, Any]]) -> str:
    """One after another, as a report says it.

    >>> in_words([{"commit": "abc", "versions": {"numpy": "2.4"}}, {"commit": None, "versions": {}}])
    'commit abc with numpy 2.4; an unknown commit'
    """
    return "; ".join(
        (f"commit {each['commit']}" if each["commit"] else "an unknown commit")
        + (" with " if each["versions"] else "")
        + ", ".join(f"{name} {number}" for name, number in each["versions"].items())
        for each in origins
    )
