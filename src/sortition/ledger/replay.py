"""From the rows back to the sampler: build it, load the newest good snapshot, repeat every row after it.

The first row says how the sampler was built, so a run can be replayed without the program that made it. Each
setting is an entry ``setting.<name>``. If a setting is a list of samplers, such as the ``experts`` of a
portfolio, then ``setting.experts.0`` is the class of the first one and ``setting.experts.0.<name>`` a setting
of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

import sortition
from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, LedgerError, SortitionError
from sortition.core.guard_settings import Guard
from sortition.core.protocols import Sampler
from sortition.core.state import part
from sortition.ledger.encoding import AVAILABLE, available_of, cohort_bytes, cohort_of, ids_of, whole_of
from sortition.ledger.files import SNAPSHOT, RunFiles
from sortition.ledger.settings_in_words import DEEPEST, experts_of, fields_of
from sortition.ledger.store import Event, Store
from sortition.samplers.base import BaseSampler
from sortition.samplers.privacy import NormPrivacy

MakeSampler: TypeAlias = Callable[[], Sampler]
MOST_EXPERTS = 1000
"""How many samplers may be within one, on all levels together: building many takes long."""
MOST_DRAWN = 2**20
"""How many draws a round may have in a run that only its record says how to build: each takes memory."""
_METHODS = ("draw", "observe", "probabilities", "state_dict", "load_state_dict")
_DEFENCES: Mapping[str, type[Guard | NormPrivacy]] = {"Guard": Guard, "NormPrivacy": NormPrivacy}
_CONFIG = "config."
_ROUND = re.compile(r"\d{1,18}")


# Repeating the rows -----------------------------------------------------------------------------------


@dataclass
class Replayed:
    """A sampler, and how far its run has come."""

    sampler: Any
    open: dict[int, Cohort] = field(default_factory=dict)
    """The cohorts that await feedback, by round, oldest first."""
    round_index: int = 0
    """The round of the next cohort."""
    last_observed: int | None = None
    """The round whose feedback came last; not the newest round if cohorts are answered out of order."""

    def apply(self, event: Event) -> None:
        """Repeat what the row records."""
        values = event.values() if event.kind != "drawn" else {}
        try:
            if event.kind == "drawn":
                self._draw(event)
            elif event.kind == "observed":
                self.last_observed = event.round_index
                cohort = self.open.pop(event.round_index, None)
                if cohort is None:  # drawn before the state was loaded
                    cohort = cohort_of(event.round_index, values)
                self.sampler.observe(cohort, values["norms"])
            elif event.kind == "joined":
                ids, masses = ids_of(values, "ids"), values["clients"]
                clients = masses if np.ndim(masses) else len(ids)
                if not np.array_equal(
                    self.sampler.add_clients(clients, client_weights=values["client_weights"]), ids
                ):
                    raise LedgerError(f"row {event.number} gives the clients that joined other ids")
            elif event.kind == "left":
                self.sampler.remove_clients(values["clients"])
            elif event.kind == "calibrated":
                self.sampler.calibrate(values["norms"], values["clients"])
            elif event.kind == "loaded":
                self.sampler.load_state_dict(part(values, "state."))
                self.round_index = whole_of(values, "round_index")
            elif event.kind != "noted":
                raise LedgerError(f"row {event.number} is of an unknown kind: {event.kind!r}")
        except LedgerError:
            raise
        except (
            SortitionError,
            KeyError,
            AttributeError,
            TypeError,
            ValueError,
            ArithmeticError,
            MemoryError,
        ) as error:
            raise LedgerError(f"row {event.number} ({event.kind}) cannot be repeated: {error}") from error

    def _draw(self, event: Event) -> None:
        # most rows say nothing of availability, and need not be read: they are compared as they are
        drawn = self.sampler.draw(available_of(event.values()) if AVAILABLE in event.payload else None)
        if drawn.round_index != event.round_index or cohort_bytes(drawn) != event.payload:
            cohort_of(event.round_index, event.values())  # the error, if the row does not hold a cohort
            raise LedgerError(
                f"the sampler draws another cohort in round {event.round_index} than the recorded one: the "
                "sampler, the version of the library or the kind of processor is not that of the record"
            )
        self.open[event.round_index] = drawn
        self.round_index = event.round_index + 1


def built(make_sampler: MakeSampler) -> Any:
    """What ``make_sampler`` builds; a ConfigurationError if that is not a sampler."""
    if not callable(make_sampler):
        raise ConfigurationError(
            f"make_sampler must be a function that builds a sampler, got {make_sampler!r}"
        )
    sampler: Any = make_sampler()
    missing = [name for name in _METHODS if not callable(getattr(sampler, name, None))]
    if missing:
        raise ConfigurationError(
            f"make_sampler must build a sampler, got {sampler!r}, which has no {missing[0]}()"
        )
    return sampler


def begin(make_sampler: MakeSampler, first: Event) -> Replayed:
    """The sampler at the start of the run: newly built, with the state it had then."""
    if first.kind != "begun":
        raise LedgerError(f"row 0 must be of kind 'begun', got {first.kind!r}")
    sampler = built(make_sampler)
    try:
        sampler.load_state_dict(part(first.values(), "state."))
    except SortitionError as error:
        differs = differing(part(first.values(), "state."), sampler.state_dict()) or str(error)
        raise LedgerError(
            f"make_sampler must build the sampler that the run was begun with: {differs}"
        ) from error
    return Replayed(sampler)


def rebuild(
    make_sampler: MakeSampler, store: Store, files: RunFiles, *, reading: bool = False
) -> tuple[Replayed, int, int]:
    """The sampler as the last row left it, and the row and round of the snapshot that was used.

    If ``reading``, snapshots that a writer took after ``store`` was opened are ignored.
    """
    first = store.event(0)
    snapshots = [number for number in files.numbers(SNAPSHOT) if not reading or number <= store.last]
    for number in reversed(snapshots):
        try:
            snapshot = files.read(SNAPSHOT, number)
        except (LedgerError, OSError):
            continue  # an older one, or the start, serves as well; verify_run reports the damage
        if number > store.last:
            raise store.damage(
                f"rows are missing from {store.path}: a snapshot was taken after row {number}, "
                f"and the last row is {store.last}"
            )
        if str(snapshot.get("checksum")) != store.checksum_of(number).hex():
            raise store.damage(f"row {number} of {store.path} is not the one that its snapshot belongs to")
        replayed = begin(make_sampler, first)
        _restore(replayed, snapshot, store)
        break
    else:
        replayed, number = begin(make_sampler, first), 0
    round_index = replayed.round_index
    for event in store.events(after=number):
        replayed.apply(event)
    return replayed, number, round_index


def snapshot_values(replayed: Replayed, checksum: bytes) -> dict[str, Any]:
    """Everything that is needed to continue after the row with that checksum."""
    return {
        "checksum": checksum.hex(),
        "round_index": replayed.round_index,
        "last_observed": replayed.last_observed,
        "open": ",".join(map(str, replayed.open)),
        **{f"state.{name}": value for name, value in replayed.sampler.state_dict().items()},
    }


def _restore(replayed: Replayed, snapshot: Mapping[str, Any], store: Store) -> None:
    """Put ``replayed`` into the state of the snapshot."""
    try:
        replayed.sampler.load_state_dict(part(snapshot, "state."))
    except SortitionError as error:
        raise LedgerError(f"a snapshot of {store.path} does not fit the sampler: {error}") from error
    replayed.round_index = whole_of(snapshot, "round_index")
    if snapshot.get("last_observed") is not None:
        replayed.last_observed = whole_of(snapshot, "last_observed")
    for round_index in map(int, _ROUND.findall(str(snapshot.get("open")))):
        event = store.find("drawn", round_index)
        if event is None:
            raise store.damage(f"rows are missing from {store.path}: the draw of round {round_index}")
        replayed.open[round_index] = cohort_of(round_index, event.values())


# How a sampler was built ------------------------------------------------------------------------------


def recorded_settings(sampler: Sampler) -> dict[str, Any]:
    """The class of a sampler and, if the library can build it again, its settings as plain values."""
    kind = type(sampler).__name__
    try:
        settings = _settings(sampler, DEEPEST)
        _check_experts(settings)
    except (TypeError, ValueError, LedgerError):  # not the library's, too large, or not of plain values
        return {"sampler": kind, "rebuildable": False}
    return {
        "sampler": kind,
        "rebuildable": True,
        **{f"setting.{name}": value for name, value in settings.items()},
    }


def maker_from(values: Mapping[str, Any]) -> MakeSampler | None:
    """A function that builds the sampler of ``recorded_settings``; None if only its own program can."""
    if values.get("rebuildable") is not True:
        return None
    settings = part(values, "setting.")
    _check_experts(settings)
    parts = _parts(values.get("sampler"), settings, DEEPEST)

    def make() -> Sampler:
        try:
            sampler = parts.build()
        except Exception as error:  # settings from a damaged or forged file may do anything
            raise LedgerError(f"the recorded settings do not build a sampler: {error}") from error
        if sampler.cohort_size > MOST_DRAWN:
            raise LedgerError(
                f"cohort_size must be at most {MOST_DRAWN} to draw a recorded run again, got "
                f"{sampler.cohort_size}; if the run is yours, give make_sampler"
            )
        return sampler

    return make


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a sampler is built from: its class, its settings, and lists of samplers, which are built first."""

    kind: type[BaseSampler]
    settings: Mapping[str, Any]
    samplers: Mapping[str, Sequence[_Parts]]

    def build(self) -> BaseSampler:
        """A new sampler, with new samplers within it."""
        members: dict[str, Any] = {
            name: [member.build() for member in members] for name, members in self.samplers.items()
        }
        return self.kind(**self.settings, **members)


