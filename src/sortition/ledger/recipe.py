"""How a sampler was built, as plain values: a run can be replayed without the program that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

import sortition
from sortition.core.errors import LedgerError, SortitionError
from sortition.core.protocols import Sampler
from sortition.ledger.replay import MakeSampler, within
from sortition.samplers.base import BaseSampler


def recipe(sampler: Sampler) -> dict[str, Any]:
    """The sampler's kind and, for one of the library's, the settings that it was built with."""
    kind = type(sampler).__name__
    if not isinstance(sampler, BaseSampler) or getattr(sortition, kind, None) is not type(sampler):
        return {"sampler": kind, "rebuildable": False}
    try:
        settings = {f"setting.{name}": _plain(value) for name, value in sampler.built_with.items()}
    except (TypeError, ValueError):  # built with something that is no plain value
        return {"sampler": kind, "rebuildable": False}
    return {"sampler": kind, "rebuildable": True, **settings}


def maker(values: Mapping[str, Any]) -> MakeSampler | None:
    """Builds the sampler of a recipe; None where only the program that made it can."""
    if not values.get("rebuildable"):
        return None
    kind = getattr(sortition, str(values["sampler"]), None)
    if not (isinstance(kind, type) and issubclass(kind, BaseSampler)):
        raise LedgerError(f"the sampler must be one of this version's, got {values['sampler']!r}")
    settings = {name: _rich(value) for name, value in within(values, "setting.").items()}

    def make() -> Sampler:
        try:
            return kind(**settings)
        except (SortitionError, TypeError) as error:
            raise LedgerError(f"the settings of the run must build its sampler, got {error}") from error

    return make


def _plain(value: Any) -> Any:
    """A setting as a plain value; defences and the like are dataclasses of numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return "object " + json.dumps([type(value).__name__, asdict(value)])
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    return np.asarray(value, dtype=np.float64)


def _rich(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("object "):
        name, fields = json.loads(value.removeprefix("object "))
        kind = getattr(sortition, name, None)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise LedgerError(f"a setting must be of a kind that this version knows, got {name!r}")
        return kind(**fields)
    return value
