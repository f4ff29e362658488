"""Rows with right checksums and values that no run has: a LedgerError that names them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import LedgerError
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import pack, unpack
from sortition.ledger.store import checksum
from sortition.ledger.summary import summarise
from tests.ledger.helpers import make, recorded, rows_of

GONE = ...


def resealed(path: Path, change: Callable[[list[list[Any]]], None]) -> None:
    """The run with changed rows whose checksums are right."""
    recorded(path, 3)
    rows = [list(row) for row in rows_of(path)]
    change(rows)
    connection, previous = sqlite3.connect(path), b""
    with connection:
        for row in rows:
            row[5] = previous = checksum(previous, *row[:5])
            connection.execute("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.close()
    path.with_name("run.db.d").rename(path.with_name("aside"))


def saying(path: Path, number: int, name: str, value: Any) -> None:
    """Row ``number`` has another value under that name, or none."""

    def change(rows: list[list[Any]]) -> None:
        values = unpack(rows[number][4])
        values[name] = value
        rows[number][4] = pack({key: said for key, said in values.items() if said is not GONE})

    resealed(path, change)


@pytest.mark.parametrize("value", [GONE, True, 7, "x", "abc", "", np.zeros((2, 2))], ids=repr)
def test_which_run_it_is(path: Path, value: Any) -> None:
    saying(path, 0, "run_id", value)
    for question in (read_run, verify_run, lambda path: open_run(path, make)):
        with pytest.raises(LedgerError, match="run_id"):
            question(path)


@pytest.mark.parametrize(
    "value", [GONE, True, -1, 1.5, None, "abcd", np.zeros((4, 1)), np.zeros(3)], ids=repr
)
def test_norms(path: Path, value: Any) -> None:
    saying(path, 2, "norms", value)
    with read_run(path) as record:
        with pytest.raises(LedgerError, match="norms"):
            list(record.rounds())
        with pytest.raises(LedgerError):
            record.replay()


@pytest.mark.parametrize("value", [GONE, True, None, "4", 1.5, np.zeros(3), np.zeros(0)], ids=repr)
@pytest.mark.parametrize("name", ["cohort_size", "ticket"])
def test_numbers_of_a_cohort(path: Path, name: str, value: Any) -> None:
    saying(path, 1, name, value)
    with read_run(path) as record:
        for question in (lambda: list(record.rounds()), record.replay, lambda: verify_run(path)):
            with pytest.raises(LedgerError, match=name):
                question()


@pytest.mark.parametrize("value", [GONE, 10**30, "x", 3, np.zeros((4, 1))], ids=repr)
@pytest.mark.parametrize("name", ["clients", "counts", "weights"])
def test_lists_of_a_cohort(path: Path, name: str, value: Any) -> None:
    saying(path, 1, name, value)
    with (
        read_run(path) as record,
        pytest.raises(LedgerError, match=name),
    ):
        list(record.rounds())


@pytest.mark.parametrize("value", [3, "x", None, np.zeros(3)], ids=repr)
@pytest.mark.parametrize("name", ["available", "available_bits"])
def test_who_was_available(path: Path, name: str, value: Any) -> None:
    saying(path, 1, name, value)
    with read_run(path) as record:
        for question in (lambda: list(record.rounds()), record.replay):
            with pytest.raises(LedgerError, match=name):
                question()


@pytest.mark.parametrize("kind", ["joined", "left"])
@pytest.mark.parametrize("value", [GONE, 3, "x", np.zeros(2), np.zeros((2, 2), dtype=np.int64)], ids=repr)
def test_who_joined_or_left(path: Path, kind: str, value: Any) -> None:
    name = "ids" if kind == "joined" else "clients"

    def change(rows: list[list[Any]]) -> None:
        rows[6][1:5] = [kind, -1, 1.5, pack({} if value is GONE else {name: value})]

    resealed(path, change)
    with read_run(path) as record:
        for question in (lambda: list(record.memberships()), lambda: summarise(record)):
            with pytest.raises(LedgerError, match=name):
                question()


@pytest.mark.parametrize(
    "name", ["state.weights.joined_masses", "state.weights.left_clients", "state.round_index"]
)
@pytest.mark.parametrize("value", [None, True, math.nan, "x", np.zeros((2, 2))], ids=repr)
def test_the_state_at_the_start(path: Path, name: str, value: Any) -> None:
    saying(path, 0, name, value)
    with read_run(path) as record, pytest.raises(LedgerError, match=name):
        summarise(record)


@pytest.mark.parametrize(
    "name", ["state.config.guard", "state.config.cohort_size", "state.config.num_clients"]
)
def test_settings_that_are_no_words(path: Path, name: str) -> None:
    saying(path, 0, name, np.zeros(3))
    found = CliRunner().invoke(app, ["runs", "show", str(path)])
    assert (found.exit_code, found.exception) == (0, None)


@pytest.mark.parametrize("time", [1e300, math.inf, -math.inf])
def test_times_that_no_calendar_has(path: Path, time: float) -> None:
    def change(rows: list[list[Any]]) -> None:
        for row in rows[:2]:
            row[3] = time

    resealed(path, change)
    found = CliRunner().invoke(app, ["runs", "show", str(path)])
    assert (found.exit_code, found.exception) == (0, None)
    assert "unknown" in found.output


@pytest.mark.parametrize("value", [[1], {"a": 1}, 1.5])
def test_a_plain_value_is_a_single_one(value: Any) -> None:
    text = json.dumps([["name", "plain", value]]).encode()
    with pytest.raises(LedgerError, match=type(value).__name__):
        unpack(len(text).to_bytes(4, "little") + text)