def _settings(sampler: Any, levels: int) -> dict[str, Any]:
    """The settings as plain values; a TypeError or ValueError if that is not possible."""
    kind = type(sampler)
    if not isinstance(sampler, BaseSampler) or getattr(sortition, kind.__name__, None) is not kind:
        raise TypeError(f"{kind.__name__} is not a sampler of the library")
    found: dict[str, Any] = {}
    for name, value in sampler.settings.items():
        if not isinstance(value, (list, tuple)) or not any(isinstance(one, BaseSampler) for one in value):
            found[name] = _plain(value)
            continue
        if not levels:
            raise ValueError(f"samplers may be nested {DEEPEST} deep, and these are deeper")
        for place, member in enumerate(value):
            found[f"{name}.{place}"] = type(member).__name__
            own = _settings(member, levels - 1)
            found |= {f"{name}.{place}.{setting}": plain for setting, plain in own.items()}
    return found


def _check_experts(names: Iterable[str]) -> None:
    """A LedgerError for too many. ``experts.0`` and ``experts.0.experts.1`` are the classes of one each."""
    experts = sum(name.count(".") % 2 for name in names)
    if experts > MOST_EXPERTS:
        raise LedgerError(f"experts must be at most {MOST_EXPERTS} on all levels together, got {experts}")


