"""The first use compiles the kernels; whoever waits for it is told."""

from __future__ import annotations

import sys
from pathlib import Path

from sortition.engine.pivotal import draw_fixed_size

COMPILED = "pivotal.draw_fixed_size-*.nbi"
"""What numba keeps of a kernel that every sampler uses."""

_told = False


def cache_directory() -> Path:
    """Where numba keeps compiled kernels."""
    return Path(str(draw_fixed_size.stats.cache_path))


def is_compiled() -> bool:
    """Whether kernels were compiled before, on this machine, for this user."""
    return any(cache_directory().glob(COMPILED))


def tell_who_waits() -> None:
    """Say once, to a terminal or a notebook, that kernels are compiled now."""
    global _told
    if _told:
        return
    _told = True
    watched = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    if watched and not is_compiled():
        print(
            "sortition: compiling kernels, once, about 45 s (sortition warmup does it beforehand)",
            file=sys.stderr,
        )
