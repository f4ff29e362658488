"""A run as CSV files, for spreadsheets and statistics programs."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from sortition.core.errors import LedgerError
from sortition.ledger.files import belongs_to
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
    if belongs_to(record.path, target):
        raise LedgerError(f"{target} must be none of the files of the run, but is: choose another place")
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [
            _write(record, target / "rounds.csv", ROUNDS, _rounds(record)),
            _write(record, target / "draws.csv", DRAWS, _draws(record)),
            _write(record, target / "members.csv", MEMBERS, _members(record)),
        ]
    except FileExistsError:
        raise LedgerError(f"{target} must be a directory, or be made one, got a file") from None
    except OSError as error:
        raise LedgerError(
            f"{target} must be a directory that can be written to, got {error.strerror}"
        ) from error


def _write(record: RunRecord, path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Path:
    with whole_file(path, record.path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return path


@contextmanager
def whole_file(path: Path, run: Path) -> Iterator[TextIO]:
    """A file to write to that replaces ``path`` at the end; a LedgerError if that is one of the run's own."""
    if belongs_to(run, path):
        raise LedgerError(f"{path} must be none of the files of the run, but is: choose another place")
    if path.exists() and not path.is_file():  # a pipe or a terminal: nothing that could be replaced
        with open(path, "w", newline="", encoding="utf-8") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    with open(unfinished, "x", newline="", encoding="utf-8") as file:
        try:
            yield file
            file.flush()
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)


def _rounds(record: RunRecord) -> Iterator[tuple[Any, ...]]:
    for round_ in record.rounds():
        cohort, norms = round_.cohort, round_.norms
        replies = "" if norms is None else sum(not math.isnan(norm) for norm in norms.tolist())
        yield (
            cohort.round_index,
            _utc(round_.drawn_at),
            _utc(round_.observed_at),
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


def _utc(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
