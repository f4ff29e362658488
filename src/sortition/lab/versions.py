"""The versions that a result depends on."""

from __future__ import annotations

import platform
from importlib.metadata import version

import numpy as np

from sortition import __version__


def versions() -> dict[str, str]:
    """Of the library, and of what it computes with.

    >>> list(versions())
    ['sortition', 'python', 'numpy', 'numba']
    """
    return {
        "sortition": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": version("numba"),
    }


def in_words(found: dict[str, str]) -> str:
    """Versions as a page names them.

    >>> in_words({"sortition": "1.0", "numpy": "2.4"})
    'sortition 1.0, numpy 2.4'
    """
    return ", ".join(f"{name} {number}" for name, number in found.items())
