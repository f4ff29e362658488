"""Notes: small values in rows of a run, such as the metrics of a round, or the names of clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sortition.core.errors import ConfigurationError, LedgerError
from sortition.ledger.encoding import Plain, ids_of
from sortition.ledger.replay import within
from sortition.ledger.store import Event, Store

CLIENT_NAMES = "client_names"
"""Notes of this name hold names of clients."""
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
