"""A run as CSV files, for spreadsheets and statistics programs."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sortition.core.errors import LedgerError
from sortition.ledger.record import RunRecord

ROUNDS = ("round", "drawn_at", "observed_at", "clients", "draws", "replies", "failures", "available")
DRAWS = ("round", "client", "count", "probability", "weight", "replied", "norm")
MEMBERS = ("before_round", "at", "client", "change")


def export_csv(record: RunRecord, directory: str | os.PathLike[str]) -> list[Path]:
    """Write ``rounds.csv``, ``draws.csv`` and ``members.csv``; numbers are exact, times are UTC.

    ``draws.csv`` has a row for each client of each cohort. A norm is empty where the client did not reply
    (``replied`` 0) or the round is open (``replied`` empty).
    """
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [
            _write(target / "rounds.csv", ROUNDS, _rounds(record)),
            _write(target / "draws.csv", DRAWS, _draws(record)),
            _write(target / "members.csv", MEMBERS, _members(record)),
        ]
    except OSError as error:
        raise LedgerError(f"{target} must be a directory that can be written to, got {error}") from error


def _write(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Path:
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with open(unfinished, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _rounds(record: RunRecord) -> Iterator[tuple[Any, ...]]:
    for round_ in record.rounds():
        cohort, norms = round_.cohort, round_.norms
        replies = "" if norms is None else sum(not math.isnan(norm) for norm in norms.tolist())
        yield (
            cohort.round_index,
            _utc(round_.drawn_at),
            "" if round_.observed_at is None else _utc(round_.observed_at),
            len(cohort),
            int(cohort.counts.sum()),
            replies,
            "" if norms is None else len(cohort) - int(replies),
            "" if round_.available is None else len(round_.available),
        )


def _draws(record: RunRecord) -> Iterator[tuple[Any, ...]]:
    for round_ in record.rounds():
        cohort = round_.cohort
        norms = [None] * len(cohort) if round_.norms is None else round_.norms.tolist()
        for client, count, probability, weight, norm in zip(
            cohort.clients.tolist(),
            cohort.counts.tolist(),
            cohort.probabilities.tolist(),
            cohort.weights.tolist(),
            norms,
            strict=True,
        ):
            heard = "" if norm is None else int(not math.isnan(norm))
            shown = repr(norm) if heard == 1 else ""
            yield (cohort.round_index, client, count, repr(probability), repr(weight), heard, shown)


def _members(record: RunRecord) -> Iterator[tuple[Any, ...]]:
    for change in record.memberships():
        for clients, what in ((change.joined, "joined"), (change.left, "left")):
            for client in [] if clients is None else clients.tolist():
                yield (change.round_index, _utc(change.time), client, what)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
