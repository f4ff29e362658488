"""The settings in the states of samplers and of their experts, and in which two of them differ, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

DEEPEST = 8
"""How deep portfolios may lie in each other, in what is read."""

_CONFIG = "config."
_FIELD = re.compile(r"(\w+)=([^,()]+)")
_EXPERT = re.compile(r"expert(\d{1,6})\.(.+)", re.DOTALL)


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
    others = experts_of(begun)
    for place, expert in experts_of(built).items():
        if place in others and (differs := differing(others[place], expert)):
            found.append(f"expert {place} ({expert['kind']}): {differs}")
    return "; ".join(found)


def experts_of(state: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The states of the experts within the state of a portfolio, by their places.

    >>> experts_of({"kind": "PortfolioSampler", "expert0.kind": "AvareSampler", "expert0.seed": 0})
    {0: {'kind': 'AvareSampler', 'seed': 0}}
    """
    found: dict[int, dict[str, Any]] = {}
    for name, value in state.items():
        if place := _EXPERT.fullmatch(name):
            found.setdefault(int(place[1]), {})[place[2]] = value
    return {place: own for place, own in sorted(found.items()) if isinstance(own.get("kind"), str)}


def all_experts(state: Mapping[str, Any], levels: int = DEEPEST) -> Iterator[tuple[str, dict[str, Any]]]:
    """The experts of a portfolio, each followed by its own, with their states: "0", "1", "1.0", ..."""
    for place, own in experts_of(state).items() if levels else ():
        yield str(place), own
        for inner, state_of_inner in all_experts(own, levels - 1):
            yield f"{place}.{inner}", state_of_inner


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
