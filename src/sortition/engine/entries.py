"""Entries of a state that hold numbers which can't be just any: nan and infinities are not believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sortition.core.errors import StateError
from sortition.core.state import scalar
from sortition.core.types import BoolArray, FloatArray


def number(state: Mapping[str, Any], name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number out of a state, from ``least`` to ``most``."""
    value = float(scalar(state, name))
    if not (math.isfinite(value) and least <= value <= most):
        within = "" if least == -math.inf else f" from {least:g} to {most:g}"
        raise StateError(f"state must hold {name!r}, a finite number{within}, got {value!r}")
    return value


def check(name: str, values: FloatArray, right: BoolArray, expected: str) -> None:
    """A StateError with the first of ``values``, the entry called ``name``, that is not ``right``."""
    if not right.all():
        wrong = float(values[~right][0])
        raise StateError(f"state must hold {name!r}, numbers that are {expected}, got {wrong!r}")
