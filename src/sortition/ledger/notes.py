"""Notes: small values in rows of a run, such as the numbers that were logged, or the names of clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sortition.core.errors import ConfigurationError, LedgerError
from sortition.core.state import part
from sortition.core.validation import printable, real_number, shown
from sortition.ledger.encoding import Plain, ids_of
from sortition.ledger.store import Event

NOTED = "noted"
"""The kind of the rows."""
CLIENT_NAMES = "client_names"
"""Notes of this name hold names of clients."""
LOGGED = "logged"
"""Notes of this name hold numbers of a round."""
RESERVED = {CLIENT_NAMES: "name_clients to name clients", LOGGED: "log to log numbers"}
"""Names of notes that have a method of their own, and what to call."""
LONGEST_NAME = 200
"""A number that is logged has a name with at most this many characters."""
_VALUE = "value."


def note_values(name: str, values: Plain) -> dict[str, Any]:
    """The values of the row in which ``values`` are noted under that name."""
    if not name:
        raise ConfigurationError("name must be a word, got an empty one")
    return {"note": name, **{f"{_VALUE}{entry}": value for entry, value in values.items()}}


def notes_in(events: Iterable[Event], name: str) -> dict[int, dict[str, Any]]:
    """What was noted under that name, by round; the last note of each round."""
    found = {}
    for event in events:
        values = event.values()
        if _name_of(event, values) == name:
            found[event.round_index] = part(values, _VALUE)
    return found


def _name_of(event: Event, values: Plain) -> str:
    """The name of a note; a LedgerError if it is no word, with which an array could not be compared."""
    name = values.get("note")
    if not isinstance(name, str):
        raise LedgerError(f"note of row {event.number} must be a word, got {shown(name)}")
    return name


class Noted:
    """What was logged in rows, and the names of clients."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.client_names: dict[int, str] = {}
        """By id; the last one of each."""
        self._logged: dict[str, dict[int, float]] = {}
        for event in events:
            self.add(event)

    @property
    def logged(self) -> dict[str, dict[int, float]]:
        """By name and round; the last of each."""
        return {printable(name): dict(sorted(numbers.items())) for name, numbers in self._logged.items()}

    def add(self, event: Event) -> None:
        """Take a row of the kind ``NOTED``."""
        values = event.values()
        name = _name_of(event, values)
        if name == LOGGED:
            for entry, value in values.items():
                if entry.startswith(_VALUE):
                    self._add_number(event, entry.removeprefix(_VALUE), value)
        elif name == CLIENT_NAMES:
            self._add_names(event, part(values, _VALUE))

    def _add_number(self, event: Event, name: str, value: Any) -> None:
        try:
            number = real_number(name, value)
        except ConfigurationError:
            raise LedgerError(f"row {event.number} must hold numbers, got {shown(value)}") from None
        self._logged.setdefault(name, {})[event.round_index] = number

    def _add_names(self, event: Event, values: dict[str, Any]) -> None:
        clients = ids_of(values, "clients").tolist()
        try:
            names = json.loads(values["names"])
        except (KeyError, TypeError, ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or len(names) != len(clients):
            raise LedgerError(f"row {event.number} must hold {len(clients)} names of clients")
        self.client_names |= dict(zip(clients, map(str, names), strict=True))


def logged_number(name: Any, value: Any) -> float:
    """``value`` as a number to be logged under ``name``; a ConfigurationError if it can't be."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ConfigurationError(
            f"names of numbers must be printable and have 1 to {LONGEST_NAME} characters, got {shown(name)}"
        )
    return real_number(name, value)


def logged_values(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the row in which ``numbers`` are logged."""
    if not numbers:
        raise ConfigurationError("log must be given at least one number by name, as in log(loss=0.3)")
    # arrays, so that the rows have the same header, which is read only once
    values = {name: np.array(logged_number(name, value)) for name, value in numbers.items()}
    return note_values(LOGGED, values)
