"""In which settings two samplers differ, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_CONFIG = "config."
_FIELD = re.compile(r"(\w+)=([^,()]+)")


def differing(begun: Mapping[str, Any], built: Mapping[str, Any]) -> str:
    """What the state of a sampler as it was built says otherwise than that of the run; "" if nothing.

    >>> differing({"config.cohort_size": 10}, {"config.cohort_size": 11})
    'cohort_size = 10, got 11'
    """
    if begun.get("kind") != built.get("kind"):
        return f"{begun.get('kind')}, got {built.get('kind')}"
    found: list[str] = []
    for name, value in built.items():
        if name.startswith(_CONFIG) and name in begun and begun[name] != value:
            found += _differences(name.removeprefix(_CONFIG), begun[name], value)
    return "; ".join(found)


def _differences(name: str, begun: Any, built: Any) -> list[str]:
    """Of a guard, say, only the fields that differ."""
    ours, theirs = fields_of(begun), fields_of(built)
    if not ours or ours.keys() != theirs.keys():
        return [f"{name} = {begun}, got {built}"]
    fields = [field for field in ours if ours[field] != theirs[field]]
    return [f"{name}.{field} = {ours[field]}, got {theirs[field]}" for field in fields]


def fields_of(setting: Any) -> dict[str, str]:
    """The fields of a defence in words.

    >>> fields_of("Guard(fence=4.0, trial_replies=0)")
    {'fence': '4.0', 'trial_replies': '0'}
    """
    return dict(_FIELD.findall(str(setting)))
