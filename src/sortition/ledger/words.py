"""Times and settings of a run, in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from sortition.ledger.settings import fields_of
from sortition.samplers.guard import Guard

_SHARED = ("num_clients", "cohort_size", "client_weights", "design", "guard", "privacy")
"""Settings that an expert shares with its portfolio, or has no use for in it."""
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def moment(seconds: float) -> str:
    """A time to the second; a record may say one that no calendar has.

    >>> moment(0.0), moment(1e300)
    ('1970-01-01 00:00:00 UTC', 'unknown')
    """
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "unknown"


def duration(seconds: float) -> str:
    """How long, in the two largest units.

    >>> duration(93784.0)
    '1 d 2 h'
    """
    if not isfinite(seconds):
        return "unknown"
    left, parts = max(0, round(seconds)), []
    for unit, size in _UNITS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2]) or "0 s"


def settings_in_words(config: Mapping[str, Any]) -> str:
    """The settings beside the sizes; of a guard, what is not as it comes.

    >>> settings_in_words({"num_clients": 9, "cohort_size": 2, "design": "independent", "privacy": "none"})
    'design independent, privacy none'
    """
    words = []
    for name, value in config.items():
        if name == "guard" and isinstance(value, str) and value != "none":
            usual = fields_of(Guard())
            own = [
                f"{field}={set_to}"
                for field, set_to in fields_of(value).items()
                if usual.get(field) != set_to
            ]
            value = f"Guard({', '.join(own)})"
        if name not in ("num_clients", "cohort_size"):
            words.append(f"{name} {value}")
    return ", ".join(words) or "unknown"


def expert_in_words(kind: str, config: Mapping[str, Any]) -> str:
    """An expert of a portfolio, and the settings that are its own.

    >>> expert_in_words("AvareSampler", {"num_clients": 9, "guard": "none", "floor_decay": 0.9})
    'AvareSampler: floor_decay 0.9'
    """
    own = {name: value for name, value in config.items() if name not in _SHARED}
    return f"{kind}: {settings_in_words(own)}" if own else kind
