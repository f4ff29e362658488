"""The settings in the states of samplers: of a guard, and of the experts of a portfolio."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

DEEPEST = 8
"""How many levels of portfolios within portfolios are read."""
_FIELD = re.compile(r"\b(\w+)=([^,()]+)")  # begins at words only: a long word takes no longer than its length
_EXPERT = re.compile(r"expert(\d{1,6})\.(.+)", re.DOTALL)


def fields_of(setting: Any) -> dict[str, str]:
    """The fields of a guard or a privacy setting, as text.

    >>> fields_of("Guard(fence=4.0, clip_factor=9.0)")
    {'fence': '4.0', 'clip_factor': '9.0'}
    """
    return dict(_FIELD.findall(str(setting)))


def experts_of(state: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The states of the experts within the state of a portfolio, by place.

    >>> experts_of({"kind": "PortfolioSampler", "expert0.kind": "AvareSampler", "expert0.seed": 0})
    {0: {'kind': 'AvareSampler', 'seed': 0}}
    """
    found: dict[int, dict[str, Any]] = {}
    for name, value in state.items():
        if place := _EXPERT.fullmatch(name):
            found.setdefault(int(place[1]), {})[place[2]] = value
    return {place: own for place, own in sorted(found.items()) if isinstance(own.get("kind"), str)}


def all_experts(state: Mapping[str, Any], levels: int = DEEPEST) -> Iterator[tuple[str, dict[str, Any]]]:
    """The experts of a portfolio with their states, each followed by its own experts: "0", "1", "1.0", ..."""
    for place, own in experts_of(state).items() if levels else ():
        yield str(place), own
        for inner, state_of_inner in all_experts(own, levels - 1):
            yield f"{place}.{inner}", state_of_inner