def _parts(kind: Any, settings: Mapping[str, Any], levels: int) -> _Parts:
    """The parts of a sampler as they were read. Nothing in them is trusted."""
    found = getattr(sortition, kind, None) if isinstance(kind, str) else None
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise LedgerError(f"sampler must be the name of a sampler of this version, got {kind!r}")
    plain: dict[str, Any] = {}
    lists: dict[str, dict[str, dict[str, Any]]] = {}
    for path, value in settings.items():
        name, dot, rest = path.partition(".")
        if dot:
            place, _, own = rest.partition(".")
            lists.setdefault(name, {}).setdefault(place, {})[own] = value  # own is "" for the class
        else:
            plain[name] = _defence_or_plain(name, value)
    if lists and not levels:
        raise LedgerError(f"{next(iter(lists))} must be nested at most {DEEPEST} deep, got more")
    return _Parts(found, plain, {name: _members(name, own, levels) for name, own in lists.items()})


def _members(name: str, members: Mapping[str, dict[str, Any]], levels: int) -> list[_Parts]:
    places = [str(place) for place in range(len(members))]
    if members.keys() != set(places):
        raise LedgerError(f"{name} must be numbered from 0 without gaps, got {sorted(members)[:9]}")
    return [_parts(members[place].pop("", None), members[place], levels - 1) for place in places]


def _plain(value: Any) -> Any:
    """A setting as a plain value; guard and privacy are dataclasses of numbers."""
    for name, kind in _DEFENCES.items():
        if type(value) is kind:
            return "object " + json.dumps([name, asdict(value)])
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    return np.asarray(value, dtype=np.float64)


def _defence_or_plain(setting: str, value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("object ")):
        return value
    try:
        name, fields = json.loads(value.removeprefix("object "))
        kind = _DEFENCES.get(name) if isinstance(name, str) else None
        if kind is None:
            raise LedgerError(f"{setting} must be one of {', '.join(_DEFENCES)}, got {name!r}")
        return kind(**fields)
    except LedgerError:
        raise
    except (SortitionError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise LedgerError(f"{setting} cannot be read from {value[:80]!r}: {error}") from None


# Settings in the states of samplers -------------------------------------------------------------------


def differing(begun: Mapping[str, Any], built: Mapping[str, Any]) -> str:
    """The settings in which the state of the built sampler differs from that of the run; "" if none do.

    >>> differing({"config.cohort_size": 10}, {"config.cohort_size": 11})
    'cohort_size = 10, got 11'
    """
    if str(begun.get("kind")) != str(built.get("kind")):
        return f"{begun.get('kind')}, got {built.get('kind')}"
    found: list[str] = []
    for name, value in built.items():
        if name.startswith(_CONFIG) and name in begun and str(begun[name]) != str(value):
            found += _differences(name.removeprefix(_CONFIG), begun[name], value)
    others = experts_of(begun)
    for place, expert in experts_of(built).items():
        if place in others and (differs := differing(others[place], expert)):
            found.append(f"expert {place} ({expert['kind']}): {differs}")
    return "; ".join(found)


def _differences(name: str, begun: Any, built: Any) -> list[str]:
    """Of a guard, for example, only the fields that differ."""
    ours, theirs = fields_of(begun), fields_of(built)
    if not ours or ours.keys() != theirs.keys():
        return [f"{name} = {begun}, got {built}"]
    fields = [field for field in ours if ours[field] != theirs[field]]
    return [f"{name}.{field} = {ours[field]}, got {theirs[field]}" for field in fields]
