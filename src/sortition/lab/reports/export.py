"""A comparison as JSON, curves included."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from sortition.lab.compare import Comparison


def comparison_json(comparison: Comparison) -> str:
    """All fields of the comparison, under their names; what was not reached is null."""
    return json.dumps(asdict(comparison), indent=2, default=_plain, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in a comparison")
