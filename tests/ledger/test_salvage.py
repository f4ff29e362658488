"""Rows out of pages, without SQLite's help: what it stores is what is read."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from sortition import LedgerError
from sortition.ledger import open_run, read_run
from sortition.ledger.salvage import salvaged
from tests.ledger.helpers import PAGE, crash, make, rows_before, rows_of

LENGTHS = [0, 1, 200, 3900, 4040, 4057, 4061, 4062, 8000, 8161, 70_000]
NUMBERS = [0, 1, -1, 127, -129, 2**15, 2**24, 2**40, 2**62, -(2**62), 300]


def test_every_kind_of_value_that_sqlite_stores(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of all lengths, whole seconds, and rows from next to nothing to many pages."""
    run = open_run(path, make)
    for place, (length, number) in enumerate(zip(LENGTHS, NUMBERS, strict=True)):
        if place == 5:
            monkeypatch.setattr(time, "time", lambda: 1000.0)
        run._store.append(
            "\u00e9" * place, number, {"a": np.arange(length, dtype=np.uint32).astype(np.uint8)}
        )
    crash(run)
    assert salvaged_rows(path) == rows_of(path)


def salvaged_rows(path: Path) -> list[tuple[object, ...]]:
    found = salvaged(path, None)
    rows = found.connection.execute("SELECT * FROM events ORDER BY number").fetchall()
    found.connection.close()
    assert found.last == len(rows) - 1 <= found.there
    return rows


def test_a_tree_of_three_levels(path: Path) -> None:
    """The pages in the middle lie after those that they point to; a cut takes the way, not the rows."""
    run = open_run(path, make)
    for _ in range(1100):
        run._store.append("x", 0, {"a": np.zeros(2500, dtype=np.uint8)})
    crash(run)
    expected, data = rows_of(path), path.read_bytes()
    size = 450 * PAGE
    path.write_bytes(data[:size])
    path.with_name("run.db.d").rename(path.with_name("aside"))
    with pytest.raises(LedgerError, match="its end is missing"):
        read_run(path)
    found = salvaged_rows(path)
    assert 400 < len(found) == rows_before(expected, data, size)
    assert found == expected[: len(found)]
