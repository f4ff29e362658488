"""Notes: small values in rows of a run, such as the numbers that were logged, or the names of clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sortition.core.errors import ConfigurationError, LedgerError
from sortition.core.validation import printable, real_number, shown
from sortition.ledger.encoding import Plain, ids_of
from sortition.ledger.replay import within
from sortition.ledger.store import Event, Store

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


def notes_in(store: Store, name: str) -> Iterator[tuple[Event, dict[str, Any]]]:
    """The rows in which something was noted under that name, and what."""
    for event in store.events_of("noted"):
        values = event.values()
        if values.get("note") == name:
            yield event, within(values, _VALUE)


def client_names_in(store: Store) -> dict[int, str]:
    """The names of clients, by id; the last one of each."""
    found: dict[int, str] = {}
    for event, values in notes_in(store, CLIENT_NAMES):
        clients = ids_of(values, "clients").tolist()
        try:
            names = json.loads(values["names"])
        except (KeyError, TypeError, ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or len(names) != len(clients):
            raise LedgerError(f"row {event.number} must hold {len(clients)} names of clients")
        found |= dict(zip(clients, map(str, names), strict=True))
    return found


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


def logged_in(notes: Iterable[tuple[Event, dict[str, Any]]]) -> dict[str, dict[int, float]]:
    """By name and round, what was logged; the last of each name and round counts."""
    found: dict[str, dict[int, float]] = {}
    for event, values in notes:
        for name, value in values.items():
            try:
                number = real_number(name, value)
            except ConfigurationError:
                raise LedgerError(f"row {event.number} must hold numbers, got {shown(value)}") from None
            found.setdefault(printable(name), {})[event.round_index] = number
    return {name: dict(sorted(by_round.items())) for name, by_round in found.items()}
