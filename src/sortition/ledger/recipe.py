"""How a sampler was built, as plain values: a run can be replayed without the program that made it.

A setting is an entry ``setting.<name>``. Where it is a list of samplers, as a portfolio's ``experts`` are,
``setting.experts.0`` is the kind of the first one and ``setting.experts.0.<name>`` a setting of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import sortition
from sortition.core.errors import LedgerError, SortitionError
from sortition.core.protocols import Sampler
from sortition.ledger.replay import MakeSampler, within
from sortition.ledger.settings import DEEPEST
from sortition.samplers.base import BaseSampler
from sortition.samplers.guard import Guard
from sortition.samplers.privacy import NormPrivacy

MOST_EXPERTS = 1000
"""How many samplers may lie within one, all told: building many takes long."""
_DEFENCES: Mapping[str, type[Guard | NormPrivacy]] = {"Guard": Guard, "NormPrivacy": NormPrivacy}


def recipe(sampler: Sampler) -> dict[str, Any]:
    """The sampler's kind and, for one of the library's, the settings that it was built with."""
    kind = type(sampler).__name__
    try:
        settings = _settings(sampler, DEEPEST)
        _check_experts(settings)
    except (TypeError, ValueError, LedgerError):  # not the library's, too large, or of no plain values
        return {"sampler": kind, "rebuildable": False}
    return {
        "sampler": kind,
        "rebuildable": True,
        **{f"setting.{name}": value for name, value in settings.items()},
    }


def maker(values: Mapping[str, Any]) -> MakeSampler | None:
    """Builds the sampler of a recipe; None where only the program that made it can."""
    if values.get("rebuildable") is not True:
        return None
    settings = within(values, "setting.")
    _check_experts(settings)
    parts = _parts(values.get("sampler"), settings, DEEPEST)

    def make() -> Sampler:
        try:
            return parts.build()
        except MemoryError:
            raise
        except Exception as error:  # nobody knows what settings that nobody wrote may do
            raise LedgerError(f"the settings of the run must build its sampler, got {error}") from error

    return make


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a sampler is made of: its kind, its settings, and the samplers among them, to be built first."""

    kind: type[BaseSampler]
    settings: Mapping[str, Any]
    samplers: Mapping[str, Sequence[_Parts]]

    def build(self) -> BaseSampler:
        """The sampler, and whatever it consists of, new."""
        built: dict[str, Any] = {
            name: [member.build() for member in members] for name, members in self.samplers.items()
        }
        return self.kind(**self.settings, **built)


def _settings(sampler: Any, levels: int) -> dict[str, Any]:
    """The settings as plain values; a TypeError or ValueError where they can't be, or are too deep."""
    kind = type(sampler)
    if not isinstance(sampler, BaseSampler) or getattr(sortition, kind.__name__, None) is not kind:
        raise TypeError(f"a sampler must be one of the library's, got {kind.__name__}")
    found: dict[str, Any] = {}
    for name, value in sampler.built_with.items():
        if not isinstance(value, (list, tuple)) or not any(isinstance(one, BaseSampler) for one in value):
            found[name] = _plain(value)
            continue
        if not levels:
            raise ValueError(f"samplers must lie in each other at most {DEEPEST} deep, got more")
        for place, member in enumerate(value):
            found[f"{name}.{place}"] = type(member).__name__
            own = _settings(member, levels - 1)
            found |= {f"{name}.{place}.{setting}": plain for setting, plain in own.items()}
    return found


def _check_experts(names: Iterable[str]) -> None:
    """A LedgerError for too many; ``experts.0`` and ``experts.0.experts.1`` are kinds, of one expert each."""
    experts = sum(name.count(".") % 2 for name in names)
    if experts > MOST_EXPERTS:
        raise LedgerError(f"experts must be at most {MOST_EXPERTS} all told, got {experts}")


def _parts(kind: Any, settings: Mapping[str, Any], levels: int) -> _Parts:
    """A recipe as it was read: nothing of it is believed."""
    found = getattr(sortition, kind, None) if isinstance(kind, str) else None
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise LedgerError(f"the sampler must be one of this version's, got {kind!r}")
    plain: dict[str, Any] = {}
    lists: dict[str, dict[str, dict[str, Any]]] = {}
    for path, value in settings.items():
        name, dot, rest = path.partition(".")
        if dot:
            place, _, own = rest.partition(".")
            lists.setdefault(name, {}).setdefault(place, {})[own] = value  # own is "" for the kind
        else:
            plain[name] = _rich(value)
    if lists and not levels:
        raise LedgerError(f"samplers must lie in each other at most {DEEPEST} deep, got more")
    return _Parts(found, plain, {name: _members(name, own, levels) for name, own in lists.items()})


def _members(name: str, members: Mapping[str, dict[str, Any]], levels: int) -> list[_Parts]:
    places = [str(place) for place in range(len(members))]
    if members.keys() != set(places):
        raise LedgerError(f"{name} must be numbered from 0 on, got {sorted(members)[:9]}")
    return [_parts(members[place].pop("", None), members[place], levels - 1) for place in places]


def _plain(value: Any) -> Any:
    """A setting as a plain value; defences are dataclasses of numbers."""
    for name, kind in _DEFENCES.items():
        if type(value) is kind:
            return "object " + json.dumps([name, asdict(value)])
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    return np.asarray(value, dtype=np.float64)


def _rich(value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("object ")):
        return value
    try:
        name, fields = json.loads(value.removeprefix("object "))
        kind = _DEFENCES.get(name) if isinstance(name, str) else None
        if kind is None:
            raise LedgerError(f"a setting must be of a kind that this version knows, got {name!r}")
        return kind(**fields)
    except LedgerError:
        raise
    except (SortitionError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise LedgerError(f"a setting must be readable, got {value[:80]!r} ({error})") from None
