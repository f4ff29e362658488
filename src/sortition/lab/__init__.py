"""What a server never imports: problems, algorithms, the arena, the paper's figures, benchmarks and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sortition.lab.federations.data import federation

__all__ = ["federation"]


def __getattr__(name: str) -> Any:
    """``federation`` is loaded when it is asked for: a look at a recorded run needs no data."""
    if name != "federation":
        raise AttributeError(f"module 'sortition.lab' has no attribute {name!r}")
    from sortition.lab.federations.data import federation

    return federation
